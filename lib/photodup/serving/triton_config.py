"""Write a Triton model repository for one target, checked with Triton's own protobuf schema.

`model_repository/` is the source: what is deployed on a GPU, with Triton's stock onnxruntime backend.
Rendering copies it into a folder that holds the weights too, fills in where they come from, and changes the
few lines that a target needs. For `cpu-embedded` that is the backend: the embedded Triton has only the Python
backend.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from photodup.errors import PhotodupError
from photodup.paths import project_root

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

Target = Literal["cpu-embedded", "cuda", "tensorrt"]

BATCHING: dict[str, str] = {
    # NVIDIA's advice: batches form from what queued while the device was busy; a lone request never waits.
    "default": "dynamic_batching { }",
    # What the published study measured, and its earlier setting. A lone request waits out the whole delay.
    "published": (
        "dynamic_batching { preferred_batch_size: [4, 8, 16, 32] max_queue_delay_microseconds: 10000 }"
    ),
    "published-early": (
        "dynamic_batching { preferred_batch_size: [8, 16, 32] max_queue_delay_microseconds: 5000 }"
    ),
    # Every request is executed on its own.
    "off": "",
}
"""Named variants of the batcher. Anywhere a name is taken, a pbtxt snippet of your own is taken too."""

# Triton model -> export variant of the graph it runs (None: Python code or an ensemble).
WEIGHTS: dict[str, str | None] = {
    "openclip_vit_b32": "fp32",
    "openclip_vit_b32_openvino": "fp32",
    "openclip_vit_b32_trt": "fp32",
    "openclip_vit_b32_uint8": "uint8",
    "openclip_vit_b32_fp16": "fp16",
    "openclip_vit_b32_preprocess": None,
    "openclip_vit_b32_jpeg": None,
}
NEEDS: dict[str, tuple[str, ...]] = {
    "openclip_vit_b32_jpeg": ("openclip_vit_b32_preprocess", "openclip_vit_b32_uint8")
}
"""Models that an ensemble calls. They are rendered and loaded with it."""

ONLY: dict[str, tuple[Target, ...]] = {
    "openclip_vit_b32_trt": ("tensorrt",),
    "openclip_vit_b32_openvino": ("cpu-embedded",),
}
"""Models of some targets only. TensorRT has a target of its own: its first start builds engines."""


def read_config(path: Path) -> "ModelConfig":
    """Parse a `config.pbtxt`.

    Raises:
        PhotodupError: no such file, or a line that Triton would refuse; the message has the line number.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise PhotodupError(
            f"{path}: {error.strerror}. A Triton model is a folder with a config.pbtxt."
        ) from error
    return parse_config(text, str(path))


def parse_config(text: str, where: str = "config") -> "ModelConfig":
    """Parse the text of a `config.pbtxt`; `where` names it in the error."""
    from google.protobuf import text_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise PhotodupError(f"{where} is not a Triton model configuration: line {error}.") from error


def write_config(config: "ModelConfig", path: Path, note: str = "") -> None:
    """Write `config.pbtxt`, atomically, only if it differs: Triton reloads a model whose file is newer."""
    from google.protobuf import text_format

    text = (f"# {note}\n" if note else "") + text_format.MessageToString(config)
    if path.exists() and path.read_text() == text:
        return
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text)
    os.replace(scratch, path)


def check_config(config: "ModelConfig", folder: Path) -> None:
    """Refuse what Triton would refuse only when it loads the model, or would accept and do something else.

    Raises:
        PhotodupError: naming the field and the remedy.
    """
    where = f"{folder.name}/config.pbtxt"
    if config.name != folder.name:
        raise PhotodupError(f"{where}: name is {config.name!r}; it must be the folder's, {folder.name!r}.")
    if not config.backend and not config.platform:
        raise PhotodupError(f'{where}: no backend; write for example backend: "onnxruntime".')
    if not config.input or not config.output:
        raise PhotodupError(f"{where}: needs at least one input and one output.")
    if config.HasField("dynamic_batching"):
        if config.max_batch_size < 1:
            raise PhotodupError(f"{where}: dynamic_batching needs max_batch_size of at least 1.")
        too_large = [n for n in config.dynamic_batching.preferred_batch_size if n > config.max_batch_size]
        if too_large:
            raise PhotodupError(
                f"{where}: preferred_batch_size {too_large} is above max_batch_size {config.max_batch_size}."
            )
    if config.optimization.cuda.graphs and config.backend == "onnxruntime":
        raise PhotodupError(
            f"{where}: optimization.cuda.graphs does nothing with ONNX Runtime (the TensorRT backend alone "
            "reads it); take the line out."
        )


