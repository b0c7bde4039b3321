"""A backend (server, engine, precision, protocol and wire) and its name.

The name `triton-onnx-fp32-grpc-fp32` gives them in this order. In process there is no protocol and no wire:
`local-pytorch-fp32`. Names are parsed where they come in (a command line, a file, an environment variable); the rest of
the code passes `Backend` objects.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from photodup.core.errors import PhotodupError

Engine = TypeVar("Engine")  # an engine's name; None or NaN where a table has none
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")


class Wire(NamedTuple):
    """A form in which images are sent.

    Attributes:
        servers: that take it.
        datatype: KServe's name for what it is made of; `BYTES` are encoded images.
    """

    servers: tuple[str, ...]
    datatype: str = ""


WIRES = {
    "": Wire(("local",)),
    "jpeg": Wire(("fastapi", "triton", "peer"), "BYTES"),
    "base64": Wire(("fastapi",), "BYTES"),
    "fp32": Wire(("triton",), "FP32"),
    "fp16": Wire(("triton",), "FP16"),
    "uint8": Wire(("triton",), "UINT8"),
    "json": Wire(("triton",), "FP32"),
}
PROTOCOLS = {"fastapi": ("http",), "triton": ("http", "grpc"), "local": ("",), "peer": ("http",)}
ENGINES = ("pytorch", "onnx", "trt", "openvino", "triton")
COLUMNS = ("backend", "server", "engine", "precision", "protocol", "wire")
# The default precision of an engine: TensorRT's plans are built with FP16 allowed.
USUAL_PRECISION = {"trt": "fp16"}
# Short names of the published study, for INFERENCE_BACKEND.
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
_MODEL = re.compile(
    rf"(?:openclip_vit_b32(?:_(?P<engine>{'|'.join(ENGINES)}))?(?:_(?P<precision>half|{'|'.join(PRECISIONS)}))??"
    r"|(?P<emulated>emulated_[a-z0-9]+(?:_[a-z0-9]+)*?))(?:_(?P<wire>fp16|uint8|jpeg))?"
)


def wires_of(server: str) -> list[str]:
    """Return the names of the wires that a server takes."""
    return [name for name, wire in WIRES.items() if server in wire.servers]


_PATTERN = (
    f"local-ENGINE-PRECISION, fastapi-ENGINE-PRECISION-http-<{'|'.join(wires_of('fastapi'))}> or "
    f"triton-ENGINE-PRECISION-<http|grpc>-<{'|'.join(wires_of('triton'))}> (json over http alone), with the engine "
    f"one of {', '.join(ENGINES)}, emulated-GPU and the precision one of {', '.join(PRECISIONS)}; "
    "such as triton-onnx-fp32-grpc-fp32"
)


@dataclass(frozen=True, order=True)
class Backend:
    """One way to get an embedding.

    Attributes:
        server: `fastapi`, `triton`, `local` (the model in this process), or `peer` (another project's server in a
            comparison, which has no name to parse).
        engine: what runs the graph: one of `ENGINES`, or `emulated-GPU` (behind Triton only).
        precision: what the engine computes in, one of `PRECISIONS`; not what is sent.
        protocol: `http` or `grpc`; empty in process.
        wire: what is sent, one of `wires_of(server)`; empty in process.

    Raises:
        PhotodupError: there is no such combination; the message shows the pattern.
    """

    server: str
    engine: str
    precision: str = "fp32"
    protocol: str = ""
    wire: str = ""

    def __post_init__(self) -> None:
        if not (
            self.wire in wires_of(self.server)
            and (self.engine in ENGINES or (self.server == "triton" and self.is_emulated))
            and self.precision in PRECISIONS
            and self.protocol in PROTOCOLS[self.server]
            and not (self.wire == "json" and self.protocol == "grpc")
        ):
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
        """Its name in an endpoints file: JSON goes to the address and model of the fp32 wire."""
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
    def is_encoded(self) -> bool:
        """Whether the client sends encoded files, by default small JPEGs. These change embeddings a little."""
        return WIRES[self.wire].datatype == "BYTES"

    @property
    def triton_model(self) -> str:
        """Triton's name for the model; empty for other servers.

        Defaults are left out: ONNX Runtime, the engine's default precision, float32 tensors. FP16 as a precision is
        written `half`, because `fp16` at the end is the wire.
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

    def columns(self) -> dict[str, str | None]:
        """Return its parts by `COLUMNS`; None for a missing protocol or wire."""
        names = self.name, self.server, self.engine, self.precision, self.protocol or None, self.wire or None
        return dict(zip(COLUMNS, names, strict=True))


def parse_backend(name: str | Backend) -> Backend:
    """Parse a name, also one of `SHORT_NAMES`; return a `Backend` unchanged.

    Raises:
        PhotodupError: it is not the name of a backend; the message shows the pattern.
    """
    if isinstance(name, Backend):
        return name
    for pattern in _NAMES:
        if match := pattern.fullmatch(SHORT_NAMES.get(name, name)):
            return Backend(**match.groupdict())
    raise PhotodupError(f"{name!r} names no backend: use {_PATTERN}.")


def engine_family(engine: Engine) -> Engine | str:
    """Return `emulated` for an emulated GPU, and other engines unchanged: charts colour by it."""
    return "emulated" if isinstance(engine, str) and _EMULATED.fullmatch(engine) else engine


def backend_of_model(triton_model: str) -> Backend | None:
    """Return the backend of a Triton model over HTTP; None for any other model, such as the decoding step of ensembles."""
    if not (match := _MODEL.fullmatch(triton_model)):
        return None
    engine = (match["emulated"] or match["engine"] or "onnx").replace("_", "-")
    precision = (match["precision"] or USUAL_PRECISION.get(engine, "fp32")).replace("half", "fp16")
    backend = Backend("triton", engine, precision, "http", match["wire"] or "fp32")
    return backend if backend.triton_model == triton_model else None


def backend_of(engine: str, protocol: str, wire: str) -> Backend:
    """Return Triton's backend with the engine's default precision."""
    return Backend("triton", engine, USUAL_PRECISION.get(engine, "fp32"), protocol, wire)


def served_models(backend: str | Backend) -> list[str]:
    """Return the Triton models that count a request: the requested one, then the steps of an ensemble."""
    parsed = parse_backend(backend)
    model = parsed.triton_model
    steps = ["openclip_vit_b32_preprocess", model.removesuffix("_jpeg") + "_uint8"]
    return [model, *steps] if parsed.wire == "jpeg" else [model]
