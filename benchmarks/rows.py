"""What `make bench` prints: rows with a goal, and how the two sides of a ratio become one."""

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, inf, log
from pathlib import Path
from typing import Any

import numpy as np

from photodup.bench.pairs.alternate import palindrome
from photodup.bench.record.json_files import anonymous, read_json, reading, to_json_value
from photodup.bench.stats.comparison import Comparison, Observed, Outcome, compare_all
from photodup.bench.stats.figures import Figure
from photodup.bench.stats.sentence import number
from photodup.core.errors import PhotodupError, is_expected
from photodup.core.paths import project_root

RATE, LATENCY = "throughput_images_per_s", "latency_ms_p50"
Turns = Sequence[Sequence[float]]  # as `in_turns` returns them


@dataclass(frozen=True)
class Row:
    """One figure of a benchmark.

    Attributes:
        name: unique among all benchmarks.
        value: None where it could not be measured.
        low, high: ends of the 95% interval; None without one.
        unit: of the three; empty for a ratio or a share.
        least, most: the goal, one of them; None without one.
        because: why nothing was measured, or what the figure holds for.
        memory_mib: of the process measured, once it has answered (proportional set size); None where it shares ours.
    """

    name: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    least: float | None = None
    most: float | None = None
    because: str = ""
    memory_mib: float | None = None

    @property
    def goal(self) -> str:
        """Such as "≥ 0.95"; empty without one."""
        bounds = (("≥", self.least), ("≤", self.most))
        return "".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)

    @property
    def state(self) -> str:
        """`met` or `missed` where the whole interval is, else `undecided`; empty without a goal."""
        if self.value is None or not self.goal:
            return "" if self.value is not None else "not measured"
        least, most = (-inf if self.least is None else self.least), (inf if self.most is None else self.most)
        ends = [self.value] if self.low is None or self.high is None else [self.low, self.high]
        met = {least <= end <= most for end in ends}
        return "undecided" if len(met) > 1 else "met" if met.pop() else "missed"


def row(name: str, figure: float | Figure | str, unit: str = "", **more: Any) -> Row:
    """Return the row of a figure, or of the reason why there is none; `more` are its other attributes, such as the goal."""
    if isinstance(figure, str):
        return Row(name, unit=unit, **more | {"because": figure})
    value, low, high = figure if isinstance(figure, tuple) else (figure, None, None)
    return Row(name, value, low, high, unit, **more)


def in_turns(sides: Sequence[Callable[[], float]], n: int, draw: random.Random) -> list[list[float]]:
    """Ask each side for a figure above 0 in n palindromes of turns, and return them: [n_sides][2 n]."""
    figures: list[list[float]] = [[] for _ in sides]
    for _ in range(n):
        for side in palindrome(len(sides), draw):
            figures[side].append(sides[side]())
    return figures


def log_ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Return the log ratio of b to a in each palindrome, from what `in_turns` returns of two sides."""
    return (np.log(b) - np.log(a)).reshape(-1, 2).mean(axis=1).tolist()


def compared(visits: Sequence[Turns], a: int = 0, b: int = 1, *, metric: str = RATE) -> Outcome:
    """Judge two sides of what visits gave, b against a; of a single visit its palindromes stand for visits."""
    ratios = [log_ratios(figures[a], figures[b]) for figures in visits]
    units = ratios if len(ratios) > 1 else [[ratio] for ratio in ratios[0]]
    means = (exp(np.mean([log(figure) for figures in visits for figure in figures[side]])) for side in (a, b))
    observed = Observed(tuple(map(np.array, units)), *means)
    (outcome,) = compare_all([Comparison("", "", metric, "", "a", "b", observed)])
    return outcome


def ratio(outcome: Outcome) -> Figure | str:
    """Return b ÷ a, or why it was not measured."""
    return _figure(outcome, 1.0, 1.0)


def excess(outcome: Outcome) -> Figure | str:
    """Return b − a in the metric's unit, or why it was not measured."""
    return _figure(outcome, 0.0, outcome.value_a)


def _figure(outcome: Outcome, start: float, scale: float) -> Figure | str:
    if not outcome.is_measured:
        return outcome.reason
    value, low, high = (start + scale * share for share in (outcome.effect, outcome.low, outcome.high))
    return value, low, high


def core_s() -> float:
    """Return the time of a core that this process and its children have used, seconds."""
    return sum(os.times()[:4])


def guarded(name: str, rows: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """Yield the rows of a benchmark; where it cannot be run here, a row of its name says why."""
    try:
        yield from rows()
    except Exception as error:
        if not (isinstance(error, PhotodupError | ImportError) or is_expected(error)):
            raise
        yield Row(name, because=str(error))


def as_json(rows: Iterable[Row]) -> str:
    """Return rows and the machine they were measured on as JSON, without a path or an address of it."""
    from photodup.study.notebook.machine import this_machine

    document = {"machine": str(this_machine()), "rows": list(map(asdict, rows))}
    return json.dumps(to_json_value(document, anonymous), indent=1, ensure_ascii=False) + "\n"


def committed(folder: Path | None = None) -> tuple[str, list[Row]]:
    """Return the machine of the committed rows and those rows, of the reference run unless given; none if not measured.

    Raises:
        RecordError: the file holds something else.
    """
    path = (folder or reference_dir()) / "bench.json"
    with reading(path):
        document = read_json(path, {"machine": "", "rows": []})
        return str(document["machine"]), [Row(**fields) for fields in document["rows"]]


def reference_dir() -> Path:
    """Return the folder of the reference run."""
    from photodup.study.notebook.run import REFERENCE

    return project_root() / "results" / REFERENCE


def blocks() -> dict[str, str]:
    """Return the generated part of docs/study.md: the committed rows that have a goal, and how long an owner waits."""
    machine, rows = committed()
    _, waits = committed(reference_dir().parent / "waits")
    rows += [replace(row, name=row.name.replace("of them", "photographs of 12 MP")) for row in waits]
    lines = [as_line(row) for row in rows if row.goal]
    if not lines:
        return {"speed": "Not measured in the committed run."}
    files = "[`bench.json`](../results/reference-cpu/bench.json), [`waits`](../results/waits/bench.json)"
    source = f"Measured on {machine}. All rows: {files}."
    return {"speed": "\n".join([HEAD, *lines, "", source])}


HEAD = f"| {'what':76} | {'figure':34} | {'goal':24} | {'memory':9} | |\n|---|---:|---|---:|---|"


def as_line(row: Row) -> str:
    """Return a row as a line of a Markdown table under `HEAD`."""
    figure = "" if row.value is None else number(row.value)
    if row.low is not None and row.high is not None:
        figure += f" [{number(row.low)}, {number(row.high)}]"
    end = ": ".join(filter(None, (row.state, row.because)))
    memory = "" if row.memory_mib is None else f"{row.memory_mib:.0f} MiB"
    return f"| {row.name:76} | {f'{figure} {row.unit}'.strip():34} | {row.goal:24} | {memory:9} | {end} |"