def set_batching(config: "ModelConfig", variant: str) -> None:
    """Give `config` a batcher: a name of `BATCHING` or a pbtxt snippet (`dynamic_batching { ... }`)."""
    snippet = BATCHING.get(variant, variant)
    if variant not in BATCHING and "dynamic_batching" not in variant:
        raise PhotodupError(
            f"Batching variant {variant!r} is unknown: use one of {', '.join(BATCHING)}, or a snippet "
            "such as 'dynamic_batching { max_queue_delay_microseconds: 2000 }'."
        )
    config.ClearField("dynamic_batching")
    config.MergeFrom(parse_config(snippet, f"batching variant {variant!r}"))


def set_parameter(config: "ModelConfig", **values: Any) -> None:
    """Set `parameters` entries; Triton passes them to the backend as strings."""
    for key, value in values.items():
        config.parameters[key].string_value = str(value)


def render_repository(
    target: Target,
    out_dir: Path,
    exported: dict[str, Path],
    *,
    models: Sequence[str] | None = None,
    variant: str = "default",
    instances: int = 1,
    threads: int = 0,
    pin: bool = False,
    preprocess_instances: int = 2,
    decoder: str = "pil",
    model_digest: str = "",
    pretrained: str = "",
) -> Path:
    """Write the repository for `target` into `out_dir` and return it.

    Args:
        target: `cpu-embedded`, `cuda`, or `tensorrt` (cuda and the TensorRT model beside it).
        out_dir: The repository; models already there that are not asked for stay.
        exported: Export variant (`fp32`, `uint8`, `fp16`) -> ONNX file, from `embedding.export.export`.
        models: Names to render; None is every model of the target whose graph is in `exported`.
        variant: Batching of the encoders: a name of `BATCHING` or a pbtxt snippet.
        instances: Encoder instances: on GPU targets per GPU, on the CPU in all.
        threads: CPU only: intra-op threads of one instance; 0 shares the machine's cores among the instances.
        pin: CPU only: instance i keeps to its own cores, so that instances stand for devices.
        preprocess_instances: Processes that decode images in front of the JPEG ensemble.
        decoder: How they decode: a name of `serving.decoders.DECODERS`.
        model_digest: Digest of weights and options; clients compare it before they trust an embedding.
        pretrained: Where the weights come from, such as `laion2b_s34b_b79k` or `random:0`.

    Raises:
        PhotodupError: unknown target, model or variant, a missing graph, a configuration Triton refuses.
    """
    from photodup.embedding import imaging
    from photodup.serving import decoders

    if target not in ("cpu-embedded", "cuda", "tensorrt"):
        raise PhotodupError(f"Target {target!r} is unknown: use cpu-embedded, cuda or tensorrt.")
    if instances < 1 or preprocess_instances < 1:
        raise PhotodupError("A model needs at least one instance.")
    if decoder not in decoders.DECODERS:
        raise PhotodupError(f"Decoder {decoder!r} is unknown: use one of {', '.join(decoders.DECODERS)}.")
    threads = threads or max(1, _cores() // instances)
    for name in _selected(target, exported, models):
        source, folder = project_root() / "model_repository" / name, out_dir / name
        config = read_config(source / "config.pbtxt")
        weights = WEIGHTS[name]
        (folder / "1").mkdir(parents=True, exist_ok=True)
        if weights:
            set_batching(config, variant)
            config.instance_group[0].count = instances
            set_parameter(config, model_digest=model_digest or "unset", pretrained=pretrained or "unset")
            if target == "cpu-embedded":
                _to_python_backend(config, threads, pin)
                _copy(_code("onnx_session.py"), folder / "1" / "model.py")
            link_weights(exported[weights], folder / "1")
        elif config.platform != "ensemble":
            config.instance_group[0].count = preprocess_instances
            set_parameter(config, decoder=decoder)
            _copy(source / "1" / "model.py", folder / "1" / "model.py")
            for module in (imaging, decoders):
                _copy_module(Path(module.__file__), folder / "1")
        check_config(config, folder)
        write_config(config, folder / "config.pbtxt", f"Rendered for {target} from model_repository/{name}.")
    return out_dir


def link_weights(onnx: Path, version_dir: Path) -> None:
    """Put a graph (and its external data) into a version folder as `model.onnx`, by hard link where possible.

    A hard link costs nothing and, unlike a symbolic one, survives being mounted into a container.
    """
    if not onnx.exists():
        raise PhotodupError(f"{onnx} is missing: export the model first (`photodup export`).")
    version_dir.mkdir(parents=True, exist_ok=True)
    data = onnx.with_name(onnx.name + ".data")
    # The graph names its data file, so that one keeps its name.
    pairs = [(onnx, version_dir / "model.onnx")]
    if data.exists():
        pairs.append((data, version_dir / data.name))
    for source, link in pairs:
        if link.exists() and os.path.samefile(source, link):
            continue
        scratch = link.with_name(f".{link.name}.{os.getpid()}")
        scratch.unlink(missing_ok=True)
        try:
            os.link(source.resolve(), scratch)
        except OSError:
            shutil.copyfile(source, scratch)
        os.replace(scratch, link)


def _selected(target: Target, exported: dict[str, Path], models: Sequence[str] | None) -> list[str]:
    available = [
        name
        for name, weights in WEIGHTS.items()
        if target in ONLY.get(name, (target,)) and (weights is None or weights in exported)
    ]
    if models is None:
        return [name for name in available if all(need in available for need in NEEDS.get(name, ()))]
    wanted = [need for name in models for need in (*NEEDS.get(name, ()), name)]
    for name in wanted:
        if name not in WEIGHTS:
            raise PhotodupError(f"There is no model {name!r} for Triton: choose from {', '.join(WEIGHTS)}.")
        if name not in available:
            raise PhotodupError(
                f"{name} cannot be rendered for {target}: it needs the exported graph {WEIGHTS[name]!r} "
                f"and one of the targets {', '.join(ONLY.get(name, ('cpu-embedded', 'cuda', 'tensorrt')))}."
            )
    return list(dict.fromkeys(wanted))


def _to_python_backend(config: "ModelConfig", threads: int, pin: bool) -> None:
    from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

    config.backend = "python"
    config.ClearField("optimization")  # accelerators are options of the stock backend; see `engine`
    config.instance_group[0].kind = ModelInstanceGroup.KIND_CPU
    set_parameter(config, threads=threads, pin=str(pin).lower())
    # On a CPU every batch size runs at speed from the second call on: one sample proves that the graph runs.
    del config.model_warmup[1:]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _code(name: str) -> Path:
    return Path(__file__).parent / "triton_models" / name


def _copy(source: Path, destination: Path) -> None:
    if not destination.exists() or destination.read_bytes() != source.read_bytes():
        shutil.copyfile(source, destination)


# Library modules run inside Triton as plain files: its Python has no photodup.
_IMPORTS = {
    "from photodup.errors import PhotodupError": "PhotodupError = Exception",
    "from photodup.embedding import imaging": "import imaging",
}


def _copy_module(source: Path, folder: Path) -> None:
    text = source.read_text()
    for ours, theirs in _IMPORTS.items():
        text = text.replace(ours, theirs)
    if any("photodup" in line for line in text.splitlines() if line.lstrip().startswith(("import", "from"))):
        raise PhotodupError(f"{source.name} imports more of photodup than Triton's Python can be given.")
    destination = folder / source.name
    if not destination.exists() or destination.read_text() != text:
        destination.write_text(text)
