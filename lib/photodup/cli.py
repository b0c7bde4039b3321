"""The `photodup` command. Each command imports what it needs when it runs, so `--help` stays instant."""

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from photodup.errors import PhotodupError
from photodup.names import escaped

app = typer.Typer(
    name="photodup",
    help="Find near-duplicate photos, and study how the embedding behind it is served.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

study = typer.Typer(no_args_is_help=True, help="Run the notebooks against servers, and read what they found.")
app.add_typer(study, name="study")


BENCHMARKS = ("service", "scan", "load_generator", "grouping", "library")

Only = Annotated[list[str] | None, typer.Option(help="notebook prefix such as 03; repeat for more")]


# Typer has no repeated option of two words, and papermill's users have -p KEY VALUE in their fingers.
@study.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def study_run(
    context: typer.Context,
    run: Annotated[str, typer.Option(help="directory under results/")] = "quick",
    endpoints: Annotated[Path | None, typer.Option(help="YAML of servers elsewhere; else embedded")] = None,
    sizes: Annotated[str, typer.Option(help="quick (tests/overrides.yaml) or full")] = "quick",
    only: Only = None,
    weights: Annotated[str | None, typer.Option(help="MODEL_PRETRAINED; random:0 by default")] = None,
    again: Annotated[bool, typer.Option(help="run notebooks even if they passed before")] = False,
) -> None:
    """Run every notebook (or --only some) and write results/RUN/index.html; resume where it stopped.

    Give notebook parameters as papermill does: -p KEY VALUE, as often as you like.
    """
    from photodup.study.runner.execute import parse_parameters, run_study

    outcomes = run_study(
        run,
        endpoints=endpoints,
        sizes=sizes,
        only=only or (),
        parameters=parse_parameters(context.args),
        weights=weights,
        again=again,
    )
    if any(outcome.status not in ("passed", "skipped") for outcome in outcomes):
        raise typer.Exit(1)


@study.command("parameters")
def study_parameters() -> None:
    """List every notebook's parameters with their help."""
    from photodup.study.notebook.files import notebooks
    from photodup.study.runner.execute import declared_parameters

    for path in notebooks():
        print(path.stem)
        for name, text in declared_parameters(path).items():
            print(f"  {name:24} {text}")


@study.command("render")
def study_render(
    only: Annotated[
        list[str] | None, typer.Option(help="notebook prefix such as 03; repeat for more")
    ] = None,
) -> None:
    """Execute the committed notebooks in place from the records of the reference run; nothing is measured."""
    from photodup.study.runner.render import render_notebooks

    for path in render_notebooks(only or ()):
        print(path.name)


@study.command("readme")
def study_readme() -> None:
    """Write the generated parts of README.md: the result table, the figure, the map of notebooks."""
    from photodup.study.report.readme import write_blocks

    print(write_blocks())


benchmarks = typer.Typer(invoke_without_command=True)
app.add_typer(benchmarks, name="bench")


@benchmarks.callback()
def bench(
    context: typer.Context,
    only: Annotated[list[str] | None, typer.Option(help=f"{', '.join(BENCHMARKS)}; repeat")] = None,
) -> None:
    """Print the project's own speed figures as ratios, each pair measured in one run; or time a `device`."""
    import importlib

    if context.invoked_subcommand:
        return
    unknown = set(only or ()) - set(BENCHMARKS)
    if unknown:
        raise PhotodupError(f"There is no benchmark {unknown.pop()!r}: choose of {', '.join(BENCHMARKS)}.")
    for name in only or BENCHMARKS:
        print(name)
        importlib.import_module(f"photodup.selfbench.{name}").main()


@app.command("bench-device", hidden=True)
@benchmarks.command("device")
def bench_device(
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default the best there is")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="batch size; repeat; 1, 8, 32")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="timed runs of each line")] = 10,
    compile_on_cpu: Annotated[bool, typer.Option("--compile", help="also torch.compile on a CPU")] = False,
    ghz: Annotated[float, typer.Option(min=0.1, help="CPU: clock held with wide vectors")] = 2.5,
    flop_per_cycle: Annotated[int, typer.Option(min=1, help="CPU: 32 for AVX2, 64 for AVX-512")] = 32,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write the lines here")] = None,
) -> None:
    """Time every engine on one device with no server between: PyTorch, ONNX Runtime, OpenVINO, TensorRT."""
    from photodup.study.parts.device_table import print_bench

    print_bench(device, batch or [1, 8, 32], repeats, compile_on_cpu, ghz, flop_per_cycle, json_file)


@app.command()
def report(
    runs: Annotated[
        list[str] | None, typer.Argument(help="directories under results/; default quick")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="two runs or more, side by side")] = False,
    slides: Annotated[bool, typer.Option("--slides", help="a deck to show, instead of the page")] = False,
    output: Annotated[Path | None, typer.Option(help="file for --compare or --slides")] = None,
) -> None:
    """Write results/RUN/index.html and one page per notebook from what is recorded; or a comparison, or a deck."""
    from photodup.study.report.write import write_reports

    print(write_reports(runs or ["quick"], compare=compare, slides=slides, output=output))


