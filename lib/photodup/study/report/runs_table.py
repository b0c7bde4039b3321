"""Several runs side by side, such as those of two GPUs: one table, a row a load and a column a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from photodup.bench.record.record import figures_of_run
from photodup.bench.stats.sentence import number
from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.pages import render_page
from photodup.study.notebook.run import describe_machine, describe_weights, read_environment, run_directory

LOAD = ("backend", "scenario", "batch", "concurrency", "connection", "link", "offered_per_s", "label")


def write_runs(names: Sequence[str]) -> Path:
    """Write `results/<first>/beside-<others>.html` and return its path.

    Raises:
        PhotodupError: a run twice, no such run, or a link in the first run's folder where the page goes.
    """
    if len(set(names)) < len(names):
        raise PhotodupError(f"{' '.join(names)}: name each run once.")
    directories = [run_directory(name) for name in names]
    environments = [read_environment(directory) for directory in directories]
    facts = [
        ("", *names),
        ("machine", *(describe_machine(facts) or "not recorded" for facts in environments)),
        ("weights", *(describe_weights(facts) if facts else "not recorded" for facts in environments)),
    ]
    models = {str(facts.get("model", {}).get("digest")) for facts in environments}
    page = render_page(
        Path(__file__).parent / "templates" / "runs.html",
        runs=names,
        facts=facts,
        warnings=["The runs embed with different models."] if len(models) > 1 else [],
        figures=_figures(names, directories),
    )
    path = directories[0] / f"beside-{'-'.join(names[1:])}.html"
    write_atomically(path, page, within=path.parent.parent)
    return path


def _figures(names: Sequence[str], directories: Sequence[Path]) -> list[tuple[str, ...]]:
    """Return a head, then a row for each load that two runs or more measured: the load, and each run's figures."""
    tables = [
        {
            tuple(str(figure[name]) for name in LOAD): _cell(figure)
            for figure in figures_of_run(directory).sort_values("n_requests").to_dict("records")
            if figure["throughput_images_per_s"] > 0
        }
        for directory in directories
    ]
    loads = sorted(
        set().union(*tables), key=lambda load: (load[:2], float(load[2]), float(load[3]), load[4:])
    )
    rows = [(_words(load), *(table.get(load, "–") for table in tables)) for load in loads]
    return [("load", *names), *(row for row in rows if row.count("–") <= len(names) - 2)]


def _words(load: tuple[str, ...]) -> str:
    """Return a load as words, its usual conditions left out."""
    backend, scenario, batch, concurrency, *conditions = load
    usual = {"None", "nan", "", "warm", "loopback"}
    in_flight = [f"{concurrency} in flight"] if scenario == "closed_loop" else []
    images = [f"batch {batch}"] if batch != "1" else []
    return ", ".join(
        [backend, scenario.replace("_", " "), *images, *in_flight, *(t for t in conditions if t not in usual)]
    )


def _cell(figure: dict[str, Any]) -> str:
    low, high = (figure.get(f"throughput_images_per_s_ci_{end}") or 0.0 for end in ("low", "high"))
    interval = f" [{number(low)}, {number(high)}]" if low > 0 else ""
    return f"{number(figure['throughput_images_per_s'])}{interval} images/s, {number(figure['latency_ms_p50'])} ms"
