"""Triton Python-backend model that runs an encoder on the CPU, or with CUDA. Copied into a repository as `1/model.py`.

It replaces the onnxruntime and openvino backends, which the embedded Triton lacks (they are C++ libraries of the Docker
images), with the same tensors and batching. Graph, engine version, settings (`cpu.py`) and normalisation (`imaging.py`) are
those of the FastAPI service; `photodup_runtime` on Triton's metrics page reports them.
"""

import json
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
        folder = Path(args["model_repository"]) / args["model_version"]
        self._run, runtime = _ENGINES[parameters["engine"]](folder, parameters, int(parameters["threads"]))
        labels = runtime | {"model": args["model_name"], "model_version": args["model_version"]}
        self._family = pb_utils.MetricFamily(
            name="photodup_runtime",
            description="Engine of an encoder, as labels; the value is 1",
            kind=pb_utils.MetricFamily.GAUGE,
        )
        self._metric = self._family.Metric(labels=labels)
        self._metric.set(1)

    def execute(self, requests):
        """Answer all requests from one run; Triton has checked the tensors' types and shapes."""
        arrays = [pb_utils.get_input_tensor_by_name(request, "image").as_numpy() for request in requests]
        try:
            batch = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            is_pixels = batch.dtype == np.uint8  # otherwise normalised float16 or float32
            embedding = self._run(normalize(batch) if is_pixels else batch.astype(np.float32, copy=False))
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(failure)) for _ in requests]
        responses, start = [], 0
        for array in arrays:
            part = np.ascontiguousarray(embedding[start : start + len(array)], dtype=np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("embedding", part)]))
            start += len(array)
        return responses


def _onnx_runtime(folder, parameters, threads):
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    if parameters["device"] == "cuda":
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
    precision = parameters["precision"]
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
