"""Questions to a run about a claim: five kinds and a goal, read from the claims' file.

A question returns its readings: one for each comparison or point that can answer it. It reads valid points only, and of
two points only those that agree in everything but what the claim is about.
"""

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from photodup.bench.link import latency_model
from photodup.bench.stats.interval import Interval, interval_in
from photodup.study.claims.reading import CONTRADICTED, INCONCLUSIVE, REPRODUCED, Reading
from photodup.study.claims.selection import Strict, Where, matching_pairs, pairing_keys, select

if TYPE_CHECKING:
    import pandas as pd

MEAN, SERVER_MS = "latency_ms_mean", "server_request_ms_mean"
APART = "two points, measured one after the other, each with its own interval"


class Bounded(Strict):
    """A question about a quantity between two bounds.

    `about` is a printed magnitude. The study gives none an allowance, so the claim's record does: `allowance` either
    way, as a factor.
    """

    at_least: float = -math.inf
    at_most: float = math.inf
    about: float | None = None
    allowance: float = 1.25

    @model_validator(mode="after")
    def _has_a_bound(self) -> "Bounded":
        if self.about is None and self.at_least == -math.inf and self.at_most == math.inf:
            raise ValueError("a claim needs at_least, at_most or about")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        if self.about is not None:
            return self.about / self.allowance, self.about * self.allowance
        return self.at_least, self.at_most

    def verdict_of(self, effect: Interval) -> str:
        """Return the verdict of an effect: inside the claimed bounds, outside, or across one."""
        inside = effect.lies_within(*self.bounds)
        return INCONCLUSIVE if inside is None else REPRODUCED if inside else CONTRADICTED

    def readings(self, points: "pd.DataFrame", size: float | None) -> list[Reading]:
        """Return what these points say; nothing where they lack what is asked.

        Args:
            size: the published effect, None where none is printed.
        """
        return []


class Goal(Bounded):
    """A goal that the study set itself: its own rows are held against the bounds, and no run."""

    kind: Literal["goal"]


class Comparison(Bounded):
    """A comparison that `notebooks/comparisons.yaml` declares: b ÷ a, a ÷ b (`inverse`), or b − a in the figure's unit.

    The claim's direction is a bound of 1. A claim of a difference is contradicted, too, where no difference was found
    and one of the published size is excluded.
    """

    kind: Literal["comparison"]
    pair: str
    figure: Literal["ratio", "inverse", "difference"] = "ratio"

    def readings(self, points: "pd.DataFrame", size: float | None) -> list[Reading]:
        mine = points[points["pair"].eq(self.pair)] if "pair" in points else points.iloc[:0]
        return [self._read(mine.loc[[index]], size) for index in mine.index]

    def _read(self, row: "pd.DataFrame", size: float | None) -> Reading:
        effect = interval_in(row.iloc[0], self.figure)
        if effect is None:
            because = f"{self.pair}: {row.iloc[0]['invalid_because']}"
            return Reading(Interval(math.nan, math.nan, math.nan), INCONCLUSIVE, row, because)
        verdict = self.verdict_of(effect)
        excluded = size is not None and not effect.low <= size <= effect.high
        if verdict == INCONCLUSIVE and excluded and 1 in (self.at_least, self.at_most):
            verdict = CONTRADICTED
        return Reading(effect, verdict, row, row.iloc[0]["sentence"])


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

    def readings(self, points: "pd.DataFrame", size: float | None) -> list[Reading]:
        found = self._ratios(points, {})
        if self.compared_with:
            before = self._ratios(points, self.compared_with)
            found = [(a / b, [*rows, *others]) for a, rows in found for b, others in before]
        return [
            Reading(effect, self.verdict_of(effect) if effect.is_known else "", points.loc[rows], APART)
            for effect, rows in found
        ]

    def _ratios(self, points: "pd.DataFrame", other: Where) -> list[tuple[Interval, list]]:
        if self.metric not in points:
            return []
        keys = pairing_keys(points, self.numerator, self.denominator)
        top, bottom = (
            select(points, self.where | side | other) for side in (self.numerator, self.denominator)
        )
        pairs = matching_pairs(top, bottom, keys, self.metric)
        sides = [
            (interval_in(a, self.metric), interval_in(b, self.metric), [a.name, b.name]) for a, b in pairs
        ]
        return [(a / b, names) for a, b, names in sides if a and b and b.value]


