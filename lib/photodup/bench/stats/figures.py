"""From visits to figures: each the geometric mean over visits, with a 95% interval (Student's t).

A percentile of the tail has too few answers in one visit: its answers are pooled over the visits, and the interval comes
from leaving out one visit at a time (jackknife).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from photodup.bench import Columns
from photodup.bench.stats.metrics import METRICS, Metric

Figure = tuple[float, float | None, float | None]  # value, low, high
CONFIDENCE = 0.95
FEWEST_VISITS = 3  # of a figure: with two, the interval is too wide to be of use
TAIL = 90  # percentiles from here on are pooled
_COUNTS = ("server_requests", "server_inferences", "server_executions")  # and every n_…
_INPUTS = ("batch", "concurrency", "offered_per_s", "seed")  # the same in all visits, as are names


def interval(values: Sequence[float]) -> Figure:
    """Return the geometric mean of a figure above 0, one value a visit, and its interval; no ends for a single visit."""
    logs = np.log(np.asarray(values, float))
    return _around(float(logs.mean()), logs)


def _around(middle: float, logs: np.ndarray) -> Figure:
    """Return a figure from its logarithm, with the interval of the mean of `logs` laid around it."""
    from scipy.special import stdtrit  # Student's t; scipy.stats takes a hundred times as long to load

    n = len(logs)
    if n < 2:
        return math.exp(middle), None, None
    half_width = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2)) * float(logs.std(ddof=1)) / math.sqrt(n)
    return math.exp(middle), math.exp(middle - half_width), math.exp(middle + half_width)


def figures_of_windows(windows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return the figures of one load from its windows, one a visit, as `window.measure` returns them.

    Failed windows are left out; if all failed, the last one's columns are returned, `error` among them.

    Returns:
        Each metric of `METRICS` with `_ci_low` and `_ci_high` (None where it has no interval, or too few answers),
        `n_visits`, counts as their sums, other numbers as their means over visits, flags as true if one is, values that are
        the same in all visits, and `notes`, each once with the number of its visits.
    """
    measured = [window for window in windows if window.get("status") != "failed"]
    if not measured:
        last: Mapping[str, Any] = windows[-1] if windows else {"error": "nothing was measured"}
        return {name: value for name, value in last.items() if name != "raw"} | {
            "status": "failed",
            "n_visits": 0,
        }
    figures: Columns = {}
    for name, first in measured[0].items():
        values: list[Any] = [window.get(name) for window in measured]
        is_number = isinstance(first, int | float) and not isinstance(first, bool)
        if name in METRICS or name in ("raw", "notes"):
            continue
        if is_number and (name in _COUNTS or name.startswith("n_")) and None not in values:
            figures[name] = sum(values)
        elif is_number and name not in _INPUTS and None not in values:
            figures[name] = math.fsum(values) / len(values)
        elif isinstance(first, bool):
            figures[name] = any(values)
        elif all(value == first for value in values):
            figures[name] = first
    figures |= {"n_visits": len(measured), "notes": _notes(measured)}
    for metric in METRICS.values():
        value, low, high = _figure(measured, metric)
        figures |= {metric.name: value, f"{metric.name}_ci_low": low, f"{metric.name}_ci_high": high}
    return figures


def _notes(windows: Sequence[Mapping[str, Any]]) -> str:
    """Return each clause once, as it was first said; clauses with the same text before the colon are one."""
    clauses: dict[str, list[str]] = {}
    for window in windows:
        for clause in filter(None, window.get("notes", "").split("; ")):
            clauses.setdefault(clause.partition(":")[0], []).append(clause)
    among = f" of {len(windows)} visits)"
    return "; ".join(
        f"{same[0]} (in {len(same)}{among}" if len(windows) > 1 else same[0] for same in clauses.values()
    )


def _figure(windows: Sequence[Mapping[str, Any]], metric: Metric) -> Figure | tuple[None, None, None]:
    latencies = [np.asarray(window["raw"]["latency_ms"], float) for window in windows if window.get("raw")]
    values = [value for window in windows if (value := window.get(metric.name)) is not None]
    if metric.percentile is not None and metric.percentile >= TAIL and len(latencies) == len(windows):
        is_enough = sum(map(len, latencies)) >= metric.min_answers
        return percentile_figure(latencies, metric.percentile) if is_enough else (None, None, None)
    return interval(values) if len(values) == len(windows) else (None, None, None)


def percentile_figure(latencies: Sequence[np.ndarray], percentile: float) -> Figure:
    """Return a percentile of one load with its interval, ms.

    Below `TAIL` it is the geometric mean of the visits' percentiles; from there on their answers are pooled.

    Args:
        latencies: of each visit, ms.
    """
    if percentile < TAIL:
        return interval([float(np.percentile(latency_ms, percentile)) for latency_ms in latencies])
    n, middle = len(latencies), math.log(np.percentile(np.concatenate(latencies), percentile))
    subsets = [[*latencies[:out], *latencies[out + 1 :]] for out in range(n)] if n > 1 else []
    without = np.log([np.percentile(np.concatenate(answers), percentile) for answers in subsets])
    return _around(middle, n * middle - (n - 1) * without)  # the pseudovalues
