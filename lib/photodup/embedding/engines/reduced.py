"""Where the files of a reduced precision are, what they were made from, and what the gate said of them.

Beside each lies a `.json` with the same name. BF16 has no file of its own, since engines round as they compute;
its `.json` holds the gate's result alone. A result counts for the very file whose SHA-256 it names.
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

if TYPE_CHECKING:
    import onnx

# Raise when a precision is made otherwise from the same weights, so that older files are not taken for new ones.
RECIPE_VERSION = 2
GATED = ("int8", "bf16")  # what `photodup export` asks the gate about
_SUFFIX = {"openvino": ".xml", "onnx": ".onnx"}


@dataclass(frozen=True)
class WeightsSource:
    """The float32 export that a reduced precision is made from.

    Attributes:
        path: the ONNX file.
        model_name: architecture.
        model_pretrained: where its weights came from.
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
        """Return notes about a precision of these weights in an engine."""
        return Notes(engine, precision, self.model_name, self.model_pretrained, self.model_digest, **more)


@dataclass(frozen=True)
class Notes:
    """What is known of one precision of some weights in one engine.

    Attributes:
        engine, precision: for which this holds.
        model_name, model_pretrained, model_digest: the weights.
        sha256: of the quantised model; empty for BF16.
        calibration: `photographs` (how many), `digest` (of their pixels); empty for BF16.
        gate: what `photodup.study.accuracy.gate` found, or None before it was asked.
        draft_size: the gate was asked about JPEGs decoded at a reduced scale, both sides at least this long; 0: about
            the precision.
    """

    engine: str
    precision: str
    model_name: str
    model_pretrained: str
    model_digest: str
    sha256: str = ""
    calibration: dict[str, Any] = field(default_factory=dict)
    gate: dict[str, Any] | None = None
    draft_size: int = 0

    @property
    def source(self) -> WeightsSource:
        """The weights, but not where their export is."""
        return WeightsSource(Path(), self.model_name, self.model_pretrained, self.model_digest)


def source_of(path: Path) -> WeightsSource:
    """Read from a float32 export which weights it holds; a graph from elsewhere goes by its file's digest.

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
    """Return where a precision of these weights is kept: the name carries weights, engine and recipe.

    The suffix is `.xml` for OpenVINO and `.onnx` for ONNX Runtime; `.json` where a precision has no file.
    """
    key = hashlib.sha256(f"{source.model_digest}-{engine}-{precision}-{RECIPE_VERSION}".encode()).hexdigest()
    suffix = _SUFFIX.get(engine, ".json") if precision == "int8" else ".json"
    folder = directory or build_dir() / "models"
    return folder / f"{source.model_name.lower()}-{engine}-{precision}-{key[:12]}{suffix}"


def find_int8(fp32: Path, engine: str, *, file: Path | None = None, directory: Path | None = None) -> Path:
    """Return the INT8 file of an export's weights, intact and made from them.

    Args:
        fp32: the float32 export that is to be served in INT8.
        file: a file elsewhere; default the one that `photodup export --precision int8` makes.

    Raises:
        PhotodupError: no such file, one that is damaged, or one made from other weights.
    """
    source = source_of(fp32)
    path = file or reduced_path(source, engine, "int8", directory)
    remedy = f"make one with `photodup export --precision int8 --engine {engine}`, or use bf16 or fp32"
    if not path.is_file():
        raise PhotodupError(f"There is no INT8 file of {source.model_name} for {engine} at {path}: {remedy}.")
    notes = read_notes(path)
    if notes is None or notes.precision != "int8":
        raise PhotodupError(f"{path} does not say which weights it was made from: {remedy}.")
    if notes.model_digest != source.model_digest:
        raise PhotodupError(
            f"{path} was made from other weights ({notes.model_name}, digest {notes.model_digest[:12]}) than "
            f"{fp32.name} ({source.model_digest[:12]}): {remedy}."
        )
    if notes.sha256 != _sha256_of(path):
        raise PhotodupError(f"{path} is not what was written there: {remedy}.")
    return path


def read_notes(path: Path) -> Notes | None:
    """Return what lies beside a reduced file (or, for BF16, in the `.json` itself); None if nothing does."""
    try:
        return Notes(**json.loads(path.with_suffix(".json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_notes(path: Path, notes: Notes) -> Path:
    """Write them beside the file, atomically."""
    place = path.with_suffix(".json")
    write_atomically(place, json.dumps(vars(notes), indent=1) + "\n")
    return place


def may_decide(precision: str, verdict: str) -> bool:
    """Tell whether decisions about photographs may rest on a precision of which the gate said this."""
    return precision == "fp32" or verdict == "passed"


def why_not(precision: str, verdict: str) -> str:
    """Say what the gate said of a precision that may not decide, and what to use instead."""
    finding = {
        "refused": "the gate refused it",
        "undecided": "the gate could not decide about it",
    }.get(verdict, "the gate was never asked about it")
    asks = f", or let the gate look at it with `photodup export --precision {precision}`"
    return f"computes in {precision}, and {finding}: use fp32{asks if precision in GATED else ''}"


def what_is_left(source: WeightsSource, engine: str, precision: str, directory: Path | None = None) -> str:
    """Say what to use where the gate does not let `precision` through, such as `bf16` or `fp32 (bf16 is refused too)`.

    What the gate refused, and what this engine or processor does not compute, is not left.
    """
    is_possible = precision == "int8" and "bf16" in SUPPORTED[engine] and can_compute("bf16")
    verdict = verdict_in(reduced_path(source, engine, "bf16", directory), source) if is_possible else ""
    left = {"": "fp32", "passed": "bf16", "refused": "fp32 (bf16 is refused too)"}
    return left.get(verdict, "bf16 if it passes, else fp32")


def verdict_on(model: ImageModel) -> str:
    """Return what the gate said of a loaded encoder: `passed`, `refused`, `undecided` or `not asked`.

    FP32 needs no gate: `not needed`.
    """
    if model.precision == "fp32":
        return "not needed"
    if model.engine == "triton":  # which states it
        return getattr(model, "gate", None) or "not asked"
    file = getattr(model, "path", None) if model.precision == "int8" else None
    source = _weights_of(model)
    return verdict_in(file or reduced_path(source, model.engine, model.precision), source)


def draft_path(source: WeightsSource, engine: str, precision: str, directory: Path | None = None) -> Path:
    """Return where the gate's answer about JPEGs decoded at a reduced scale is kept.

    At FP32 the engine makes no difference that a decision could see; what other precisions give is the engine's own.
    """
    return reduced_path(source, "any" if precision == "fp32" else engine, f"{precision}-draft", directory)


def draft_verdict_on(model: ImageModel, directory: Path | None = None) -> str:
    """Return what the gate said of a loaded encoder with JPEGs decoded at a reduced scale, as `verdict_on` does."""
    source = _weights_of(model)
    path = draft_path(source, model.engine, model.precision, directory)
    notes, file = read_notes(path), getattr(model, "path", None)
    if notes is None or notes.draft_size != model.view.draft_size:
        return "not asked"
    if model.precision == "int8" and (file is None or notes.sha256 != _sha256_of(file)):
        return "not asked"
    return verdict_in(path, source)


def _weights_of(model: ImageModel) -> WeightsSource:
    return WeightsSource(Path(), model.name, model.pretrained, model.source_digest)


def verdict_in(path: Path, source: WeightsSource) -> str:
    """Return what the notes at `path` say of these weights: a verdict, or `not asked`."""
    notes = read_notes(path)
    if notes is None or notes.model_digest != source.model_digest or not notes.gate:
        return "not asked"
    return notes.gate["verdict"]


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
