"""Run the notebooks against a rented machine that is none, and say which questions were decided there."""

from collections.abc import Collection, Iterable
from typing import Any

from photodup.errors import PhotodupError
from photodup.paths import build_dir
from photodup.serving.check import check, render_check
from photodup.serving.control_key import VARIABLE
from photodup.settings import variables
from photodup.study.notebook.weights import prepare_model
from photodup.study.report.facts import notebook_rows
from photodup.study.runner.execute import run_study
from photodup.study.runner.rented import LINK, WITHOUT, Rented, rented_machine, save

WAYS = ("file", "address")
"""How notebooks are told where the machine is: `ENDPOINTS`, or `HOST`."""


def rehearse(
    run: str = "rehearsal",
    *,
    only: Iterable[str] = (),
    without: Collection[str] = (),
    ways: Collection[str] = WAYS,
    sizes: str = "quick",
    link: str = LINK,
) -> dict[str, list[dict[str, Any]]]:
    """Start the machine, check it, run the notebooks in each of `ways`, and return each one's row (see `notebook_rows`).

    Records of an earlier rehearsal of the same name are not measured again, as in every run.

    Args:
        run: directory under results/; runs by address get `-host` after it.
        only: notebook prefixes.
        without: what the machine lacks, of `rented.WITHOUT`.

    Raises:
        PhotodupError: as `rented_machine` and `run_study`.
    """
    if not ways or set(ways) - set(WAYS):
        raise PhotodupError(
            f"A notebook is told where a machine is by {' or '.join(WAYS)}, not by {list(ways)}."
        )
    prepare_model()
    found = {}
    with rented_machine(without=without, link=link, progress=_say) as machine:
        _say(f"A machine at {machine.address}, {machine.way.round_trip.floor_ms:.1f} ms away")
        for word in without:
            _say(f"  without {word}: {WITHOUT[word]}")
        _say(render_check(check(machine.endpoints)))
        for way in ways:
            name = run if way == "file" else f"{run}-host"
            found[way] = _run(name, way, machine, list(only), sizes)
    return found


def _run(name: str, way: str, machine: Rented, only: list[str], sizes: str) -> list[dict[str, Any]]:
    options: dict[str, Any] = {"endpoints": save(machine, build_dir() / "rehearsal" / f"{name}.yaml")}
    if way == "address":
        options = {"parameters": {"HOST": machine.address}}
    with variables(**{VARIABLE: machine.key if way == "address" else ""}):
        outcomes = run_study(name, sizes=sizes, only=only, again=True, **options)
    wanted = {outcome.notebook for outcome in outcomes}
    return [row for row in notebook_rows(name) if row["stem"] in wanted]


def _say(text: str) -> None:
    print(text, flush=True)
