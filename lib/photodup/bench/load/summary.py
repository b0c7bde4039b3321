"""From the clock readings of a window to its columns."""

import numpy as np

from photodup.bench import Columns
from photodup.bench.load.plan import WindowPlan
from photodup.bench.load.workers import COLUMNS, Window, common_error
from photodup.bench.stats.metrics import METRICS, Load
from photodup.bench.stats.sentence import number

LATE_S = 0.001  # late is beyond this (a sleeping thread is woken some 0.1 ms after its time)
LATE_SHARE = 0.1  # … and beyond this share of the median latency
MAX_LATE_SHARE = 0.01  # perf_analyzer warns beyond this share of late requests
MAX_ERROR_SHARE = 0.01  # a window of which more requests failed is no figure
KEPT_UP = 0.97  # an open loop is overloaded when fewer of the requests due are answered
LITTLE_TOLERANCE = 0.015  # of rate × mean latency from the requests in flight, from so many waves on:
LITTLE_WAVES = 10


def summarize(columns: Columns, window: Window, plan: WindowPlan, ended: float) -> Columns:
    """Return `columns` with those of the window; failed where nothing was answered or too many requests failed.

    Args:
        ended: length of the window in seconds, as the watcher closed it.
    """
    load, rows = window.load, rows_of(window)
    done_s = rows[:, -1]
    scheduled = None
    if window.schedule_s is not None:  # an open loop
        ended_schedule = min(ended, plan.length_s(load))
        scheduled = float(np.searchsorted(window.schedule_s, ended_schedule)) / ended_schedule
        ended = max(ended_schedule, float(done_s[-1])) if len(done_s) else ended_schedule
    elif load.concurrency == 1 and len(done_s):
        ended = float(done_s[-1])  # the last request was waited for; nothing else was in flight
    rows = rows[done_s <= ended]
    payload_bytes, due_s, picked_s, begun_s, prepared_s, answered_s, done_s = rows.T
    latency_ms, n_errors = (done_s - due_s) * 1000, len(window.errors)
    columns |= {"n_requests": len(done_s), "n_errors": n_errors, "duration_s": ended}
    if not len(done_s):
        reason = f": {common_error(window.errors)}" if window.errors else ""
        return failed_columns(columns, f"no request was answered within {ended:.1f} s{reason}")
    columns |= {"latency_ms_mean": float(latency_ms.mean()), **percentiles(latency_ms)}
    columns["throughput_images_per_s"] = load.batch * _requests_per_s(load, done_s, ended)
    columns |= {
        "payload_bytes": float(payload_bytes.mean()),
        "prepare_ms_mean": float((prepared_s - begun_s).mean() * 1000),
        "request_ms_mean": float((answered_s - prepared_s).mean() * 1000),
        "decode_ms_mean": float((done_s - answered_s).mean() * 1000),
    }
    notes = _not_warm(due_s, latency_ms, load.concurrency)
    if scheduled is not None:
        columns["arrived_per_s"] = scheduled
        notes += _overload(scheduled, len(done_s) / ended) + _lateness(columns, due_s, picked_s, begun_s)
    else:
        notes += _little(columns, load)
    columns |= {"notes": "; ".join(notes), "raw": {"latency_ms": latency_ms, "finished_s": done_s}}
    if n_errors > MAX_ERROR_SHARE * (n_errors + len(done_s)) and window.observer is None:
        reason = f"{n_errors} of {n_errors + len(done_s)} requests failed: {common_error(window.errors)}"
        return failed_columns(columns, reason)
    return columns


def _requests_per_s(load: Load, done_s: np.ndarray, ended: float) -> float:
    """Return the rate, requests/s; with several in flight, between two answers that are whole waves apart.

    Servers answer in bursts, so a rate over part of a wave would be biased.
    """
    whole = (len(done_s) - 1) // load.wave * load.wave
    if load.wave == 1 or not whole or not done_s[whole] > done_s[0]:
        return len(done_s) / ended
    return whole / float(done_s[whole] - done_s[0])


def rows_of(window: Window) -> np.ndarray:
    """Return the requests answered in the window, in order of completion: columns `COLUMNS`, times since it was opened.

    Requests begun in the ramp count. Those in flight at the end do not, so leaving out both would count too few.
    """
    rows = [row for samples in window.samples for row in samples.copy()]
    table = np.array(rows, dtype=float).reshape(-1, len(COLUMNS))
    table[:, 1:] -= window.started_at
    table = table[table[:, -1] >= 0]
    return table[np.argsort(table[:, -1], kind="stable")]


def percentiles(latency_ms: np.ndarray) -> dict[str, float | None]:
    """Return the percentiles of a whole window, ms; None where it holds too few answers to carry one."""
    return {
        m.name: float(np.percentile(latency_ms, m.percentile)) if len(latency_ms) >= m.min_answers else None
        for m in METRICS.values()
        if m.percentile is not None
    }


def failed_columns(columns: Columns, error: str) -> Columns:
    return {**columns, "status": "failed", "error": error}


def _not_warm(due: np.ndarray, latency_ms: np.ndarray, concurrency: int) -> list[str]:
    """A first request that is the slowest of all by far means something was still being built."""
    first = np.argsort(due, kind="stable")[: max(3, concurrency)]
    later_ms = np.delete(latency_ms, first)
    slowest = float(latency_ms[first].max())
    if later_ms.size < 10 or slowest <= max(5 * np.median(later_ms), later_ms.max()):
        return []
    slow, usual = number(slowest), number(float(np.median(later_ms)))
    return [f"not warm: one of the first requests took {slow} ms, the median is {usual} ms"]


def _overload(due_per_s: float, answered_per_s: float) -> list[str]:
    if answered_per_s >= KEPT_UP * due_per_s:
        return []
    return [f"the server was overloaded: {answered_per_s:.1f} of {due_per_s:.1f} requests/s were answered"]


def _lateness(columns: Columns, due: np.ndarray, picked: np.ndarray, begun: np.ndarray) -> list[str]:
    """Count the requests that the generator sent late; their latency includes the delay already."""
    limit_s = max(LATE_S, LATE_SHARE * columns["latency_ms_p50"] / 1000)
    is_late = begun - np.maximum(due, picked) > limit_s  # a worker was free and still overslept
    columns["n_late_generator"] = int(is_late.sum())
    if is_late.sum() <= MAX_LATE_SHARE * len(due):
        return []
    return [
        f"the generator was late: {is_late.sum() / len(due):.0%} of the requests left {limit_s * 1000:.0f} ms late"
    ]


def _little(columns: Columns, load: Load) -> list[str]:
    requests_per_s = columns["throughput_images_per_s"] / load.batch
    columns["little_ratio"] = ratio = little_ratio(
        load.concurrency, requests_per_s, columns["latency_ms_mean"]
    )
    is_few = columns["n_requests"] < LITTLE_WAVES * load.concurrency
    if abs(ratio - 1) <= LITTLE_TOLERANCE or is_few or load.concurrency == 1 or columns["n_errors"]:
        return []
    return [f"the load did not hold: rate × mean latency is {ratio:.1%} of the {load.concurrency} in flight"]


def little_ratio(concurrency: float, requests_per_s: float, latency_ms_mean: float) -> float:
    """Return (throughput × mean latency) ÷ concurrency: 1 if `concurrency` requests were in flight (Little's law)."""
    return requests_per_s * latency_ms_mean / 1000 / concurrency
