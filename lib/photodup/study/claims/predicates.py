"""What a claim may ask of points: five kinds of predicate, read from the claims' file.

A predicate is asked for its outcome on the points of one place. It compares only valid points that agree in
everything but what the claim is about, calls nothing a difference within the noise floor, and says "not testable
here" when points are missing: never a guess.
"""

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from photodup.bench.link import latency_model
from photodup.study.claims.outcome import (
    CONTRADICTED,
    NOT_TESTABLE,
    REPRODUCED,
    UNDECIDED,
    NoiseFloors,
    Outcome,
    Seen,
    outcome_of,
)
from photodup.study.claims.selection import Strict, Where, matching_pairs, pairing_keys, select

if TYPE_CHECKING:
    import pandas as pd

MEAN, RATE = "latency_ms_mean", "throughput_images_per_s"
SERVER_MS = "server_request_ms_mean"
WIDEST = 1e300  # a bound that no effect reaches, where a claim has none on that side


class Predicate(Strict):
    """A question that points answer; `judge` returns the outcome."""

    @abstractmethod
    def judge(self, points: "pd.DataFrame", floors: NoiseFloors) -> Outcome:
        """Return the outcome on these points."""


class Bounded(Predicate):
    """A predicate about a quantity between two bounds.

    `about` stands for a printed magnitude. The study gives none an allowance, so the claim's record does:
    `allowance` either way, as a factor.
    """

    at_least: float = -WIDEST
    at_most: float = WIDEST
    about: float | None = None
    allowance: float = 1.25

    @model_validator(mode="after")
    def _has_a_bound(self) -> "Bounded":
        if self.about is None and self.at_least == -WIDEST and self.at_most == WIDEST:
            raise ValueError("a claim needs at_least, at_most or about")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        if self.about is not None:
            return self.about / self.allowance, self.about * self.allowance
        return self.at_least, self.at_most

    def place(self, low: float, high: float, floor: float = 0.0) -> str:
        """Place an interval against the bounds; a bound of 1 is widened by the noise floor."""
        at_least, at_most = self.bounds
        return verdict_of(low, high, at_least=at_least, at_most=at_most, noise_floor=floor)


class Ratio(Bounded):
    """`metric` of one side is so many times that of the other.

    Points are paired where they agree in every column that neither side is chosen by. With `compared_with` the
    effect is that ratio divided by the same ratio under those other conditions: how much it grows.
    """

    kind: Literal["ratio"]
    metric: str
    numerator: Where
    denominator: Where
    where: Where = Field(default_factory=dict)
    compared_with: Where = Field(default_factory=dict)

    def judge(self, points: "pd.DataFrame", floors: NoiseFloors) -> Outcome:
        if not carries(points, self.metric):
            return Outcome(NOT_TESTABLE, because=f"no point carries {self.metric}")
        floor = floors.of(self.metric)
        pairs = self._pairs(points, {})
        found = [(*quotient(a, b, self.metric, floor), records_of(a, b)) for a, b in pairs]
        if self.compared_with:
            other = [
                (*quotient(a, b, self.metric, floor), records_of(a, b))
                for a, b in self._pairs(points, self.compared_with)
            ]
            found = [grown(one, before) for one in found for before in other]
        if not found:
            return Outcome(NOT_TESTABLE, because=f"no pair of valid points carries {self.metric}")
        seen = [
            Seen(self.place(low, high, floor), effect, low, high, records)
            for effect, low, high, _, records in found
        ]
        return outcome_of(seen, self.metric, floor_used=not all(one[3] for one in found))

    def _pairs(self, points: "pd.DataFrame", other: Where) -> list[tuple[Any, Any]]:
        keys = pairing_keys(points, self.numerator, self.denominator)
        top, bottom = (
            select(points, self.where | side | other) for side in (self.numerator, self.denominator)
        )
        return matching_pairs(top, bottom, keys, self.metric)


class Bound(Bounded):
    """`metric` of every matching point lies between the bounds, with its interval where there is one."""

    kind: Literal["bound"]
    metric: str
    where: Where

    def judge(self, points: "pd.DataFrame", floors: NoiseFloors) -> Outcome:
        found = select(points, self.where) if carries(points, self.metric) else points.iloc[0:0]
        found = found[found[self.metric].notna()] if len(found) else found
        if not len(found):
            return Outcome(NOT_TESTABLE, because=f"no valid point carries {self.metric}")
        seen = []
        for _, point in found.iterrows():
            value, low, high = interval_of(point, self.metric)
            seen.append(Seen(self.place(low, high), value, low, high, records_of(point)))
        return outcome_of(seen, self.metric)


