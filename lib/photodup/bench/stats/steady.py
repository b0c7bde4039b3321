"""The steady part of a point: warm-up dropped, the rest cut into blocks of whole waves, level shifts sought.

A wave is as many answers as requests are in flight. Servers answer in bursts, so a block that cuts a wave reads
a rate that never was; a block of whole waves holds each burst once, wherever its first answer lies.

Sources: MSER-5 (White 1997), batch means with at least 20 blocks (Law and Carson 1979), Pettitt (1979).

METHOD §10.3 is followed but for four things, each decided by simulating points: of 60 to 3,000 answers with
autocorrelations from 0 to .95, and resampled from recorded ones (300 to 600 points for each):

* Blocks begin at 20 to 40, not at one wave. From one wave up, doubling stops at the first short block whose estimate
  happens to be low: with 1,000 answers and .95 the mean's interval then covers 90 % instead of 92 %.
* The longest allowed block is used even if its autocorrelation still reads .2 or more; the standard error and its
  degrees of freedom are adjusted for it. To refuse such points keeps those whose estimate is too low: with 400 answers
  and .8 what the refusal keeps covers 89 %, all of them adjusted 93 %, and it refuses 5 to 8 % of sound points whose
  answers are independent. What is refused is a point of fewer than 15 independent waves.
* MSER-5 may drop a tenth of the answers at most, not half. Left free, it takes every slow spell of the first half for
  warm-up and reads too fast: of recorded points resampled to 50 waves 90 % of the means' intervals held the truth (94 %
  without any cut), with slow spells planted 85 % (93 %). Limited to a tenth it is 93 % and 92 %, with a short warm-up
  planted 95 % and 93 %. A longer warm-up is then found as a level shift, and the next look is longer.
* A level shift of less than 2 % is no reason to refuse a point, as no such difference is of interest: a server that
  answers within a tenth of a percent would be refused for a shift of half a percent.

The adjusted interval of the mean covers 92 to 97 % where a point has 20 independent waves or more; below that it is
too narrow (200 answers at .95: 85 %).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from photodup.bench.stats.facts import SMALLEST_EFFECT
from photodup.core.errors import PhotodupError

MIN_BLOCKS = 20
MAX_BLOCKS = 40
MAX_AUTOCORRELATION = 0.2
SHIFT_LEVEL = 0.01
PERMUTATIONS = 2999
MSER_BATCH = 5
MAX_WARMUP = 0.1
MIN_EFFECTIVE_WAVES = 15


@dataclass(frozen=True)
class Steady:
    """The steady part of a point.

    Attributes:
        first, last: the steady part is answers `first:last` in order of completion; whole blocks.
        wave: answers in a wave.
        n_blocks: blocks, all of `block_answers` answers (a multiple of the wave).
        block_latency_ms: [n_blocks] mean latency of each block, ms.
        block_duration_s: [n_blocks] from the completion before a block to its last one, seconds.
        latency_ms: [n_answers] in order of completion, ms.
        autocorrelation: lag-1, of the block means of latency, -1 to 1.
        autocorrelation_answers: lag-1, of single latencies in order of completion, -1 to 1.
        n_effective: independent answers that would fix the mean as well, 1 to n_answers.
        shift_p: Pettitt's p for one level shift in the block means.
        shift: relative change of level at the likeliest place; 0 where none was looked for.
        problem: empty, `too short` or `unsteady`.
        because: one sentence when there is a problem.
    """

    first: int
    last: int
    wave: int
    n_blocks: int
    block_answers: int
    block_latency_ms: np.ndarray
    block_duration_s: np.ndarray
    latency_ms: np.ndarray
    autocorrelation: float
    autocorrelation_answers: float
    n_effective: float
    shift_p: float
    shift: float
    problem: str = ""
    because: str = ""

    @property
    def n_answers(self) -> int:
        """Answers in the steady part."""
        return self.last - self.first

    @property
    def n_waves(self) -> int:
        """Whole waves in the steady part."""
        return self.n_answers // self.wave


def warmup_length(latency_ms: np.ndarray) -> int:
    """Return how many answers MSER-5 drops: a multiple of five, at most a tenth.

    The cut is where the standard error of the mean of the rest would be least, over means of five.
    """
    batches = len(latency_ms) // MSER_BATCH
    if batches < 2:
        return 0
    means = np.asarray(latency_ms[: batches * MSER_BATCH], float).reshape(batches, MSER_BATCH).mean(axis=1)
    means = means - means.mean()  # sums of squares of small numbers lose fewer digits
    left = np.arange(batches, 0, -1)
    total, squares = np.cumsum(means[::-1])[::-1], np.cumsum(means[::-1] ** 2)[::-1]
    score = np.maximum(squares - total**2 / left, 0) / left.astype(float) ** 2
    return int(np.argmin(score[: int(batches * MAX_WARMUP) + 1])) * MSER_BATCH


def autocorrelation(values: np.ndarray) -> float:
    """Return the lag-1 autocorrelation, 0 where the values do not vary."""
    centred = np.asarray(values, float) - np.mean(values)
    power = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / power if power > 0 else 0.0


def pettitt(values: np.ndarray) -> tuple[float, int]:
    """Return Pettitt's p (two-sided) for one change of level and where it would be.

    Pettitt's own approximation of p is several times too high in 20 values: a clean step after six of them reads
    .013. So p is counted over permutations.

    Returns:
        p above 0 and at most 1, and the index of the first value of the new level.
    """
    n = len(values)
    if n < 2:
        return 1.0, 0
    ordered = np.sort(values)
    ranks = (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right") + 1) / 2
    path = 2 * np.cumsum(ranks)[:-1] - np.arange(1, n) * (n + 1)
    at = int(np.argmax(np.abs(path)))
    null = _pettitt_null(n)
    above = len(null) - int(np.searchsorted(null, abs(float(path[at]))))
    return (1 + above) / (1 + len(null)), at + 1


@lru_cache(maxsize=256)
def _pettitt_null(n: int) -> np.ndarray:
    """Return Pettitt's statistic for permutations of n values, ascending."""
    ranks = np.random.default_rng(n).permuted(np.tile(np.arange(1, n + 1), (PERMUTATIONS, 1)), axis=1)
    paths = 2 * np.cumsum(ranks, axis=1)[:, :-1] - np.arange(1, n) * (n + 1)
    return np.sort(np.abs(paths).max(axis=1)).astype(float)


