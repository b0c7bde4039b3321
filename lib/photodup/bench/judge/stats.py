"""What a sample of latencies can carry: percentiles, windows, intervals, validity.

Sources: MLPerf Inference LoadGen (early stopping, minimum counts), NVIDIA perf_analyzer (three windows within
10 %), Hesterberg 2015 (expanded percentile bootstrap).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PERCENTILES = (50, 90, 95, 99)
# Below these counts a percentile is not reported. 64 and 662 are LoadGen's early-stopping minima (one
# answer over the bound, 99 % confidence); p95 would pass from 130 and is held back a little longer.
MIN_COUNT = {50: 1, 90: 64, 95: 200, 99: 662}
MAX_WINDOWS = 10
STABLE_WINDOWS = 3
STABLE_RATIO = 1.10
MAX_ERROR_SHARE = 0.001


@dataclass(frozen=True)
class Window:
    """Consecutive answers: cut at an answer, not at a clock tick, so that few slow answers count exactly."""

    n_requests: int
    duration_s: float
    throughput_per_s: float
    latency_ms_mean: float
    latency_ms_p50: float


def percentiles(latency_ms: Sequence[float]) -> dict[str, float | None]:
    """Return `latency_ms_p50` … `latency_ms_p99`; None where the sample is too small to carry one."""
    sample = np.asarray(latency_ms, float)
    return {
        f"latency_ms_p{p}": float(np.percentile(sample, p)) if sample.size >= MIN_COUNT[p] else None
        for p in PERCENTILES
    }


def window_edges(n: int, concurrency: int = 1) -> np.ndarray:
    """Return the indexes at which `n` answers in order of arrival are cut into at most `MAX_WINDOWS` windows.

    A window holds at least three answers and at least one from each of the requests in flight.
    """
    count = max(1, min(MAX_WINDOWS, n // max(3, concurrency)))
    return np.linspace(0, n, count + 1).round().astype(int)


def windows(finished_s: np.ndarray, latency_ms: np.ndarray, concurrency: int = 1) -> list[Window]:
    """Cut a sample into windows.

    Args:
        finished_s: when each answer was in hand, seconds since the start of measuring, any order.
        latency_ms: same order as `finished_s`.
        concurrency: requests in flight.
    """
    order = np.argsort(finished_s, kind="stable")
    finished, latency = np.asarray(finished_s, float)[order], np.asarray(latency_ms, float)[order]
    edges = window_edges(len(finished), concurrency)
    cut = []
    began = 0.0
    for first, last in itertools.pairwise(edges):
        if last <= first:
            continue
        part = latency[first:last]
        lasted = max(float(finished[last - 1]) - began, 1e-9)
        median = float(np.median(part))
        cut.append(Window(int(last - first), lasted, (last - first) / lasted, float(part.mean()), median))
        began = float(finished[last - 1])
    return cut


def stability(cut: Sequence[Window]) -> tuple[bool, str]:
    """Apply perf_analyzer's rule to the last three windows: throughput and mean latency within 10 %.

    Returns:
        Whether the rule holds, and a sentence naming what moved when it does not.
    """
    if len(cut) < STABLE_WINDOWS:
        return False, f"{len(cut)} windows, {STABLE_WINDOWS} are needed"
    last = cut[-STABLE_WINDOWS:]
    for what, values in (
        ("throughput", [w.throughput_per_s for w in last]),
        ("mean latency", [w.latency_ms_mean for w in last]),
    ):
        if min(values) <= 0 or max(values) / min(values) > STABLE_RATIO:
            spread = max(values) / min(values) - 1 if min(values) > 0 else math.inf
            return False, f"{what} of the last three windows differs by {spread:.0%}"
    return True, ""


def bootstrap(
    finished_s: np.ndarray,
    latency_ms: np.ndarray,
    concurrency: int = 1,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Return confidence intervals of `throughput_per_s`, `latency_ms_mean` and the percentiles.

    Windows are drawn, not requests: neighbouring requests share the server's mood, so single requests would
    give intervals several times too narrow. With ten windows the plain percentile interval is still too
    narrow; it is expanded (Hesterberg 2015) to the width Student's t asks for. Empty below three windows.
    """
    from scipy import stats as distributions

    order = np.argsort(finished_s, kind="stable")
    latency = np.asarray(latency_ms, float)[order]
    cut = windows(finished_s, latency_ms, concurrency)
    k = len(cut)
    if k < STABLE_WINDOWS:
        return {}
    sizes = np.array([w.n_requests for w in cut])
    widened = distributions.t.ppf(0.5 - confidence / 2, k - 1) * math.sqrt(k / (k - 1))
    tail = float(distributions.norm.cdf(widened))
    draws = np.random.default_rng(seed).multinomial(k, np.full(k, 1 / k), size=resamples)  # [resamples, k]
    drawn = draws @ sizes
    statistics = {
        "throughput_per_s": drawn / (draws @ np.array([w.duration_s for w in cut])),
        "latency_ms_mean": draws @ (sizes * [w.latency_ms_mean for w in cut]) / drawn,
    }
    by_size = np.argsort(latency, kind="stable")
    ordered, owner = latency[by_size], np.repeat(np.arange(k), sizes)[by_size]
    reported = [p for p in PERCENTILES if len(latency) >= MIN_COUNT[p]]
    quantiles = np.empty((resamples, len(reported)))
    for index, draw in enumerate(draws):
        below = np.cumsum(draw[owner])
        ranks = np.searchsorted(below, np.multiply(reported, below[-1] / 100))
        quantiles[index] = ordered[np.minimum(ranks, len(ordered) - 1)]
    statistics |= {f"latency_ms_p{p}": quantiles[:, i] for i, p in enumerate(reported)}
    return {
        name: tuple(float(x) for x in np.quantile(values, (tail, 1 - tail)))
        for name, values in statistics.items()
    }