@app.command()
def audit(
    run: Annotated[str | None, typer.Argument(help="directory under results/ to judge as well")] = None,
    documents: Annotated[
        Path | None, typer.Option(help="folder with the source documents, to compare")
    ] = None,
) -> None:
    """Audit the published claims: against their own numbers, and against a run's records."""
    from photodup.study.published.audit import report_lines

    for line in report_lines(run, documents):
        print(line)


from photodup.serving import commands as serving  # noqa: E402  (imports nothing heavy)

app.command()(serving.serve)
app.command()(serving.render)
app.add_typer(serving.endpoints, name="endpoints")

from photodup.serving.vast_commands import vast  # noqa: E402  (imports nothing heavy)

app.add_typer(vast, name="vast")


@app.command()
def export(
    directory: Annotated[Path | None, typer.Argument(help="default build/models")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="fp32, uint8 or fp16; repeat for more")] = None,
    again: Annotated[bool, typer.Option(help="also what is there already")] = False,
) -> None:
    """Export the model that MODEL_NAME and MODEL_PRETRAINED choose to ONNX, verified against PyTorch."""
    from photodup.embedding.engines.encoder import load_model
    from photodup.embedding.engines.export import VARIANTS, export
    from photodup.paths import build_dir

    model = load_model(device="cpu")
    for path in export(model, directory or build_dir() / "models", variant or VARIANTS, force=again).values():
        print(path)


@app.command()
def demo(directory: Annotated[Path, typer.Argument(help="folder to build it in")]) -> None:
    """Build a demonstration library with known near-duplicates; nothing is downloaded."""
    from photodup.demo.photographs import build_demo

    print(f"Ground truth: {build_demo(directory)}")


CatalogueFile = Annotated[Path | None, typer.Option(help="file; default DIR/.photodup/catalogue.sqlite")]
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
PreferFolder = Annotated[
    list[str] | None, typer.Option(help="keep what lies here before all else; repeat, best first")
]


def _servers(endpoints: Path | None) -> dict[str, str]:
    from photodup.serving.endpoints import load_endpoints

    return load_endpoints(endpoints).backends if endpoints else {}


@app.command()
def scan(
    directory: Annotated[Path | None, typer.Argument(help="the folder that holds your photographs")] = None,
    catalogue: CatalogueFile = None,
    workers: Annotated[int | None, typer.Option(min=1, help="threads; default one per core")] = None,
    apple_photos: Annotated[bool, typer.Option(help="macOS: the Photos library (DIR: another)")] = False,
    decode_seconds: Annotated[float, typer.Option(min=0.1, help="longest time for one photograph")] = 30.0,
) -> None:
    """Bring the catalogue of a photo library up to date. Photographs are only read."""
    from photodup.photos.commands.interrupt import goes_on
    from photodup.photos.library.apple import scan_apple_photos
    from photodup.photos.library.scan import printable, scan

    if directory is None and not apple_photos:
        raise PhotodupError("Name the folder that holds your photographs: photodup scan DIR.")
    options = {"workers": workers, "decode_seconds": decode_seconds} | (
        {"catalogue": catalogue} if catalogue else {}
    )
    with goes_on():
        report = scan_apple_photos(directory, **options) if apple_photos else scan(directory, **options)
    for problem in report.problems:
        print(f"not read: {problem}")
    print(f"{report}\nCatalogue: {printable(report.catalogue)}")


@app.command()
def embed(
    directory: Annotated[Path, typer.Argument(help="a folder that was scanned")],
    catalogue: CatalogueFile = None,
    url: Annotated[str | None, typer.Option(help="server; default from the environment or settings")] = None,
    backend: Annotated[str | None, typer.Option(help="auto, or such as triton-onnx-grpc-fp32")] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="in this process: a checkpoint, onnx:PATH, sscd:PATH, as MODEL_PRETRAINED"),
    ] = None,
    endpoints: EndpointsFile = None,
    batch: Annotated[int, typer.Option(min=1, help="photographs per request")] = 32,
    engine: Annotated[str, typer.Option(help="ray: over Ray Data, for very large libraries")] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="with ray: how many embedders")] = None,
) -> None:
    """Embed every photograph that has no embedding of this model yet; continues where it stopped.

    Who embeds: these flags, else INFERENCE_BACKEND and INFERENCE_SERVICE_URL, else the review page's
    settings, else auto: a server that answers with trained weights, or this machine.
    """
    from photodup.photos.commands.embed_command import embed_and_print

    options = {"batch": batch, "load_generator": engine, "workers": workers, "endpoints": _servers(endpoints)}
    embed_and_print(directory, catalogue, url=url, backend=backend, weights=weights, **options)


