"""Which Triton models' counters account for a request."""

from photodup.embedding.backends import Backend, parse_backend


def served_models(backend: str | Backend) -> list[str]:
    """Return the models whose counters account for a request: the one asked, then an ensemble's steps."""
    asked = parse_backend(backend)
    model = asked.triton_model
    if asked.wire != "jpeg":
        return [model]
    return [model, "openclip_vit_b32_preprocess", model.removesuffix("_jpeg") + "_uint8"]
