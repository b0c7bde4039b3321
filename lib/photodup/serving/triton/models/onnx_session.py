"""Triton Python-backend model that runs an encoder on the CPU, or with CUDA. Copied into a repository as `1/model.py`.

It replaces the onnxruntime and openvino backends, which the embedded Triton lacks (they are C++ libraries of the Docker
images), with the same tensors and batching. Graph, engine version, settings (`cpu.py`) and normalisation (`imaging.py`) are
those of the FastAPI service; `photodup_runtime` on Triton's metrics page reports them.
"""

import json
import os
from pathlib import Path

import cpu
import numpy as np
import triton_python_backend_utils as pb_utils
from imaging import normalize


class TritonPythonModel:
    """One session per instance. All requests of one execution go through one `session.run`."""

    def initialize(self, args):
        """Open the session.

        Args:
            args: Triton's strings. Read from the model's parameters: `engine` (onnx or openvino), `precision`
                (fp32, bf16, int8), `threads` (intra-op threads), `device` (cpu, or cuda with onnx).
        """
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        threads = int(parameters.get("threads", "0")) or os.cpu_count() or 1
        folder = Path(args["model_repository"]) / args["model_version"]
        self.shape = tuple(int(size) for size in config["input"][0]["dims"])
        self.dtype = np.dtype(pb_utils.triton_string_to_numpy(config["input"][0]["data_type"]))
        engine = parameters.get("engine", "onnx")
        if engine not in _ENGINES:
            raise pb_utils.TritonModelException(
                f"engine {engine!r} is unknown here: use {' or '.join(_ENGINES)}"
            )
        self._run, runtime = _ENGINES[engine](folder, parameters, threads)
        labels = runtime | {"model": args["model_name"], "model_version": args["model_version"]}
        self._family = pb_utils.MetricFamily(
            name="photodup_runtime",
            description="Engine of an encoder, as labels; the value is 1",
            kind=pb_utils.MetricFamily.GAUGE,
        )
        self._metric = self._family.Metric(labels=labels)
        self._metric.set(1)

    def run(self, batch):
        """Return the embeddings of a batch: pixels, or normalised float16 or float32."""
        return self._run(
            normalize(batch) if batch.dtype == np.uint8 else batch.astype(np.float32, copy=False)
        )

    def execute(self, requests):
        """Answer all valid requests from one run, and the others with an error."""
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


def _onnx_runtime(folder, parameters, threads):
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    if parameters.get("device") == "cuda":
        import torch  # noqa: F401  (its wheels bring the libraries of CUDA; importing it loads them)

        providers = ["CUDAExecutionProvider", *providers]
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), cpu.onnx_options(threads), providers=providers
    )
    if session.get_providers()[0] != providers[0]:
        raise pb_utils.TritonModelException(f"{providers[0]} does not start here: see the lines above")
    return lambda batch: session.run(["embedding"], {"image": batch})[0], cpu.describe_onnx(session)


def _openvino(folder, parameters, threads):
    import openvino

    core = openvino.Core()
    path = folder / "model.xml" if (folder / "model.xml").exists() else folder / "model.onnx"
    precision = parameters.get("precision", "fp32")
    if precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise pb_utils.TritonModelException("this processor has no instructions for bf16: use int8 or fp32")
    settings = cpu.openvino_settings(precision, threads)
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    request = compiled.create_infer_request()

    def run(batch):
        request.infer([np.ascontiguousarray(batch)], share_inputs=True)
        embedding = np.array(request.get_output_tensor(0).data, np.float32)
        return embedding / np.linalg.norm(embedding, axis=-1, keepdims=True)

    return run, cpu.describe_openvino(compiled)


_ENGINES = {"onnx": _onnx_runtime, "openvino": _openvino}
