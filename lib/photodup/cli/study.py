"""The `study` commands, `report`, `kube`, and `bench`, photodup's own speed."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Exit, Option, Typer

from photodup.errors import PhotodupError

study = Typer(no_args_is_help=True, help="Run the notebooks against servers, and read what they found.")

Only = Annotated[list[str] | None, Option(help="notebook prefix such as 03; repeat for more")]
Sizes = Annotated[str, Option(help="quick, smoke (both in notebooks/) or full")]


# Typer has no repeated option of two words, and papermill's users have -p KEY VALUE in their fingers.
@study.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def study_run(
    context: Context,
    run: Annotated[str, Option(help="directory under results/")] = "quick",
    endpoints: Annotated[Path | None, Option(help="YAML of servers elsewhere; else embedded")] = None,
    sizes: Sizes = "quick",
    only: Only = None,
    weights: Annotated[str | None, Option(help="MODEL_PRETRAINED; random:0 by default")] = None,
    again: Annotated[bool, Option(help="run notebooks even if they passed before")] = False,
    visits: Annotated[int | None, Option(min=1, help="of each comparison; else what SIZES says")] = None,
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
        visits=visits,
    )
    if any(outcome.status not in ("passed", "skipped") for outcome in outcomes):
        raise Exit(1)


@study.command("pairs")
def study_pairs(
    run: Annotated[str, Option(help="directory under results/")],
    only: Only = None,
    primary: Annotated[bool, Option("--primary", help="those alone on which answers rest")] = False,
    visits: Annotated[int | None, Option(min=2, help="of each comparison; default 4")] = None,
) -> None:
    """Measure the comparisons of the full study on servers of this machine, and run no notebook; resume where it stopped."""
    from photodup.study.runner.execute import measure_pairs

    measure_pairs(run, only=only or (), primary=primary, visits=visits)


@study.command("held-out")
def study_held_out(run: Annotated[str, Option(help="directory under results/")] = "held-out") -> None:
    """Find ten edits of each held-out photograph and record what is suggested (notebook 01; about an hour)."""
    from photodup.study.evaluate import on_held_out
    from photodup.study.notebook.run import open_own_run

    opened = open_own_run(run)
    with opened.store:
        found = on_held_out(opened)
    if error := found.get("error"):
        raise PhotodupError(error)
    print(f"Notebook 01 shows what {opened.directory} has, with -p HELD_OUT {run}.")


@study.command("kinds")
def study_kinds(run: Annotated[str, Option(help="directory under results/")] = "kinds") -> None:
    """Make each kind of edit alone of held-out photographs and record what is suggested (notebook 01; ten minutes)."""
    from photodup.photos.quality.shown import kinds_lines
    from photodup.study.evaluate import kinds_on_held_out
    from photodup.study.notebook.run import open_own_run

    opened = open_own_run(run)
    with opened.store:
        found = kinds_on_held_out(opened)
    print("\n".join(kinds_lines(found)))
    print(f"Notebook 01 shows what {opened.directory} has, with -p KINDS {run}.")


@study.command("peers")
def study_peers(
    run: Annotated[str, Option(help="directory under results/")] = "peers",
    server: Annotated[list[str] | None, Option(help="name in tools/peers; repeat; default all")] = None,
    step: Annotated[
        list[str] | None,
        Option(help="alone, verify, rate, fp32, fastest or many (32 in flight); repeat; default all"),
    ] = None,
    visits: Annotated[int, Option(min=2, help="of all servers under each load")] = 3,
) -> None:
    """Measure the servers of notebook 13: ours, and those that tools/peers/make.py has installed."""
    from photodup.study.notebook.run import open_own_run
    from photodup.study.peers.stage import STEPS, measure_servers

    opened = open_own_run(run)
    with opened.store:
        measure_servers(opened, only=server or (), steps=step or STEPS, visits=visits)


@study.command("rehearse", hidden=True)
def study_rehearse(
    run: Annotated[str, Option(help="directory under results/")] = "rehearsal",
    only: Only = None,
    without: Annotated[
        list[str] | None,
        Option(
            help="what the machine lacks: control, metrics, fastapi, triton, openvino, jpeg; repeat for more"
        ),
    ] = None,
    by: Annotated[
        list[str] | None, Option(help="how notebooks find it: file, address; both unless given")
    ] = None,
    sizes: Sizes = "quick",
    link: Annotated[str, Option(help="preset of the emulated link in front")] = "us-east",
) -> None:
    """Run the notebooks against a "rented machine" on this one, and print what decided each question.

    The machine is a network namespace behind an emulated link, with the servers that the images start (Linux, root).
    """
    from photodup.study.runner.rented import WAYS, rehearse

    by_way = rehearse(run, only=only or (), without=without or (), ways=by or WAYS, sizes=sizes, link=link)
    for way, rows in by_way.items():
        print(f"\nBy {way}: {sum(row['decided'] == 'decided' for row in rows)} of {len(rows)} decided")
        for row in rows:
            print(f"{row['stem']:30} {row['decided']:12} {row['answer'] or '(no answer)'}")
            for name, word in row["evidence"].items():
                print(f"{'':30} {word:12} {name}")
    if any(row["status"] not in ("passed", "skipped") for rows in by_way.values() for row in rows):
        raise Exit(1)


@study.command("parameters")
def study_parameters() -> None:
    """List every notebook's parameters with their help."""
    from photodup.study.notebook.files import notebooks
    from photodup.study.runner.execute import declared_parameters

    for path in notebooks():
        print(path.stem)
        for name, text in declared_parameters(path).items():
            print(f"  {name:24} {text}")


