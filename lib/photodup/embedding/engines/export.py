"""Export PyTorch encoders to ONNX files, each verified before it gets its name.

A file holds graph and weights. Its tensors are `image` [n, 3, 224, 224] and `embedding` [n, 512] of length 1. All
variants compute in float32 and differ in their input:

- `fp32`: normalised pixels, 602,112 bytes an image;
- `fp16`: normalised pixels in half precision, widened inside the graph, 301,056 bytes;
- `uint8`: plain pixels 0..255, normalised inside the graph, 150,528 bytes.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.core.errors import PhotodupError
from photodup.core.files import replacing, write_atomically
from photodup.core.paths import build_dir
from photodup.core.settings import inherited
from photodup.embedding.engines.model import ImageModel
from photodup.embedding.engines.onnx_runtime import file_sha256
from photodup.embedding.engines.pytorch import TorchModel
from photodup.embedding.engines.weights import quiet_tools
from photodup.embedding.imaging import IMAGE_SIZE, MEAN, STD, normalize

if TYPE_CHECKING:
    import torch

VARIANTS = ("fp32", "uint8", "fp16")
# LayerNormalization needs 17. The pinned exporter writes IR 10, which needs ONNX Runtime 1.18 (Triton 24.05).
OPSET = 18
# Raise when the graph of the same weights changes, so that older files are not used.
GRAPH_VERSION = 2
# Error of the worst image, relative to the length of its vector. The published study allows 0.1%, too.
MAX_RELATIVE_ERROR = 1e-3
CHECKED_BATCHES = (1, 3, 8)
MADE_FROM = "made_from"  # key in a sidecar by which `known_export` recognises the file


def export(
    model: ImageModel, directory: Path, variants: Sequence[str] = VARIANTS, *, force: bool = False
) -> dict[str, Path]:
    """Export `model` in each variant that has no intact file yet.

    Args:
        model: a PyTorch model from `load_model`.
        directory: made if missing. Files are named `<name>-<variant>-<digest>.onnx`, each with a `.json`
            beside it (size, SHA-256, what was verified).
        variants: some of `VARIANTS`.
        force: export again in any case.

    Returns:
        The file of each variant, about 350 MB each for ViT-B-32.

    Raises:
        PhotodupError: not a PyTorch model, unknown variant, embeddings that differ from PyTorch's.
    """
    if not isinstance(model, TorchModel):
        raise PhotodupError(f"{model.pretrained} is exported already: choose PyTorch weights to export from.")
    if unknown := set(variants) - {*VARIANTS}:
        raise PhotodupError(f"No variant {', '.join(sorted(unknown))}: choose from {', '.join(VARIANTS)}.")
    files = {variant: exported_path(model, directory, variant) for variant in variants}
    for variant, path in files.items():
        if force or not is_intact(path):
            _export_one(model, variant, path)
        sidecar, origin = path.with_suffix(".json"), _origin(model.name, model.pretrained)
        facts = json.loads(sidecar.read_text())
        if facts.get(MADE_FROM) != origin:
            write_atomically(sidecar, _sidecar(facts | {MADE_FROM: origin}))
    return files


def known_export(name: str, weights: str, directory: Path, *, is_read: bool = True) -> Path | None:
    """Return an existing float32 export of these weights, without loading PyTorch; None unless exactly one matches.

    Args:
        is_read: also check the file's SHA-256.
    """
    matches = []
    for sidecar in directory.glob(f"{name.lower()}-fp32-*.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError, PackageNotFoundError):
            if json.loads(sidecar.read_text()).get(MADE_FROM) == _origin(name, weights):
                matches.append(sidecar.with_suffix(".onnx"))
    return matches[0] if len(matches) == 1 and (not is_read or is_intact(matches[0])) else None


def _origin(name: str, weights: str) -> dict[str, str | list[int]]:
    """Return what identifies the weights without loading them: names, versions, a checkpoint's size and time."""
    origin: dict[str, str | list[int]] = {
        "model_name": name,
        "model_pretrained": weights,
        "graph": [OPSET, GRAPH_VERSION],
    }
    origin |= {library: version(library) for library in ("torch", "open_clip_torch")}
    if os.path.isfile(weights):
        status = os.stat(weights)
        origin |= {"checkpoint": [status.st_size, status.st_mtime_ns]}
    return origin


def _sidecar(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=1) + "\n"


def export_apart(
    variants: Sequence[str] = ("fp32",),
    *,
    directory: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Path]:
    """Export the model that `MODEL_NAME` and `MODEL_PRETRAINED` choose, in a process of its own.

    Exporting needs PyTorch and the weights, about 1 GB that a serving process should not hold.

    Args:
        variants: as of `export`.
        directory: where the files go; default build/models.
        env: environment variables that override those of this process.

    Returns:
        The file of each variant.

    Raises:
        PhotodupError: the weights are missing, or the export differs from PyTorch.
    """
    command = [sys.executable, "-P", "-m", "photodup", "export", str(directory or build_dir() / "models")]
    command += [f"--variant={variant}" for variant in variants]
    process = subprocess.run(command, env=inherited(**(env or {})), capture_output=True, text=True)
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["it printed nothing"]
        raise PhotodupError(lines[-1].removeprefix("photodup: "))
    paths = process.stdout.splitlines()[-len(variants) :]  # libraries print other lines before them
    return dict(zip(variants, map(Path, paths), strict=True))


def exported_path(model: ImageModel, directory: Path, variant: str) -> Path:
    """Return the path of a variant; its name depends on weights, options and graph version."""
    key = hashlib.sha256(f"{model.source_digest}-{variant}-{OPSET}-{GRAPH_VERSION}".encode()).hexdigest()[:12]
    return directory / f"{model.name.lower()}-{variant}-{key}.onnx"


