"""What `photodup embed` and `photodup scan --embed` do and print."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from photodup.errors import PhotodupError
from photodup.names import escaped, printable
from photodup.photos.embed.choose import Choice, choose
from photodup.photos.embed.embed import EmbedReport, embed_library
from photodup.photos.embed.one_pass import OnePass
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import Beside, ScanReport
from photodup.photos.library.settings import load_settings

if TYPE_CHECKING:
    from photodup.embedding.client.client import Embedder

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from photodup.embedding.engines.reduced import draft_verdict_on
from photodup.embedding.vectors import digest_drafted

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


def choose_decoding(embedder: "Embedder", digests: Sequence[str]) -> tuple[bool, str]:
    """Return whether to decode at a reduced scale, and why in words; nothing is said where there is no choice.

    Args:
        embedder: connected, and decoding whole so far.
        digests: models that have embeddings in the library, the one with most of them first.
    """
    if embedder.model_digest is None:
        return False, ""
    drafted = digest_drafted(embedder.model_digest, embedder.view.draft_size)
    began = next((digest for digest in digests if digest in (embedder.model_digest, drafted)), None)
    if began:
        is_drafted = began == drafted
        return is_drafted, f"{_how(embedder, is_drafted)}, as this library's embeddings began"
    model = getattr(embedder, "model", None)  # a server's is elsewhere
    if model is None or model.name.startswith("sscd"):
        return False, ""
    verdict = draft_verdict_on(model)
    said = {
        "passed": "which passed the gate",
        "refused": "since the gate refused a reduced scale",
        "undecided": "since the gate could not decide about a reduced scale",
    }.get(verdict, "`photodup export --precision PRECISION --draft` asks whether a reduced scale would do")
    said = said.replace("PRECISION", model.precision)
    return verdict == "passed", f"{_how(embedder, verdict == 'passed')}, {said}"


def _how(embedder: "Embedder", is_drafted: bool) -> str:
    size = embedder.view.draft_size
    return f"JPEGs decoded at {size} pixels or more a side" if is_drafted else "JPEGs decoded whole"
