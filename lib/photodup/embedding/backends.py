"""Names of backends: server × engine × protocol × wire, as in `triton-onnx-grpc-fp32`."""

import re
from dataclasses import dataclass

from photodup.errors import PhotodupError

LOCAL = ("local-pytorch", "local-onnx")
# What INFERENCE_BACKEND may say in the source documents.
SHORT_NAMES = {
    "pytorch": "pytorch-http-jpeg",
    "triton": "triton-onnx-http-fp32",
    "triton_http": "triton-onnx-http-fp32",
    "triton_grpc": "triton-onnx-grpc-fp32",
    "local": "local-pytorch",
}
_NAME = re.compile(
    r"pytorch-(?P<p_protocol>http)-(?P<p_wire>jpeg|base64)"
    r"|triton-(?P<engine>onnx|tf32|trt|torch|openvino|emulated-[a-z0-9-]+?)"
    r"-(?P<protocol>http|grpc(?!-json))-(?P<wire>fp32|fp16|uint8|jpeg|json)"
)


@dataclass(frozen=True)
class Backend:
    """A backend's name taken apart; in process, `protocol` and `wire` are empty."""

    name: str
    server: str
    engine: str
    protocol: str = ""
    wire: str = ""

    @property
    def is_local(self) -> bool:
        return self.server == "local"

    @property
    def triton_model(self) -> str:
        """Triton's name for the model: engine and wire together choose it; empty for other servers."""
        if self.server != "triton":
            return ""
        suffix = "" if self.wire in ("fp32", "json") else f"_{self.wire}"
        if self.engine.startswith("emulated-"):
            return self.engine.replace("-", "_") + suffix
        return "openclip_vit_b32" + ("" if self.engine == "onnx" else f"_{self.engine}") + suffix


def parse_backend(name: str) -> Backend:
    """Take a name apart; the short names `pytorch`, `triton`, `triton_grpc` and `local` stand for full ones.

    Raises:
        PhotodupError: it is not the name of a backend; the message shows the pattern.
    """
    name = SHORT_NAMES.get(name, name)
    if name in LOCAL:
        return Backend(name, "local", name.removeprefix("local-"))
    if not (match := _NAME.fullmatch(name)):
        raise PhotodupError(
            f"{name!r} names no backend: use local-pytorch, local-onnx, pytorch-http-jpeg, pytorch-http-base64 "
            "or triton-<onnx|tf32|trt|torch|openvino|emulated-GPU>-<http|grpc>-<fp32|fp16|uint8|jpeg> (json over http, to "
            "measure it)."
        )
    if match["p_wire"]:
        return Backend(name, "pytorch", "pytorch", match["p_protocol"], match["p_wire"])
    return Backend(name, "triton", match["engine"], match["protocol"], match["wire"])
