"""What a claim may ask of points: five kinds of predicate, read from the claims' file.

A predicate is asked for its outcome on some points. It compares only valid points that agree in everything but what
the claim is about, calls nothing a difference within the noise floor, and returns "not measured" when points are
missing: never a guess.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from photodup.bench.link import latency_model
from photodup.study.claims.selection import Strict, Where, matching_pairs, pairing_keys, select

if TYPE_CHECKING:
    import pandas as pd

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
INCONCLUSIVE, NOT_MEASURED = "inconclusive", "not measured"
VERDICTS = (REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_MEASURED)
MEAN, RATE = "latency_ms_mean", "throughput_images_per_s"
SERVER_MS = "server_request_ms_mean"


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


class Predicate(Strict):
    """A question that points answer; `judge` returns the outcome."""

    @abstractmethod
    def judge(self, points: "pd.DataFrame", noise_floor: float) -> Outcome: ...


class Ratio(Predicate):
    """`metric` of one side is between `at_least` and `at_most` times that of the other.

    Points are paired where they agree in every column that neither side is chosen by. All pairs must agree;
    otherwise the verdict is inconclusive and says so.
    """

    kind: Literal["ratio"]
    metric: str
    numerator: Where
    denominator: Where
    where: Where = Field(default_factory=dict)
    at_least: float = 0.0
    at_most: float = math.inf

    def judge(self, points: "pd.DataFrame", noise_floor: float) -> Outcome:
        if not _carries(points, self.metric):
            return Outcome(NOT_MEASURED, because=f"no point carries {self.metric}")
        keys = pairing_keys(points, self.numerator, self.denominator)
        top, bottom = (select(points, self.where | side) for side in (self.numerator, self.denominator))
        pairs = matching_pairs(top, bottom, keys, self.metric)
        if not pairs:
            return Outcome(NOT_MEASURED, because=f"no pair of valid points carries {self.metric}")
        seen = []
        for a, b in pairs:
            effect, low, high, exact = quotient(a, b, self.metric, noise_floor)
            judged = verdict_of(
                low, high, at_least=self.at_least, at_most=self.at_most, noise_floor=noise_floor
            )
            seen.append((judged, effect, low, high, exact))
        return _combine(seen, self.metric)


class Bound(Predicate):
    """`metric` of every matching point lies between two bounds (with its interval where there is one)."""

    kind: Literal["bound"]
    metric: str
    where: Where
    at_least: float = -math.inf
    at_most: float = math.inf

    def judge(self, points: "pd.DataFrame", noise_floor: float) -> Outcome:
        found = select(points, self.where) if _carries(points, self.metric) else points.iloc[0:0]
        found = found[found[self.metric].notna()] if len(found) else found
        if not len(found):
            return Outcome(NOT_MEASURED, because=f"no valid point carries {self.metric}")
        seen = []
        for _, point in found.iterrows():
            value, low, high = interval_of(point, self.metric)
            inside = self.at_least <= low and high <= self.at_most
            outside = high < self.at_least or low > self.at_most
            judged = REPRODUCED if inside else CONTRADICTED if outside else INCONCLUSIVE
            seen.append((judged, value, low, high, low != high))
        return _combine(seen, self.metric, geometric=False)


class OutsideServer(Predicate):
    """Share in per cent of a remote client's latency that the server's own counters do not account for."""

    kind: Literal["outside_server"]
    where: Where
    at_least: float

    def judge(self, points: "pd.DataFrame", noise_floor: float) -> Outcome:
        found = select(points, self.where)
        counted = {MEAN, SERVER_MS} <= set(found.columns)
        found = found.dropna(subset=[MEAN, SERVER_MS]) if counted else found.iloc[0:0]
        if not len(found):
            return Outcome(NOT_MEASURED, because="no remote point carries the server's counters")
        shares = (1 - found[SERVER_MS] / found[MEAN]) * 100
        low, high = shares.min(), shares.max()
        verdict = (
            REPRODUCED if low >= self.at_least else CONTRADICTED if high < self.at_least else INCONCLUSIVE
        )
        return Outcome(verdict, shares.mean(), low, high, f"{len(found)} remote points with server counters")


class PeakAt(Predicate):
    """Throughput peaks at this many requests in flight, and falls beyond it by more than the noise floor."""

    kind: Literal["peak_at"]
    where: Where
    concurrency: int

    def judge(self, points: "pd.DataFrame", noise_floor: float) -> Outcome:
        found = select(points, self.where)
        found = found.dropna(subset=[RATE]) if RATE in found else found.iloc[0:0]
        curve = found.groupby("concurrency")[RATE].mean() if len(found) else None
        at = self.concurrency
        if curve is None or at not in curve.index or not (curve.index > at).any():
            return Outcome(NOT_MEASURED, because=f"needs closed loops at {at} in flight and above")
        best = float(curve.idxmax())
        others = curve.drop(index=at).max() / curve[at]
        clear = abs(math.log(others)) > noise_floor
        verdict = INCONCLUSIVE if not clear else REPRODUCED if others < 1 else CONTRADICTED
        because = f"best level elsewhere ÷ level {at}: {others:.2f}, over {len(curve)} levels"
        return Outcome(verdict, best, best, best, because)


class BytesExplain(Predicate):
    """Which law fits single requests over a link: bytes at its rate, or round trips of a growing window.

    The effect is the misfit of the bytes divided by that of the round trips: below 1/`better_by` the bytes explain
    the latencies, above `better_by` the round trips do. `network` chooses latencies without a server; `where`
    is used when there are none, and the server's own time is then taken from its counters. To be fair to the bytes,
    they may have a round trip and a rate of their own for new and for warm connections, where the round trips share
    one of each. Payloads above `up_to_bytes` are left out: any link becomes a question of bandwidth in the end.
    """

    kind: Literal["bytes_explain"]
    metric: str = "latency_ms_p50"
    network: Where
    where: Where
    better_by: float = 2.0
    up_to_bytes: int = 1_000_000

    def judge(self, points: "pd.DataFrame", noise_floor: float) -> Outcome:
        needed = ["payload_bytes", self.metric, "connection"]
        found = select(points, self.network)
        found = found if len(found) else select(points, self.where)
        if not set(needed) <= set(found.columns):
            return Outcome(NOT_MEASURED, because="no remote point carries payload, latency and connection")
        found = found.dropna(subset=needed)
        found = found[
            found["connection"].isin(("new", "warm")) & (found["payload_bytes"] <= self.up_to_bytes)
        ]
        if len(found) < 4 or found["payload_bytes"].nunique() < 3:
            return Outcome(NOT_MEASURED, because="needs four remote points with three payload sizes")
        rows = [_latency_row(point, self.metric) for _, point in found.iterrows()]
        kinds = [[row for row in rows if row["connection"] == kind] for kind in ("new", "warm")]
        bytes_alone = [latency_model.fit(kind, "bandwidth-only") for kind in kinds if len(kind) > 1]
        squares = [residual**2 for fit in bytes_alone for residual in fit.residuals_ms]
        misfits = math.sqrt(sum(squares) / len(squares)), latency_model.fit(rows, "rounds").rmse_ms
        effect = misfits[0] / misfits[1] if misfits[1] > 0 else math.inf
        verdict = (
            REPRODUCED
            if effect < 1 / self.better_by
            else CONTRADICTED
            if effect > self.better_by
            else INCONCLUSIVE
        )
        because = f"misfit {misfits[0]:.1f} ms with bytes alone, {misfits[1]:.1f} ms with round trips"
        return Outcome(verdict, effect, effect, effect, because)


AnyPredicate = Annotated[Ratio | Bound | OutsideServer | PeakAt | BytesExplain, Field(discriminator="kind")]


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


def _carries(points: "pd.DataFrame", metric: str) -> bool:
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