@study.command("render", hidden=True)
def study_render(only: Only = None) -> None:
    """Execute the committed notebooks in place from the records of the reference run; nothing is measured."""
    from photodup.study.runner.execute import render_notebooks

    for path in render_notebooks(only or ()):
        print(path.name)


@study.command("readme", hidden=True)
def study_readme() -> None:
    """Write the generated parts of README.md, results/README.md and docs/study.md from what is committed."""
    from photodup.paths import project_root
    from photodup.selfbench.rows import blocks
    from photodup.study.report.readme import appendix_blocks, write_blocks

    print(write_blocks())
    print(write_blocks(project_root() / "results" / "README.md", appendix_blocks()))
    print(write_blocks(project_root() / "docs" / "study.md", blocks()))


@study.command("outcomes")
def study_outcomes(run: Annotated[str, Argument(help="directory under results/")]) -> None:
    """Print every comparison of a run from its records, primary ones first, and its goals; nothing is measured."""
    from photodup.bench.stats.sentence import sentence
    from photodup.study.comparisons.outcomes import NOT_PLANNED, goals, read_all
    from photodup.study.notebook.run import read_run, run_directory
    from photodup.study.report.facts import notebook_rows

    opened = read_run(run_directory(run))
    found = read_all(opened)
    planned = [outcome for outcome in found if outcome.because != NOT_PLANNED]
    for outcome in sorted(planned, key=lambda o: (o.question.is_null, not o.question.is_primary)):
        asked = outcome.question
        kind = "null" if asked.is_null else "primary" if asked.is_primary else "exploratory"
        print(f"{asked.family[:2] or '--'} {kind}, {asked.load}: {sentence(outcome)}")
        for note in outcome.notes:
            print(f"     {note}")
    if left := len(found) - len(planned):
        print(f"This run leaves out {left} of {len(found)} comparisons.")
    print("\n".join(["", *goals(opened)]))
    states = [(row["stem"][:2], row["decided"]) for row in notebook_rows(opened.name)]
    print(f"answers: {sum(s == 'decided' for _, s in states)} of {len(states)} decided (goal 13):", end=" ")
    print(", ".join(f"{number} {state}" for number, state in states))


def report(
    runs: Annotated[list[str] | None, Argument(help="directories under results/; default quick")] = None,
) -> None:
    """Write results/RUN/index.html and one page a notebook from the records; of several runs one table."""
    from photodup.study.report.page import write_reports

    print(write_reports(runs or ["quick"]))


