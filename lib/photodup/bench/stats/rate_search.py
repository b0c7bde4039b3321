"""The highest open-loop rate that meets a latency bound, with an interval, from a bounded number of measurements.

Each window gives the percentile at one rate. The answer is where a non-decreasing curve through all windows crosses the
bound; its interval comes from drawing the windows again (bootstrap). `load --slo` gets its rate here.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from photodup.bench import Columns
from photodup.bench.stats.figures import CONFIDENCE
from photodup.core.errors import PhotodupError

REDRAWS = 1000
LOWEST, HIGHEST = 0.3, 1.3  # first bracket, as shares of the server's rough capacity
# Windows of a search if its first bracket holds the rate, and at most. Each step that widens the bracket adds one.
WINDOWS, MOST_WINDOWS = 10, 30
MISSED = 10.0  # times the bound: the latency counted for a rate at which requests failed
WARMUP_SHARE = 0.05
MAX_ERROR_SHARE = 0.001
NEAR = (0.97, 1.03, 0.94, 1.06)  # where to measure again, relative to the guess


@dataclass(frozen=True)
class LatencyBound:
    """The bound that a rate has to keep: `percentile` of the latencies within `bound_ms`."""

    percentile: float
    bound_ms: float

    def __str__(self) -> str:
        return f"p{self.percentile:g} ≤ {self.bound_ms:g} ms"


def bound_of(words: str) -> LatencyBound:
    """Read `p95=100ms` (or `p99=0.25s`).

    Raises:
        PhotodupError: it is written otherwise.
    """
    match = re.fullmatch(r"p(\d+(?:\.\d+)?)\s*(?:=|<=|<)\s*(\d+(?:\.\d+)?)\s*(ms|s)", words.strip().lower())
    if not match or not 0 < float(match[1]) < 100 or not float(match[2]) > 0:
        raise PhotodupError(
            f"A bound is a percentile and a limit, such as p95=100ms or p99=0.5s, not {words!r}."
        )
    return LatencyBound(float(match[1]), float(match[2]) * (1000 if match[3] == "s" else 1))


@dataclass(frozen=True)
class RateWindow:
    """One window: the rate offered (requests/s), the percentile of latency there (ms), and why it counts as a miss."""

    rate_per_s: float
    latency_ms: float
    reason: str = ""

    def as_record(self) -> dict[str, float | str]:
        return {"rate_per_s": self.rate_per_s, "latency_ms": self.latency_ms, "because": self.reason}


@dataclass(frozen=True)
class HighestRate:
    """The highest rate that meets a bound.

    Attributes:
        rate_per_s, low, high: requests/s, with its interval; NaN where no rate met the bound. Where no rate missed it,
            the highest one offered, and `high` is infinite.
        reason: why there is no rate, or no upper end; empty otherwise.
        windows: every one, in the order measured.
    """

    rate_per_s: float
    low: float
    high: float
    bound: LatencyBound
    windows: tuple[RateWindow, ...] = ()
    reason: str = ""

    @property
    def is_found(self) -> bool:
        return not math.isnan(self.rate_per_s)

    def as_record(self) -> Columns:
        """Return rate, interval, reason and windows as JSON has them: None for a rate or an end that is unknown."""
        rates = {n: getattr(self, n) for n in ("rate_per_s", "low", "high")}
        finite = {name: value if math.isfinite(value) else None for name, value in rates.items()}
        return {**finite, "because": self.reason, "seen": [window.as_record() for window in self.windows]}


def search_rate(
    offer: Callable[[float], Mapping[str, Any]],
    bound: LatencyBound,
    about_per_s: float,
    *,
    least_per_s: float | None = None,
    most_per_s: float | None = None,
    seed: int = 0,
) -> HighestRate:
    """Search for the highest rate at which a percentile of the latencies lies within a bound.

    From a bracket around `about_per_s`, the upper end rises while the bound is met, the lower end falls while it is missed.
    Then the bracket is halved, and the remaining windows are measured around the best guess.

    Args:
        offer: offers Poisson arrivals at a rate (requests/s) and returns the window's columns (`load.window`); latency
            counts from the time a request was due. A `PhotodupError` ends the search, and what came before counts.
        about_per_s: rough capacity of the server, requests/s.
        least_per_s, most_per_s: lowest and highest rate to offer; default a fiftieth of `about_per_s`, and no limit.

    Raises:
        PhotodupError: the three rates contradict each other.
    """
    highest = most_per_s or math.inf
    least = least_per_s or min(about_per_s, highest) / 50
    if not (0 < least < highest and 0 < about_per_s < math.inf):
        raise PhotodupError("A search needs 0 < lowest rate < highest rate, in requests/s.")
    rough = min(max(about_per_s, least), highest)
    windows: list[RateWindow] = []
    n_windows, ended = WINDOWS, f"{MOST_WINDOWS} windows are the most"
    while len(windows) < MOST_WINDOWS:
        rate = _next_rate(windows, bound, rough, (least, highest), n_windows)
        if isinstance(rate, str):
            ended = rate
            break
        try:
            window = offer(rate)
            if (failure := window.get("error")) and not window.get("n_errors"):
                raise PhotodupError(f"at {rate:.4g} requests/s nothing could be measured: {failure}")
        except PhotodupError as error:
            ended = str(error).rstrip(".")
            break
        rates = [each.rate_per_s for each in windows]
        n_windows += len(rates) > 1 and not min(rates) <= rate <= max(rates)
        windows.append(rate_window(rate, window, bound))
    return _rate_of(windows, bound, ended, seed)


def _next_rate(
    windows: Sequence[RateWindow],
    bound: LatencyBound,
    rough: float,
    limits: tuple[float, float],
    n_windows: int,
) -> float | str:
    """Return the next rate to offer, requests/s; or a sentence why the search failed, empty if it is done."""
    if not windows:
        return max(LOWEST * rough, limits[0])
    rates = sorted(w.rate_per_s for w in windows)
    guess, side = _guess(windows, bound)
    if side:
        edge = rates[0] if side < 0 else rates[-1]
        if side < 0 and rates.count(edge) < 2:
            return edge  # once may be a stall of the machine
        above = 2.0 if len(rates) > 1 else max(HIGHEST * rough / edge, 1.1)
        further = float(np.clip(edge * (0.25 if side < 0 else above), *limits))
        is_further = abs(math.log(further / edge)) >= 0.01
        return further if is_further else f"no {'lower' if side < 0 else 'higher'} rate is offered"
    if len(windows) >= n_windows:
        return ""
    below, beyond = max(rate for rate in rates if rate <= guess), min(rate for rate in rates if rate > guess)
    if len(windows) < (n_windows + 2) // 2 and beyond / below > 1.02:
        return math.sqrt(below * beyond)
    return float(np.clip(guess * NEAR[len(windows) % len(NEAR)], *limits))


def _guess(windows: Sequence[RateWindow], bound: LatencyBound) -> tuple[float, int]:
    """Return where the bound is crossed; and -1 where all rates miss it, 1 where all meet it, else 0."""
    guess, rates = crossing(windows, bound), [w.rate_per_s for w in windows]
    if min(rates) * (1 + 1e-9) < guess < max(rates) * (1 - 1e-9):
        return guess, 0
    is_low = guess < math.sqrt(min(rates) * max(rates))
    if max(rates) < min(rates) * (1 + 1e-9):
        is_low = np.log([w.latency_ms for w in windows]).mean() > math.log(bound.bound_ms)
    return guess, -1 if is_low else 1


def _rate_of(windows: Sequence[RateWindow], bound: LatencyBound, ended: str, seed: int) -> HighestRate:
    unknown = (math.nan,) * 3
    side = _guess(windows, bound)[1] if windows else None
    if side is None:
        return HighestRate(*unknown, bound, (), f"{ended}.")
    if side < 0:
        lowest = min(windows, key=lambda w: w.rate_per_s)
        reason = lowest.reason or f"p{bound.percentile:g} is {lowest.latency_ms:,.0f} ms"
        reason = f"even at {lowest.rate_per_s:.3g} requests/s {reason}; {ended}."
        return HighestRate(*unknown, bound, tuple(windows), reason)
    if side > 0:
        highest = max(w.rate_per_s for w in windows)
        reason = f"all rates offered met the bound; {ended}."
        return HighestRate(highest, highest, math.inf, bound, tuple(windows), reason)
    return HighestRate(*_interval(windows, bound, seed), bound, tuple(windows))


def rate_window(rate_per_s: float, window: Mapping[str, Any], bound: LatencyBound) -> RateWindow:
    """Return the percentile of a window; far beyond the bound where requests failed or queued up."""
    raw: Mapping[str, Any] = window.get("raw") or {"latency_ms": [], "finished_s": []}
    latency_ms, finished_s = (np.asarray(raw[name], float) for name in ("latency_ms", "finished_s"))
    n, n_failed = len(latency_ms), window.get("n_errors", 0)
    if not n or n_failed > MAX_ERROR_SHARE * (n_failed + n):
        reason = f"{n_failed} of {n_failed + n} requests failed"
        return RateWindow(rate_per_s, MISSED * bound.bound_ms, reason)
    steady = latency_ms[np.argsort(finished_s, kind="stable")][math.ceil(WARMUP_SHARE * n) - 1 :]
    value = float(np.percentile(steady, bound.percentile))
    if value <= bound.bound_ms and _queue_grows(latency_ms, finished_s):
        return RateWindow(rate_per_s, MISSED * bound.bound_ms, "requests came faster than they were answered")
    return RateWindow(rate_per_s, value)


def _queue_grows(latency_ms: np.ndarray, finished_s: np.ndarray) -> bool:
    """Return True where more requests come than are answered: the bound is met for a while only.

    Those that wait are counted over two quarters of the window, not at two instants: a server of batches, or a machine that
    stalls, has many at one instant and none a moment later.
    """
    due_s, finished_s = np.sort(finished_s - latency_ms / 1000), np.sort(finished_s)
    quarters = np.linspace([0.25, 0.75], [0.5, 1.0], 100, axis=1) * due_s[-1]
    waiting = np.searchsorted(due_s, quarters, "right") - np.searchsorted(finished_s, quarters, "right")
    before, after = waiting.mean(axis=1)
    return after - before > 0.05 * len(due_s) / 2 + 3 * math.sqrt(1 + before)


def _interval(windows: Sequence[RateWindow], bound: LatencyBound, seed: int) -> tuple[float, float, float]:
    """Return the crossing with its interval, from drawing the windows again.

    About half of the windows lie around the crossing; their number sets the degrees of freedom (Student's t). Both sides
    are equally wide, since a latency curve bends. In simulated queues the interval holds the true rate in 92 to 93%.
    """
    from scipy.special import stdtrit

    draw, n, by_rate = np.random.default_rng(seed), len(windows), sorted(windows, key=lambda w: w.rate_per_s)
    rate = crossing(windows, bound)
    bracket = [by_rate[0], by_rate[-1]]  # stays, so that every draw crosses the bound
    draws = draw.integers(0, n, (REDRAWS, n))
    again = np.log([crossing([*bracket, *(windows[i] for i in chosen)], bound) for chosen in draws])
    reach = float(
        np.abs(np.quantile(again, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2]) - math.log(rate)).max()
    )
    reach *= stdtrit(max(n // 2 - 1, 1), 0.975) / stdtrit(np.inf, 0.975) * math.sqrt(n / (n - 1))
    low, high = rate * math.exp(-reach), rate * math.exp(reach)
    above = next(w for w in by_rate if w.rate_per_s >= rate)
    # There is no latency to interpolate: the rate lies anywhere up to there.
    if above.latency_ms == MISSED * bound.bound_ms:
        rate, high = max(w.rate_per_s for w in windows if w.rate_per_s <= rate), above.rate_per_s
    return rate, min(low, rate), max(high, rate)


def crossing(windows: Sequence[RateWindow], bound: LatencyBound) -> float:
    """Return where the non-decreasing curve through the windows crosses the bound, requests/s.

    The lowest or the highest rate seen where it does not.
    """
    from scipy.optimize import isotonic_regression

    ordered = sorted(windows, key=lambda w: w.rate_per_s)
    curve = isotonic_regression(np.log([w.latency_ms for w in ordered])).x
    rates = np.log([w.rate_per_s for w in ordered])
    return math.exp(np.interp(math.log(bound.bound_ms), curve, rates))
