"""Triton Python-backend model that runs an encoder on the CPU. Copied into a repository as `1/model.py`.

The embedded Triton has no onnxruntime or openvino backend (they are C++ libraries of the Docker images), so this
stands in for them: same tensors, same batching by Triton, the graph run by ONNX Runtime or by OpenVINO, the same
that run in process.
"""

import json
import os
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One session per instance. All requests of one execution go through one `session.run`."""

    def initialize(self, args):
        """Open the session.

        Args:
            args: Triton's strings. Read from the model's parameters: `engine` (onnx or openvino), `precision`
                (fp32, bf16, int8), `threads` (intra-op threads), `pin` (true: instance i keeps to its own cores),
                `mean` and `std` (of pixels, for a graph that takes other tensors than the wire carries).
        """
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        threads = int(parameters.get("threads", "0")) or os.cpu_count() or 1
        if parameters.get("pin") == "true":
            _pin(args["model_instance_name"], threads)
        folder = Path(args["model_repository"]) / args["model_version"]
        self.shape = tuple(int(size) for size in config["input"][0]["dims"])
        self.dtype = np.dtype(pb_utils.triton_string_to_numpy(config["input"][0]["data_type"]))
        engine = parameters.get("engine", "onnx")
        if engine not in _ENGINES:
            raise pb_utils.TritonModelException(
                f"engine {engine!r} is unknown here: use {' or '.join(_ENGINES)}"
            )
        self.run = _ENGINES[engine](folder, parameters, threads, self.dtype)

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
            embedding = self.run(batch)
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


def _onnx_runtime(folder, parameters, threads, wire):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Waiting threads sleep. Spinning would gain microseconds and take the cores from Triton's own threads,
    # the preprocessing and the client, which share them.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = ort.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    takes = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}
    dtype = np.dtype(takes[session.get_inputs()[0].type])
    mean, std = (np.array(_floats(parameters, key), np.float32).reshape(-1, 1, 1) for key in ("mean", "std"))

    def run(batch):
        if batch.dtype != dtype:  # a float32 graph behind another wire
            batch = batch.astype(np.float32)
            if wire == np.uint8:
                batch = (batch / np.float32(255) - mean) / std
        return session.run(["embedding"], {"image": batch})[0]

    return run


def _openvino(folder, parameters, threads, wire):
    import openvino
    from openvino.preprocess import PrePostProcessor

    core = openvino.Core()
    path = folder / "model.xml" if (folder / "model.xml").exists() else folder / "model.onnx"
    network = core.read_model(path)
    if wire != np.float32:  # the wire's tensor becomes the graph's inside the compiled model
        before = PrePostProcessor(network)
        before.input().tensor().set_element_type(openvino.Type(wire)).set_layout(openvino.Layout("NCHW"))
        steps = before.input().preprocess().convert_element_type(openvino.Type.f32)
        if wire == np.uint8:
            steps.mean([255 * m for m in _floats(parameters, "mean")])
            steps.scale([255 * s for s in _floats(parameters, "std")])
        network = before.build()
    precision = parameters.get("precision", "fp32")
    # Not asked for, OpenVINO would choose: BF16 wherever the processor has it. INT8 lies in the file.
    hint = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}[precision]
    settings = {"INFERENCE_PRECISION_HINT": hint, "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}
    if precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise pb_utils.TritonModelException("this processor has no instructions for bf16: use int8 or fp32")
    if parameters.get("pin") == "true":
        settings["ENABLE_CPU_PINNING"] = False  # the cores are chosen already
    request = core.compile_model(network, "CPU", settings).create_infer_request()

    def run(batch):
        request.infer([np.ascontiguousarray(batch)], share_inputs=True)
        embedding = np.array(request.get_output_tensor(0).data, np.float32)
        return embedding / np.linalg.norm(embedding, axis=-1, keepdims=True)

    return run


_ENGINES = {"onnx": _onnx_runtime, "openvino": _openvino}


def _floats(parameters, key):
    return [float(value) for value in parameters.get(key, "0,0,0").split(",")]


def _pin(instance_name, threads):
    cores = sorted(os.sched_getaffinity(0))
    index = int(instance_name.rsplit("_", 1)[1])
    own = [cores[(index * threads + offset) % len(cores)] for offset in range(threads)]
    os.sched_setaffinity(0, own)
