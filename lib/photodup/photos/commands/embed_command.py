"""What `photodup embed` does and prints."""

from collections.abc import Mapping
from pathlib import Path

from photodup.errors import PhotodupError
from photodup.names import escaped
from photodup.photos.commands.interrupt import saying_what_is_kept
from photodup.photos.embed.choose import choose
from photodup.photos.embed.embed import embed_library
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.settings import load_settings


def embed_and_print(
    directory: Path,
    catalogue: Path | None = None,
    *,
    url: str | None = None,
    backend: str | None = None,
    weights: str | None = None,
    endpoints: Mapping[str, str] | None = None,
    batch: int = 32,
    engine: str = "",
    workers: int | None = None,
) -> None:
    """Choose who embeds, say which model that is and why, embed, and print what became of it.

    Args:
        directory: the library.
        catalogue: its catalogue, if elsewhere.
        url: address of the server, as the command line says.
        backend: its name, or `auto`.
        weights: those of the model in this process, as for MODEL_PRETRAINED.
        endpoints: more servers that `auto` may ask, by backend.
        batch: photographs per request.
        engine: empty for this process, `ray` for Ray Data.
        workers: with Ray: how many embedders.

    Raises:
        PhotodupError: unknown engine, no such server, Ray missing.
    """
    if engine not in ("", "ray"):
        raise PhotodupError(f"There is no engine {engine!r}: leave --engine out, or use ray.")
    with Catalogue(directory, catalogue) as opened:
        if opened.note:
            print(opened.note)
        settings = load_settings(opened.own.path)
        if settings.warning and not (url or weights):
            print(settings.warning, flush=True)
        digests = [model.digest for model in opened.models()]
        asked = {"backend": backend, "url": url, "weights": weights}
        choice = choose(settings, **asked, digests=digests, endpoints=endpoints)
        with saying_what_is_kept(), choice.connect() as embedder:
            where = f" at {choice.url}" if choice.url else ""
            digest = (embedder.model_digest or "no digest")[:12]
            said = f"{embedder.backend}{where}: {embedder.model_name} {digest} ({choice.why})"
            print(escaped(said), flush=True)  # a server may call itself anything
            if engine == "ray":
                from photodup.photos.embed.over_ray import embed_with_ray

                report = embed_with_ray(opened, choice, embedder, batch, workers=workers)
            else:
                report = embed_library(opened, embedder, batch)
    for problem in report.problems:
        print(f"not embedded: {problem}")
    print(report)