kube_app = Typer(help="Kubernetes manifests: check them before a cluster does.", no_args_is_help=True)


@kube_app.callback()
def kube() -> None:
    """Keep `check` a subcommand even while it is the only one."""


@kube_app.command("check")
def kube_check(
    directories: Annotated[list[Path] | None, Argument(help="kustomizations; base and both overlays")] = None,
) -> None:
    """Check manifests: schema, quota against maxReplicas, probes against start time, selectors, ports."""
    from photodup.study.kubernetes.checks import check
    from photodup.study.kubernetes.manifests import OVERLAYS, render

    found = 0
    for directory in directories or OVERLAYS.values():
        findings = check(render(directory))
        found += len(findings)
        said = [str(finding) for finding in findings] or ["nothing found"]
        print(*said, sep="\n", end=f"  ({directory})\n")
    if found:
        raise Exit(1)


BENCHMARKS = (
    "service", "starts", "one_pass", "load_generator", "recorded",
    "grouping", "library", "crops", "statistics",
)  # fmt: skip

benchmarks = Typer(invoke_without_command=True)


@benchmarks.callback()
def bench(
    context: Context,
    only: Annotated[list[str] | None, Option(help=f"{', '.join(BENCHMARKS)}; repeat")] = None,
    json: Annotated[Path | None, Option(help="write the rows here; - prints them and no table")] = None,
) -> None:
    """Print the project's own speed figures and their goals, both sides of a ratio measured in turns; or time a `device`."""
    import importlib

    from photodup.files import write_atomically
    from photodup.selfbench.rows import HEAD, Row, as_json, as_line, guarded

    if context.invoked_subcommand:
        return
    unknown = set(only or ()) - set(BENCHMARKS)
    if unknown:
        raise PhotodupError(f"There is no benchmark {unknown.pop()!r}: choose of {', '.join(BENCHMARKS)}.")
    is_only_json = json == Path("-")
    found: list[Row] = []
    for name in only or BENCHMARKS:
        for row in guarded(name, importlib.import_module(f"photodup.selfbench.{name}").rows):
            if not is_only_json:
                print(as_line(row) if found else f"{HEAD}\n{as_line(row)}", flush=True)
            found.append(row)
        if json and not is_only_json:  # what is measured so far outlives an interruption
            write_atomically(json, as_json(found))
    if is_only_json:
        print(as_json(found), end="")


@benchmarks.command("device")
def bench_device(
    device: Annotated[str | None, Option(help="cpu or cuda; default the best there is")] = None,
    batch: Annotated[list[int] | None, Option(min=1, help="batch size; repeat; 1, 8, 32")] = None,
    repeats: Annotated[int, Option(min=1, help="timed runs of each line")] = 10,
    engine: Annotated[
        list[str] | None, Option(help="only this: an engine, ceilings or fidelity; repeat for more")
    ] = None,
    precision: Annotated[
        list[str] | None, Option(help="only this: fp32, tf32, fp16 or bf16; repeat for more")
    ] = None,
    budget_minutes: Annotated[
        float | None, Option(min=0, help="leave out what no longer fits, the least important first")
    ] = None,
    compile_on_cpu: Annotated[bool, Option("--compile", help="also torch.compile on a CPU")] = False,
    photos: Annotated[int, Option(min=2, help="demonstration photographs for the fidelity")] = 32,
    run: Annotated[
        str | None, Option(help="keep each line as a record of results/RUN, and go on from those")
    ] = None,
) -> None:
    """Time every engine on one device with no server between: PyTorch, ONNX Runtime, OpenVINO, TensorRT.

    FP32 means FP32: TF32 is a precision of its own. Shares are of what the device itself reaches on matrix products of
    the same precision, measured beforehand.
    """
    from photodup.selfbench.device.plan import TimeBudget
    from photodup.selfbench.device.table import print_bench

    print_bench(
        device,
        batch or [1, 8, 32],
        repeats,
        compile_on_cpu,
        engines=engine or (),
        precisions=precision or (),
        budget=TimeBudget(budget_minutes),
        n_photos=photos,
        run=run,
    )
