"""What a search finds, and the sentence that says it."""

from dataclasses import dataclass
from typing import Any

from photodup.bench.stats.slo import LatencyBound
from photodup.tune.serving.candidates import Setting


@dataclass(frozen=True)
class Found:
    """What a setting is worth: the highest rate under the bound with its interval, or why there is none."""

    setting: Setting
    rate_per_s: float | None
    low: float | None
    high: float | None
    because: str = ""


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        bound: what was to be kept.
        finalists: best first; those without a rate last.
        trials: name of the setting, rung, score, for every short trial.
        n_settings: how many took part.
        measured_s: seconds of measured windows, all trials.
        exhaustive_s: what exact rates of all settings would have taken.
    """

    bound: LatencyBound
    finalists: tuple[Found, ...]
    trials: tuple[dict[str, Any], ...]
    n_settings: int
    measured_s: float
    exhaustive_s: float

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
        said = (
            f"Serve {best.setting.name}: it keeps {self.bound} up to {best.rate_per_s:.1f} requests/s "
            f"[{best.low:.1f}, {best.high:.1f}]"
        )
        others = [f for f in self.finalists if f is not best and f.rate_per_s]
        near = [f for f in others if f.high and best.low and f.high >= best.low]
        if near:
            rival = near[0]
            said += f"; {rival.setting.name} may be as good ({rival.rate_per_s:.1f} [{rival.low:.1f}, {rival.high:.1f}])"
        return said + "."
