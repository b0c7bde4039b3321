"""What `photodup embed` does and prints."""

from collections.abc import Mapping
from pathlib import Path

from photodup.photos.backends import choose
from photodup.photos.catalogue import Catalogue
from photodup.photos.embed import embed_library
from photodup.photos.settings import load_settings


def embed_and_print(
    directory: Path,
    catalogue: Path | None = None,
    *,
    url: str | None = None,
    backend: str | None = None,
    endpoints: Mapping[str, str] | None = None,
    batch: int = 32,
) -> None:
    """Choose who embeds, say which model that is and why, embed, and print what became of it."""
    with Catalogue(directory, catalogue) as opened:
        settings = load_settings(opened.path.parent)
        digests = [model.digest for model in opened.models()]
        choice = choose(settings, backend=backend, url=url, digests=digests, endpoints=endpoints)
        with choice.connect() as embedder:
            where = f" at {choice.url}" if choice.url else ""
            digest = (embedder.model_digest or "no digest")[:12]
            print(f"{embedder.backend}{where}: {embedder.model_name} {digest} ({choice.why})", flush=True)
            report = embed_library(opened, embedder, batch)
    for problem in report.problems:
        print(f"not embedded: {problem}")
    print(report)
