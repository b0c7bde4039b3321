"""What `photodup embed` and `photodup scan --embed` do and print."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from photodup.core.names import printable
from photodup.photos.embed.batches import EmbeddingPass, EmbedReport, embed_library
from photodup.photos.embed.choose import AS_SET_UP, EncoderRequest, connected
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import OpenSink, PhotoSink, ScanReport
from photodup.photos.library.settings import load_settings

if TYPE_CHECKING:
    from photodup.embedding.client.embedder import Embedder


def embed_and_print(directory: Path, catalogue: Path | None, request: EncoderRequest, batch: int) -> None:
    """Choose who embeds, say which model that is and why, embed, and print what became of it.

    Args:
        directory: the library.
        catalogue: its catalogue, if elsewhere.
        request: who shall embed.
        batch: photographs per request.

    Raises:
        PhotodupError: no such server.
    """
    with (
        Catalogue(directory, catalogue) as opened,
        saying_what_is_kept(),
        _connected(opened, request) as embedder,
    ):
        report = embed_library(opened, embedder, batch)
    _print(report)


def scan_and_embed_and_print(
    scan: Callable[[OpenSink | None], ScanReport], request: EncoderRequest | None, batch: int
) -> None:
    """Scan, and where `request` is given embed each photograph from the same decoded picture; print what became of it.

    Args:
        scan: scans, and hands photographs to what it is given.
        request: who shall embed; None: nobody.
        batch: photographs per request.
    """
    embedded: list[EmbedReport] = []

    @contextmanager
    def open_sink(opened: Catalogue) -> Iterator[PhotoSink]:
        with _connected(opened, request or AS_SET_UP) as embedder:
            with EmbeddingPass(opened, embedder, batch) as embedding_pass:
                yield embedding_pass
            embedded.append(embedding_pass.report)

    with saying_what_is_kept():
        report = scan(open_sink if request else None)
    for problem in report.problems:
        print(f"not read: {problem}")
    print(report)
    for embed_report in embedded:
        _print(embed_report)
    print(f"Catalogue: {printable(report.catalogue)}")


@contextmanager
def _connected(opened: Catalogue, request: EncoderRequest) -> Iterator["Embedder"]:
    """Connect to who embeds this library, decoding as it began, and say so."""
    settings = load_settings(opened.own.path)
    if settings.warning and not (request.url or request.weights):
        print(settings.warning, flush=True)
    digests = [model.digest for model in opened.models() if model.n_embeddings]
    with connected(settings, request, digests) as (embedder, description):
        print(description, flush=True)
        yield embedder


def _print(report: EmbedReport) -> None:
    for problem in report.problems:
        print(f"not embedded: {problem}")
    print(report)


@contextmanager
def saying_what_is_kept() -> Iterator[None]:
    """Say after Ctrl-C that nothing is lost; for work that is written in batches and continues."""
    try:
        yield
    except KeyboardInterrupt:
        print(
            "\nphotodup: stopped; what was done is kept, and the same command goes on from there.",
            file=sys.stderr,
        )
        raise