class OutsideServer(Predicate):
    """Share in per cent of a remote client's latency that the server's own counters do not account for."""

    kind: Literal["outside_server"]
    where: Where
    at_least: float

    def judge(self, points: "pd.DataFrame", floors: NoiseFloors) -> Outcome:
        found = select(points, self.where)
        counted = {MEAN, SERVER_MS} <= set(found.columns)
        found = found.dropna(subset=[MEAN, SERVER_MS]) if counted else found.iloc[0:0]
        if not len(found):
            return Outcome(NOT_TESTABLE, because="no point carries the server's counters")
        seen = []
        for _, point in found.iterrows():
            share = float(1 - point[SERVER_MS] / point[MEAN]) * 100
            verdict = REPRODUCED if share >= self.at_least else CONTRADICTED
            seen.append(Seen(verdict, share, share, share, records_of(point)))
        return outcome_of(seen, "the share outside the server")


class PeakAt(Predicate):
    """Throughput peaks at this many requests in flight, and falls beyond it by more than the noise floor."""

    kind: Literal["peak_at"]
    where: Where
    concurrency: int

    def judge(self, points: "pd.DataFrame", floors: NoiseFloors) -> Outcome:
        found = select(points, self.where)
        found = found.dropna(subset=[RATE]) if RATE in found else found.iloc[0:0]
        curve = found.groupby("concurrency")[RATE].mean() if len(found) else None
        at = self.concurrency
        if curve is None or at not in curve.index or not (curve.index > at).any():
            return Outcome(NOT_TESTABLE, because=f"needs closed loops at {at} in flight and above")
        best = float(curve.idxmax())
        others = curve.drop(index=at).max() / curve[at]
        clear = abs(math.log(others)) > floors.of(RATE)
        verdict = UNDECIDED if not clear else REPRODUCED if others < 1 else CONTRADICTED
        because = f"best level elsewhere ÷ level {at}: {others:.2f}, over {len(curve)} levels"
        return Outcome(verdict, (Seen(verdict, best, best, best, records_of(found)),), because)


class BytesExplain(Predicate):
    """Which law fits single requests over a link: bytes at its rate, or round trips of a growing window.

    The effect is the misfit of the bytes divided by that of the round trips: below 1/`better_by` the bytes explain
    the latencies, above `better_by` the round trips do. `where` chooses latencies with no server behind them, or
    with one whose counters say its own time. To be fair to the bytes, they may have a round trip and a rate of
    their own for new and for warm connections, where the round trips share one of each. Payloads above
    `up_to_bytes` are left out: any link becomes a question of bandwidth in the end.
    """

    kind: Literal["bytes_explain"]
    metric: str = "latency_ms_p50"
    where: Where
    better_by: float = 2.0
    up_to_bytes: int = 1_000_000

    def judge(self, points: "pd.DataFrame", floors: NoiseFloors) -> Outcome:
        needed = ["payload_bytes", self.metric, "connection"]
        found = select(points, self.where)
        if not set(needed) <= set(found.columns):
            return Outcome(NOT_TESTABLE, because="no remote point carries payload, latency and connection")
        found = found.dropna(subset=needed)
        found = found[
            found["connection"].isin(("new", "warm")) & (found["payload_bytes"] <= self.up_to_bytes)
        ]
        if len(found) < 4 or found["payload_bytes"].nunique() < 3:
            return Outcome(NOT_TESTABLE, because="needs four remote points with three payload sizes")
        rows = [_latency_row(point, self.metric) for _, point in found.iterrows()]
        kinds = [[row for row in rows if row["connection"] == kind] for kind in ("new", "warm")]
        bytes_alone = [latency_model.fit(kind, "bandwidth-only") for kind in kinds if len(kind) > 1]
        squares = [residual**2 for fit in bytes_alone for residual in fit.residuals_ms]
        misfits = math.sqrt(sum(squares) / len(squares)), latency_model.fit(rows, "rounds").rmse_ms
        effect = misfits[0] / misfits[1] if misfits[1] > 0 else math.inf
        clear = max(effect, 1 / effect if effect else math.inf) > self.better_by
        verdict = UNDECIDED if not clear else REPRODUCED if effect < 1 else CONTRADICTED
        because = f"misfit {misfits[0]:.1f} ms with bytes alone, {misfits[1]:.1f} ms with round trips"
        return Outcome(verdict, (Seen(verdict, effect, effect, effect, records_of(found)),), because)


