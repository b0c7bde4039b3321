"""Run the numbered notebooks: in order through papermill, each within its time budget; or in place, from records alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import yaml
from pydantic import FiniteFloat, TypeAdapter

from photodup.bench.record.json_files import RecordError, read_json
from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.paths import project_root
from photodup.core.progress import bar
from photodup.core.settings import inherited
from photodup.study.notebook.files import (
    NotebookOutcome,
    Parameters,
    notebooks,
    read_notebook,
    read_study,
    source_sha256,
    write_study,
)
from photodup.study.notebook.opening import write_opening
from photodup.study.notebook.run import REFERENCE, Run, folder_of, open_run
from photodup.study.runner.servers import start_servers

DEFAULT_BUDGET_S = 3600
_OF_SERVERS = ("GPU", "GPUS", "PRICE_PER_HOUR")  # parameters that describe the servers
SIZES = ("quick", "smoke")  # each a file of notebooks/


# The types, other than texts, that notebooks declare for their parameters.
_KINDS: dict[str, Any] = {
    "int": int | None, "float": FiniteFloat | None, "bool": bool,
    "list[str]": list[str], "list[int]": list[int], "list[float]": list[FiniteFloat],
}  # fmt: skip


def declared_parameters(notebook: Path) -> dict[str, str]:
    """Return the notebook's parameters and their help text, as papermill reads them."""
    import papermill

    return {name: info["help"] for name, info in papermill.inspect_notebook(str(notebook)).items()}


def parse_parameters(arguments: Iterable[str]) -> dict[str, str]:
    """Turn `-p KEY VALUE -p KEY VALUE …` into parameters; the values are texts, which `read_parameters` reads.

    Raises:
        PhotodupError: something else on the command line.
    """
    words = list(arguments)
    groups = [words[place : place + 3] for place in range(0, len(words), 3)]
    for group in groups:
        if len(group) != 3 or group[0] not in ("-p", "--parameter"):
            raise PhotodupError(
                f"{' '.join(group)!r} is not understood: parameters are given as -p KEY VALUE."
            )
    return {name: text for _, name, text in groups}


def read_parameters(chosen: Iterable[Path], parameters: Mapping[str, object]) -> Parameters:
    """Convert parameters given as text to the types that the notebooks declare: `4` stays a text for GPU, not for GPUS.

    Raises:
        PhotodupError: no chosen notebook declares a parameter, or its text is not of the declared type.
    """
    import papermill

    declared = [papermill.inspect_notebook(str(path)) for path in chosen]
    kinds = {name: facts["inferred_type_name"] for names in declared for name, facts in names.items()}
    if unknown := sorted(set(parameters) - set(kinds)):
        raise PhotodupError(
            f"No chosen notebook has a parameter {unknown[0]}: see `photodup study parameters`."
        )
    return {
        name: _typed(name, text, kinds[name]) if isinstance(text, str) and kinds[name] != "str" else text
        for name, text in parameters.items()
    }


def _typed(name: str, text: str, kind: str) -> object:
    try:
        typed = yaml.load(text, yaml.BaseLoader if kind == "list[str]" else yaml.SafeLoader)
        return TypeAdapter(_KINDS[kind]).validate_python(typed, strict=True)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise PhotodupError(f"-p {name}: {text[:80]!r} is no {kind}, which the notebook declares.") from None


def load_sizes(sizes: str) -> Mapping[str, Mapping[str, Any]]:
    """Return each notebook's `parameters` and `budget_s`, and the sizes of `comparisons`; nothing for `full`.

    Raises:
        PhotodupError: `sizes` is not `full`, `quick` or `smoke`.
    """
    if sizes == "full":
        return {}
    path = project_root() / "notebooks" / f"{sizes}.yaml"
    if sizes not in SIZES:
        raise PhotodupError(
            f"SIZES is {sizes!r}: it can be {', '.join(SIZES)} (notebooks/SIZES.yaml) or full."
        )
    return yaml.safe_load(path.read_text()) or {}


