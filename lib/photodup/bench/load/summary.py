"""From the clock readings of a window to the columns of a point."""

from typing import Any

import numpy as np

from photodup.bench.load.plan import Stopping
from photodup.bench.load.workers import ROW, Window, common_error
from photodup.bench.stats.facts import METRICS, Load
from photodup.bench.stats.point import Sample, judge_point

LATE_S = 0.001  # late is beyond this (a sleeping thread is woken some 0.1 ms after its time)
LATE_SHARE = 0.1  # … and beyond this share of the median latency
MAX_LATE_SHARE = 0.01  # perf_analyzer warns beyond this share of late requests


def summarize(point: dict[str, Any], window: Window, stopping: Stopping, ended: float) -> dict[str, Any]:
    """Return `point` with its numbers, or as a failed point when the server did not hold.

    Args:
        ended: length of the window in seconds, as the watcher closed it.
    """
    load, rows = window.load, rows_of(window)
    done = rows[:, -1]
    scheduled = None
    if window.schedule_s is not None:  # an open loop
        ended_schedule = min(ended, stopping.max_duration_s)
        scheduled = float(np.searchsorted(window.schedule_s, ended_schedule)) / ended_schedule
        ended = max(ended_schedule, float(done[-1])) if len(done) else ended_schedule
    elif load.concurrency == 1 and len(done):
        ended = float(done[-1])  # the last request was waited for; nothing else was in flight
    rows = rows[done <= ended]
    payload_bytes, due, picked, begun, prepared, answered, done = rows.T
    latency_ms = (done - due) * 1000
    sample = Sample(latency_ms, done, len(window.errors), scheduled)
    point |= {"n_requests": len(done), "n_errors": len(window.errors), "duration_s": ended}
    point |= percentiles(latency_ms)
    point["latency_ms_mean"] = float(latency_ms.mean()) if len(done) else None
    point["throughput_images_per_s"] = len(done) * load.batch / ended if ended > 0 else 0.0
    # Over those the figures of the steady part, where it carries them, each with its interval.
    point |= _judged(sample, load, stopping)
    if scheduled is not None:
        point["arrived_per_s"] = scheduled
    if len(done):
        point |= {
            "payload_bytes": float(payload_bytes.mean()),
            "payload_bytes_min": int(payload_bytes.min()),
            "payload_bytes_max": int(payload_bytes.max()),
            **_stages(begun, prepared, answered, done),
        }
        _check_warm(point, due, latency_ms, load.concurrency)
    if len(done) and load.scenario != "server" and not load.idle_s:
        per_s = len(done) / ended
        point["little_ratio"] = little_ratio(load.concurrency, per_s, point["latency_ms_mean"])
    if load.scenario == "server":
        _lateness(point, due, picked, begun)
    if not len(done):
        why = f": {common_error(window.errors)}" if window.errors else ""
        return failed(point, f"no request was answered within {ended:.1f} s{why}")
    if point["verdict"] == "failed":
        return failed(point, f"{point['because']}: {common_error(window.errors)}")
    return {**point, "raw": {"latency_ms": latency_ms, "finished_s": done}}


def rows_of(window: Window) -> np.ndarray:
    """Return the requests answered in the window, in order of completion: columns `ROW`, times since it was opened.

    When they were begun does not matter: to leave out what the ramp began and to leave out what was still in
    flight at the end would take the load itself from the count.
    """
    rows = [row for samples in window.samples for row in samples.copy()]
    table = np.array(rows, dtype=float).reshape(-1, len(ROW))
    table[:, 1:] -= window.started
    table = table[table[:, -1] >= 0]
    return table[np.argsort(table[:, -1], kind="stable")]


def sample_of(window: Window) -> Sample:
    """Return what a closed loop has answered so far, for a look."""
    rows = rows_of(window)
    return Sample((rows[:, -1] - rows[:, 1]) * 1000, rows[:, -1], len(window.errors))


