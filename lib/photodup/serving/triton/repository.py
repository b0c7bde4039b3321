"""Write a Triton model repository for one target.

`model_repository/` is the source, as deployed on a GPU with Triton's stock onnxruntime backend. Rendering copies it into a
folder with the weights, fills in their origin, and changes a few lines for the target. `cpu-embedded` gets the Python
backend, the only one of the embedded Triton. `cpu` keeps the stock one, for NVIDIA's image on a machine without a GPU (not
run here).
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from photodup.core.errors import PhotodupError
from photodup.core.files import available_cores, replacing
from photodup.core.paths import project_root
from photodup.embedding import imaging, jpeg_scans
from photodup.embedding.backends import Backend, backend_of
from photodup.embedding.engines import cpu
from photodup.embedding.engines.model import check_choice, digest_at
from photodup.embedding.engines.onnx_runtime import model_sha256
from photodup.embedding.engines.reduced import read_notes, reduced_path, source_of, verdict_in
from photodup.serving.triton.config import (
    check_config,
    read_config,
    set_batching,
    set_parameter,
    write_config,
    write_if_changed,
)
from photodup.serving.triton.emulated import parse_emulated

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


Target = Literal["cpu-embedded", "cpu", "cuda", "tensorrt"]
TARGETS: tuple[Target, ...] = ("cpu-embedded", "cpu", "cuda", "tensorrt")

WEIGHTS: dict[str, str | None] = {
    "openclip_vit_b32": "fp32",
    "openclip_vit_b32_tf32": "fp32",
    "openclip_vit_b32_openvino": "fp32",
    "openclip_vit_b32_trt": "fp32",
    "openclip_vit_b32_trt_uint8": "uint8",
    "openclip_vit_b32_trt_jpeg": None,
    "openclip_vit_b32_uint8": "uint8",
    "openclip_vit_b32_fp16": "fp16",
    "openclip_vit_b32_preprocess": None,
    "openclip_vit_b32_jpeg": None,
}
"""Triton model -> export variant of its graph; None for Python code and ensembles."""

ONLY: dict[str, tuple[Target, ...]] = {
    "openclip_vit_b32_tf32": ("cuda", "tensorrt"),
    **dict.fromkeys([f"openclip_vit_b32_trt{wire}" for wire in ("", "_uint8", "_jpeg")], ("tensorrt",)),
    "openclip_vit_b32_openvino": ("cpu-embedded",),
}
"""Models for some targets only. TensorRT has its own target, since its first start builds engines."""

PATIENT_US = 60_000_000
"""Longest wait in the embedded servers, whose queues are measured; like `service.start.PATIENT`."""

_MODELS = Path(__file__).parent / "models"  # Python models of ours
PREPROCESS = "openclip_vit_b32_preprocess"

# Imports to replace in library modules that run as plain files in Triton's Python, without photodup.
_IMPORTS = {
    "from photodup.core.errors import PhotodupError": "PhotodupError = Exception",
    "from photodup.embedding import imaging": "import imaging",
    "from photodup.embedding import jpeg_scans": "import jpeg_scans",
    "import photodup.embedding.raw_image": "raise ImportError",  # only the scan reads RAW
}


def render_repository(
    target: Target,
    out_dir: Path,
    exported: Mapping[str, Path],
    *,
    models: Sequence[str] | None = None,
    variant: str = "default",
    instances: int = 1,
    threads: int = 0,
    preprocess_instances: int = 2,
    model_digest: str = "",
    pretrained: str = "",
    device: str = "cpu",
) -> Path:
    """Write the repository for `target` into `out_dir` and return it.

    Args:
        target: `cpu-embedded`, `cpu`, `cuda`, or `tensorrt` (cuda plus the TensorRT model).
        out_dir: the repository; its other models stay, later versions of the rendered ones go.
        exported: export variant (`fp32`, `uint8`, `fp16`) -> ONNX file, from `embedding.engines.export`; and
            `openvino-int8` or `onnx-int8` -> quantised file, from `embedding.engines.quantise`.
        models: names to render, also `emulated_<gpu>` with `_fp16`, `_uint8` or `_jpeg` on `cpu-embedded`;
            or an encoder with engine and precision (`parse_encoder`), such as
            `openclip_vit_b32_openvino_int8_jpeg`. None renders all models of the target whose graph is in `exported`,
            without TF32's.
        variant: batching of the encoders: a name of `config.BATCHING` or a pbtxt snippet.
        instances: of the encoder: per GPU on GPU targets, in all on the CPU; for emulated ones the number of GPUs.
        threads: CPU only: intra-op threads of one instance; 0 shares the cores among the instances (`cpu-embedded`) or
            leaves the choice to ONNX Runtime (`cpu`).
        preprocess_instances: processes that decode images for the JPEG ensemble.
        model_digest: of weights and options; clients compare it.
        pretrained: origin of the weights, such as `laion2b_s34b_b79k` or `random:0`.
        device: `cpu-embedded` only: `cuda` lets ONNX Runtime compute on the first GPU.

    Raises:
        PhotodupError: unknown target, model or variant, a missing graph, an invalid configuration.
    """
    if target not in TARGETS:
        raise PhotodupError(f"Target {target!r} is unknown: use {', '.join(TARGETS)}.")
    if instances < 1 or preprocess_instances < 1:
        raise PhotodupError("A model needs at least one instance.")
    names = _available(target, exported) if models is None else with_steps(models)
    for name in names:
        folder = out_dir / name
        (folder / "1").mkdir(parents=True, exist_ok=True)
        for version in folder.iterdir():
            if version.name.isdigit() and version.name != "1":
                shutil.rmtree(version)  # left by an interrupted `add_version`; Triton would serve it
        encoder = parse_encoder(name)
        source = _source(name, encoder)
        config = _committed(source)
        if graph := _graph(name, target, exported):
            set_parameter(config, model_digest=model_digest or "unset", pretrained=pretrained or "unset")
        if _is_emulated(name):
            _emulate(config, name, folder / "1")
        elif encoder and (name not in WEIGHTS or encoder.engine == "openvino"):
            describe_encoder(config, encoder, graph, model_digest)
        if graph:
            cores = threads or max(1, available_cores() // instances)
            if target == "cpu-embedded":
                _run_in_python(config, cores, device, folder / "1")
            elif target == "cpu":
                _on_cpu(config)  # the stock backend, which by default chooses its threads itself
                if threads:
                    set_parameter(config, intra_op_thread_count=threads)
            link_weights(graph, folder / "1")
        if name == PREPROCESS:
            config.instance_group[0].count = preprocess_instances
            set_batching(config, "single")  # decoding gains nothing from a batch
            copy_code(_committed_folder(name) / "1" / "model.py", folder / "1" / "model.py")
            _copy_library(folder / "1", imaging, jpeg_scans)
        elif config.platform != "ensemble":
            config.instance_group[0].count = instances
            set_batching(config, variant)
        if target == "cpu-embedded" and config.dynamic_batching.HasField("default_queue_policy"):
            config.dynamic_batching.default_queue_policy.default_timeout_microseconds = PATIENT_US
        check_config(config, folder)
        note = f"Rendered for {target} from model_repository/{source}."
        write_config(config, folder / "config.pbtxt", note)
    return out_dir


def _source(name: str, encoder: Backend | None) -> str:
    """Return the committed model whose configuration a model starts from."""
    if _is_emulated(name):
        return f"openclip_vit_b32{parse_emulated(name)[1]}"
    return backend_of("onnx", "http", encoder.wire).triton_model if encoder and name not in WEIGHTS else name


def link_weights(onnx: Path, version_dir: Path) -> None:
    """Put a graph into a version folder (such as `<model>/2`) as `model.onnx`, by hard link if possible.

    OpenVINO's `.xml` and `.bin` become `model.xml` and `model.bin`. Unlike a symbolic link, a hard link also works when
    mounted into a container.
    """
    if not onnx.exists():
        raise PhotodupError(f"{onnx} is missing: `photodup render` exports the model first.")
    version_dir.mkdir(parents=True, exist_ok=True)
    if onnx.suffix == ".xml":
        link_file(onnx.with_suffix(".bin"), version_dir / "model.bin")
    link_file(onnx, version_dir / f"model{onnx.suffix}")


def link_file(onnx: Path, link: Path) -> None:
    """Hard-link a file under another name, or copy it to another file system."""
    if link.exists() and os.path.samefile(onnx, link):
        return
    with replacing(link) as scratch:
        try:
            os.link(onnx.resolve(), scratch)
        except OSError:  # another file system
            shutil.copyfile(onnx, scratch)


def add_version(repository: Path, model: str, version: int, onnx: Path) -> Path:
    """Put a new version of a rendered model beside the old one; `EmbeddedTriton.load` then swaps them.

    The version policy (`latest`, 1) loads the new version first and unloads the old one after its last request, so clients
    notice nothing. To go back, delete the folder and load again.

    Returns:
        The version's folder.
    """
    first = repository / model / "1"
    if not first.is_dir():
        raise PhotodupError(f"{repository} has no model {model} to add a version to.")
    folder = first.with_name(str(version))
    link_weights(onnx, folder)
    for code in first.glob("*.py"):
        copy_code(code, folder / code.name)
    return folder


def _is_emulated(name: str) -> bool:
    return name.startswith("emulated_")


def _steps(name: str) -> tuple[str, ...]:
    """Return the models that an ensemble calls; they are rendered and loaded with it."""
    if name.endswith("_jpeg"):
        return (PREPROCESS, name.removesuffix("_jpeg") + "_uint8")
    return ()


def with_steps(models: Iterable[str]) -> list[str]:
    """Return models and the steps of their ensembles, each once, steps first."""
    return list(dict.fromkeys(step for name in models for step in (*_steps(name), name)))


def _available(target: Target, exported: Mapping[str, Path]) -> list[str]:
    def usable(name: str) -> bool:
        weights = WEIGHTS[name]
        # TF32 only if requested by name: it changes the precision.
        return (
            target in ONLY.get(name, TARGETS)
            and (weights is None or weights in exported)
            and not name.endswith("_tf32")
        )

    return [name for name in WEIGHTS if usable(name) and all(usable(step) for step in _steps(name))]


def _graph(name: str, target: Target, exported: Mapping[str, Path]) -> Path | None:
    """Return the exported graph of `name` on `target`; None for Python code and ensembles.

    Raises:
        PhotodupError: the model is for another target, or its graph is missing.
    """
    if _is_emulated(name):
        if target != "cpu-embedded":
            raise PhotodupError(
                f"{name} stands for a GPU that is not there: it is for cpu-embedded, not for {target}."
            )
        return None
    encoder = None if name in WEIGHTS else parse_encoder(name)
    targets = ("cpu-embedded",) if encoder else ONLY.get(name, TARGETS)
    if target not in targets:
        raise PhotodupError(f"{name} is for {' and '.join(targets)} only, not for {target}.")
    variant = WEIGHTS.get(name)
    if encoder and encoder.wire != "jpeg":
        variant = f"{encoder.engine}-int8" if encoder.precision == "int8" else "fp32"
    if target == "cpu-embedded" and variant in ("fp16", "uint8"):
        variant = "fp32"  # the graph that FastAPI runs; `onnx_session.py` converts what the wire carries
    if variant is not None and variant not in exported:
        remedy = "`photodup render` exports it"
        if variant.endswith("-int8"):
            remedy = f"run `photodup export --precision int8 --engine {variant.removesuffix('-int8')}` first"
        raise PhotodupError(f"{name} needs the exported graph {variant!r}: {remedy}.")
    return exported[variant] if variant else None


def _committed_folder(name: str) -> Path:
    return project_root() / "model_repository" / name


def _committed(name: str) -> "ModelConfig":
    if name not in WEIGHTS:
        raise PhotodupError(
            f"There is no model {name!r} for Triton: choose from {', '.join(WEIGHTS)} or emulated_<gpu>."
        )
    return read_config(_committed_folder(name) / "config.pbtxt")


def _on_cpu(config: "ModelConfig") -> None:
    """Put the instances on the CPU, with one warm-up sample and without accelerators."""
    config.ClearField("optimization")
    config.instance_group[0].kind = config.instance_group[0].KIND_CPU
    del config.model_warmup[1:]  # on a CPU every batch size is fast from the second call


def _to_python(config: "ModelConfig") -> None:
    """Turn a committed encoder configuration into one for the Python backend on the CPU."""
    config.backend = "python"
    _on_cpu(config)


def _run_in_python(config: "ModelConfig", threads: int, device: str, version_dir: Path) -> None:
    _to_python(config)
    set_parameter(config, threads=threads, device=device)
    # With settings and normalisation of the FastAPI service.
    copy_code(_MODELS / "onnx_session.py", version_dir / "model.py")
    _copy_library(version_dir, imaging, jpeg_scans, cpu)


def _emulate(config: "ModelConfig", name: str, version_dir: Path) -> None:
    preset, _ = parse_emulated(name)
    config.name = name
    if config.platform == "ensemble":
        config.ensemble_scheduling.step[-1].model_name = _steps(name)[-1]
        return
    _to_python(config)
    config.ClearField("model_warmup")
    config.ClearField("parameters")
    set_parameter(
        config,
        engine=f"emulated-{preset.name}",
        base_ms=f"{preset.base_ms:.6f}",
        per_image_ms=f"{preset.per_image_ms:.6f}",
        source=preset.source,
        assumption=preset.assumption,
    )
    copy_code(_MODELS / "emulated_model.py", version_dir / "model.py")
    copy_code(_MODELS / "emulation.py", version_dir / "emulation.py")


def _copy_library(version_dir: Path, *modules: ModuleType) -> None:
    for module in modules:
        source = Path(str(module.__file__))
        text = source.read_text()
        for ours, theirs in _IMPORTS.items():
            text = text.replace(ours, theirs)
        if any(
            "photodup" in line for line in text.splitlines() if line.lstrip().startswith(("import", "from"))
        ):
            raise PhotodupError(f"{source.name} imports more of photodup than Triton's Python can be given.")
        write_if_changed(version_dir / source.name, text)


def copy_code(source: Path, destination: Path) -> None:
    """Copy one file of code."""
    write_if_changed(destination, source.read_text())


# Encoders that are not in `model_repository/` are rendered from the configuration of their wire; engine and precision are
# parameters of the Python model.
_ENCODER = re.compile(
    r"openclip_vit_b32(?:_(?P<engine>openvino))?(?:_(?P<precision>bf16|int8))?(?:_(?P<wire>fp16|uint8|jpeg))?"
)


def parse_encoder(name: str) -> Backend | None:
    """Return the backend (over HTTP) of an encoder's name; None for other models.

    Raises:
        PhotodupError: the engine lacks the precision.
    """
    if not (match := _ENCODER.fullmatch(name)):
        return None
    engine, precision, wire = match["engine"] or "onnx", match["precision"] or "fp32", match["wire"] or "fp32"
    check_choice(engine, precision)
    return Backend("triton", engine, precision, "http", wire)


def describe_encoder(config: "ModelConfig", encoder: Backend, file: Path | None, model_digest: str) -> None:
    """Change the configuration of the ONNX Runtime model of a wire, in place, into that of another engine and precision.

    Args:
        file: its graph; None for an ensemble.
        model_digest: of the weights.

    Raises:
        PhotodupError: an INT8 file that was made from other weights.
    """
    config.name = encoder.triton_model
    if file is None:
        config.ensemble_scheduling.step[-1].model_name = replace(encoder, wire="uint8").triton_model
        return
    sha256, gate = "", "not needed"
    if encoder.precision == "bf16":
        source = source_of(file)
        gate = verdict_in(reduced_path(source, encoder.engine, "bf16"), source)
    if encoder.precision == "int8":
        notes = read_notes(file)
        if model_digest and (notes is None or notes.model_digest != model_digest):
            raise PhotodupError(
                f"{file} was not made from these weights ({model_digest[:12]}): run `photodup export --precision int8 "
                f"--engine {encoder.engine}` with them."
            )
        sha256 = model_sha256(file)
        gate = (notes.gate or {}).get("verdict", "not asked") if notes else "not asked"
    config.ClearField("optimization")
    set_parameter(
        config,
        engine=encoder.engine,
        precision=encoder.precision,
        gate=gate,
        model_digest=digest_at(encoder.precision, model_digest, sha256) if model_digest else "unset",
    )
