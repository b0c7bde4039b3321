"""Write a Triton model repository for one target.

`model_repository/` is the source, as deployed on a GPU with Triton's stock onnxruntime backend. Rendering copies it into a
folder with the weights, fills in their origin, and changes a few lines for the target. `cpu-embedded` gets the Python
backend, the only one of the embedded Triton. `cpu` keeps the stock one, for NVIDIA's image on a machine without a GPU (not
run here).
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, get_args

from photodup.core.errors import PhotodupError
from photodup.core.files import available_cores, replacing
from photodup.core.paths import project_root
from photodup.embedding import imaging, jpeg_scans
from photodup.embedding.backends import Backend, backend_of, backend_of_model
from photodup.embedding.engines import cpu
from photodup.embedding.engines.model import check_choice, digest_at
from photodup.embedding.engines.onnx_runtime import model_sha256
from photodup.embedding.engines.reduced import read_notes, reduced_path, source_of, verdict_in
from photodup.serving.triton.config import (
    models_in,
    read_config,
    set_batching,
    set_parameter,
    write_config,
    write_if_changed,
)
from photodup.serving.triton.emulated import EmulatedGpu, emulated_gpus

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


Target = Literal["cpu-embedded", "cpu", "cuda", "tensorrt"]
TARGETS: tuple[Target, ...] = get_args(Target)

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
    preprocess_instances: int = 2,
    device: str = "cpu",
) -> Path:
    """Write the repository for `target` into `out_dir` and return it.

    Args:
        target: `cpu-embedded`, `cpu`, `cuda`, or `tensorrt` (cuda plus the TensorRT model).
        out_dir: the repository; its other models stay, later versions of the rendered ones go.
        exported: export variant (`fp32`, `uint8`, `fp16`) -> ONNX file, from `embedding.engines.export`; and
            `openvino-int8` or `onnx-int8` -> quantised file, from `embedding.engines.quantise`.
        models: names to render, on `cpu-embedded` also `emulated_<gpu>` and encoders of OpenVINO or in another
            precision, such as `openclip_vit_b32_openvino_int8_jpeg`. None renders all models of the target, without TF32's.
        variant: batching of the encoders: a name of `config.BATCHING` or a pbtxt snippet.
        instances: of the encoder: per GPU on GPU targets, in all on the CPU, where they share the cores; for emulated ones
            the number of GPUs.
        preprocess_instances: processes that decode images for the JPEG ensemble.
        device: `cpu-embedded` only: `cuda` lets ONNX Runtime compute on the first GPU.

    Raises:
        PhotodupError: unknown model or variant, a missing graph, an invalid configuration.
    """
    if instances < 1 or preprocess_instances < 1:
        raise PhotodupError("A model needs at least one instance.")
    for name in _usual_models(target) if models is None else with_steps(models):
        encoder = None if name == PREPROCESS else _encoder(name, target)
        version_dir = out_dir / name / "1"
        version_dir.mkdir(parents=True, exist_ok=True)
        for version in version_dir.parent.iterdir():
            if version.name.isdigit() and version != version_dir:
                shutil.rmtree(version)  # left by an interrupted `add_version`; Triton would serve it
        committed = name
        if encoder and name not in committed_models():
            committed = backend_of("onnx", "http", encoder.wire).triton_model
        config = read_config(_committed_folder(committed) / "config.pbtxt")
        config.name = name
        if encoder is None:
            config.instance_group[0].count = preprocess_instances
            set_batching(config, "single")  # decoding gains nothing from a batch
            copy_code(_committed_folder(name) / "1" / "model.py", version_dir / "model.py")
            _copy_library(version_dir, imaging, jpeg_scans)
        elif config.platform == "ensemble":
            config.ensemble_scheduling.step[-1].model_name = _steps(name)[-1]
        else:
            if encoder.is_emulated:
                _emulate(config, emulated_gpus()[encoder.emulated_device], version_dir)
            else:
                graph = _graph(encoder, target, exported)
                link_weights(graph, version_dir)
                _describe(config, encoder, graph, exported["fp32"])
                if target == "cpu-embedded":
                    threads = max(1, available_cores() // instances)
                    _run_in_python(config, threads, device, version_dir)
                elif target == "cpu":
                    _on_cpu(config)  # the stock backend, which chooses its threads itself
            config.instance_group[0].count = instances
            set_batching(config, variant)
        if target == "cpu-embedded" and config.dynamic_batching.HasField("default_queue_policy"):
            config.dynamic_batching.default_queue_policy.default_timeout_microseconds = PATIENT_US
        note = f"Rendered for {target} from model_repository/{committed}."
        write_config(config, version_dir.with_name("config.pbtxt"), note)
    return out_dir


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
    """Put a new version of a rendered model beside the old one; `control.load_triton_model` then swaps them.

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


def committed_models() -> list[str]:
    """Return the names of the models in `model_repository/`."""
    return models_in(_committed_folder())


def with_steps(models: Iterable[str]) -> list[str]:
    """Return models and the steps of their ensembles, each once, steps first."""
    return list(dict.fromkeys(step for name in models for step in (*_steps(name), name)))


def _steps(name: str) -> tuple[str, ...]:
    """Return the models that an ensemble calls; they are rendered and loaded with it."""
    return (PREPROCESS, name.removesuffix("_jpeg") + "_uint8") if name.endswith("_jpeg") else ()


def _committed_folder(name: str = "") -> Path:
    return project_root() / "model_repository" / name


