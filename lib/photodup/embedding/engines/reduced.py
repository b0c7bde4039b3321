"""Files of reduced precisions, their notes, and the verdicts of the accuracy check.

Beside each file lies a `.json` with its notes. BF16 has only the `.json`, since engines round as they compute. A verdict
counts only for the file whose SHA-256 the notes name.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.paths import build_dir
from photodup.core.settings import environment
from photodup.embedding.engines.model import SUPPORTED, ImageModel, can_compute
from photodup.embedding.engines.onnx_runtime import file_sha256, model_sha256
from photodup.embedding.engines.weights import UNNAMED, is_random
from photodup.embedding.imaging import DRAFT_SIZE

if TYPE_CHECKING:
    import onnx

# Raise when the recipe of a precision changes, so that older files are not used.
RECIPE_VERSION = 3
CHECKED = ("int8", "bf16")  # precisions that `photodup export` checks
INT8_SUFFIXES = {"openvino": ".xml", "onnx": ".onnx"}


@dataclass(frozen=True)
class WeightsSource:
    """A float32 export, the source of a reduced precision.

    Attributes:
        path: the ONNX file.
        model_name: architecture.
        model_pretrained: origin of its weights.
        model_digest: of weights and options.
    """

    path: Path
    model_name: str
    model_pretrained: str
    model_digest: str

    @property
    def is_random(self) -> bool:
        return is_random(self.model_pretrained)

    def notes(self, engine: str, precision: str, **more: Any) -> "Notes":
        """Return notes for a precision and an engine."""
        return Notes(engine, precision, self.model_name, self.model_pretrained, self.model_digest, **more)


@dataclass(frozen=True)
class Notes:
    """Notes on one precision of some weights in one engine.

    Attributes:
        model_name, model_pretrained, model_digest: the weights.
        sha256: of the quantised model; empty for BF16.
        calibration: `photographs` (count), `digest` (of their pixels); empty for BF16.
        accuracy_check: result of `photodup.study.accuracy.flips`; None before it ran.
        draft_size: shortest side, pixels, if JPEGs decoded at a reduced scale were checked; 0 if the precision was.
    """

    engine: str
    precision: str
    model_name: str
    model_pretrained: str
    model_digest: str
    sha256: str = ""
    calibration: dict[str, int | str] = field(default_factory=dict)
    accuracy_check: dict[str, Any] | None = None
    draft_size: int = 0


def source_of(path: Path) -> WeightsSource:
    """Return the weights of a float32 export; a foreign graph is named by its file's digest.

    Raises:
        PhotodupError: the file is no ONNX graph, or a quantised one.
    """
    try:
        metadata = json.loads(path.with_suffix(".json").read_text())
        fields = {key: metadata[key] for key in ("model_name", "model_pretrained", "model_digest")}
    except (OSError, ValueError, KeyError):
        metadata = {entry.key: entry.value for entry in load_graph(path).metadata_props}
        fields = {
            "model_name": metadata.get("model_name") or environment().model_name or UNNAMED,
            "model_pretrained": metadata.get("model_pretrained") or f"onnx:{path}",
            "model_digest": metadata.get("model_digest") or file_sha256(path),
        }
    if metadata.get("precision", "fp32") != "fp32":
        raise PhotodupError(
            f"{path} is {metadata['precision']} already: give the float32 export it was made from."
        )
    return WeightsSource(path, **fields)


def reduced_path(source: WeightsSource, engine: str, precision: str, directory: Path | None = None) -> Path:
    """Return the path of a precision; its name depends on weights, engine and recipe.

    The suffix is `.xml` for OpenVINO, `.onnx` for ONNX Runtime, and `.json` for a precision without a file.
    """
    key = hashlib.sha256(f"{source.model_digest}-{engine}-{precision}-{RECIPE_VERSION}".encode()).hexdigest()
    suffix = INT8_SUFFIXES[engine] if precision == "int8" else ".json"
    folder = directory or build_dir() / "models"
    return folder / f"{source.model_name.lower()}-{engine}-{precision}-{key[:12]}{suffix}"


def find_int8(fp32: Path, engine: str, directory: Path | None = None) -> Path:
    """Return the intact INT8 file of an export.

    Args:
        fp32: the float32 export.

    Raises:
        PhotodupError: the file is missing, damaged, or made from other weights.
    """
    source = source_of(fp32)
    path = reduced_path(source, engine, "int8", directory)
    remedy = f"make one with `photodup export --precision int8 --engine {engine}`, or use bf16 or fp32"
    if not path.is_file():
        raise PhotodupError(f"There is no INT8 file of {source.model_name} for {engine} at {path}: {remedy}.")
    notes = read_notes(path)
    if notes is None or (notes.precision, notes.model_digest) != ("int8", source.model_digest):
        raise PhotodupError(f"{path} does not say that it was made from {fp32.name}: {remedy}.")
    if notes.sha256 != _sha256_of(path):
        raise PhotodupError(f"{path} is not what was written there: {remedy}.")
    return path


def read_notes(path: Path) -> Notes | None:
    """Return the notes beside a reduced file, or None."""
    try:
        return Notes(**json.loads(path.with_suffix(".json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_notes(path: Path, notes: Notes) -> None:
    """Write notes beside their file, atomically."""
    write_atomically(path.with_suffix(".json"), json.dumps(vars(notes), indent=1) + "\n")


def may_decide(precision: str, verdict: str) -> bool:
    """Tell whether decisions about photographs may rest on a precision with this verdict."""
    return precision == "fp32" or verdict == "passed"


def why_not(precision: str, verdict: str) -> str:
    """Return a clause why a precision may not decide, and what to use instead."""
    finding = {
        "refused": "its accuracy check refused it",
        "undecided": "its accuracy check could not decide",
    }.get(verdict, "its accuracy was never checked")
    check = f", or check it with `photodup export --precision {precision}`"
    return f"computes in {precision}, and {finding}: use fp32{check if precision in CHECKED else ''}"


def fallback_for(source: WeightsSource, engine: str, precision: str, directory: Path | None = None) -> str:
    """Return a recommendation instead of a refused `precision`, such as `bf16` or `fp32 (bf16 is refused too)`.

    It recommends only a precision that engine and processor have, and that was not refused.
    """
    is_possible = precision == "int8" and "bf16" in SUPPORTED[engine] and can_compute("bf16")
    verdict = verdict_in(reduced_path(source, engine, "bf16", directory), source) if is_possible else ""
    fallbacks = {"": "fp32", "passed": "bf16", "refused": "fp32 (bf16 is refused too)"}
    return fallbacks.get(verdict, "bf16 if it passes, else fp32")


def verdict_on(model: ImageModel) -> str:
    """Return the verdict on a loaded encoder: passed, refused, undecided, not asked, or not needed (FP32)."""
    if model.precision == "fp32":
        return "not needed"
    if model.engine == "triton":  # Triton states it
        return getattr(model, "accuracy_check", None) or "not asked"
    file = getattr(model, "path", None) if model.precision == "int8" else None
    source = _weights_of(model)
    return verdict_in(file or reduced_path(source, model.engine, model.precision), source)


def draft_path(source: WeightsSource, engine: str, precision: str, directory: Path | None = None) -> Path:
    """Return the path of the verdict on JPEGs decoded at a reduced scale.

    At FP32 all engines share it; at other precisions their embeddings differ.
    """
    return reduced_path(source, "any" if precision == "fp32" else engine, f"{precision}-draft", directory)


def draft_verdict_on(model: ImageModel, directory: Path | None = None) -> str:
    """Return the verdict on a loaded encoder with JPEGs decoded at a reduced scale, like `verdict_on`."""
    source = _weights_of(model)
    path = draft_path(source, model.engine, model.precision, directory)
    notes, file = read_notes(path), getattr(model, "path", None)
    if notes is None or notes.draft_size != DRAFT_SIZE:
        return "not asked"
    if model.precision == "int8" and (file is None or notes.sha256 != _sha256_of(file)):
        return "not asked"
    return verdict_in(path, source)


def _weights_of(model: ImageModel) -> WeightsSource:
    return WeightsSource(Path(), model.name, model.pretrained, model.source_digest)


def verdict_in(path: Path, source: WeightsSource) -> str:
    """Return the verdict on these weights in the notes at `path`, or `not asked`."""
    notes = read_notes(path)
    if notes is None or notes.model_digest != source.model_digest or not notes.accuracy_check:
        return "not asked"
    return notes.accuracy_check["verdict"]


def _sha256_of(path: Path) -> str:
    try:
        return model_sha256(path)
    except OSError:  # an .xml without its .bin
        return ""


def load_graph(path: Path) -> "onnx.ModelProto":
    """Read an exported encoder.

    Raises:
        PhotodupError: the file is missing, cut short or no ONNX graph.
    """
    import onnx

    try:
        return onnx.load(path)
    except Exception as error:  # protobuf's DecodeError and OSError share no base class
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise PhotodupError(
            f"{path} is no whole ONNX file ({reason}): run `photodup export` again."
        ) from error