class Within(Bounded):
    """`metric` of every matching point lies between the bounds, with its interval where there is one."""

    kind: Literal["bound"]
    metric: str
    where: Where

    def readings(self, points: "pd.DataFrame", size: float | None) -> list[Reading]:
        found = select(points, self.where)
        effects = [(index, interval_in(point, self.metric)) for index, point in found.iterrows()]
        return [Reading(e, self.verdict_of(e), points.loc[[index]]) for index, e in effects if e]


class OutsideServer(Bounded):
    """Share in per cent of a remote client's latency that the server's own counters do not account for."""

    kind: Literal["outside_server"]
    where: Where

    def readings(self, points: "pd.DataFrame", size: float | None) -> list[Reading]:
        found = []
        for index, point in select(points, self.where).iterrows():
            latency, server = (interval_in(point, column) for column in (MEAN, SERVER_MS))
            if latency and server:
                ends = (latency.value, latency.low, latency.high)
                share = Interval(*(100 * (1 - server.value / ms) for ms in ends))
                found.append(Reading(share, self.verdict_of(share), points.loc[[index]]))
        return found


class BytesExplain(Strict):
    """Which law fits single requests over a link: bytes at its rate, or round trips of a growing window.

    The effect is the misfit of the bytes divided by that of the round trips: below 1/`better_by` the bytes explain
    the latencies, above `better_by` the round trips do. To be fair to the bytes, they may have a round trip and a rate
    of their own for new and for warm connections, where the round trips share one of each. Payloads above
    `up_to_bytes` are left out: any link becomes a question of bandwidth in the end.
    """

    kind: Literal["bytes_explain"]
    metric: str = "latency_ms_p50"
    where: Where
    better_by: float = 2.0
    up_to_bytes: int = 1_000_000

    def readings(self, points: "pd.DataFrame", size: float | None) -> list[Reading]:
        needed = ["payload_bytes", self.metric, "connection"]
        found = select(points, self.where)
        if not set(needed) <= set(found.columns):
            return []
        found = found.dropna(subset=needed)
        found = found[
            found["connection"].isin(("new", "warm")) & (found["payload_bytes"] <= self.up_to_bytes)
        ]
        enough = [on for _, on in found.groupby("link") if len(on) > 3 and on["payload_bytes"].nunique() > 2]
        return [self._read(on) for on in enough]

    def _read(self, points: "pd.DataFrame") -> Reading:
        rows = [_latency_row(point, self.metric) for _, point in points.iterrows()]
        kinds = [[row for row in rows if row["connection"] == kind] for kind in ("new", "warm")]
        bytes_alone = [latency_model.fit(kind, "bandwidth-only") for kind in kinds if len(kind) > 1]
        squares = [residual**2 for fit in bytes_alone for residual in fit.residuals_ms]
        misfits = math.sqrt(sum(squares) / len(squares)), latency_model.fit(rows, "rounds").rmse_ms
        effect = misfits[0] / misfits[1] if misfits[1] > 0 else math.inf
        clear = max(effect, 1 / effect if effect else math.inf) > self.better_by
        verdict = INCONCLUSIVE if not clear else REPRODUCED if effect < 1 else CONTRADICTED
        because = f"misfit {misfits[0]:.1f} ms with bytes alone, {misfits[1]:.1f} ms with round trips"
        return Reading(Interval(effect, effect, effect), verdict, points, because)


Evidence = Annotated[
    Goal | Comparison | Ratio | Within | OutsideServer | BytesExplain, Field(discriminator="kind")
]


def _latency_row(point: "pd.Series", metric: str) -> dict[str, Any]:
    server_ms, initcwnd = (point.get(column) for column in (SERVER_MS, "initcwnd"))
    return {
        "payload_bytes": point["payload_bytes"],
        "latency_ms": point[metric],
        "connection": point["connection"],
        "server_ms": 0.0 if server_ms is None or server_ms != server_ms else server_ms,
        "initcwnd": latency_model.INITCWND if initcwnd is None or initcwnd != initcwnd else int(initcwnd),
    }
