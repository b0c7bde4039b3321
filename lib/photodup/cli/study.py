"""The `study` commands, `report` and `kube`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, Typer

study = Typer(no_args_is_help=True, help="Run the notebooks against servers, and read what they found.")

Only = Annotated[list[str] | None, Option(help="notebook prefix such as 03; repeat for more")]


@study.command("run")
def study_run(
    run: Annotated[str, Option(help="directory under results/")] = "quick",
    endpoints: Annotated[
        str, Option(help="YAML file or address line of servers elsewhere; else embedded")
    ] = "",
    sizes: Annotated[str, Option(help="quick, smoke (both in notebooks/) or full")] = "quick",
    only: Only = None,
    weights: Annotated[str | None, Option(help="MODEL_PRETRAINED; random:0 by default")] = None,
    again: Annotated[bool, Option(help="run notebooks even if they passed before")] = False,
) -> None:
    """Run every notebook (or --only some) at these sizes and write results/RUN/index.html; resume where it stopped.

    To change a parameter of a notebook, run that notebook with papermill.
    """
    from photodup.study.runner.execute import run_study

    outcomes = run_study(
        run,
        endpoints=Path(endpoints).resolve() if Path(endpoints).is_file() else endpoints,
        sizes=sizes,
        only=only or (),
        weights=weights,
        again=again,
    )
    if any(outcome.status != "passed" for outcome in outcomes):
        raise Exit(1)


@study.command("pairs")
def study_pairs(
    run: Annotated[str, Option(help="directory under results/")],
    only: Only = None,
    primary: Annotated[bool, Option("--primary", help="only those on which answers rest")] = False,
    visits: Annotated[int | None, Option(min=2, help="visits of each comparison; default 4")] = None,
) -> None:
    """Measure the comparisons of the full study on servers of this machine, and run no notebook; resume where it stopped."""
    from photodup.study.runner.execute import measure_pairs

    measure_pairs(run, only=only or (), primary=primary, visits=visits)


@study.command("render", hidden=True)
def study_render(only: Only = None) -> None:
    """Execute the committed notebooks in place from the records of the reference run; nothing is measured."""
    from photodup.study.runner.execute import render_notebooks

    for path in render_notebooks(only or ()):
        print(path.name)


@study.command("outcomes")
def study_outcomes(run: Annotated[str, Argument(help="directory under results/")]) -> None:
    """Print every comparison of a run from its records, primary ones first, and which answers it decides."""
    from photodup.bench.stats.sentence import load_of, sentence
    from photodup.study.comparisons.outcomes import NOT_PLANNED, read_all
    from photodup.study.notebook.run import read_run, run_directory
    from photodup.study.report.facts import notebook_answers

    study_run = read_run(run_directory(run))
    outcomes = read_all(study_run)
    planned = [outcome for outcome in outcomes if outcome.reason != NOT_PLANNED]
    for outcome in sorted(planned, key=lambda o: (o.comparison.is_null, not o.comparison.is_primary)):
        comparison = outcome.comparison
        kind = "null" if comparison.is_null else "primary" if comparison.is_primary else "exploratory"
        print(f"{comparison.family[:2] or '--'} {kind}, {load_of(outcome)}: {sentence(outcome)}")
        for note in outcome.notes:
            print(f"     {note}")
    if n_left := len(outcomes) - len(planned):
        print(f"This run leaves out {n_left} of {len(outcomes)} comparisons.")
    states = [(answer.stem[:2], answer.state) for answer in notebook_answers(study_run.name)]
    print(f"\nanswers: {sum(s == 'decided' for _, s in states)} of {len(states)} decided:", end=" ")
    print(", ".join(f"{number} {state}" for number, state in states))


def report(
    runs: Annotated[list[str] | None, Argument(help="directories under results/; default quick")] = None,
) -> None:
    """Write results/RUN/index.html and a page for each notebook from the records; for several runs, one table of all."""
    from photodup.study.report.page import write_report
    from photodup.study.report.runs_table import write_runs

    names = runs or ["quick"]
    print(write_report(names[0]) if len(names) == 1 else write_runs(names))


kube_app = Typer(help="Kubernetes manifests: check them before a cluster does.", no_args_is_help=True)


@kube_app.command("check")
def kube_check(
    directories: Annotated[list[Path] | None, Argument(help="kustomizations; default all in k8s/")] = None,
) -> None:
    """Check manifests: quota against maxReplicas, probes against start time."""
    from photodup.study.kubernetes import OVERLAYS, check_manifests, kustomize

    n_findings = 0
    for directory in directories or OVERLAYS.values():
        findings = check_manifests(kustomize(directory))
        n_findings += len(findings)
        lines = [" · ".join(finding) for finding in findings] or ["nothing found"]
        print(*lines, sep="\n", end=f"  ({directory})\n")
    if n_findings:
        raise Exit(1)