def standard_error(values: np.ndarray) -> tuple[float, float]:
    """Return the standard error of the mean of block means, and its degrees of freedom.

    Both are adjusted for the autocorrelation that the means still have, as in a first-order autoregressive process
    of which fewer values are worth as much. The estimate of r is too low by about (1 + 3 r) / k in k blocks (Kendall
    1954), which is added back; negative values narrow nothing.
    """
    k = len(values)
    r = autocorrelation(values)
    r = min(max(r + (1 + 3 * r) / k, 0.0), 0.9)
    worth = max(k * (1 - r) / (1 + r), 3.0)
    return float(np.std(values, ddof=1)) / math.sqrt(k * (1 - r) / (1 + r)), worth - 1


def steady_part(
    latency_ms: np.ndarray, finished_s: np.ndarray, wave: int, *, warmup: int | None = None
) -> Steady:
    """Find the steady part of a point.

    Args:
        latency_ms: of each answer, ms, above 0; any order.
        finished_s: when each was in hand, seconds, same order.
        wave: answers in a wave: requests in flight, 1 for an open loop.
        warmup: answers to drop, where the length of the warm-up is known; MSER-5 finds it unless given.

    Raises:
        PhotodupError: the arrays are unlike in length, or hold no number, or `wave` is below 1.
    """
    latency, finished = np.asarray(latency_ms, float), np.asarray(finished_s, float)
    if latency.ndim != 1 or latency.shape != finished.shape:
        raise PhotodupError(
            "A point needs one completion time for each latency: give two lists of one length."
        )
    if not (np.isfinite(latency).all() and np.isfinite(finished).all()) or (latency <= 0).any():
        raise PhotodupError("A latency of this point is not a positive number: measure it again.")
    if wave < 1:
        raise PhotodupError(
            f"A wave of {wave} answers makes no sense: give the requests in flight, 1 or more."
        )
    order = np.argsort(finished, kind="stable")
    latency, finished = latency[order], finished[order]
    n = len(latency)
    # The first answer only starts the clock: blocks are timed from one completion to another.
    first = max(warmup_length(latency) if warmup is None else warmup, 1)
    left = max(n - first, 0)
    block = _block_answers(latency[first:], wave)
    n_blocks = left // block
    first = n - n_blocks * block
    means = latency[first:].reshape(n_blocks, block).mean(axis=1) if n_blocks else np.empty(0)
    ends = finished[first - 1 :: block] if n_blocks else np.empty(0)
    problem, because, p, shift = "", "", 1.0, 0.0
    if n_blocks < MIN_BLOCKS:
        unit = "answers" if wave == 1 else f"waves of {wave} answers"
        problem = "too short"
        because = f"{n_blocks} blocks of whole {unit} are left after the warm-up, {MIN_BLOCKS} are needed"
    else:
        p, at = pettitt(means)
        shift = float(means[at:].mean()) / float(means[:at].mean()) - 1
        waves = (n - first) // wave
        independent = _independent(latency[n - waves * wave :].reshape(waves, wave).mean(axis=1))
        if p < SHIFT_LEVEL and abs(shift) > SMALLEST_EFFECT:
            problem = "unsteady"
            because = f"the latency changes by {shift:+z.1%} after {at / n_blocks:.0%} of the steady part"
        elif independent < MIN_EFFECTIVE_WAVES:
            problem, unit = "too short", "answers" if wave == 1 else "waves"
            because = (
                f"successive {unit} are so alike that {waves} say as much as {independent:.0f} independent ones, "
                f"{MIN_EFFECTIVE_WAVES} are needed"
            )
    return Steady(
        first=first,
        last=n,
        wave=wave,
        n_blocks=n_blocks,
        block_answers=block,
        block_latency_ms=means,
        block_duration_s=np.diff(ends),
        latency_ms=latency[first:],
        autocorrelation=autocorrelation(means) if n_blocks > 1 else 0.0,
        autocorrelation_answers=autocorrelation(latency[first:]) if n - first > 1 else 0.0,
        n_effective=_effective(latency[first:], means),
        shift_p=p,
        shift=shift,
        problem=problem,
        because=because,
    )


