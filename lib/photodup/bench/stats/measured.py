"""What the two sides of a comparison gave in one round, and when that counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from photodup.bench.stats.facts import metric_named

COUNTED = ("valid", "imprecise", "unsteady")
MISSING = "missing"  # never measured


@dataclass(frozen=True)
class Measured:
    """What one arm gave in one round.

    Attributes:
        value: the figure in the metric's unit, above 0; None when the point does not carry it.
        verdict: of its point; `failed` and missing ones are never compared.
        because: why, when it is not valid.
    """

    value: float | None
    verdict: str = "valid"
    because: str = ""

    @classmethod
    def of(cls, point: Mapping[str, Any], metric: str) -> "Measured":
        """Return what a recorded point says of a metric; a point without figures, or none at all, is `missing`."""
        if not point or point.get("status") == MISSING:
            return cls(None, MISSING, "a round was not measured")
        value = point.get(metric)
        verdict = point.get("verdict") or ("valid" if point.get("valid") else "failed")
        if verdict == "valid" and value is None:
            return cls(None, "imprecise", f"the sample is too small for the {metric_named(metric).words}")
        why = point.get("because") or ("" if verdict == "valid" else str(point.get("invalid_because", "")))
        return cls(value, verdict, why)


@dataclass(frozen=True)
class Round:
    """One round of a comparison: both arms, measured one after the other in random order."""

    number: int
    a: Measured
    b: Measured

    @property
    def complete(self) -> bool:
        """Whether both sides have a figure."""
        return all(
            side.verdict in COUNTED and side.value is not None and side.value > 0 for side in (self.a, self.b)
        )

    @property
    def is_steady(self) -> bool:
        """Whether both points are valid by themselves, too."""
        return self.complete and all(side.verdict == "valid" for side in (self.a, self.b))
