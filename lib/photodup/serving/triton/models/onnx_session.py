"""Triton Python-backend model that runs an ONNX graph on the CPU. Copied into a repository as `1/model.py`.

The embedded Triton has no onnxruntime backend (it is a C++ library of the Docker image), so this stands in
for it: same tensors, same batching by Triton, the graph run by ONNX Runtime's CPU or OpenVINO provider.
"""

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One session per instance. All requests of one execution go through one `session.run`."""

    def initialize(self, args):
        """Open the session.

        Args:
            args: Triton's strings. Read from the model's parameters: `engine` (onnx or openvino), `threads`
                (intra-op threads), `pin` (true: instance i keeps to its own cores).
        """
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        threads = int(parameters.get("threads", "0")) or os.cpu_count() or 1
        if parameters.get("pin") == "true":
            _pin(args["model_instance_name"], threads)
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.session = _open(path, parameters.get("engine", "onnx"), threads)
        self.shape = tuple(int(size) for size in config["input"][0]["dims"])
        self.dtype = np.dtype(pb_utils.triton_string_to_numpy(config["input"][0]["data_type"]))

    def execute(self, requests):
        """Answer the good requests from one run over their concatenation, the bad ones with a reason."""
        responses = [None] * len(requests)
        arrays, owners = [], []
        for index, request in enumerate(requests):
            try:
                array = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
                if array.dtype != self.dtype or array.shape[1:] != self.shape:
                    raise ValueError(
                        f"image must be {self.dtype}[n,{','.join(map(str, self.shape))}], "
                        f"got {array.dtype}{list(array.shape)}"
                    )
                arrays.append(array)
                owners.append(index)
            except Exception as error:
                responses[index] = _failure(error)
        if not arrays:
            return responses
        try:
            batch = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            embedding = self.session.run(["embedding"], {"image": batch})[0]
        except Exception as error:
            for index in owners:
                responses[index] = _failure(error)
            return responses
        start = 0
        for index, array in zip(owners, arrays, strict=True):
            part = np.ascontiguousarray(embedding[start : start + len(array)], dtype=np.float32)
            responses[index] = pb_utils.InferenceResponse([pb_utils.Tensor("embedding", part)])
            start += len(array)
        return responses


def _failure(error):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}"))


def _open(path, engine, threads):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Waiting threads sleep. Spinning would gain microseconds and take the cores from Triton's own threads,
    # the preprocessing and the client, which share them.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    if engine == "openvino":
        providers = [("OpenVINOExecutionProvider", {"device_type": "CPU", "num_of_threads": str(threads)})]
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # OpenVINO does
    elif engine == "onnx":
        providers = ["CPUExecutionProvider"]
    else:
        raise pb_utils.TritonModelException(f"engine {engine!r} is unknown here: use onnx or openvino")
    session = ort.InferenceSession(str(path), options, providers=providers)
    if engine == "openvino" and session.get_providers()[0] != "OpenVINOExecutionProvider":
        # ONNX Runtime falls back to its own CPU provider with a warning; a comparison must not.
        raise pb_utils.TritonModelException("the OpenVINO provider did not load; see the server's log")
    return session


def _pin(instance_name, threads):
    cores = sorted(os.sched_getaffinity(0))
    index = int(instance_name.rsplit("_", 1)[1])
    own = [cores[(index * threads + offset) % len(cores)] for offset in range(threads)]
    os.sched_setaffinity(0, own)