def _block_answers(latency: np.ndarray, wave: int) -> int:
    """Return the answers of a block: whole waves, doubled from the shortest blocks that are at most MAX_BLOCKS."""
    most = len(latency) // (MIN_BLOCKS * wave)  # waves in the longest block that still leaves MIN_BLOCKS
    waves = max(1, min(most, math.ceil(len(latency) / (MAX_BLOCKS * wave))))
    while waves * 2 <= most and _lag_one(latency, waves * wave) >= MAX_AUTOCORRELATION:
        waves *= 2
    return waves * wave


def _lag_one(latency: np.ndarray, block: int) -> float:
    k = len(latency) // block
    return autocorrelation(latency[len(latency) - k * block :].reshape(k, block).mean(axis=1))


def _effective(latency: np.ndarray, means: np.ndarray) -> float:
    if len(means) < 2:
        return float(max(len(latency), 1))
    variance, error = float(np.var(latency, ddof=1)), standard_error(means)[0] ** 2
    return float(len(latency)) if error <= 0 else float(np.clip(variance / error, 1, len(latency)))


def _independent(values: np.ndarray) -> float:
    """Return how many independent values a first-order autoregressive series is worth, at most its length."""
    n = len(values)
    if n < 4:
        return float(n)
    rho = autocorrelation(values)
    rho = min(max(rho + (1 + 3 * rho) / n, 0.0), 0.999)  # the estimate is too low by this much (Kendall 1954)
    return max(1.0, n * (1 - rho) / (1 + rho))
