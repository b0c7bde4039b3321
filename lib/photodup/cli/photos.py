"""The commands of the photo application. Photographs are only read, but by `review` and `trash`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from photodup.errors import PhotodupError

# As the page calls the stand-in; it says what it is, for whoever chooses it.
SMALL_ENCODER = "a small one from a package (17 MB), good for everyday scenes"
CatalogueFile = Annotated[Path | None, typer.Option(help="file; default DIR/.photodup/catalogue.sqlite")]
Batch = Annotated[int, typer.Option(min=1, help="photographs per request")]
EndpointsFile = Annotated[
    Path | None, typer.Option(help="YAML of servers to look for, beside this machine's")
]
ModelDigest = Annotated[str | None, typer.Option(help="digest of the model, or its beginning")]
KeepOrder = Annotated[
    str | None,
    typer.Option(
        help="rules, the first that differs decides: content,resolution,format,compression,metadata,oldest,size,folder"
    ),
]
AllowRandom = Annotated[
    bool, typer.Option("--allow-random", help="study only: similar photos by untrained weights")
]
Threshold = Annotated[
    float | None,
    typer.Option(
        min=0.01, max=1, help="smallest cosine of similar ones; default: as stored, else the model's own"
    ),
]
ServerUrl = Annotated[
    str | None,
    typer.Option("--url", "--inference-url", help="server; default from the environment or settings"),
]
BackendName = Annotated[
    str | None,
    typer.Option("--backend", "--inference-backend", help="auto, or such as triton-onnx-fp32-grpc-fp32"),
]
LocalWeights = Annotated[
    str | None, typer.Option(help="in this process: stand-in (17 MB), a checkpoint, onnx:PATH, sscd:PATH")
]
PreferFolder = Annotated[
    list[str] | None, typer.Option(help="keep what lies here before all else; repeat, best first")
]


def _servers(endpoints: Path | None) -> dict[str, str]:
    from photodup.serving.endpoints import load_endpoints

    return load_endpoints(endpoints).backends if endpoints else {}


def _asked(url: str | None, backend: str | None, weights: str | None, endpoints: Path | None, batch: int):
    from photodup.photos.commands.embed_command import Asked

    return Asked(url, backend, _at_hand(weights), _servers(endpoints), batch)


def _at_hand(weights: str | None) -> str | None:
    """Return weights by the name that an encoder is loaded by; the stand-in is made first."""
    if weights != "stand-in":
        return weights
    from photodup.demo.encoder import export_stand_in

    return export_stand_in()


def scan(
    directory: Annotated[Path | None, typer.Argument(help="the folder that holds your photographs")] = None,
    catalogue: CatalogueFile = None,
    workers: Annotated[int | None, typer.Option(min=1, help="threads; default one per core")] = None,
    apple_photos: Annotated[bool, typer.Option(help="macOS: the Photos library (DIR: another)")] = False,
    decode_seconds: Annotated[float, typer.Option(min=0.1, help="longest time for one photograph")] = 30.0,
    embed: Annotated[bool, typer.Option("--embed", help="embed each photograph as it is read")] = False,
    url: ServerUrl = None,
    backend: BackendName = None,
    weights: LocalWeights = None,
    endpoints: EndpointsFile = None,
    batch: Batch = 32,
) -> None:
    """Bring the catalogue of a photo library up to date. Photographs are only read.

    With --embed each is read and decoded once for both, by whom `photodup embed` would take.
    """
    from photodup.photos.commands.embed_command import scan_and_embed_and_print
    from photodup.photos.library.apple import scan_apple_photos
    from photodup.photos.library.scan import scan

    if directory is None and not apple_photos:
        raise PhotodupError("Name the folder that holds your photographs: photodup scan DIR.")
    options: dict[str, Any] = {"workers": workers, "decode_seconds": decode_seconds}
    options |= {"catalogue": catalogue} if catalogue else {}
    if not embed and (url or backend or weights or endpoints):
        raise PhotodupError("Who embeds is asked with --embed only: add it, or leave the model out.")
    asked = _asked(url, backend, weights, endpoints, batch) if embed else None

    def scanning(beside: Any) -> Any:
        if directory is None or apple_photos:
            return scan_apple_photos(directory, beside=beside, **options)
        return scan(directory, beside=beside, **options)

    scan_and_embed_and_print(scanning, asked)


def embed(
    directory: Annotated[Path, typer.Argument(help="a folder that was scanned")],
    catalogue: CatalogueFile = None,
    url: ServerUrl = None,
    backend: BackendName = None,
    weights: LocalWeights = None,
    endpoints: EndpointsFile = None,
    batch: Batch = 32,
    engine: Annotated[str, typer.Option(help="ray: over Ray Data, for very large libraries")] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="with ray: how many embedders")] = None,
) -> None:
    """Embed every photograph that has no embedding of this model yet; continues where it stopped.

    Who embeds: these flags, else INFERENCE_BACKEND and INFERENCE_SERVICE_URL, else the review page's
    settings, else auto: a server that answers with trained weights, or this machine.
    """
    from photodup.photos.commands.embed_command import embed_and_print

    asked = _asked(url, backend, weights, endpoints, batch)
    embed_and_print(directory, catalogue, asked=asked, engine=engine, workers=workers)


def group(
    directory: Annotated[Path, typer.Argument(help="a folder that was scanned and embedded")],
    catalogue: CatalogueFile = None,
    threshold: Threshold = None,
    model: ModelDigest = None,
    keep: KeepOrder = None,
    prefer_folder: PreferFolder = None,
    allow_random: AllowRandom = False,
) -> None:
    """Show copies and similar photos, and which one to keep with the reason. Nothing is removed."""
    from photodup.photos.commands.group_command import print_groups
    from photodup.photos.library.catalogue import Catalogue

    options = {"keep": keep, "folders": prefer_folder, "digest": model, "allow_random": allow_random}
    with Catalogue(directory, catalogue) as opened:
        print_groups(opened, threshold=threshold, **options)


def review(
    directory: Annotated[Path | None, typer.Argument(help="a folder, scanned or not yet")] = None,
    catalogue: CatalogueFile = None,
    demo: Annotated[bool, typer.Option("--demo", help="on the demonstration library, port 8001")] = False,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="default 8000; 0: any free one")] = None,
    browser: Annotated[bool, typer.Option(help="open it in the browser")] = False,
    model: ModelDigest = None,
    keep: KeepOrder = None,
    prefer_folder: PreferFolder = None,
    threshold: Threshold = None,
    url: ServerUrl = None,
    backend: BackendName = None,
    weights: LocalWeights = None,
    endpoints: EndpointsFile = None,
    allow_random: AllowRandom = False,
) -> None:
    """Review duplicates in the browser: look for photos, compare, decide, move to the trash, undo.

    On 127.0.0.1 only. Who looks for similar scenes: as `photodup embed` chooses.
    """
    from photodup.demo.encoder import NAME, export_stand_in
    from photodup.photos.review.reviewed_folder import Encoders
    from photodup.photos.review.serve import review

    if demo:
        from photodup.study.evaluate import review_library

        directory, catalogue = review_library(), None
    if directory is None:
        raise PhotodupError("Name the folder that holds your photographs: photodup review DIR (or --demo).")
    more = {SMALL_ENCODER: export_stand_in}
    encoders = Encoders(backend, url, _at_hand(weights), _servers(endpoints), more, small_model=NAME)
    review(
        directory,
        port=port,
        catalogue=catalogue,
        browser=browser,
        is_demo=demo,
        encoders=encoders,
        threshold=threshold,
        keep=keep,
        folders=prefer_folder,
        digest=model,
        allow_random=allow_random,
    )


def evaluate(
    directory: Annotated[
        Path | None, typer.Argument(help="different photographs; default the demo's")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="MODEL_PRETRAINED; default the stand-in encoder")
    ] = None,
    all_edits: Annotated[bool, typer.Option("--all", help="every graded edit, not only the ten")] = False,
    library: Annotated[
        Path | None, typer.Option(help="a reviewed library: its decisions join the curve")
    ] = None,
) -> None:
    """Measure how well copies are found: edits of known photographs, and their curves."""
    from photodup.study.evaluate import evaluate_and_print

    evaluate_and_print(directory, weights=weights, all_edits=all_edits, library=library)


def demo(directory: Annotated[Path, typer.Argument(help="folder to build it in")]) -> None:
    """Build a demonstration library with known near-duplicates; nothing is downloaded."""
    from photodup.demo.photographs import build_demo

    print(f"Ground truth: {build_demo(directory)}")
