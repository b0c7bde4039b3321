"""The commands of the photo application. Photographs are only read, but by `review` and `trash`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from photodup.cli.load import AsJson
from photodup.core.errors import PhotodupError
from photodup.core.names import as_text, escaped, printable

if TYPE_CHECKING:
    from photodup.photos.embed.choose import EncoderRequest
    from photodup.photos.groups.results import Group, Tiers
    from photodup.photos.library.catalogue import Catalogue, Photo
    from photodup.photos.library.scan import OpenSink, ScanReport
    from photodup.photos.library.several import Folders

# As the page calls the stand-in; it says what it is, for whoever chooses it.
SMALL_ENCODER = "a small one from a package (17 MB), good for everyday scenes"
Directories = Annotated[
    list[Path] | None, Argument(help="the folder of your photographs, or several on one file system")
]
CatalogueFile = Annotated[Path | None, Option(help="file; default DIR/.photodup/catalogue.sqlite")]
Batch = Annotated[int, Option(min=1, help="photographs per request")]
EndpointsFile = Annotated[Path | None, Option(help="YAML of servers to look for, beside this machine's")]
ModelDigest = Annotated[str | None, Option(help="digest of the model, or its beginning")]
KeepOrder = Annotated[
    str | None,
    Option(help="rules, the first that differs decides: resolution,format,metadata,oldest,size,folder"),
]
AllowRandom = Annotated[
    bool, Option("--allow-random", help="study only: similar photos by untrained weights")
]
Threshold = Annotated[
    float | None,
    Option(min=0.01, max=1, help="smallest cosine of similar ones; default: as stored, else the model's own"),
]
ServerUrl = Annotated[
    str | None,
    Option("--url", "--inference-url", help="server; default from the environment or settings"),
]
BackendName = Annotated[
    str | None,
    Option("--backend", "--inference-backend", help="auto, or such as triton-onnx-fp32-grpc-fp32"),
]
LocalWeights = Annotated[
    str | None, Option(help="in this process: stand-in (17 MB), a checkpoint, onnx:PATH")
]
PreferFolder = Annotated[
    list[str] | None, Option(help="keep what lies here before all else; repeat, best first")
]


Protect = Annotated[
    list[str] | None,
    Option(help="folder in DIR from which nothing is suggested or removed; remembered; repeat"),
]
NotWithin = Annotated[
    list[str] | None,
    Option(help="folder in DIR whose photos are not compared with each other; remembered; repeat"),
]


def _servers(endpoints: Path | None) -> dict[str, str]:
    from photodup.serving.endpoints import load_endpoints

    return load_endpoints(endpoints).backends if endpoints else {}


def _request(
    url: str | None, backend: str | None, weights: str | None, endpoints: Path | None
) -> "EncoderRequest":
    from photodup.photos.embed.choose import EncoderRequest

    return EncoderRequest(backend, url, _at_hand(weights), _servers(endpoints))


def _at_hand(weights: str | None) -> str | None:
    """Return weights by the name that an encoder is loaded by; the stand-in is made first."""
    if weights != "stand-in":
        return weights
    from photodup.photos.demo.encoder import export_stand_in

    return export_stand_in()


def _together(directories: list[Path]) -> "Folders":
    """Return how folders are looked at, and tell what the owner should know of that."""
    from photodup.photos.library.several import as_one_library

    folders = as_one_library(directories)
    for sentence in folders.notes:
        print(sentence, file=sys.stderr)
    return folders


def scan(
    directories: Directories = None,
    catalogue: CatalogueFile = None,
    workers: Annotated[int | None, Option(min=1, help="threads; default one per core")] = None,
    apple_photos: Annotated[bool, Option(help="macOS: the Photos library (DIR: another)")] = False,
    decode_seconds: Annotated[float, Option(min=0.1, help="longest time for one photograph")] = 30.0,
    embed: Annotated[bool, Option("--embed", help="embed each photograph as it is read")] = False,
    url: ServerUrl = None,
    backend: BackendName = None,
    weights: LocalWeights = None,
    endpoints: EndpointsFile = None,
    batch: Batch = 32,
) -> None:
    """Bring the catalogue of a photo library up to date. Photographs are only read.

    With --embed each is read and decoded once for both, by whom `photodup embed` would take.
    """
    from photodup.photos.embed.command import scan_and_embed_and_print
    from photodup.photos.library.apple import scan_apple_photos
    from photodup.photos.library.scan import scan

    if not directories and not apple_photos:
        raise PhotodupError("Name the folder that holds your photographs: photodup scan DIR.")
    folders = _together(directories) if directories else None
    options: dict[str, Any] = {"workers": workers, "decode_seconds": decode_seconds}
    options |= {"catalogue": catalogue} if catalogue else {}
    if not embed and (url or backend or weights or endpoints):
        raise PhotodupError("Who embeds is asked with --embed only: add it, or leave the model out.")
    request = _request(url, backend, weights, endpoints) if embed else None

    def scanned(open_sink: "OpenSink | None") -> "ScanReport":
        if apple_photos or folders is None:
            return scan_apple_photos(folders.root if folders else None, open_sink=open_sink, **options)
        return scan(folders.root, only=folders.only, open_sink=open_sink, **options)

    scan_and_embed_and_print(scanned, request, batch)


def embed(
    directory: Annotated[Path, Argument(help="a folder that was scanned")],
    catalogue: CatalogueFile = None,
    url: ServerUrl = None,
    backend: BackendName = None,
    weights: LocalWeights = None,
    endpoints: EndpointsFile = None,
    batch: Batch = 32,
) -> None:
    """Embed every photograph that has no embedding of this model yet; continues where it stopped.

    Who embeds: these flags, else INFERENCE_BACKEND and INFERENCE_SERVICE_URL, else the review page's
    settings, else auto: a server that answers with trained weights, or this machine.
    """
    from photodup.photos.embed.command import embed_and_print

    embed_and_print(directory, catalogue, _request(url, backend, weights, endpoints), batch)


def group(
    directories: Annotated[list[Path], Argument(help="the folder of your photographs, or several")],
    catalogue: CatalogueFile = None,
    threshold: Threshold = None,
    model: ModelDigest = None,
    keep: KeepOrder = None,
    prefer_folder: PreferFolder = None,
    allow_random: AllowRandom = False,
    as_json: AsJson = False,
) -> None:
    """Show copies and similar photos, and which one to keep with the reason. Nothing is removed.

    A folder that was never scanned is scanned first.
    """
    from photodup.photos.library.catalogue import Catalogue

    folders = _together(directories)
    options: dict[str, Any] = {"keep": keep, "folders": prefer_folder, "digest": model}
    options |= {"allow_random": allow_random, "only": folders.only, "never_from": folders.untouched}
    _scan_if_new(folders, catalogue)
    with Catalogue(folders.root, catalogue) as opened:
        for name in opened.unknown(folders.only):
            raise PhotodupError(f"{printable(name)} has no photo: name another folder.")
        print_groups(opened, as_json=as_json, threshold=threshold, **options)


def _scan_if_new(folders: "Folders", catalogue: Path | None) -> None:
    """Scan folders of which no scan has seen a photo."""
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.library.scan import scan

    is_new = not (catalogue or folders.root / ".photodup" / "catalogue.sqlite").is_file()
    if not is_new:
        with Catalogue(folders.root, catalogue) as opened:
            is_new = bool(opened.unknown(folders.only))
    if is_new:
        print(scan(folders.root, catalogue, only=folders.only), file=sys.stderr)


def print_groups(catalogue: "Catalogue", *, as_json: bool = False, **options: Any) -> None:
    """Print both tiers with the reason for each keeper and the evidence for each member.

    Args:
        catalogue: scanned, and embedded if there is to be a `similar` tier.
        as_json: print one object instead: `n_photos`, `groups` and `problems`. A member has its `reason` (why the keeper
            stays and not this file) and `frees` (bytes, if everything suggested goes); a keeper has its `rule` (null
            where no rule told the files apart).
        **options: of `tiers_by_settings`.
    """
    from photodup.photos.groups.by_settings import tiers_by_settings
    from photodup.photos.library.feedback import Feedback

    feedback = Feedback(catalogue.own.path)
    tiers = tiers_by_settings(catalogue, feedback=feedback, **options)
    if as_json:
        groups, problems = [_record(g) for g in tiers.groups], [*tiers.problems, *feedback.problems]
        print(json.dumps({"n_photos": tiers.n_photos, "groups": groups, "problems": problems}))
        return
    for group in tiers.groups:
        _print_group(group)
    for problem in tiers.problems:
        print(escaped(f"not compared: {problem}"))
    for sentence in feedback.problems:
        print(sentence)
    print(escaped(_summary(tiers)))


def _print_group(group: "Group") -> None:
    keeper = group.keeper
    print(f"{group.tier}  {len(group.members) + 1} photos")
    print(
        f"  keep  {printable(keeper.path)}  ({keeper.width} × {keeper.height}; {escaped(group.choice.reason)})"
    )
    for photo, evidence in ((member.photo, member.evidence) for member in group.members):
        if evidence.exact:
            kind = "same bytes"
        elif group.tier == "copies" and evidence.verification:
            kind = "the same picture"
        else:
            kind = "alike" if evidence.similarity is None else f"cosine {evidence.similarity:.4f}"
        differs = f"; differs: {group.difference(photo)}" if group.difference(photo) else ""
        note = "; protected" if photo.id in group.protected else ""
        print(f"        {printable(photo.path)}  ({photo.width} × {photo.height}; {kind}{differs}{note})")


def _record(group: "Group") -> dict[str, Any]:
    def of(photo: "Photo") -> dict[str, Any]:
        fields = {"path": as_text(photo.path), "md5": photo.md5, "bytes": photo.size_bytes}
        return fields | {"protected": photo.id in group.protected}

    going = {photo.id for photo in group.may_go}
    members = [
        of(photo)
        | {"similarity": evidence.similarity, "same_bytes": evidence.exact, "suggested": photo.id in going}
        | {"differs": group.difference(photo), "reason": group.kept_over(photo)}
        | {"frees": group.frees(photo) if photo.id in going else 0}
        for photo, evidence in ((member.photo, member.evidence) for member in group.members)
    ]
    keep = of(group.keeper) | {"reason": group.choice.reason, "rule": group.choice.rule}
    return {"tier": group.tier, "keep": keep, "members": members}


def _summary(tiers: "Tiers") -> str:
    free = sum(group.bytes_to_free for group in tiers.copies) / 1e6
    limits = tiers.thresholds
    if tiers.model is None or limits is None:
        method = "by hash and pixels only (nothing is embedded: run `photodup embed`)"
    else:
        method = (
            f"by {tiers.model.name} ({tiers.model.digest[:12]}), similar from {limits.similar} cosine "
            f"({limits.measured})"
        )
        if tiers.model.is_random is not False:
            method += ", RANDOM OR UNKNOWN WEIGHTS: the similar ones mean nothing"
    return (
        f"{tiers.n_photos} photographs: {len(tiers.copies)} groups of copies ({free:.1f} MB to free), "
        f"{len(tiers.similar)} of similar ones, {method}; largest group {tiers.largest_group}; {tiers.n_verified} pairs "
        "compared on the pixels"
    )


def review(
    directories: Directories = None,
    catalogue: CatalogueFile = None,
    demo: Annotated[bool, Option("--demo", help="on the demonstration library, port 8001")] = False,
    port: Annotated[int | None, Option(min=0, max=65535, help="default 8000; 0: any free one")] = None,
    browser: Annotated[bool, Option(help="open it in the browser, where there is one")] = True,
    model: ModelDigest = None,
    keep: KeepOrder = None,
    prefer_folder: PreferFolder = None,
    protect: Protect = None,
    not_within: NotWithin = None,
    threshold: Threshold = None,
    url: ServerUrl = None,
    backend: BackendName = None,
    weights: LocalWeights = None,
    endpoints: EndpointsFile = None,
    allow_random: AllowRandom = False,
) -> None:
    """Review duplicates in the browser: look for photos, compare, decide, move to the trash, undo.

    On 127.0.0.1 only. Who looks for similar scenes: as `photodup embed` chooses. Photos of a folder that is named with
    --protect may be kept in place of others and never go; the page's settings end that.
    """
    from photodup.photos.demo.encoder import NAME, export_stand_in
    from photodup.photos.review.reviewed_folder import Encoders
    from photodup.photos.review.serve import serve_review

    if demo:
        from photodup.study.notebook.weights import review_library

        directories, catalogue = [review_library()], None
    if not directories:
        raise PhotodupError("Name the folder that holds your photographs: photodup review DIR (or --demo).")
    folders = _together(directories)
    more = {SMALL_ENCODER: export_stand_in}
    encoders = Encoders(backend, url, _at_hand(weights), _servers(endpoints), more, small_model=NAME)
    serve_review(
        folders.root,
        only=folders.only,
        untouched=folders.untouched,
        port=port,
        catalogue=catalogue,
        browser=browser,
        is_demo=demo,
        encoders=encoders,
        threshold=threshold,
        keep=keep,
        folders=prefer_folder,
        protect=folders.in_full(protect),
        not_within=folders.in_full(not_within),
        digest=model,
        allow_random=allow_random,
    )


def demo(directory: Annotated[Path, Argument(help="folder to build it in")]) -> None:
    """Build a demonstration library with known near-duplicates; nothing is downloaded."""
    from photodup.photos.demo.photographs import build_demo

    print(f"Ground truth: {build_demo(directory)}")
