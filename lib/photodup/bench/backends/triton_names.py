"""Which Triton models answer for a backend name."""

from photodup.embedding.backends import parse_backend


def model_name(backend: str) -> str:
    """Return the model behind `triton-ENGINE-PROTOCOL-WIRE`; the wire `json` asks the fp32 model."""
    return parse_backend(backend).triton_model


def served_models(backend: str) -> list[str]:
    """Return the models whose counters account for a request: the one asked, then an ensemble's steps."""
    asked = model_name(backend)
    if parse_backend(backend).wire != "jpeg":
        return [asked]
    return [asked, "openclip_vit_b32_preprocess", asked.removesuffix("_jpeg") + "_uint8"]