def percentiles(latency_ms: np.ndarray) -> dict[str, float | None]:
    """Return the percentiles of a whole window, ms; None where it holds too few answers to carry one."""
    return {
        m.name: float(np.percentile(latency_ms, m.percentile)) if len(latency_ms) >= m.min_answers else None
        for m in METRICS.values()
        if m.percentile is not None
    }


def _judged(sample: Sample, load: Load, stopping: Stopping) -> dict[str, Any]:
    point = judge_point(sample, load, half_width=stopping.half_width)
    valid = point.verdict == "valid"
    because = "" if valid else f"{point.verdict}: {point.because}"
    # A valid point says nothing that its steady part does not carry; of another one what was seen is shown, hollow.
    carried_not = {name: None for name in METRICS if valid and name not in point.figures}
    return {**carried_not, **point.columns(), "valid": valid, "invalid_because": because}


def failed(point: dict[str, Any], error: str) -> dict[str, Any]:
    verdict = {"verdict": "failed", "because": error, "valid": False, "invalid_because": error}
    return {**point, "status": "failed", "error": error, **verdict}


def _stages(begun: np.ndarray, prepared: np.ndarray, answered: np.ndarray, done: np.ndarray) -> dict:
    stages = {"prepare": prepared - begun, "request": answered - prepared, "decode": done - answered}
    columns = {f"{name}_ms_mean": float(part.mean() * 1000) for name, part in stages.items()}
    return columns | {f"{name}_ms_p50": float(np.median(part) * 1000) for name, part in stages.items()}


def _check_warm(point: dict[str, Any], due: np.ndarray, latency_ms: np.ndarray, concurrency: int) -> None:
    """A first request that is the slowest of all by far means something was still being built."""
    first = np.argsort(due, kind="stable")[: max(3, concurrency)]
    rest = np.delete(latency_ms, first)
    point["first_requests_ms_max"] = float(latency_ms[first].max())
    if rest.size >= 10 and latency_ms[first].max() > max(5 * np.median(rest), rest.max()):
        _invalidate(
            point,
            f"not warm: one of the first requests took {latency_ms[first].max():.0f} ms, "
            f"the median is {np.median(rest):.0f} ms",
        )


def _lateness(point: dict[str, Any], due: np.ndarray, picked: np.ndarray, begun: np.ndarray) -> None:
    """Late sends are in the latency already; here is how many there were, and whether it was our fault."""
    limit_s = max(LATE_S, LATE_SHARE * (point["latency_ms_p50"] or 0) / 1000)
    late = begun - due > limit_s
    ours = begun - np.maximum(due, picked) > limit_s  # a worker was free and still overslept
    point |= {"n_late": int(late.sum()), "n_late_generator": int(ours.sum())}
    point["late_ms_max"] = float((begun - due).max() * 1000) if len(due) else 0.0
    if ours.sum() > MAX_LATE_SHARE * len(due):
        share = ours.sum() / len(due)
        _invalidate(point, f"the generator sent {share:.0%} of the requests {limit_s * 1000:.0f} ms late")


def _invalidate(point: dict[str, Any], reason: str) -> None:
    point["valid"] = False
    point["verdict"] = "unsteady" if point.get("verdict") == "valid" else point.get("verdict")
    point["invalid_because"] = "; ".join(filter(None, [point["invalid_because"], reason]))


def sample_of_point(point: dict[str, Any]) -> Sample:
    """Return what a measured point brought back, for a search by rate; without answers it says why."""
    raw = point.get("raw")
    if raw is None:
        error, n_errors = str(point.get("error", "nothing was answered")), point.get("n_errors", 0)
        return Sample(np.empty(0), np.empty(0), n_errors, error=error)
    return Sample(raw["latency_ms"], raw["finished_s"], point["n_errors"], point.get("arrived_per_s"))


def little_ratio(concurrency: float, requests_per_s: float, latency_ms_mean: float) -> float:
    """Return (throughput × mean latency) ÷ concurrency; 1 when `concurrency` really was in flight.

    Below about 0.95 the generator did not hold the load it names, or the numbers are from different windows.
    """
    return requests_per_s * latency_ms_mean / 1000 / concurrency
