"""Several runs side by side, such as those of two GPUs: one table, a row a load and a column a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from photodup.bench.record.store import figures_of_run
from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.pages import render_page
from photodup.study.notebook.machine import read_machine
from photodup.study.notebook.run import run_directory
from photodup.study.notebook.table import with_intervals
from photodup.study.report.cells import TEMPLATES

LOAD = ("backend", "scenario", "batch", "concurrency", "connection", "link", "offered_per_s", "label")


def write_runs(names: Sequence[str]) -> Path:
    """Write `results/<first>/beside-<others>.html` and return its path.

    Raises:
        PhotodupError: a run twice, no such run, or a link in the first run's folder where the page goes.
    """
    if len(set(names)) < len(names):
        raise PhotodupError(f"{' '.join(names)}: name each run once.")
    directories = [run_directory(name) for name in names]
    machines = [read_machine(directory) for directory in directories]
    facts = [
        ("", *names),
        ("machine", *(str(machine) or "not recorded" for machine in machines)),
        ("weights", *(str(machine.model) for machine in machines)),
    ]
    models = {machine.model.digest for machine in machines}
    page = render_page(
        TEMPLATES / "runs.html",
        runs=names,
        facts=facts,
        warnings=["The runs embed with different models."] if len(models) > 1 else [],
        figures=_figures(names, directories),
    )
    path = directories[0] / f"beside-{'-'.join(names[1:])}.html"
    write_atomically(path, page, within=path.parent.parent)
    return path


def _figures(names: Sequence[str], directories: Sequence[Path]) -> list[Sequence[str]]:
    """Return a head, then a row for each load that two runs or more measured: the load, and each run's figures."""
    import pandas as pd

    figures = pd.concat([figures_of_run(directory) for directory in directories], ignore_index=True)
    figures = figures[figures.throughput_images_per_s.astype(float) > 0].sort_values([*LOAD, "n_requests"])
    words = [_words(*load) for load in figures[[*LOAD]].itertuples(index=False)]
    rate, latency = (with_intervals(figures, name) for name in ("throughput_images_per_s", "latency_ms_p50"))
    table = figures.assign(load=words, text=rate + " images/s, " + latency + " ms")
    table = table.drop_duplicates(["load", "run"], keep="last").pivot(
        index="load", columns="run", values="text"
    )
    table = table.reindex(dict.fromkeys(words), columns=names)
    return [("load", *names), *table.dropna(thresh=2).fillna("–").reset_index().to_numpy().tolist()]


def _words(backend: str, scenario: str, batch: int, concurrency: int, *conditions: object) -> str:
    """Return a load as words, its usual conditions left out."""
    usual_conditions = {"None", "nan", "", "warm", "loopback"}
    in_flight = f"{concurrency} in flight" if scenario == "closed_loop" else ""
    images = f"batch {batch}" if batch != 1 else ""
    words = [backend, scenario.replace("_", " "), images, in_flight, *map(str, conditions)]
    return ", ".join(word for word in words if word not in usual_conditions)