@app.command()
def group(
    directory: Annotated[Path, typer.Argument(help="a folder that was scanned and embedded")],
    catalogue: CatalogueFile = None,
    threshold: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="smallest cosine of similar ones; the model's own")
    ] = None,
    model: ModelDigest = None,
    keep: KeepOrder = None,
    prefer_folder: PreferFolder = None,
    allow_random: Annotated[bool, typer.Option(help="study only: group by untrained weights")] = False,
) -> None:
    """Show copies and similar photos, and which one to keep with the reason. Nothing is removed."""
    from photodup.photos.commands.group_command import print_groups
    from photodup.photos.library.catalogue import Catalogue

    options = {"keep": keep, "folders": prefer_folder, "digest": model, "allow_random": allow_random}
    with Catalogue(directory, catalogue) as opened:
        print_groups(opened, threshold=threshold, **options)


@app.command()
def review(
    directory: Annotated[Path | None, typer.Argument(help="a folder that was scanned")] = None,
    catalogue: CatalogueFile = None,
    demo: Annotated[bool, typer.Option("--demo", help="on the demonstration library, port 8001")] = False,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="default 8000; 0: any free one")] = None,
    browser: Annotated[bool, typer.Option(help="open it in the browser")] = False,
    model: ModelDigest = None,
    keep: KeepOrder = None,
    prefer_folder: PreferFolder = None,
    endpoints: EndpointsFile = None,
) -> None:
    """Review duplicates in the browser: compare, decide, move to the trash, undo. On 127.0.0.1 only."""
    from photodup.photos.review.serve import review

    options = {"keep": keep, "folders": prefer_folder, "digest": model, "endpoints": _servers(endpoints)}
    review(directory, port=port, demo=demo, catalogue=catalogue, browser=browser, **options)


@app.command()
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
    from photodup.selfbench.copy_quality import evaluate_and_print

    evaluate_and_print(directory, weights=weights, all_edits=all_edits, library=library)


trash = typer.Typer(
    no_args_is_help=True, help="What `photodup review` removed: list, restore, delete for good."
)
app.add_typer(trash, name="trash")
Unsigned = Annotated[
    bool, typer.Option("--unsigned", help="instead, what your photodup on this machine did not write")
]


@trash.command("list")
def trash_list(directory: Annotated[Path, typer.Argument(help="the library")]) -> None:
    """List what is in the trash of a library, newest first."""
    from photodup.photos.commands.trash_command import list_trash

    list_trash(directory)


@trash.command("restore")
def trash_restore(
    directory: Annotated[Path, typer.Argument(help="the library")],
    operation: Annotated[
        list[str] | None, typer.Argument(help="names from `trash list`; default all")
    ] = None,
    unsigned: Unsigned = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Put files back where they were, with their times."""
    from photodup.photos.commands.trash_command import restore_trash

    restore_trash(directory, operation or (), unsigned=unsigned, yes=yes)


@trash.command("purge")
def trash_purge(
    directory: Annotated[Path, typer.Argument(help="the library")],
    operation: Annotated[
        list[str] | None, typer.Argument(help="names from `trash list`; default all")
    ] = None,
    unsigned: Unsigned = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Delete files from the trash for good. This is the only command that deletes a photograph."""
    from photodup.photos.commands.trash_command import purge_trash

    purge_trash(directory, operation or (), unsigned=unsigned, yes=yes)


kube_app = typer.Typer(help="Kubernetes manifests: check them before a cluster does.", no_args_is_help=True)
app.add_typer(kube_app, name="kube")


@kube_app.callback()
def kube() -> None:
    """Keep `check` a subcommand even while it is the only one."""


@kube_app.command("check")
def kube_check(
    directories: Annotated[
        list[Path] | None, typer.Argument(help="kustomizations; base and both overlays")
    ] = None,
    start_seconds: Annotated[
        float | None, typer.Option(help="measured seconds until ready, instead of the manifest's")
    ] = None,
) -> None:
    """Check manifests: schema, quota against maxReplicas, probes against start time, selectors, ports."""
    from photodup.study.kubernetes.checks import check
    from photodup.study.kubernetes.manifests import OVERLAYS, render

    found = 0
    for directory in directories or OVERLAYS.values():
        findings = check(render(directory), start_s=start_seconds)
        found += len(findings)
        print(*findings or ["nothing found"], sep="\n", end=f"  ({directory})\n")
    if found:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; a `PhotodupError` becomes one sentence on stderr and exit status 2."""
    # What Pillow says about damaged EXIF, with a line of its source; a photo that cannot be read is reported.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        app()
    except PhotodupError as error:
        print(f"photodup: {escaped(str(error), keep=chr(10))}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