def execute_notebook(
    source: Path,
    output: Path,
    parameters: Mapping[str, object],
    *,
    budget_s: float,
    within: Path | None = None,
) -> NotebookOutcome:
    """Run one notebook in a process of its own and write the executed copy to `output`, beneath the folder `within`.

    papermill limits single cells only, so the whole notebook runs in a process group that is killed, kernel
    included, when `budget_s` has passed.
    """
    outcome = NotebookOutcome(source.stem, source_sha256=source_sha256(source), parameters=dict(parameters))
    started, n_done = time.monotonic(), 0
    n_cells = sum(cell.cell_type == "code" for cell in read_notebook(source).cells)
    total = n_cells + bool(parameters)  # papermill puts them into a cell of their own
    with (
        bar(total=total, desc=source.stem, unit="cell") as progress,
        tempfile.TemporaryFile("w+", encoding="utf-8") as log,  # a pipe nobody reads would block it
        tempfile.TemporaryDirectory(prefix="photodup-") as scratch,  # papermill writes through links
    ):
        executed = Path(scratch) / output.name
        command = [sys.executable, "-P", "-m", "papermill", str(source), str(executed), "--no-progress-bar"]
        command += ["--kernel", "python3", "--cwd", str(source.parent), "-y", json.dumps(dict(parameters))]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            while process.poll() is None and time.monotonic() - started < budget_s:
                n_before, n_done = n_done, max(n_done, min(total, _cells_done(executed)))
                progress.update(n_done - n_before)
                time.sleep(0.5)
            if process.returncode is None:
                outcome.status = "timeout"
                outcome.error = f"{source.name} was stopped after its budget of {budget_s:.0f} s."
            elif process.returncode == 0:
                outcome.status = "passed"
            else:
                log.seek(0)
                outcome.status, outcome.error = "failed", "\n".join(log.read().strip().splitlines()[-8:])
        finally:
            _end_group(process)
            if executed.is_file():
                write_atomically(output, executed.read_bytes(), within=within)
    outcome.seconds = round(time.monotonic() - started, 1)
    return outcome


def run_study(
    name: str,
    *,
    endpoints: str | Path = "",
    sizes: str = "quick",
    only: Iterable[str] = (),
    parameters: Mapping[str, object] | None = None,
    weights: str | None = None,
    again: bool = False,
    visits: int | None = None,
) -> list[NotebookOutcome]:
    """Run the study into `results/<name>/` and return every notebook's outcome.

    Notebooks that already passed with the same source and parameters are not run again, and records that
    exist are not measured again. The embedded servers are started when no endpoints file is given and a
    notebook has to run; they are stopped on success, failure and Ctrl-C alike.

    Args:
        endpoints: YAML file or address line of servers that run elsewhere; ENDPOINTS among the parameters takes its place.
        sizes: `quick` (notebooks/quick.yaml: what the answers need), `smoke` (notebooks/smoke.yaml: every cell once,
            decides nothing) or `full` (the notebooks' defaults).
        only: notebook prefixes.
        parameters: extra papermill parameters, given to the notebooks that declare them; RUN takes the place of `name`.
        weights: `MODEL_PRETRAINED` for embedded servers and notebooks; see `photodup.study.notebook.weights`.
        again: run notebooks even if they passed before.
        visits: of each comparison, instead of what the sizes say.

    Raises:
        PhotodupError: an unknown notebook or parameter, or servers that cannot be started.
    """
    from photodup.bench.record import latencies
    from photodup.study.notebook.weights import prepare_model
    from photodup.study.report.page import write_report

    chosen = notebooks(only)
    parameters = read_parameters(chosen, parameters or {})
    name = str(parameters.pop("RUN", name))
    endpoints = str(parameters.pop("ENDPOINTS", endpoints))
    directory = folder_of(name)
    chosen.sort(key=lambda path: path.name.startswith("00"))  # last, since it quotes the others' answers
    plan = [_plan(path, name, sizes, parameters) for path in chosen]
    outcomes = {outcome.notebook: outcome for outcome in read_study(directory)}
    due = [each for each in plan if again or not _is_current(outcomes.get(each.path.stem), each, directory)]
    with ExitStack() as stack:
        where: str | Path = ""
        if due:
            prepare_model(weights)
            servers = {key.lower(): parameters[key] for key in _OF_SERVERS if key in parameters}
            chosen_due = [each.path for each in due]
            where = _measure_comparisons(stack, name, chosen_due, sizes, endpoints, servers, visits)
        for each in plan:
            stem, output = each.path.stem, directory / "notebooks" / each.path.name
            if each not in due:
                print(f"{stem} done before", flush=True)
                continue
            where_to_ask = {"ENDPOINTS": str(where)} if each.asks_servers else {}
            outcome = execute_notebook(
                each.path,
                output,
                each.parameters | where_to_ask,
                budget_s=each.budget_s,
                within=directory.parent,
            )
            outcome.parameters, outcome.sizes = each.parameters, sizes
            outcomes[stem] = outcome
            write_study(directory, outcomes.values())
            error = f"\n{outcome.error}" if outcome.error else ""
            print(f"{stem} {outcome.status} after {outcome.seconds:.0f} s{error}", flush=True)
    latencies.compact(directory)  # those of a notebook that was stopped half-way
    index = write_report(name)
    print(f"\nReport: {index}", flush=True)
    return [outcomes[path.stem] for path in chosen]


@dataclass(frozen=True)
class PlannedNotebook:
    """A notebook to run and its parameters; `asks_servers` adds ENDPOINTS, which differs at each start."""

    path: Path
    parameters: Parameters
    budget_s: float
    asks_servers: bool


