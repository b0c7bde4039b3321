"""The verdict of a point: valid, imprecise, unsteady or failed, each with its reason.

A measurement may end before its longest duration (`Stopping.early_looks_s`). Stopping when the interval is narrow
enough keeps intervals that are too narrow by chance; three rules limit that. The early looks are two at most and far
apart, each must find the interval narrower than required (`EARLY_SHARE`), and each must rest on enough waves
(`EARLY_WAVES`): in fewer, a spell that comes every ten waves may not have come yet. Simulated with looks at a
quarter, a half and the whole length, the interval that is kept then covers 92 to 96 % (without the second rule 88 to
95 %; with a look after every answer 76 to 89 %).
"""

from dataclasses import dataclass, field

import numpy as np

from photodup.bench.stats.facts import Load, metric_named
from photodup.bench.stats.interval import Interval, figures_of
from photodup.bench.stats.steady import Steady, steady_part

VERDICTS = ("valid", "imprecise", "unsteady", "failed")
HALF_WIDTH = 0.05  # relative, of the 95 % intervals of `PRECISE`
PRECISE = ("latency_ms_mean", "throughput_images_per_s")
EARLY_SHARE = 0.8
EARLY_WAVES = 40
MAX_ERROR_SHARE = 0.001
KEPT_UP = 0.97  # an open loop is overloaded when fewer of the requests due are answered


@dataclass(frozen=True)
class Sample:
    """The answers of one point, from the start of its window.

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
    """A point with its verdict.

    Attributes:
        verdict: one of `VERDICTS`. All but `valid` are drawn hollow.
        because: one sentence; empty for a valid point.
        figures: metric → figure with its interval; an imprecise point has them too where it has enough blocks.
        steady: the steady part; None when there were no answers.
    """

    verdict: str
    because: str
    figures: dict[str, Interval] = field(default_factory=dict)
    steady: Steady | None = None

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
        return row


def judge_point(
    sample: Sample, load: Load, *, half_width: float = HALF_WIDTH, is_early: bool = False
) -> Point:
    """Return the verdict of what was measured.

    Args:
        half_width: relative half-width required of the 95 % intervals, above 0.
        is_early: apply the stricter rules of an early look; `valid` then means that the measurement may stop.
    """
    n, errors = len(sample.latency_ms), sample.n_errors
    if sample.error:
        return Point("failed", sample.error)
    if n == 0:
        return Point("failed", "no request was answered")
    steady = steady_part(sample.latency_ms, sample.finished_s, load.wave)
    if errors > MAX_ERROR_SHARE * (n + errors):
        return Point("failed", f"{errors} of {n + errors} requests failed", steady=steady)
    figures = figures_of(steady, batch=load.batch)
    if because := _overload(sample):
        return Point("unsteady", because, figures, steady)
    if steady.problem:
        return Point(
            "unsteady" if steady.problem == "unsteady" else "imprecise", steady.because, figures, steady
        )
    if is_early and steady.n_waves < EARLY_WAVES:
        because = f"{steady.n_waves} waves were seen at an early look, {EARLY_WAVES} are needed to stop there"
    else:
        allowed = half_width * (EARLY_SHARE if is_early else 1)
        because = _imprecise(figures, allowed, open_loop=load.scenario == "server")
    return Point("imprecise" if because else "valid", because, figures, steady)


def _overload(sample: Sample) -> str:
    due = sample.scheduled_per_s
    if due is None:
        return ""
    answered = len(sample.finished_s) / float(np.max(sample.finished_s))
    if answered >= KEPT_UP * due:
        return ""
    return f"the server was overloaded: {answered:.1f} of {due:.1f} requests/s were answered"


def _imprecise(figures: dict[str, Interval], allowed: float, *, open_loop: bool) -> str:
    for name in PRECISE:
        metric = metric_named(name)
        if open_loop and metric.quantity == "throughput":
            continue  # it is what was offered
        if name not in figures:
            return f"the sample is too small for the {metric.words}"
        if figures[name].half_width > allowed:
            return (
                f"the interval of the {metric.words} reaches {figures[name].half_width:.1%} to a side, "
                f"{allowed:.1%} are allowed"
            )
    return ""