AnyPredicate = Annotated[Ratio | Bound | OutsideServer | PeakAt | BytesExplain, Field(discriminator="kind")]


def verdict_of(low: float, high: float, *, at_least: float, at_most: float, noise_floor: float) -> str:
    """Place an interval against a claimed range; bounds of 1 are widened by the noise floor."""
    margin = math.exp(noise_floor)
    floor_in = at_least * margin if at_least == 1 else at_least
    floor_out = at_least / margin if at_least == 1 else at_least
    ceiling_in = at_most / margin if at_most == 1 else at_most
    ceiling_out = at_most * margin if at_most == 1 else at_most
    if low >= floor_in and high <= ceiling_in:
        return REPRODUCED
    if high < floor_out or low > ceiling_out:
        return CONTRADICTED
    return UNDECIDED


def interval_of(point: "pd.Series", column: str) -> tuple[float, float, float]:
    """Return (value, low, high) of a column; both ends are the value where a point carries no interval."""
    value = float(point[column])
    low, high = point.get(f"{column}_ci_low"), point.get(f"{column}_ci_high")
    known = low is not None and high is not None and low == low and high == high
    return (value, float(low), float(high)) if known else (value, value, value)


def quotient(a: "pd.Series", b: "pd.Series", column: str, floor: float) -> tuple[float, float, float, bool]:
    """Return a ÷ b, its interval, and whether that comes from the points' own intervals.

    Intervals are combined as logarithms; where a point has none, the noise floor takes its place.
    """
    (x, x_low, x_high), (y, y_low, y_high) = interval_of(a, column), interval_of(b, column)
    if min(x, y, x_low, y_low) <= 0:
        return 0.0, 0.0, math.inf, False
    effect = math.log(x / y)
    if x_low == x_high or y_low == y_high:
        return math.exp(effect), math.exp(effect - floor), math.exp(effect + floor), False
    down = math.hypot(math.log(x / x_low), math.log(y_high / y))
    up = math.hypot(math.log(x_high / x), math.log(y / y_low))
    return math.exp(effect), math.exp(effect - down), math.exp(effect + up), True


def grown(one: tuple, before: tuple) -> tuple[float, float, float, bool, tuple[str, ...]]:
    """Return how much a quotient grew over another one, its interval, and all records behind both."""
    (x, x_low, x_high, exact, records), (y, y_low, y_high, was_exact, others) = one, before
    if min(x, y, x_low, y_low) <= 0:
        return 0.0, 0.0, math.inf, False, (*records, *others)
    down = math.hypot(math.log(x / x_low), math.log(y_high / y))
    up = math.hypot(math.log(x_high / x), math.log(y / y_low))
    ratio = x / y
    return ratio, ratio * math.exp(-down), ratio * math.exp(up), exact and was_exact, (*records, *others)


def records_of(*points: Any) -> tuple[str, ...]:
    """Return the keys of the records that points (rows or whole tables) come from, where they say."""
    keys: list[str] = []
    for point in points:
        if "key" in point:
            keys += list(point["key"]) if hasattr(point["key"], "tolist") else [point["key"]]
    return tuple(dict.fromkeys(key for key in keys if isinstance(key, str)))


def carries(points: "pd.DataFrame", metric: str) -> bool:
    """Say whether any point has a value in a column."""
    return metric in points and bool(points[metric].notna().any())


def _latency_row(point: "pd.Series", metric: str) -> dict[str, Any]:
    server_ms = point.get(SERVER_MS)
    initcwnd = point.get("initcwnd")
    return {
        "payload_bytes": point["payload_bytes"],
        "latency_ms": point[metric],
        "connection": point["connection"],
        "server_ms": 0.0 if server_ms is None or server_ms != server_ms else server_ms,
        "initcwnd": latency_model.INITCWND if initcwnd is None or initcwnd != initcwnd else int(initcwnd),
    }
