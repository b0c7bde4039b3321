"""The commands of the photo application. Photographs are only read, except by `review` and `trash`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from photodup.cli.load import AsJson
from photodup.cli.options import with_groups
from photodup.core.errors import PhotodupError
from photodup.core.names import as_text, count, escaped, printable
from photodup.photos.library.settings import RULES

if TYPE_CHECKING:
    from photodup.embedding.client.embedder import Embedder
    from photodup.photos.embed.batches import EmbedReport
    from photodup.photos.embed.choose import EncoderRequest
    from photodup.photos.groups.results import Group, Tiers
    from photodup.photos.library.catalogue import Catalogue, Photo
    from photodup.photos.library.several import Folders

Directories = Annotated[
    list[Path] | None, Argument(help="the folder of your photographs, or several on one file system")
]
CatalogueFile = Annotated[Path | None, Option(help="folder of the catalogue; default DIR/.photodup")]
Batch = Annotated[int, Option(min=1, help="photographs per request")]


@dataclass(frozen=True)
class EncoderOptions:
    """Options that choose what computes the embeddings."""

    url: Annotated[
        str | None, Option("--url", "--inference-url", help="server; default from the environment")
    ] = None
    backend: Annotated[
        str | None,
        Option("--backend", "--inference-backend", help="auto, or such as triton-onnx-fp32-grpc-fp32"),
    ] = None
    weights: Annotated[
        str | None, Option(help="in this process: stand-in (17 MB), a checkpoint, onnx:PATH")
    ] = None

    def request(self) -> "EncoderRequest":
        """Return these options as a request; the weights of `stand-in` are exported first."""
        from photodup.photos.demo.encoder import export_stand_in
        from photodup.photos.embed.choose import EncoderRequest

        weights = export_stand_in() if self.weights == "stand-in" else self.weights
        return EncoderRequest(self.backend, self.url, weights)


@dataclass(frozen=True)
class GroupOptions:
    """Options that say which photos are alike, and which of them to keep."""

    threshold: Annotated[
        float | None,
        Option(
            min=0.01, max=1, help="smallest cosine of similar ones; default: as stored, else the model's own"
        ),
    ] = None
    digest: Annotated[str | None, Option("--model", help="digest of the model, or its beginning")] = None
    keep: Annotated[str | None, Option(help=f"of files that reproduce all, by {', '.join(RULES)}")] = None
    folders: Annotated[
        list[str] | None,
        Option("--prefer-folder", help="keep what lies here before all else; repeat, best first"),
    ] = None

    def of(self, folders: "Folders") -> dict[str, Any]:
        """Return these options for the photos of some folders, as arguments of `find_tiers`."""
        return asdict(self) | {"only": folders.only, "never_from": folders.untouched}


def _as_library(directories: list[Path]) -> "Folders":
    """Return the folders as one library; print its notes to stderr."""
    from photodup.photos.library.several import as_one_library

    folders = as_one_library(directories)
    for sentence in folders.notes:
        print(sentence, file=sys.stderr)
    return folders


@with_groups
def scan(
    encoder: EncoderOptions,
    directories: Directories = None,
    catalogue: CatalogueFile = None,
    workers: Annotated[int | None, Option(min=1, help="threads; default one per core")] = None,
    apple_photos: Annotated[bool, Option(help="macOS: the Photos library (DIR: another)")] = False,
    decode_seconds: Annotated[float, Option(min=0.1, help="longest time for one photograph")] = 30.0,
    embed: Annotated[bool, Option("--embed", help="embed each photograph as it is read")] = False,
    batch: Batch = 32,
) -> None:
    """Bring the catalogue of a photo library up to date. Photographs are only read.

    With --embed each photograph is read once for both; the model is the one that `photodup embed` would choose.
    """
    from photodup.photos.embed.batches import EmbeddingPass
    from photodup.photos.library.apple import scan_apple_photos
    from photodup.photos.library.scan import ScanOptions, scan

    if not directories and not apple_photos:
        raise PhotodupError("Name the folder that holds your photographs: photodup scan DIR.")
    folders = _as_library(directories) if directories else None
    if not embed and encoder != EncoderOptions():
        raise PhotodupError("Who embeds is asked with --embed only: add it, or leave the model out.")
    options: ScanOptions = {"workers": workers, "decode_seconds": decode_seconds}
    if embed:
        request = encoder.request()

        @contextmanager
        def open_sink(opened: "Catalogue") -> Iterator["EmbeddingPass"]:
            with (
                _connected(opened, request) as embedder,
                EmbeddingPass(opened, embedder, batch) as embedding_pass,
            ):
                yield embedding_pass
            _print_embedded(embedding_pass.report)

        options["open_sink"] = open_sink
    with _saying_that_nothing_is_lost():
        if apple_photos or folders is None:
            report = scan_apple_photos(folders.root if folders else None, catalogue, **options)
        else:
            report = scan(folders.root, catalogue, only=folders.only, **options)
    for problem in report.problems:
        print(f"not read: {problem}")
    print(report)
    print(f"Catalogue: {printable(report.catalogue)}")


@with_groups
def embed(
    directory: Annotated[Path, Argument(help="a folder that was scanned")],
    encoder: EncoderOptions,
    catalogue: CatalogueFile = None,
    batch: Batch = 32,
) -> None:
    """Embed every photograph that has no embedding of this model yet; continues where it stopped.

    The model or server is chosen by these flags, else by INFERENCE_BACKEND and INFERENCE_SERVICE_URL, else automatically: a
    server that answers with trained weights, or this machine.
    """
    from photodup.photos.embed.batches import embed_library
    from photodup.photos.library.catalogue import Catalogue

    request = encoder.request()
    with (
        Catalogue(directory, catalogue) as opened,
        _saying_that_nothing_is_lost(),
        _connected(opened, request) as embedder,
    ):
        report = embed_library(opened, embedder, batch)
    _print_embedded(report)


@contextmanager
def _connected(opened: "Catalogue", request: "EncoderRequest") -> Iterator["Embedder"]:
    """Connect to the embedder of a library, which decodes as for its earlier embeddings, and print which it is."""
    from photodup.photos.embed.choose import connect_encoder

    with connect_encoder(opened, request) as (embedder, description):
        print(description, flush=True)
        yield embedder


def _print_embedded(report: "EmbedReport") -> None:
    for problem in report.problems:
        print(f"not embedded: {problem}")
    print(report)


@contextmanager
def _saying_that_nothing_is_lost() -> Iterator[None]:
    """Say after Ctrl-C that nothing is lost; for work that is written in batches and continues."""
    try:
        yield
    except KeyboardInterrupt:
        print(
            "\nphotodup: stopped; what was done is kept, and the same command goes on from there.",
            file=sys.stderr,
        )
        raise


@with_groups
def group(
    directories: Annotated[list[Path], Argument(help="the folder of your photographs, or several")],
    grouping: GroupOptions,
    catalogue: CatalogueFile = None,
    as_json: AsJson = False,
) -> None:
    """Show copies and similar photos, and which one to keep with the reason. Nothing is removed.

    New and changed files are scanned first. The object of --json has `n_photos`, `groups` and `problems`; a member `frees`
    bytes if everything suggested goes; a keeper has its `rule` (null where no rule told the files apart).
    """
    from photodup.photos.groups.tiers import find_tiers
    from photodup.photos.library.apple import rescan
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.library.feedback import Feedback

    folders = _as_library(directories)
    print(rescan(folders.root, catalogue, folders.only), file=sys.stderr)
    with Catalogue(folders.root, catalogue) as opened:
        for name in opened.folders_without_photos(folders.only):
            raise PhotodupError(f"{printable(name)} has no photo: name another folder.")
        feedback = Feedback(opened.own.path)
        tiers = find_tiers(opened, feedback=feedback, **grouping.of(folders))
    if as_json:
        groups, problems = [_record(g) for g in tiers.groups], [*tiers.problems, *feedback.problems]
        print(json.dumps({"n_photos": tiers.n_photos, "groups": groups, "problems": problems}))
        return
    for listed_group in tiers.groups:
        _print_group(listed_group)
    for problem in tiers.problems:
        print(escaped(f"not compared: {problem}"))
    for sentence in feedback.problems:
        print(sentence)
    print(escaped(_summary(tiers)))


def _print_group(group: "Group") -> None:
    keeper, may_go = group.keeper, {photo.id for photo in group.may_go}
    print(f"{group.tier}  {len(group.members) + 1} photos")
    reason = escaped(group.choice.reason)
    print(f"  keep  {printable(keeper.path)}  ({keeper.width} × {keeper.height}; {reason})")
    for member in group.members:
        photo = member.photo
        if group.tier == "copies":
            kind = "same bytes" if member.is_same_bytes else "copy"
        else:
            kind = f"cosine {member.similarity:.4f}"
        differs = f"; differs: {member.difference}" if member.difference else ""
        note = "; protected" if photo.id in group.protected else "; may go" if photo.id in may_go else ""
        print(f"        {printable(photo.path)}  ({photo.width} × {photo.height}; {kind}{differs}{note})")


def _record(group: "Group") -> dict[str, Any]:
    def fields_of(photo: "Photo") -> dict[str, Any]:
        fields = {"path": as_text(photo.path), "md5": photo.md5, "bytes": photo.size_bytes}
        return fields | {"protected": photo.id in group.protected}

    suggested = {photo.id for photo in group.may_go}
    members = [
        fields_of(m.photo)
        | {"similarity": m.similarity, "same_bytes": m.is_same_bytes, "suggested": m.photo.id in suggested}
        | {"differs": m.difference, "frees": group.frees(m.photo) if m.photo.id in suggested else 0}
        for m in group.members
    ]
    keep = fields_of(group.keeper) | {"reason": group.choice.reason, "rule": group.choice.rule}
    return {"tier": group.tier, "keep": keep, "members": members}


def _summary(tiers: "Tiers") -> str:
    free = sum(group.bytes_to_free for group in tiers.copies) / 1e6
    limits = tiers.thresholds
    if tiers.model is None or limits is None:
        method = "by hash and pixels (similar scenes need the model: extra `serve`, then `photodup embed`)"
    else:
        method = (
            f"by {tiers.model.name} ({tiers.model.digest[:12]}), similar from {limits.similar} cosine "
            f"({limits.measured})"
        )
        if tiers.model.is_random is not False:
            method += ", RANDOM OR UNKNOWN WEIGHTS: the similar ones mean nothing"
    return (
        f"{count(tiers.n_photos, 'photograph')}: {count(len(tiers.copies), 'group')} of copies ({free:.1f} MB to free), "
        f"{len(tiers.similar)} of similar ones, {method}; largest group {tiers.largest_group}; "
        f"{count(tiers.n_verified, 'pair')} compared on the pixels"
    )


@with_groups
def review(
    encoder: EncoderOptions,
    grouping: GroupOptions,
    directories: Directories = None,
    catalogue: CatalogueFile = None,
    demo: Annotated[bool, Option("--demo", help="on the demonstration library, port 8001")] = False,
    port: Annotated[int | None, Option(min=0, max=65535, help="default 8000; 0: any free one")] = None,
    browser: Annotated[bool, Option(help="open it in the browser, where there is one")] = True,
    protect: Annotated[
        list[str] | None,
        Option(help="folder in DIR from which nothing is suggested or removed; remembered; repeat"),
    ] = None,
    not_within: Annotated[
        list[str] | None,
        Option(help="folder in DIR whose photos are not compared with each other; remembered; repeat"),
    ] = None,
) -> None:
    """Review duplicates in the browser: look for photos, compare, decide, move to the trash, undo.

    It serves on 127.0.0.1 only, and finds similar scenes with the model that `photodup embed` would choose. Photos in a
    folder given to --protect are never removed, but may be kept in place of others; the page's settings end that.
    """
    from photodup.photos.demo.encoder import export_stand_in
    from photodup.photos.review.reviewed_folder import ReviewedFolder
    from photodup.photos.review.serve import serve_review

    if demo:
        from photodup.study.notebook.weights import review_library

        directories, catalogue = [review_library()], None
    if not directories:
        raise PhotodupError("Name the folder that holds your photographs: photodup review DIR (or --demo).")
    folders = _as_library(directories)
    folder = ReviewedFolder(
        folders.root,
        catalogue,
        encoder=encoder.request(),
        small_encoder=export_stand_in,
        protect=folders.in_full(protect),
        not_within=folders.in_full(not_within),
        **grouping.of(folders),
    )
    default_port = 8001 if demo else 8000
    serve_review(folder, port=default_port if port is None else port, browser=browser)


def demo(directory: Annotated[Path, Argument(help="folder to build it in")]) -> None:
    """Build a demonstration library with known near-duplicates; nothing is downloaded."""
    from photodup.photos.demo.photographs import build_demo

    print(f"Ground truth: {build_demo(directory)}\nNow: photodup review {printable(directory)}")
