"""The highest open-loop rate that meets a latency bound, with an interval, from a bounded number of measurements.

Each measurement gives the percentile at one rate with its error. The rate is sought by halving a bracket, then by
measuring again around the best guess. The answer is where a non-decreasing curve through all measurements crosses the
bound; its interval comes from redrawing every measurement within its own error (parametric bootstrap).
"""

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from photodup.bench.stats.interval import percentile_bounds
from photodup.bench.stats.point import Sample
from photodup.bench.stats.steady import MIN_BLOCKS, steady_part
from photodup.errors import PhotodupError

REDRAWS = 2000
WARMUP_SHARE = 0.05
NEAR = (0.97, 1.03, 0.94, 1.06)  # where to measure again, relative to the guess


@dataclass(frozen=True)
class LatencyBound:
    """What a rate has to keep: `percentile` of the latencies within `bound_ms`."""

    percentile: float
    bound_ms: float

    def __str__(self) -> str:
        return f"p{self.percentile:g} ≤ {self.bound_ms:g} ms"


def bound_of(words: str) -> LatencyBound:
    """Read `p95=100ms` (or `p99=0.25s`).

    Raises:
        PhotodupError: it is written otherwise.
    """
    found = re.fullmatch(r"p(\d+(?:\.\d+)?)\s*(?:=|<=|<)\s*(\d+(?:\.\d+)?)\s*(ms|s)", words.strip().lower())
    if not found or not 0 < float(found[1]) < 100 or not float(found[2]) > 0:
        raise PhotodupError(
            f"A bound is a percentile and a limit, such as p95=100ms or p99=0.5s, not {words!r}."
        )
    return LatencyBound(float(found[1]), float(found[2]) * (1000 if found[3] == "s" else 1))


@dataclass(frozen=True)
class RateSeen:
    """One measurement: the rate offered (requests/s) and the percentile of latency there, ms, with its interval."""

    rate_per_s: float
    latency_ms: float
    low_ms: float
    high_ms: float
    because: str = ""


@dataclass(frozen=True)
class SloRate:
    """The highest rate that meets a bound.

    Attributes:
        rate_per_s, low, high: requests/s, with its interval; NaN where `because` says why there is none.
        confidence: of the interval.
        bound_ms, percentile: what had to be met.
        seen: every measurement, in the order made.
    """

    rate_per_s: float
    low: float
    high: float
    confidence: float
    bound_ms: float
    percentile: float
    seen: tuple[RateSeen, ...]
    because: str = ""

    def as_record(self) -> dict[str, Any]:
        """Return rate, interval, reason and measurements as JSON has them: None where there is no rate."""
        rates = {n: None if self.because else getattr(self, n) for n in ("rate_per_s", "low", "high")}
        return {**rates, "because": self.because, "seen": [asdict(one) for one in self.seen]}


def slo_rate(
    measure: Callable[[float], Sample],
    *,
    bound_ms: float,
    percentile: float,
    low_per_s: float,
    high_per_s: float,
    n_measurements: int = 12,
    confidence: float = 0.95,
    seed: int = 0,
) -> SloRate:
    """Search the highest rate at which `percentile` of the latencies lies within `bound_ms`.

    Args:
        measure: offers Poisson arrivals at a rate (requests/s) and returns the sample; latency counts from the time
            a request was due. It is called `n_measurements` times at most.
        low_per_s, high_per_s: rates between which to search; the lower should meet the bound, the upper not.
        percentile: 0 to 100.

    Raises:
        PhotodupError: the rates, the bound or the number of measurements make no sense.
    """
    if not (0 < low_per_s < high_per_s and bound_ms > 0 and 0 < percentile < 100):
        raise PhotodupError(
            "A search needs 0 < lower rate < upper rate, a bound above 0 and a percentile under 100."
        )
    if n_measurements < 6:
        raise PhotodupError(f"{n_measurements} measurements cannot bracket a rate: allow six or more.")
    seen: list[RateSeen] = []

    def look(rate: float) -> RateSeen:
        seen.append(_look(measure, rate, percentile, bound_ms))
        return seen[-1]

    def told(rate: float, low: float, high: float, because: str = "") -> SloRate:
        return SloRate(rate, low, high, confidence, bound_ms, percentile, tuple(seen), because)

    if look(low_per_s).low_ms > bound_ms:
        because = f"Even {low_per_s:g} requests/s do not meet {bound_ms:g} ms: search from a lower rate."
        return told(math.nan, math.nan, math.nan, because)
    if look(high_per_s).high_ms < bound_ms:
        because = f"{high_per_s:g} requests/s still meet {bound_ms:g} ms: search up to a higher rate."
        return told(math.nan, math.nan, math.nan, because)
    below, above = low_per_s, high_per_s
    while len(seen) < (n_measurements + 2) // 2 and above / below > 1.02:
        middle = math.sqrt(below * above)
        below, above = (middle, above) if look(middle).latency_ms <= bound_ms else (below, middle)
    turn = 0
    while len(seen) < n_measurements:
        guess = _crossing(seen, np.array([[math.log(s.latency_ms) for s in seen]]), bound_ms)[0]
        look(float(np.clip(guess * NEAR[turn % len(NEAR)], low_per_s, high_per_s)))
        turn += 1
    rate, low, high = _interval(seen, bound_ms, confidence, seed)
    if rate >= high_per_s * (1 - 1e-9):
        because = f"{high_per_s:g} requests/s may still meet {bound_ms:g} ms: search up to a higher rate."
        return told(math.nan, math.nan, math.nan, because)
    if rate <= low_per_s * (1 + 1e-9):
        because = f"{low_per_s:g} requests/s may not meet {bound_ms:g} ms: search from a lower rate."
        return told(math.nan, math.nan, math.nan, because)
    return told(rate, low, high)