def _usual_models(target: Target) -> list[str]:
    encoders = filter(None, map(backend_of_model, committed_models()))
    # TF32 changes the precision, so it is rendered only if requested by name.
    usual_encoders = [b for b in encoders if target in _targets(b) and b.precision != "tf32"]
    return with_steps(encoder.triton_model for encoder in usual_encoders)


def _targets(encoder: Backend) -> tuple[Target, ...]:
    if encoder.engine == "trt":  # a target of its own, since its first start builds engines
        return ("tensorrt",)
    if encoder.precision == "tf32":
        return ("cuda", "tensorrt")
    return TARGETS if (encoder.engine, encoder.precision) == ("onnx", "fp32") else ("cpu-embedded",)


def _encoder(name: str, target: Target) -> Backend:
    """Return the backend (over HTTP) of an encoder, or of an ensemble that ends in it.

    Raises:
        PhotodupError: there is no such model, it is for another target, or its engine lacks the precision.
    """
    encoder = backend_of_model(name)
    if encoder is None or not (
        name in committed_models()
        or encoder.emulated_device in emulated_gpus()
        or (encoder.engine in ("onnx", "openvino") and encoder.precision != "tf32")
    ):
        raise PhotodupError(
            f"There is no model {name!r} for Triton: choose from {', '.join(committed_models())}, or "
            f"emulated_<{'|'.join(emulated_gpus())}> with _fp16, _uint8 or _jpeg for another wire."
        )
    if encoder.engine in ("onnx", "openvino"):
        check_choice(encoder.engine, encoder.precision)
    if target not in (targets := _targets(encoder)):
        raise PhotodupError(f"{name} is for {' and '.join(targets)} only, not for {target}.")
    return encoder


def _graph(encoder: Backend, target: Target, exported: Mapping[str, Path]) -> Path:
    """Return the exported graph of an encoder.

    Raises:
        PhotodupError: it is missing.
    """
    # The embedded Triton runs the graph that FastAPI runs; `onnx_session.py` converts what the wire carries.
    variant = "fp32" if target == "cpu-embedded" else encoder.wire
    if encoder.precision == "int8":
        variant = f"{encoder.engine}-int8"
    for graph in ("fp32", variant):  # FP32's notes name the weights
        if graph not in exported:
            remedy = "`photodup render` exports it"
            if graph.endswith("-int8"):
                remedy = f"run `photodup export --precision int8 --engine {encoder.engine}` first"
            raise PhotodupError(f"{encoder.triton_model} needs the exported graph {graph!r}: {remedy}.")
    return exported[variant]


def _describe(config: "ModelConfig", encoder: Backend, graph: Path, fp32: Path) -> None:
    """State the weights, the engine, the precision and its accuracy check in an encoder's configuration.

    Raises:
        PhotodupError: an INT8 file that was made from other weights.
    """
    source, sha256 = source_of(fp32), ""
    path = reduced_path(source, encoder.engine, encoder.precision)
    if encoder.precision == "int8":
        path, notes = graph, read_notes(graph)
        if notes is None or notes.model_digest != source.model_digest:
            raise PhotodupError(
                f"{graph} was not made from these weights ({source.model_digest[:12]}): run `photodup export "
                f"--precision int8 --engine {encoder.engine}` with them."
            )
        sha256 = model_sha256(graph)
    set_parameter(
        config,
        model_digest=digest_at(encoder.precision, source.model_digest, sha256),
        pretrained=source.model_pretrained,
        engine=encoder.engine,
        precision=encoder.precision,
        accuracy_check="not needed" if encoder.precision == "fp32" else verdict_in(path, source),
    )


def _on_cpu(config: "ModelConfig") -> None:
    """Put the instances on the CPU, with one warm-up sample and without accelerators."""
    config.ClearField("optimization")
    config.instance_group[0].kind = config.instance_group[0].KIND_CPU
    del config.model_warmup[1:]  # on a CPU every batch size is fast from the second call


def _run_in_python(config: "ModelConfig", threads: int, device: str, version_dir: Path) -> None:
    config.backend = "python"
    _on_cpu(config)
    set_parameter(config, threads=threads, device=device)
    # With settings and normalisation of the FastAPI service.
    copy_code(_MODELS / "onnx_session.py", version_dir / "model.py")
    _copy_library(version_dir, imaging, jpeg_scans, cpu)


def _emulate(config: "ModelConfig", gpu: EmulatedGpu, version_dir: Path) -> None:
    config.backend = "python"
    _on_cpu(config)
    config.ClearField("model_warmup")
    config.ClearField("parameters")
    set_parameter(
        config,
        engine=f"emulated-{gpu.name}",
        base_ms=f"{gpu.base_ms:.6f}",
        per_image_ms=f"{gpu.per_image_ms:.6f}",
        source=gpu.source,
        assumption=gpu.assumption,
    )
    copy_code(_MODELS / "emulated_model.py", version_dir / "model.py")
    copy_code(_MODELS / "emulation.py", version_dir / "emulation.py")


def _copy_library(version_dir: Path, *modules: ModuleType) -> None:
    for module in modules:
        source = Path(str(module.__file__))
        text = source.read_text()
        for ours, theirs in _IMPORTS.items():
            text = text.replace(ours, theirs)
        write_if_changed(version_dir / source.name, text)


def copy_code(source: Path, destination: Path) -> None:
    """Copy one file of code."""
    write_if_changed(destination, source.read_text())
