"""What a claim may ask of points: quotients between backends, bounds on a column; and how a verdict is reached.

A predicate is a function of (points, noise floor as |ln ratio|) that returns an `Outcome`. It compares only valid
points that agree in everything but what the claim is about, calls nothing a difference within the noise floor, and
returns "not measured" when points are missing: never a guess.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
INCONCLUSIVE, NOT_MEASURED = "inconclusive", "not measured"
VERDICTS = (REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_MEASURED)
TOPOLOGY = ("arrangement", "devices", "batching", "compute_ms")  # of emulated devices
PAIR_KEYS = (
    *("run", "link", "scenario", "batch", "concurrency", "connection", "span", "offered_per_s"),
    *TOPOLOGY,
)
REMOTE_RTT_MS = 5.0  # a shorter link is a data centre's


@dataclass(frozen=True)
class Outcome:
    """What a predicate saw: the effect in the claim's unit with its interval, and why the verdict.

    `split`: some comparisons reproduce the claim and others contradict it, so that it depends on something else.
    """

    verdict: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    because: str = ""
    split: bool = False


Predicate = Callable[["pd.DataFrame", float], Outcome]


def select(points: "pd.DataFrame", backend: str, **where: Any) -> "pd.DataFrame":
    """Return the valid points whose backend matches the whole pattern and whose columns match `where`.

    A tuple in `where` lists allowed values; a callable is asked for each value. Repeats are left out, and so are
    points of a server configured otherwise than it is deployed unless `where` names their `label`.
    """
    if not {"backend", "valid"} <= set(points.columns) or not len(points):
        return points.iloc[0:0]
    keep = points["backend"].astype(str).str.fullmatch(backend) & points["valid"].eq(True)
    keep &= once_as_deployed(points, any_configuration="label" in where)
    for column, wanted in where.items():
        if column not in points:
            return points.iloc[0:0]
        if callable(wanted):
            keep &= points[column].map(wanted).astype(bool)
        else:
            keep &= points[column].isin(wanted if isinstance(wanted, tuple) else (wanted,))
    return points[keep]


def once_as_deployed(points: "pd.DataFrame", *, any_configuration: bool = False) -> "pd.Series":
    """Say of each point whether it is a first measurement of a server as it is deployed (or in any configuration)."""
    import pandas as pd

    every = pd.Series(True, index=points.index)
    once = points["repeat"].fillna(0).eq(0) if "repeat" in points else every
    deployed = (
        points["as_deployed"].isna() | points["as_deployed"].eq(True) if "as_deployed" in points else every
    )
    return once & (deployed | any_configuration)


def remote(rtt_ms: object) -> bool:
    """Say whether a round trip is a wide-area one: at least `REMOTE_RTT_MS`; False where it is not known."""
    return isinstance(rtt_ms, (int, float)) and rtt_ms >= REMOTE_RTT_MS


def verdict_of(low: float, high: float, *, at_least: float, at_most: float, noise_floor: float) -> str:
    """Place an interval against a claimed range of a ratio; bounds of 1 are widened by the noise floor."""
    margin = math.exp(noise_floor)
    floor_in = at_least * margin if at_least == 1 else at_least
    floor_out = at_least / margin if at_least == 1 else at_least
    ceiling_in = at_most / margin if at_most == 1 else at_most
    ceiling_out = at_most * margin if at_most == 1 else at_most
    if low >= floor_in and high <= ceiling_in:
        return REPRODUCED
    if high <= floor_out or low >= ceiling_out:
        return CONTRADICTED
    return INCONCLUSIVE


def ratio(
    numerator: str,
    denominator: str,
    metric: str | Sequence[str],
    *,
    at_least: float = 0.0,
    at_most: float = math.inf,
    numerator_where: dict[str, Any] | None = None,
    denominator_where: dict[str, Any] | None = None,
    same_engine: bool = False,
    **where: Any,
) -> Predicate:
    """Claim that `metric` of one backend is between `at_least` and `at_most` times that of another.

    Points are paired where they agree in `PAIR_KEYS`, except in columns that `numerator_where` and
    `denominator_where` set apart; a backend compared with itself is also the same backend and channel, and
    `same_engine` pairs like with like where the patterns match several engines. All pairs must agree; otherwise
    the verdict is inconclusive and says so.
    """

    def predicate(points: "pd.DataFrame", noise_floor: float) -> Outcome:
        column = _column(points, metric)
        if column is None:
            return Outcome(NOT_MEASURED, because=f"no point carries {_names(metric)}")
        apart = set(numerator_where or {}) | set(denominator_where or {})
        itself = ("backend", "channel") if numerator == denominator else ("engine",) if same_engine else ()
        keys = [k for k in (*PAIR_KEYS, *itself) if k in points and k not in apart]
        top = select(points, numerator, **where, **(numerator_where or {}))
        bottom = select(points, denominator, **where, **(denominator_where or {}))
        pairs = matching_pairs(top, bottom, keys, column)
        if not pairs:
            return Outcome(NOT_MEASURED, because=f"no pair of valid points carries {column}")
        seen = []
        for a, b in pairs:
            effect, low, high, exact = _quotient(a, b, column, noise_floor)
            judged = verdict_of(low, high, at_least=at_least, at_most=at_most, noise_floor=noise_floor)
            seen.append((judged, effect, low, high, exact))
        return _combine(seen, column)

    return predicate


def bound(
    backend: str,
    metric: str | Sequence[str],
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    **where: Any,
) -> Predicate:
    """Claim that `metric` of every matching point lies between two bounds (interval included where there "
    "is one)."""

    def predicate(points: "pd.DataFrame", noise_floor: float) -> Outcome:
        column = _column(points, metric)
        found = select(points, backend, **where) if column else points.iloc[0:0]
        found = found[found[column].notna()] if column else found
        if not len(found):
            return Outcome(NOT_MEASURED, because=f"no valid point carries {_names(metric)}")
        seen = []
        for _, point in found.iterrows():
            value, low, high = _interval(point, column)
            inside, outside = at_least <= low and high <= at_most, high < at_least or low > at_most
            judged = REPRODUCED if inside else CONTRADICTED if outside else INCONCLUSIVE
            seen.append((judged, value, low, high, low != high))
        return _combine(seen, column, geometric=False)

    return predicate


def matching_pairs(
    top: "pd.DataFrame", bottom: "pd.DataFrame", keys: list[str], column: str
) -> list[tuple[Any, Any]]:
    if not len(top) or not len(bottom):
        return []
    # An absent condition (no offered rate, no span) equals another absent one, and nothing else.
    index: dict[tuple, list] = {}
    for _, point in bottom[bottom[column].notna()].iterrows():
        index.setdefault(_key(point, keys), []).append(point)
    return [(a, b) for _, a in top[top[column].notna()].iterrows() for b in index.get(_key(a, keys), [])]


def _key(point: "pd.Series", keys: list[str]) -> tuple:
    return tuple(None if point[k] is None or point[k] != point[k] else point[k] for k in keys)


def _interval(point: "pd.Series", column: str) -> tuple[float, float, float]:
    value = float(point[column])
    low, high = point.get(f"{column}_ci_low"), point.get(f"{column}_ci_high")
    known = low is not None and high is not None and low == low and high == high
    return (value, float(low), float(high)) if known else (value, value, value)


def _quotient(a: "pd.Series", b: "pd.Series", column: str, floor: float) -> tuple[float, float, float, bool]:
    """Effect a ÷ b and its interval: intervals combined as logarithms, or the noise floor where there is "
    "none."""
    (x, x_low, x_high), (y, y_low, y_high) = _interval(a, column), _interval(b, column)
    if min(x, y, x_low, y_low) <= 0:
        return 0.0, 0.0, math.inf, False
    effect = math.log(x / y)
    if x_low == x_high or y_low == y_high:
        return math.exp(effect), math.exp(effect - floor), math.exp(effect + floor), False
    down = math.hypot(math.log(x / x_low), math.log(y_high / y))
    up = math.hypot(math.log(x_high / x), math.log(y / y_low))
    return math.exp(effect), math.exp(effect - down), math.exp(effect + up), True


def _combine(
    seen: list[tuple[str, float, float, float, bool]], column: str, geometric: bool = True
) -> Outcome:
    verdicts = {s[0] for s in seen}
    effects = [s[1] for s in seen]
    positive = geometric and min(effects) > 0
    mean = math.exp(sum(map(math.log, effects)) / len(effects)) if positive else sum(effects) / len(effects)
    number = f"{len(seen)} comparison{'s' if len(seen) > 1 else ''} of {column}"
    if not all(s[4] for s in seen) and geometric:
        number += ", interval from the noise floor"
    if len(verdicts) == 1:
        verdict = verdicts.pop()
        because = number + (", interval or noise floor reaches the bound" if verdict == INCONCLUSIVE else "")
    else:
        verdict = INCONCLUSIVE
        because = f"{number} disagree: {min(effects):.3g} to {max(effects):.3g}"
    split = {REPRODUCED, CONTRADICTED} <= {s[0] for s in seen}
    return Outcome(verdict, mean, min(s[2] for s in seen), max(s[3] for s in seen), because, split)


def _column(points: "pd.DataFrame", metric: str | Sequence[str]) -> str | None:
    names = (metric,) if isinstance(metric, str) else metric
    return next((n for n in names if n in points and points[n].notna().any()), None)


def _names(metric: str | Sequence[str]) -> str:
    return metric if isinstance(metric, str) else metric[0]
