"""The verdict of a point: valid, imprecise, unsteady or failed, each with its reason.

A point is looked at three times at most, at lengths stated beforehand. Looking and stopping when the interval is
narrow enough keeps intervals that are too narrow by chance; three things hold that down. The lengths are few and far
apart, an early look must find the interval narrower than asked (`EARLY_SHARE`), and it must have seen enough waves
(`EARLY_WAVES`): in fewer, a spell that comes every ten waves may not have come yet. Simulated with three looks at a
quarter, a half and the whole length, the interval that is kept then covers 92 to 96 % (without the second rule 88 to
95 %; looking on after every answer 76 to 89 %).
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from photodup.bench.stats.facts import Figure, Load, metric_named
from photodup.bench.stats.interval import figures_of
from photodup.bench.stats.steady import Steady, steady_part
from photodup.errors import PhotodupError

VERDICTS = ("valid", "imprecise", "unsteady", "failed")
MAX_LOOKS = 3
EARLY_SHARE = 0.8
EARLY_WAVES = 40
MAX_ERROR_SHARE = 0.001
KEPT_UP = 0.97  # an open loop is overloaded when fewer of the requests due are answered


@dataclass(frozen=True)
class Looks:
    """When a point is looked at and what it must meet.

    Attributes:
        lengths_s: one to three lengths of the measured window, ascending, seconds.
        half_width: relative half-width of the 95 % interval that is asked for, above 0.
        metrics: the figures that must meet it. In an open loop throughput is what was offered, so only
            latencies count there.
    """

    lengths_s: tuple[float, ...] = (5.0, 10.0, 20.0)
    half_width: float = 0.05
    metrics: tuple[str, ...] = ("latency_ms_mean", "throughput_images_per_s")

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in pairwise(self.lengths_s))
        if not 1 <= len(self.lengths_s) <= MAX_LOOKS or not ascending or self.lengths_s[0] <= 0:
            raise PhotodupError(
                f"A point is looked at one to {MAX_LOOKS} times, at growing lengths in seconds: "
                f"{self.lengths_s} is no such plan."
            )
        if not self.half_width > 0:
            raise PhotodupError("The half-width asked of an interval must be above 0: 0.05 is the default.")
        for name in self.metrics:
            metric_named(name)


@dataclass(frozen=True)
class Sample:
    """What a load generator brings back of one point, from the start of its window.

    Attributes:
        latency_ms, finished_s: of each answer, in any order.
        n_errors: requests that failed.
        scheduled_per_s: open loop: requests/s that were due in the window, as drawn.
        error: why nothing could be measured; empty otherwise.
    """

    latency_ms: np.ndarray
    finished_s: np.ndarray
    n_errors: int = 0
    scheduled_per_s: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Point:
    """What is known of a point.

    Attributes:
        verdict: one of `VERDICTS`. All but `valid` are drawn hollow.
        because: one sentence; empty for a valid point.
        figures: metric → figure with its interval; an imprecise point has them too where it has enough blocks.
        steady: the steady part; None when there were no answers.
        n_looks: how often it was looked at.
    """

    verdict: str
    because: str
    figures: dict[str, Figure] = field(default_factory=dict)
    steady: Steady | None = None
    n_looks: int = 1

    def columns(self) -> dict[str, float | int | str | None]:
        """Return the point as columns of a record: figures, their bounds, and what they rest on."""
        row: dict[str, float | int | str | None] = {"verdict": self.verdict, "because": self.because}
        for name, figure in self.figures.items():
            row |= {name: figure.value, f"{name}_ci_low": figure.low, f"{name}_ci_high": figure.high}
        if (steady := self.steady) is not None:
            row |= {
                "n_steady": steady.n_answers,
                "n_effective": steady.n_effective,
                "n_warmup": steady.first,
                "n_blocks": steady.n_blocks,
                "autocorrelation_blocks": steady.autocorrelation,
                "autocorrelation_answers": steady.autocorrelation_answers,
                "shift_p": steady.shift_p,
            }
        return row | {"n_looks": self.n_looks}


def judge_point(
    sample: Sample,
    load: Load,
    *,
    looks: Looks | None = None,
    look: int | None = None,
) -> Point:
    """Return the verdict of what was measured up to one look.

    Args:
        look: number of the look, from 0; the last one unless given. An early look is stricter, so `valid`
            means that the measurement may stop there.
    """
    looks = looks or Looks()
    last = len(looks.lengths_s) - 1
    look = last if look is None else look
    seen: dict[str, Any] = {"n_looks": look + 1}
    n, errors = len(sample.latency_ms), sample.n_errors
    if sample.error:
        return Point("failed", sample.error, **seen)
    if n == 0:
        return Point("failed", "no request was answered", **seen)
    steady = steady_part(sample.latency_ms, sample.finished_s, load.wave)
    if errors > MAX_ERROR_SHARE * (n + errors):
        return Point("failed", f"{errors} of {n + errors} requests failed", steady=steady, **seen)
    figures = figures_of(steady, batch=load.batch)
    seen |= {"figures": figures, "steady": steady}
    if (short := _overload(sample)) is not None:
        return Point("unsteady", short, **seen)
    if steady.problem == "unsteady":
        return Point("unsteady", steady.because, **seen)
    if steady.problem:
        return Point("imprecise", steady.because, **seen)
    if look < last and steady.n_waves < EARLY_WAVES:
        because = f"{steady.n_waves} waves were seen at an early look, {EARLY_WAVES} are needed to stop there"
        return Point("imprecise", because, **seen)
    asked = looks.half_width * (1 if look >= last else EARLY_SHARE)
    if because := _imprecise(figures, looks, asked, open_loop=load.scenario == "server"):
        return Point("imprecise", because, **seen)
    return Point("valid", "", **seen)


def _overload(sample: Sample) -> str | None:
    due = sample.scheduled_per_s
    if due is None:
        return None
    answered = len(sample.finished_s) / float(np.max(sample.finished_s))
    if answered >= KEPT_UP * due:
        return None
    return f"the server was overloaded: {answered:.1f} of {due:.1f} requests/s were answered"


def _imprecise(figures: dict[str, Figure], looks: Looks, asked: float, *, open_loop: bool) -> str:
    for name in looks.metrics:
        metric = metric_named(name)
        if open_loop and metric.quantity == "throughput":
            continue
        if name not in figures:
            return f"the sample is too small for the {metric.words}"
        if figures[name].half_width > asked:
            return (
                f"the interval of the {metric.words} reaches {figures[name].half_width:.1%} to a side, "
                f"{asked:.1%} are allowed"
            )
    return ""
