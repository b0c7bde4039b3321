"""When requests of an open loop are due: Poisson, evenly, in bursts, on a ramp, or as a trace file says."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from photodup.bench.load.plan import arrivals_s
from photodup.core.errors import PhotodupError

HELP = "poisson, uniform, bursts:N, ramp:FROM-TO (requests/s), trace:FILE (a time in seconds a line)"
_NUMBER = r"\d+(?:\.\d+)?"


@dataclass(frozen=True)
class Pattern:
    """A pattern of arrivals.

    Attributes:
        words: as it was asked for.
        times_s: rate per second, horizon in seconds, seed → times in seconds, ascending, from 0.
        rate_per_s, horizon_s: where the pattern fixes them (a ramp's mean rate, a trace's length).
        is_steady: whether the rate is the same all the time; if not, windows of one load are no repetitions.
    """

    words: str
    times_s: Callable[[float, float, int], np.ndarray]
    rate_per_s: float | None = None
    horizon_s: float | None = None
    is_steady: bool = True


def pattern_of(words: str) -> Pattern:
    """Read `--arrivals`.

    Raises:
        PhotodupError: no such pattern, or a trace that cannot be read.
    """
    if words == "poisson":
        return Pattern(words, arrivals_s)
    if words == "uniform":
        return Pattern(words, lambda rate, horizon, seed: np.arange(0, horizon, 1 / rate))
    if (match := re.fullmatch(r"bursts:(\d+)", words)) and int(match[1]) > 0:
        size = int(match[1])
        return Pattern(words, lambda rate, horizon, seed: _bursts(rate, horizon, seed, size), is_steady=False)
    if match := re.fullmatch(rf"ramp:({_NUMBER})-({_NUMBER})", words):
        first, last = float(match[1]), float(match[2])
        if first + last > 0:
            mean = (first + last) / 2
            ramp = lambda rate, horizon, seed: _ramp(first, last, horizon, seed)  # noqa: E731
            return Pattern(words, ramp, rate_per_s=mean, is_steady=first == last)
    if words.startswith("trace:"):
        return _trace(words)
    raise PhotodupError(f"There is no arrival pattern {words!r}: use {HELP}.")


def _bursts(rate: float, horizon: float, seed: int, size: int) -> np.ndarray:
    """Bursts come at Poisson times; the mean rate is that asked for."""
    return np.repeat(arrivals_s(rate / size, horizon, seed), size)


def _ramp(first: float, last: float, horizon: float, seed: int) -> np.ndarray:
    """Return Poisson arrivals whose rate changes linearly, by inverting the expected number of arrivals."""
    total = (first + last) / 2 * horizon
    unit = arrivals_s(1.0, total, seed)
    slope = (last - first) / horizon
    if abs(slope) < 1e-12:
        return unit / first
    return (np.sqrt(np.maximum(first**2 + 2 * slope * unit, 0)) - first) / slope


def _trace(words: str) -> Pattern:
    path = Path(words.removeprefix("trace:"))
    try:
        lines = [line.split(",")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
        times = np.array([float(line) for line in lines if line and not line.startswith("#")])
    except OSError as error:
        raise PhotodupError(f"The trace {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise PhotodupError(
            f"The trace {path} should hold one time in seconds a line (a first column is taken): {error}."
        ) from None
    if len(times) < 2 or not np.isfinite(times).all() or not np.ptp(times) > 0:
        raise PhotodupError(f"The trace {path} needs two different times or more.")
    times = np.sort(times) - times.min()
    length = float(times[-1]) + float(times[-1]) / (len(times) - 1)  # the last one has its gap, too
    return Pattern(
        words, lambda rate, horizon, seed: times[times < horizon], len(times) / length, length, False
    )