def _look(measure: Callable[[float], Sample], rate: float, percentile: float, bound_ms: float) -> RateSeen:
    """A rate that the server does not sustain grows a queue: its latency has no level, and is over any bound."""
    sample = measure(rate)
    if sample.error or len(sample.latency_ms) == 0:
        raise PhotodupError(
            f"At {rate:.4g} requests/s nothing could be measured: {sample.error or 'no answer'}."
        )
    # A fixed part is dropped, not MSER's: in a queue that is warm it takes an early burst for the warm-up.
    warmup = math.ceil(WARMUP_SHARE * len(sample.latency_ms))
    steady = steady_part(sample.latency_ms, sample.finished_s, wave=1, warmup=warmup)
    if steady.n_blocks < MIN_BLOCKS:
        raise PhotodupError(f"At {rate:.4g} requests/s the sample is too small: {steady.because}.")
    value, low, high = percentile_bounds(steady, percentile)
    # A steady part of few independent answers is a queue near its limit: its interval is the whole range seen.
    if steady.problem == "too short":
        low, high = min(low, float(np.median(steady.latency_ms))), max(high, float(steady.latency_ms.max()))
    return RateSeen(rate, value, low, high, steady.because)


def _interval(
    seen: list[RateSeen], bound_ms: float, confidence: float, seed: int
) -> tuple[float, float, float]:
    from scipy.stats import norm

    values = np.log([s.latency_ms for s in seen])
    errors = np.log([s.high_ms / s.low_ms for s in seen]) / (2 * norm.ppf(0.975))
    draws = values + errors * np.random.default_rng(seed).standard_normal((REDRAWS, len(seen)))
    rate = float(_crossing(seen, values[None], bound_ms)[0])
    rates = _crossing(seen, draws, bound_ms)
    low, high = np.quantile(rates, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return rate, min(float(low), rate), max(float(high), rate)


def _crossing(seen: list[RateSeen], log_latency: np.ndarray, bound_ms: float) -> np.ndarray:
    """Return where the non-decreasing curve through each row [rows, measurements] crosses the bound, requests/s."""
    from scipy.optimize import isotonic_regression

    rates = np.array([s.rate_per_s for s in seen])
    order = np.argsort(rates, kind="stable")
    rates, target = np.log(rates[order]), math.log(bound_ms)
    found = np.empty(len(log_latency))
    for row, values in enumerate(log_latency[:, order]):
        # Not weighted by the errors: a sample without a burst reads low and narrow at once, and would win.
        curve = isotonic_regression(values).x
        over = int(np.searchsorted(curve, target, side="right"))
        if over == 0:
            found[row] = rates[0]
        elif over == len(curve):
            found[row] = rates[-1]
        else:
            left, right = curve[over - 1], curve[over]
            share = (target - left) / (right - left)
            found[row] = rates[over - 1] + share * (rates[over] - rates[over - 1])
    return np.exp(found)