def _plan(path: Path, run: str, sizes: str, extra: Parameters) -> PlannedNotebook:
    size, declared = load_sizes(sizes).get(path.stem, {}), declared_parameters(path)
    parameters = {**size.get("parameters", {}), **{name: extra[name] for name in extra if name in declared}}
    if "RUN" in declared:
        parameters["RUN"] = run
    budget_s = float(size.get("budget_s", DEFAULT_BUDGET_S))
    return PlannedNotebook(path, parameters, budget_s, "ENDPOINTS" in declared)


def measure_pairs(
    name: str, *, only: Iterable[str] = (), primary: bool = False, visits: int | None = None
) -> None:
    """Measure comparisons of the full study into `results/<name>/` and write its `outcomes.json`; run no notebook.

    Args:
        only: notebook prefixes.
        primary: only the primary comparisons and their nulls.
        visits: of each comparison; default four.
    """
    from photodup.study.notebook.weights import prepare_model

    folder_of(name)
    prepare_model(None)
    with ExitStack() as stack:
        _measure_comparisons(stack, name, notebooks(only), "full", "", {}, visits, primary=primary)


def _measure_comparisons(
    stack: ExitStack,
    name: str,
    chosen: Iterable[Path],
    sizes: str,
    endpoints: str | Path,
    servers: Mapping[str, Any],
    visits: int | None = None,
    *,
    primary: bool = False,
) -> str | Path:
    """Start the servers unless they run elsewhere, and measure all comparisons before the notebooks, in one pass.

    Args:
        servers: the GPU, the number of them and the price, as `open_run` takes them.

    Returns:
        The endpoints file, or the address line as it was given.
    """
    from photodup.bench.pairs.declared import declarations
    from photodup.study.comparisons.measure import measure_comparisons, sizes_of
    from photodup.study.comparisons.outcomes import write_outcomes

    size = load_sizes(sizes).get("comparisons", {})
    declared, quick = declarations(), sizes != "full"
    pairs = [
        p for p in declared.of([path.stem for path in chosen], quick=quick) if p.is_primary or not primary
    ]
    pairs += declared.nulls_of(pairs, quick=quick)
    here = stack.enter_context(ExitStack())
    where = endpoints or start_servers(here, name, pairs)

    def opened() -> Run:
        return open_run(name, where, strict=True, **servers)

    def restarted() -> Run:
        here.close()
        start_servers(here, name, pairs)
        return opened()

    if pairs or endpoints:
        with (run := opened()).store:
            print(f"{len(pairs)} comparisons of {sizes} sizes", flush=True)
            measure_comparisons(
                run, pairs, sizes_of(size, visits), restarted=None if endpoints else restarted
            )
            write_outcomes(run)
    return where


def _is_current(previous: NotebookOutcome | None, planned: PlannedNotebook, directory: Path) -> bool:
    return (
        previous is not None
        and previous.status == "passed"
        and previous.source_sha256 == source_sha256(planned.path)
        and previous.parameters == planned.parameters
        and (directory / "notebooks" / planned.path.name).is_file()
    )


def _cells_done(output: Path) -> int:
    """Return how many cells papermill has completed, by the copy that it keeps saving."""
    with suppress(RecordError):  # caught in the middle of a save
        cells = read_json(output, {}).get("cells", [])
        return sum(
            c["metadata"].get("papermill", {}).get("status") == "completed"
            for c in cells
            if c["cell_type"] == "code"
        )
    return 0


def _end_group(process: subprocess.Popen) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)


def render_notebooks(only: Iterable[str] = ()) -> list[Path]:
    """Re-execute notebooks (by default all, and the template) with their own parameters; return their paths.

    Nothing is measured: a point without a record stays a gap, so what is committed is what the reference
    run found. The opening cell gets the answer and the figure that the notebook computes, and the metadata the digest
    of its source; a test compares both.

    Raises:
        PhotodupError: a cell failed; names the notebook and the error.
    """
    paths = sorted(notebooks(only), key=lambda path: path.name.startswith("00"))  # it quotes the others
    if not only:
        paths.append(project_root() / "notebooks" / "_template.ipynb")
    for path in paths:
        _render(path)
    return paths


def _render(path: Path) -> None:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = read_notebook(path)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,  # how many pieces a text came in is chance
    )
    try:
        client.execute(env=inherited(PHOTODUP_MEASURE="0"))
    except CellExecutionError as error:
        raise PhotodupError(f"{path.name} does not render from the records of {REFERENCE}: {error}") from None
    write_opening(notebook)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        cell.metadata.pop("papermill", None)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "photodup": {"run": REFERENCE, "source_sha256": source_sha256(path)},
    }
    write_atomically(path, nbformat.writes(notebook) + "\n")