def summarize(
    finished_s: Sequence[float],
    latency_ms: Sequence[float],
    *,
    batch: int,
    concurrency: int,
    duration_s: float,
    n_errors: int = 0,
    min_requests: int = 0,
    min_duration_s: float = 0.0,
    scheduled_per_s: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the columns of one point, with `_ci_low`/`_ci_high` beside each number, and its validity.

    Args:
        finished_s, latency_ms: the successful requests; the origin of `finished_s` is the start of measuring.
        batch: images per request.
        concurrency: requests in flight (for an open loop: the most that could be).
        duration_s: length of the measured window.
        scheduled_per_s: rate at which an open loop's requests were due (of the drawn schedule, not its mean).
            Poisson arrivals move more than 10 % from window to window by themselves, so there the rule is
            that the server kept up: it answered at 97 % of that rate or better.
    """
    finished, latency = np.asarray(finished_s, float), np.asarray(latency_ms, float)
    n = len(latency)
    in_windows = 1 if scheduled_per_s is not None else concurrency
    cut = windows(finished, latency, in_windows) if n else []
    point: dict[str, Any] = {"n_requests": n, "n_errors": n_errors, "duration_s": duration_s}
    point |= percentiles(latency)
    point["latency_ms_mean"] = float(latency.mean()) if n else None
    point["throughput_images_per_s"] = n * batch / duration_s if duration_s > 0 else 0.0
    for name, (low, high) in bootstrap(finished, latency, in_windows, seed=seed).items():
        scale = batch if name == "throughput_per_s" else 1
        column = "throughput_images_per_s" if name == "throughput_per_s" else name
        point[f"{column}_ci_low"], point[f"{column}_ci_high"] = low * scale, high * scale
    reasons = []
    if n_errors > MAX_ERROR_SHARE * (n + n_errors):
        reasons.append(f"{n_errors} of {n + n_errors} requests failed")
    if n < min_requests:
        reasons.append(f"{n} requests, {min_requests} were asked for")
    if duration_s < min_duration_s:
        reasons.append(f"{duration_s:.1f} s, {min_duration_s:g} s were asked for")
    if scheduled_per_s is None:
        stable, because = stability(cut)
        reasons += [] if stable else [f"not stable: {because}"]
    elif duration_s > 0 and n / duration_s < 0.97 * scheduled_per_s:
        reasons.append(f"overloaded: {n / duration_s:.1f} of {scheduled_per_s:.1f} requests/s were answered")
    point |= {"valid": not reasons, "invalid_because": "; ".join(reasons)}
    point["windows"] = [asdict(window) for window in cut]
    return point


def queries_needed(over: int, percentile: float, confidence: float = 0.99) -> int:
    """Return how many requests must be seen, `over` of them beyond the bound, to claim the percentile.

    MLPerf early stopping with tolerance 0: the smallest n whose chance of at most `over` misses, were the
    true miss rate as bad as 1 − percentile/100, is at most 1 − confidence.
    """
    from scipy.special import betainc

    p = percentile / 100

    def enough(n: int) -> bool:  # the binomial distribution function, written as incomplete beta
        return n > over and betainc(n - over, over + 1, p) <= 1 - confidence

    high = over + 1
    while not enough(high):
        high *= 2
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def early_stopping_latency_ms(
    latency_ms: Sequence[float], percentile: float, confidence: float = 0.99
) -> float | None:
    """Return a latency that the true percentile does not exceed at `confidence`; None if n is too small.

    LoadGen's single-stream estimate: with t misses affordable, drop the t − 1 worst, report the worst left.
    """
    ordered = np.sort(np.asarray(latency_ms, float))
    misses = 0
    while len(ordered) >= queries_needed(misses + 1, percentile, confidence):
        misses += 1
    return float(ordered[len(ordered) - misses]) if misses else None


def noise_floor(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the largest relative difference seen between a backend and itself (A/A), as |ln ratio|."""
    if not pairs:
        raise ValueError("a noise floor needs at least one A/A pair")
    return max(abs(math.log(a / b)) for a, b in pairs)


def difference(
    a: Mapping[str, Any], b: Mapping[str, Any], noise_floor: float, metric: str = "latency_ms_p50"
) -> dict[str, Any]:
    """Say whether point `b` differs from point `a` in `metric`.

    Returns:
        `ratio` b ÷ a with `ratio_ci_low`/`_high` (intervals combined as logarithms), `verdict` one of
        `higher`, `lower`, `no difference`, `unknown`, and `because`. Never a difference below the noise
        floor, nor when the interval holds 1, nor from a point that is not valid.
    """
    names = (metric, f"{metric}_ci_low", f"{metric}_ci_high")
    values = [point.get(name) for point in (a, b) for name in names]
    if not (a.get("valid") and b.get("valid")):
        why = a.get("invalid_because") or b.get("invalid_because") or "a point is missing"
        return {"ratio": None, "verdict": "unknown", "because": why}
    if any(v is None or not v > 0 for v in values):
        return {"ratio": None, "verdict": "unknown", "because": f"the sample does not carry {metric}"}
    a_mid, a_low, a_high, b_mid, b_low, b_high = (math.log(v) for v in values)
    ratio = b_mid - a_mid
    low = ratio - math.hypot(b_mid - b_low, a_high - a_mid)
    high = ratio + math.hypot(b_high - b_mid, a_mid - a_low)
    if abs(ratio) <= noise_floor:
        verdict, because = "no difference", f"within the noise floor of {math.expm1(noise_floor):.1%}"
    elif low <= 0 <= high:
        verdict, because = "no difference", "the confidence interval of the ratio holds 1"
    else:
        verdict, because = ("higher" if ratio > 0 else "lower"), "beyond the noise floor and the interval"
    bounds = {"ratio_ci_low": math.exp(low), "ratio_ci_high": math.exp(high)}
    return {"ratio": math.exp(ratio), **bounds, "verdict": verdict, "because": because}


def paired_difference(a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95) -> dict[str, Any]:
    """Say whether `b` differs from `a`, from repeats: `a[i]` and `b[i]` were measured side by side.

    What slows both members of a pair cancels in their ratio. The interval is Student's t over the logarithms of
    the ratios, so it holds all that differs from one repeat to the next, and needs no noise floor beside it.

    Returns:
        `ratio` b ÷ a (geometric mean) with `ratio_ci_low`/`_high`, `n_repeats`, `verdict` and `because` as
        `difference` has them. One repeat has no spread: its verdict is `unknown`.
    """
    from scipy import stats as distributions

    ratios = np.log(np.asarray(b, float) / np.asarray(a, float))
    n = len(ratios)
    if n < 2:
        ratio = math.exp(ratios[0]) if n else None
        because = f"{n} repeats of both, 2 are needed to see a spread"
        return {"ratio": ratio, "n_repeats": n, "verdict": "unknown", "because": because}
    middle = float(ratios.mean())
    reach = float(distributions.t.ppf(0.5 + confidence / 2, n - 1) * ratios.std(ddof=1) / math.sqrt(n))
    bounds = {"ratio_ci_low": math.exp(middle - reach), "ratio_ci_high": math.exp(middle + reach)}
    if abs(middle) <= reach:
        verdict, because = "no difference", f"the interval over {n} repeats holds 1"
    else:
        verdict, because = ("higher" if middle > 0 else "lower"), f"beyond the spread of {n} repeats"
    return {
        "ratio": math.exp(middle),
        **bounds,
        "n_repeats": n,
        "verdict": verdict,
        "because": because,
    }
