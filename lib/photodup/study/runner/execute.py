"""Run the numbered notebooks: in order through papermill; or in place, from records alone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nbformat
import yaml

from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.paths import project_root
from photodup.core.settings import inherited
from photodup.study.comparisons.outcomes import write_outcomes
from photodup.study.notebook.files import (
    NotebookOutcome,
    Parameters,
    notebooks,
    read_notebook,
    read_study,
    source_sha256,
    write_study,
)
from photodup.study.notebook.machine import Weights, read_machine, this_machine
from photodup.study.notebook.opening import write_opening
from photodup.study.notebook.run import REFERENCE, Run, folder_of, open_run, read_run
from photodup.study.notebook.weights import prepare_model
from photodup.study.runner.servers import start_servers

LONGEST_CELL_S = 3600
QUIET_KERNEL = ["--log-level=ERROR"]  # it warns of TCP without encryption, which is loopback
SIZES = ("quick", "smoke")  # each a file of notebooks/


def load_sizes(sizes: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the parameters of each notebook, and the sizes of `comparisons`; nothing for `full`.

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
    source: Path, output: Path, parameters: Parameters, *, within: Path | None = None
) -> NotebookOutcome:
    """Run one notebook through papermill and write the executed copy to `output`, beneath the folder `within`.

    A cell that takes longer than `LONGEST_CELL_S` ends the notebook and its kernel.
    """
    import papermill

    outcome = NotebookOutcome(
        source.stem, "passed", source_sha256=source_sha256(source), parameters=parameters
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="photodup-") as scratch:  # papermill writes through links
        executed = Path(scratch) / output.name
        try:
            papermill.execute_notebook(
                source,
                executed,
                parameters,
                kernel_name="python3",
                cwd=source.parent,
                progress_bar={"desc": source.stem},
                execution_timeout=LONGEST_CELL_S,
                extra_arguments=QUIET_KERNEL,
            )
        except TimeoutError:
            outcome.status = "timeout"
            outcome.error = f"{source.name} was stopped: a cell took longer than {LONGEST_CELL_S} s."
        except Exception as error:  # of the notebook, or of a kernel that died
            outcome.status, outcome.error = "failed", "\n".join(str(error).strip().splitlines()[-8:])
        finally:
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
    weights: str | None = None,
    again: bool = False,
) -> list[NotebookOutcome]:
    """Run the study into `results/<name>/` and return every notebook's outcome.

    Notebooks that already passed with the same source and parameters are not run again, and records that
    exist are not measured again. The embedded servers are started when no endpoints file is given and a
    notebook has to run; they are stopped on success, failure and Ctrl-C alike.

    Args:
        endpoints: YAML file or address line of servers that run elsewhere.
        sizes: `quick` (notebooks/quick.yaml: what the answers need), `smoke` (notebooks/smoke.yaml: every cell once,
            decides nothing) or `full` (the notebooks' defaults).
        only: notebook prefixes.
        weights: `MODEL_PRETRAINED` for embedded servers and notebooks; see `photodup.study.notebook.weights`.
        again: run notebooks even if they passed before.

    Raises:
        PhotodupError: an unknown notebook, other weights than the run's, or servers that cannot be started.
    """
    from photodup.bench.record import latencies
    from photodup.study.report.page import write_report

    chosen = notebooks(only)
    directory = folder_of(name)
    _set_weights(directory, weights, is_checked=bool(weights or not endpoints))
    chosen.sort(key=lambda path: path.name.startswith("00"))  # last, since it quotes the others' answers
    size = load_sizes(sizes)
    params = {path: {**size.get(path.stem, {}), "RUN": name} for path in chosen}
    outcomes = {outcome.notebook: outcome for outcome in read_study(directory)}
    due = [path for path in chosen if again or not _is_current(outcomes, path, params[path], directory)]
    with ExitStack() as stack:
        address: str | Path = ""
        if due:
            address = _measure_comparisons(stack, name, due, sizes, endpoints)
        for path in chosen:
            if path not in due:
                print(f"{path.stem} done before", flush=True)
                continue
            output, with_servers = (
                directory / "notebooks" / path.name,
                params[path] | {"ENDPOINTS": str(address)},
            )
            outcome = execute_notebook(path, output, with_servers, within=directory.parent)
            outcome.parameters, outcome.sizes = params[path], sizes  # each start has other endpoints
            outcomes[path.stem] = outcome
            write_study(directory, outcomes.values())
            error = f"\n{outcome.error}" if outcome.error else ""
            print(f"{path.stem} {outcome.status} after {outcome.seconds:.0f} s{error}", flush=True)
    latencies.compact(directory)  # those of a notebook that was stopped half-way
    index = write_report(name)
    print(f"\nReport: {index}", flush=True)
    return [outcomes[path.stem] for path in chosen]


def measure_pairs(
    name: str, *, only: Iterable[str] = (), primary: bool = False, visits: int | None = None
) -> None:
    """Measure comparisons of the full study into `results/<name>/` and write its `outcomes.json`; run no notebook.

    Args:
        only: notebook prefixes.
        primary: only the primary comparisons and their nulls.
        visits: of each comparison; default four.
    """
    _set_weights(folder_of(name), None)
    with ExitStack() as stack:
        _measure_comparisons(stack, name, notebooks(only), "full", visits=visits, primary=primary)


def _set_weights(directory: Path, weights: str | None, *, is_checked: bool = True) -> None:
    """Set MODEL_PRETRAINED for a run.

    Raises:
        PhotodupError: the run was measured with other weights.
    """
    prepare_model(weights)
    recorded, requested = read_machine(directory).model.pretrained, this_machine().model.pretrained
    if is_checked and recorded not in (requested, Weights().pretrained):
        raise PhotodupError(
            f"Run {directory.name} was measured with the weights {recorded}, not {requested}: name another run."
        )


def _measure_comparisons(
    stack: ExitStack,
    name: str,
    chosen: Iterable[Path],
    sizes: str,
    endpoints: str | Path = "",
    *,
    visits: int | None = None,
    primary: bool = False,
) -> str | Path:
    """Start the servers unless they run elsewhere, and measure all comparisons before the notebooks, in one pass.

    Returns:
        The endpoints file, or the address line.
    """
    from photodup.bench.pairs.declared import declarations
    from photodup.study.comparisons.measure import amount_of, measure_comparisons

    size = load_sizes(sizes).get("comparisons", {})
    declared, quick = declarations(), sizes != "full"
    stems = [path.stem for path in chosen]
    pairs = [p for p in declared.pairs_of(stems, quick=quick) if p.is_primary or not primary]
    pairs += declared.nulls_of(pairs, quick=quick)
    here = stack.enter_context(ExitStack())
    address = endpoints or start_servers(here, name, pairs)

    def opened() -> Run:
        return open_run(name, address, strict=True)

    def restarted(start: int) -> Run:
        here.close()
        start_servers(here, name, pairs, is_reversed=start % 2 == 0)
        return opened()

    if pairs or endpoints:
        with (run := opened()).store:
            print(f"{len(pairs)} comparisons of {sizes} sizes", flush=True)
            restart = None if endpoints else restarted
            measure_comparisons(run, pairs, amount_of(size, visits), restarted=restart)
            write_outcomes(run)
    return address


def _is_current(
    outcomes: Mapping[str, NotebookOutcome], path: Path, parameters: Parameters, directory: Path
) -> bool:
    previous = outcomes.get(path.stem, NotebookOutcome(path.stem))
    return (
        previous.status == "passed"
        and previous.source_sha256 == source_sha256(path)
        and previous.parameters == parameters
        and (directory / "notebooks" / path.name).is_file()
    )


def render_notebooks(only: Iterable[str] = ()) -> list[Path]:
    """Re-execute notebooks (by default all, and the template) with their own parameters; return their paths.

    Nothing is measured: a point without a record stays a gap, so what is committed is what the reference
    run found; its `outcomes.json` is written again. The opening cell gets the answer and the figure that the notebook
    computes, and the metadata the digest of its source; a test compares both.

    Raises:
        PhotodupError: a cell failed; names the notebook and the error.
    """
    paths = sorted(notebooks(only), key=lambda path: path.name.startswith("00"))  # it quotes the others
    paths += [] if only else [project_root() / "notebooks" / "_template.ipynb"]
    for path in paths:
        _render(path)
    write_outcomes(read_run(folder_of(REFERENCE)))
    return paths


def _render(path: Path) -> None:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = read_notebook(path)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        extra_arguments=QUIET_KERNEL,
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
