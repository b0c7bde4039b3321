"""The verdicts on a claim, what a run shows of one, and how both are printed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from photodup.bench.stats.interval import Interval
from photodup.bench.stats.sentence import number

if TYPE_CHECKING:
    import pandas as pd

REPRODUCED, CONTRADICTED, INCONCLUSIVE = "reproduced", "contradicted", "inconclusive"
NOT_TESTABLE = "not testable here"
GOAL_MET, GOAL_MISSED = "own goal met", "own goal missed"
VERDICTS = (REPRODUCED, CONTRADICTED, INCONCLUSIVE, GOAL_MET, GOAL_MISSED, NOT_TESTABLE)


@dataclass(frozen=True)
class Reading:
    """A claimed quantity as one comparison, or one point, shows it.

    Attributes:
        effect: with its interval.
        verdict: of this reading alone; empty where its figures carry no interval, and several must be read together.
        points: what it rests on; None where nothing was measured.
        because: what a reader must know of it.
    """

    effect: Interval
    verdict: str
    points: "pd.DataFrame"
    because: str = ""


def effect_text(effects: Sequence[Interval], unit: str) -> str:
    """Return an effect with its interval, or several from the smallest to the largest; "–" for none."""
    if not effects or effects[0].value != effects[0].value:
        return "–"
    space = "" if unit in ("×", "%") else " "
    if len(effects) > 1:
        ends = (digits(extreme(e.value for e in effects)) for extreme in (min, max))
        return f"{' to '.join(dict.fromkeys(ends))}{space}{unit}"
    (one,) = effects
    interval = f" [{digits(one.low)}, {digits(one.high)}]" if one.is_known else ""
    return f"{digits(one.value)}{space}{unit}{interval}"


def digits(value: float) -> str:
    """Return three digits, or all that matters of a value just below 1."""
    if 0.999 <= value < 1:
        return f"{value:.6f}".rstrip("0")
    return number(value)
