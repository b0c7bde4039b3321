"""What a backend is: server, engine, precision, protocol and wire, and how that is written and read.

The name `triton-onnx-fp32-grpc-fp32` says it in this order; in process there is no protocol and no wire:
`local-pytorch-fp32`. A name is read once, where it comes in (a command line, a file, an environment variable);
everything behind that point asks the object.
"""

import re
from dataclasses import dataclass
from typing import Any

from photodup.core.errors import PhotodupError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")
WIRES = {
    "fastapi": ("jpeg", "base64"),
    "triton": ("fp32", "fp16", "uint8", "jpeg", "json"),
    "local": ("",),
    "peer": ("jpeg",),
}
PROTOCOLS = {"fastapi": ("http",), "triton": ("http", "grpc"), "local": ("",), "peer": ("http",)}
ENGINES = ("pytorch", "onnx", "trt", "openvino", "triton")
COLUMNS = ("backend", "server", "engine", "precision", "protocol", "wire")
DUMMY = "dummy"  # in process only: a known answer after a known delay, to measure the load generator itself
# What an engine computes in unless it is told otherwise: TensorRT's plans are built with FP16 allowed.
USUAL_PRECISION = {"trt": "fp16"}
# What the source documents write into INFERENCE_BACKEND and its like, and what it means.
SHORT_NAMES = {
    "pytorch": "fastapi-pytorch-fp32-http-jpeg",
    "triton": "triton-onnx-fp32-http-fp32",
    "triton_grpc": "triton-onnx-fp32-grpc-fp32",
    "local": "local-pytorch-fp32",
}
_EMULATED = re.compile(r"emulated-([a-z0-9]+(?:-[a-z0-9]+)*)")
_ENGINE_PRECISION = rf"-(?P<engine>[a-z0-9-]+)-(?P<precision>{'|'.join(PRECISIONS)})"
_NAMES = (
    re.compile(rf"(?P<server>local){_ENGINE_PRECISION}"),
    re.compile(rf"(?P<server>fastapi|triton){_ENGINE_PRECISION}-(?P<protocol>http|grpc)-(?P<wire>[a-z0-9]+)"),
)
_PATTERN = (
    "local-ENGINE-PRECISION, fastapi-ENGINE-PRECISION-http-<jpeg|base64> or "
    "triton-ENGINE-PRECISION-<http|grpc>-<fp32|fp16|uint8|jpeg> (json over http, to measure it), with the engine "
    f"one of {', '.join(ENGINES)}, emulated-GPU and the precision one of {', '.join(PRECISIONS)}; "
    "such as triton-onnx-fp32-grpc-fp32"
)


@dataclass(frozen=True, order=True)
class Backend:
    """One way of getting an embedding.

    Attributes:
        server: `fastapi`, `triton`, or `local` for the model in this process; `peer` for what is started for a comparison
            alone, which no name on a command line or in an endpoints file means.
        engine: what runs the graph: one of `ENGINES`, or `emulated-GPU` (behind Triton only).
        precision: what the engine computes in, one of `PRECISIONS`; not what is sent.
        protocol: `http` or `grpc`; empty in process.
        wire: what is sent, one of `WIRES` of the server; empty in process.

    Raises:
        PhotodupError: there is no such combination; the message shows the pattern.
    """

    server: str
    engine: str
    precision: str = "fp32"
    protocol: str = ""
    wire: str = ""

    def __post_init__(self) -> None:
        is_special = (
            self.is_emulated if self.server == "triton" else self.server == "local" and self.engine == DUMMY
        )
        is_valid = (
            self.server in WIRES
            and (self.engine in ENGINES or is_special)
            and self.precision in PRECISIONS
            and self.protocol in PROTOCOLS[self.server]
            and self.wire in WIRES[self.server]
            and not (self.wire == "json" and self.protocol == "grpc")
        )
        if not is_valid:
            raise PhotodupError(f"{self.name!r} names no backend: use {_PATTERN}.")

    @property
    def name(self) -> str:
        """The name as it is written everywhere."""
        parts = (self.server, self.engine, self.precision, self.protocol, self.wire)
        return "-".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.name

    @property
    def listed_as(self) -> str:
        """The name under which endpoints have its server: text goes to the address and model of binary tensors."""
        return self.name.removesuffix("json") + "fp32" if self.wire == "json" else self.name

    @property
    def is_local(self) -> bool:
        return self.server == "local"

    @property
    def is_emulated(self) -> bool:
        """Whether a calibrated wait stands in for the engine's compute."""
        return _EMULATED.fullmatch(self.engine) is not None

    @property
    def emulated_device(self) -> str:
        """The emulated GPU, such as `a100`; empty for a real engine."""
        match = _EMULATED.fullmatch(self.engine)
        return match[1] if match else ""

    @property
    def is_lossy(self) -> bool:
        """Whether a photograph is compressed anew before it is sent."""
        return self.wire in ("jpeg", "base64")

    @property
    def triton_model(self) -> str:
        """Triton's name for the model; empty for other servers.

        What is usual is left out: ONNX Runtime, the engine's usual precision, tensors of float32. Half precision is
        written `half` where it is not usual, because `fp16` at the end is the wire.
        """
        if self.server != "triton":
            return ""
        usual = self.precision == USUAL_PRECISION.get(self.engine, "fp32")
        parts = (
            self.engine.replace("-", "_") if self.is_emulated else "openclip_vit_b32",
            "" if self.is_emulated or self.engine == "onnx" else self.engine,
            "" if usual else {"fp16": "half"}.get(self.precision, self.precision),
            "" if self.wire in ("fp32", "json") else self.wire,
        )
        return "_".join(part for part in parts if part)

    def columns(self) -> dict[str, Any]:
        """Return the columns `COLUMNS` of a point; a protocol or wire that does not exist there is None."""
        names = self.name, self.server, self.engine, self.precision, self.protocol or None, self.wire or None
        return dict(zip(COLUMNS, names, strict=True))


def parse_backend(name: str | Backend) -> Backend:
    """Read a name, one of `SHORT_NAMES` included; an object is returned as it is.

    Raises:
        PhotodupError: it is not the name of a backend; the message shows the pattern.
    """
    if isinstance(name, Backend):
        return name
    for pattern in _NAMES:
        if match := pattern.fullmatch(SHORT_NAMES.get(name, name)):
            return Backend(**match.groupdict())
    raise PhotodupError(f"{name!r} names no backend: use {_PATTERN}.")


def engine_family(engine: Any) -> Any:
    """Return `emulated` for every emulated GPU, and any other engine (or none) as it is: what colours go by."""
    return "emulated" if isinstance(engine, str) and _EMULATED.fullmatch(engine) else engine


def emulated_engine(triton_model: str) -> str:
    """Return the engine of an emulated GPU's Triton model, such as `emulated-a100`; empty for any other model."""
    engine = re.sub(r"_(fp16|uint8|jpeg)$", "", triton_model).replace("_", "-")
    return engine if _EMULATED.fullmatch(engine) else ""


def backend_of(engine: str, protocol: str, wire: str) -> Backend:
    """Return Triton's backend of these parts, in the engine's usual precision."""
    return Backend("triton", engine, USUAL_PRECISION.get(engine, "fp32"), protocol, wire)


def served_models(backend: str | Backend) -> list[str]:
    """Return the Triton models whose counters account for a request: the one asked, then an ensemble's steps."""
    parsed = parse_backend(backend)
    model = parsed.triton_model
    if parsed.wire != "jpeg":
        return [model]
    return [model, "openclip_vit_b32_preprocess", model.removesuffix("_jpeg") + "_uint8"]
