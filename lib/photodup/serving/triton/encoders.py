"""Triton models of the encoder by engine × precision × wire: `openclip_vit_b32[_openvino][_bf16|_int8][_wire]`.

One description for all: what is not in `model_repository/` is rendered from the configuration of its wire, with the
engine and the precision as parameters of the Python model that runs it.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from photodup.embedding.engines.model import check_choice, digest_at
from photodup.embedding.engines.onnx_runtime import model_sha256
from photodup.embedding.engines.reduced import read_notes, reduced_path, source_of, verdict_in
from photodup.errors import PhotodupError
from photodup.serving.triton.config import set_parameter

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

_NAME = re.compile(
    r"openclip_vit_b32(?:_(?P<engine>openvino))?(?:_(?P<precision>bf16|int8))?(?:_(?P<wire>fp16|uint8|jpeg))?"
)


@dataclass(frozen=True)
class Encoder:
    """A model's name taken apart. `wire`: `fp32`, `fp16`, `uint8` or `jpeg`, the latter an ensemble."""

    engine: str
    precision: str
    wire: str

    @property
    def name(self) -> str:
        """Triton's name for it."""
        parts = [
            "" if self.engine == "onnx" else self.engine,
            "" if self.precision == "fp32" else self.precision,
            "" if self.wire == "fp32" else self.wire,
        ]
        return "_".join(["openclip_vit_b32", *filter(None, parts)])

    @property
    def weights(self) -> str | None:
        """Key of the file that it runs among the exported ones; None for an ensemble."""
        if self.wire == "jpeg":
            return None
        return f"{self.engine}-int8" if self.precision == "int8" else "fp32"

    @property
    def wire_model(self) -> str:
        """The committed model whose configuration has this wire."""
        return Encoder("onnx", "fp32", self.wire).name


def parse_encoder(name: str) -> Encoder | None:
    """Take a name apart; None if it is no encoder's.

    Raises:
        PhotodupError: the engine does not compute in that precision.
    """
    if not (match := _NAME.fullmatch(name)):
        return None
    encoder = Encoder(match["engine"] or "onnx", match["precision"] or "fp32", match["wire"] or "fp32")
    check_choice(encoder.engine, encoder.precision)
    return encoder


def describe(config: "ModelConfig", encoder: Encoder, file: Path | None, model_digest: str) -> None:
    """Turn the configuration of a wire into that of an encoder with the wire.

    Args:
        file: the graph that it runs; None for an ensemble.
        model_digest: of the weights; that of the embeddings follows from the precision.

    Raises:
        PhotodupError: an INT8 file that was made from other weights.
    """
    config.name = encoder.name
    if file is None:
        config.ensemble_scheduling.step[-1].model_name = Encoder(
            encoder.engine, encoder.precision, "uint8"
        ).name
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