def is_intact(path: Path) -> bool:
    """Tell whether an exported file has the size and SHA-256 in its sidecar (0.3 s)."""
    try:
        written = json.loads(path.with_suffix(".json").read_text())
        return path.stat().st_size == written["size_bytes"] and file_sha256(path) == written["sha256"]
    except (OSError, ValueError, KeyError):
        return False


def verify_export(path: Path, model: ImageModel, variant: str) -> dict[str, float | list[int]]:
    """Compare an ONNX file with PyTorch on the same batches of 1, 3 and 8 images.

    Returns:
        `max_abs_error`, `max_relative_error` (of the vector's length, worst image), `min_cosine` and `batches` (sizes).

    Raises:
        PhotodupError: an embedding differs by more than 0.1%.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    absolute, relative, cosine = 0.0, 0.0, 1.0
    for n in CHECKED_BATCHES:
        sent, pixels = _wire(rng.integers(0, 256, (n, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=np.uint8), variant)
        expected = model.embed(pixels)
        (actual,) = session.run(["embedding"], {"image": sent})
        if actual.shape != expected.shape or not np.isfinite(actual).all():
            raise PhotodupError(
                f"{path.name}: output {actual.shape} instead of {expected.shape}, or not finite."
            )
        absolute = max(absolute, float(np.abs(actual - expected).max()))
        relative = max(relative, float(np.linalg.norm(actual - expected, axis=1).max()))
        cosine = min(cosine, float((actual * expected).sum(axis=1).min()))
    if relative > MAX_RELATIVE_ERROR:
        raise PhotodupError(
            f"The {variant} export of {model.name} differs from PyTorch by {relative:.2%} of the vector's "
            f"length, more than {MAX_RELATIVE_ERROR:.1%}: it was not kept; try the pinned torch and onnxruntime."
        )
    return {
        "max_abs_error": absolute,
        "max_relative_error": relative,
        "min_cosine": cosine,
        "batches": list(CHECKED_BATCHES),
    }


def _export_one(model: TorchModel, variant: str, path: Path) -> None:
    metadata = {
        "model_name": model.name,
        "model_pretrained": model.pretrained,
        "model_digest": model.source_digest,
        "variant": variant,
    }
    try:
        # First of all: a folder that cannot be written fails before the minute of tracing.
        with replacing(path) as temporary:
            program = _trace(model, variant)
            _cast_first(program.model.graph)
            program.model.metadata_props.update(metadata)
            program.save(temporary, include_initializers=True, external_data=False)
            del program  # 350 MB, and verifying holds the same weights twice more
            checked = verify_export(temporary, model, variant)
            sidecar = {
                **metadata,
                "size_bytes": temporary.stat().st_size,
                "sha256": file_sha256(temporary),
                "opset": OPSET,
                **checked,
            }
            # The sidecar first: with only one of the two the export is repeated.
            write_atomically(path.with_suffix(".json"), _sidecar(sidecar))
    except OSError as error:
        raise PhotodupError(
            f"Cannot write {path} ({error.strerror or error}): name a folder of yours with 400 MB free for each variant."
        ) from error


def _trace(model: TorchModel, variant: str) -> "torch.onnx.ONNXProgram":
    import torch

    dtype = {"fp16": torch.float16, "uint8": torch.uint8}.get(variant, torch.float32)

    class Graph(torch.nn.Module):
        mean: torch.Tensor
        std: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.visual = model.visual
            self.register_buffer("mean", torch.from_numpy(MEAN.reshape(1, 3, 1, 1).copy()))
            self.register_buffer("std", torch.from_numpy(STD.reshape(1, 3, 1, 1).copy()))

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            pixels = image.to(torch.float32)
            if dtype is torch.uint8:
                pixels = (pixels / 255 - self.mean) / self.std
            return torch.nn.functional.normalize(self.visual(pixels), dim=-1)

    # A batch of 2: the exporter treats a size of 1 as constant.
    example = torch.zeros(2, 3, IMAGE_SIZE, IMAGE_SIZE, dtype=dtype, device=model.device)
    return trace(Graph(), example)


def _cast_first(graph: Any) -> None:
    """Let all nodes read the input after its cast: TensorRT accepts uint8 only for a Cast, not for a Shape."""
    uses = graph.inputs[0].uses()
    casts = [node for node, _ in uses if node.op_type == "Cast"]
    for node, index in uses:
        if casts and node not in casts:
            node.replace_input_with(index, casts[0].outputs[0])
    graph.sort()


def trace(graph: "torch.nn.Module", example: "torch.Tensor") -> "torch.onnx.ONNXProgram":
    """Return a network from `image` to `embedding`, with a free batch size, as an ONNX program.

    Args:
        graph: a `torch.nn.Module`.
        example: two images.
    """
    import torch

    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # fused attention has no ONNX form
    try:
        with quiet_tools():  # the exporter gives advice
            return torch.onnx.export(  # type: ignore[return-value]  # with dynamo=True it is never None
                graph.eval(),
                (example,),
                dynamo=True,
                input_names=["image"],
                output_names=["embedding"],
                dynamic_shapes={"image": {0: torch.export.Dim("batch")}},
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _wire(pixels: np.ndarray, variant: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the graph's input, and the float32 pixels that it stands for."""
    if variant == "uint8":
        return pixels, normalize(pixels)
    sent = normalize(pixels).astype(np.float16 if variant == "fp16" else np.float32)
    return sent, sent.astype(np.float32)
