"""What a search finds, and the sentence that says it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from photodup.bench.stats.comparison import Outcome
from photodup.bench.stats.sentence import sentence
from photodup.bench.stats.slo import LatencyBound, rate_words
from photodup.tune.serving.candidates import Setting


@dataclass(frozen=True)
class Found:
    """What a setting is worth.

    Attributes:
        rate_per_s, low, high: the highest rate under the bound with its interval; None where there is none, and for an
            upper end that was not reached.
        because: why there is none.
        outcome: of measuring it in turns with the finalist that has the highest rate; None for that one.
    """

    setting: Setting
    rate_per_s: float | None
    low: float | None
    high: float | None
    because: str = ""
    outcome: Outcome | None = None

    @property
    def rate(self) -> str:
        """The rate in words."""
        return rate_words(self.rate_per_s, self.low, self.high)

    def overlaps(self, other: Found) -> bool:
        """Return whether the intervals of both rates have something in common."""
        ends = [
            (one.low or math.inf, (one.high or math.inf) if one.rate_per_s else 0) for one in (self, other)
        ]
        return min(high for _, high in ends) >= max(low for low, _ in ends)


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        bound: what was to be kept.
        finalists: best first; those without a rate last.
        trials: name of the setting, rung, score, for every short trial.
        n_settings: how many took part.
        measured_s: seconds of measured windows, all trials.
        in_flight: requests in flight with which the finalists took turns.
        exhaustive_s: what exact rates of all settings would have taken.
    """

    bound: LatencyBound
    finalists: tuple[Found, ...]
    trials: tuple[dict[str, Any], ...]
    n_settings: int
    measured_s: float
    exhaustive_s: float
    in_flight: int = 1

    @property
    def best(self) -> Found | None:
        return next((found for found in self.finalists if found.rate_per_s), None)

    def sentence(self) -> str:
        """Return the choice in one sentence, and whether the runner-up could be as good."""
        best = self.best
        if best is None:
            whys = {found.because for found in self.finalists if found.because} or {
                "no setting met it in a short trial"
            }
            return f"No setting was found that keeps {self.bound}: {sorted(whys)[0]}"
        said = f"Serve {best.setting.name}: it keeps {self.bound} up to {best.rate}"
        if best.because:
            said += f" ({best.because.rstrip('.')})"
        for outcome in (found.outcome for found in self.finalists if found.outcome):
            said += f". In turns, with {self.in_flight} in flight: {sentence(outcome).rstrip('.')}"
        near = [f for f in self.finalists if f is not best and f.overlaps(best)]
        if rivals := [f for f in near if not any(o and o.is_different for o in (f.outcome, best.outcome))]:
            said += f". {rivals[0].setting.name} may be as good"
        return said + "."
