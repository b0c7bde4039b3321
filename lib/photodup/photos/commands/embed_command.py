"""What `photodup embed` and `photodup scan --embed` do and print."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from photodup.errors import PhotodupError
from photodup.names import escaped, printable
from photodup.photos.commands.interrupt import saying_what_is_kept
from photodup.photos.embed.choose import Choice, choose
from photodup.photos.embed.decoding import choose_decoding
from photodup.photos.embed.embed import EmbedReport, embed_library
from photodup.photos.embed.one_pass import OnePass
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import Beside, ScanReport
from photodup.photos.library.settings import load_settings

if TYPE_CHECKING:
    from photodup.embedding.client.client import Embedder


@dataclass(frozen=True)
class Asked:
    """Who shall embed, as the command line says; see `photos.embed.choose.choose`.

    Attributes:
        url: address of the server.
        backend: its name, or `auto`.
        weights: those of the model in this process, as for MODEL_PRETRAINED.
        endpoints: more servers that `auto` may ask, by backend.
        batch: photographs per request.
    """

    url: str | None = None
    backend: str | None = None
    weights: str | None = None
    endpoints: Mapping[str, str] = field(default_factory=dict)
    batch: int = 32


def embed_and_print(
    directory: Path,
    catalogue: Path | None = None,
    *,
    asked: Asked = Asked(),
    engine: str = "",
    workers: int | None = None,
) -> None:
    """Choose who embeds, say which model that is and why, embed, and print what became of it.

    Args:
        directory: the library.
        catalogue: its catalogue, if elsewhere.
        asked: who shall embed.
        engine: empty for this process, `ray` for Ray Data.
        workers: with Ray: how many embedders.

    Raises:
        PhotodupError: unknown engine, no such server, Ray missing.
    """
    if engine not in ("", "ray"):
        raise PhotodupError(f"There is no engine {engine!r}: leave --engine out, or use ray.")
    with (
        Catalogue(directory, catalogue) as opened,
        saying_what_is_kept(),
        _connected(opened, asked) as (choice, embedder),
    ):
        if engine == "ray":
            from photodup.photos.embed.over_ray import embed_with_ray

            report = embed_with_ray(opened, choice, embedder, asked.batch, workers=workers)
        else:
            report = embed_library(opened, embedder, asked.batch)
    _print(report)


def scan_and_embed_and_print(
    scan: Callable[[Callable[[Catalogue], AbstractContextManager[Beside]] | None], ScanReport],
    asked: Asked | None,
) -> None:
    """Scan, and where `asked` embed each photograph from the same decoded picture; print what became of it.

    Args:
        scan: scans, and hands photographs to what it is given.
        asked: who shall embed; None: nobody.
    """
    embedded: list[EmbedReport] = []

    @contextmanager
    def beside(opened: Catalogue) -> Iterator[Beside]:
        with _connected(opened, asked or Asked()) as (_, embedder):
            with OnePass(opened, embedder, (asked or Asked()).batch) as one_pass:
                yield one_pass
            embedded.append(one_pass.embed_the_rest())

    with saying_what_is_kept():
        report = scan(beside if asked else None)
    for problem in report.problems:
        print(f"not read: {problem}")
    print(report)
    for one in embedded:
        _print(one)
    print(f"Catalogue: {printable(report.catalogue)}")


@contextmanager
def _connected(opened: Catalogue, asked: Asked) -> Iterator[tuple[Choice, "Embedder"]]:
    """Connect to who embeds this library, decoding as it began, and say so."""
    settings = load_settings(opened.own.path)
    if settings.warning and not (asked.url or asked.weights):
        print(settings.warning, flush=True)
    digests = [model.digest for model in opened.models()]
    wanted = {"backend": asked.backend, "url": asked.url, "weights": asked.weights}
    choice = choose(settings, **wanted, digests=digests, endpoints=asked.endpoints)
    with choice.connect() as embedder:
        is_drafted, how = choose_decoding(embedder, digests)
        if is_drafted:
            choice = replace(choice, is_drafted=True)
            embedder.at_reduced_scale()
        where = f" at {choice.url}" if choice.url else ""
        digest = (embedder.model_digest or "no digest")[:12]
        why = "; ".join(part for part in (choice.why, how) if part)
        said = f"{embedder.backend}{where}: {embedder.model_name} {digest} ({why})"
        print(escaped(said), flush=True)  # a server may call itself anything
        yield choice, embedder


def _print(report: EmbedReport) -> None:
    for problem in report.problems:
        print(f"not embedded: {problem}")
    print(report)
