"""Predicates of single claims: shares of a latency, the peak of a curve, bytes against round trips."""

import math
from typing import TYPE_CHECKING, Any

from photodup.bench.link import latency_model
from photodup.study.claims.predicates import (
    CONTRADICTED,
    INCONCLUSIVE,
    NOT_MEASURED,
    REPRODUCED,
    Outcome,
    Predicate,
    remote,
    select,
)

if TYPE_CHECKING:
    import pandas as pd

P50, MEAN, RATE = "latency_ms_p50", "latency_ms_mean", "throughput_images_per_s"
GPU = "server_compute_infer_ms_mean"  # both servers report their stages over the measured window
LONE: dict[str, Any] = {"batch": 1, "concurrency": 1}


def outside_server(backend: str, *, at_least: float) -> Predicate:
    """Share of a remote client's latency that the server's own counters do not account for."""

    def predicate(points: "pd.DataFrame", noise_floor: float) -> Outcome:
        found = select(points, backend, rtt_ms=remote, **LONE)
        if not {MEAN, "server_request_ms_mean"} <= set(found.columns):
            return Outcome(NOT_MEASURED, because="no remote point carries the server's counters")
        found = found.dropna(subset=[MEAN, "server_request_ms_mean"])
        if not len(found):
            return Outcome(NOT_MEASURED, because="no remote point carries the server's counters")
        shares = (1 - found["server_request_ms_mean"] / found[MEAN]) * 100
        low, high = shares.min(), shares.max()
        verdict = REPRODUCED if low >= at_least else CONTRADICTED if high < at_least else INCONCLUSIVE
        return Outcome(verdict, shares.mean(), low, high, f"{len(found)} remote points with server counters")

    return predicate


def peak_at(backend: str, concurrency: int, **where: Any) -> Predicate:
    """Claim that throughput peaks at this many requests in flight, and falls beyond it past the noise floor."""

    def predicate(points: "pd.DataFrame", noise_floor: float) -> Outcome:
        found = select(points, backend, scenario="closed_loop", batch=1, **where)
        found = found.dropna(subset=[RATE]) if RATE in found else found.iloc[0:0]
        curve = found.groupby("concurrency")[RATE].mean() if len(found) else None
        if curve is None or concurrency not in curve.index or not (curve.index > concurrency).any():
            needed = f"needs closed loops at {concurrency} in flight and above"
            return Outcome(NOT_MEASURED, because=needed)
        best = float(curve.idxmax())
        others = curve.drop(index=concurrency).max() / curve[concurrency]
        clear = abs(math.log(others)) > noise_floor
        verdict = INCONCLUSIVE if not clear else REPRODUCED if others < 1 else CONTRADICTED
        because = f"best level elsewhere ÷ level {concurrency}: {others:.2f}, over {len(curve)} levels"
        return Outcome(verdict, best, best, best, because)

    return predicate


def bytes_explain(*, better_by: float = 2.0, up_to_bytes: int = 1_000_000) -> Predicate:
    """Fit bytes-only and round-trip models to remote single requests; effect is their ratio of misfits.

    Below 1/`better_by` the bytes explain the latencies, above `better_by` the round trips do. Latencies without a
    server (`network-only`) are used where the run has them; otherwise the server's own time is taken from its
    counters. To be fair to the bytes, they may have a round trip and a rate of their own for new and for warm
    connections, where the round trips share one of each. Larger payloads than a tensor are left out: any link
    becomes a question of bandwidth in the end.
    """

    def predicate(points: "pd.DataFrame", noise_floor: float) -> Outcome:
        needed = ["payload_bytes", P50, "connection"]
        found = select(points, "network-only", rtt_ms=remote)
        found = found if len(found) else select(points, ".*", rtt_ms=remote, **LONE)
        if not set(needed) <= set(found.columns):
            return Outcome(NOT_MEASURED, because="no remote point carries payload, latency and connection")
        found = found.dropna(subset=needed)
        found = found[found["connection"].isin(("new", "warm")) & (found["payload_bytes"] <= up_to_bytes)]
        if len(found) < 4 or found["payload_bytes"].nunique() < 3:
            return Outcome(NOT_MEASURED, because="needs four remote points with three payload sizes")
        rows = [_latency_row(point) for _, point in found.iterrows()]
        kinds = [[row for row in rows if row["connection"] == kind] for kind in ("new", "warm")]
        bytes_alone = [latency_model.fit(kind, "bandwidth-only") for kind in kinds if len(kind) > 1]
        squares = [residual**2 for fit in bytes_alone for residual in fit.residuals_ms]
        misfits = math.sqrt(sum(squares) / len(squares)), latency_model.fit(rows, "rounds").rmse_ms
        effect = misfits[0] / misfits[1] if misfits[1] > 0 else math.inf
        verdict = (
            REPRODUCED if effect < 1 / better_by else CONTRADICTED if effect > better_by else INCONCLUSIVE
        )
        because = f"misfit {misfits[0]:.1f} ms with bytes alone, {misfits[1]:.1f} ms with round trips"
        return Outcome(verdict, effect, effect, effect, because)

    return predicate


def _latency_row(point: "pd.Series") -> dict[str, Any]:
    server_ms = point.get("server_request_ms_mean")
    initcwnd = point.get("initcwnd")
    return {
        "payload_bytes": point["payload_bytes"],
        "latency_ms": point[P50],
        "connection": point["connection"],
        "server_ms": 0.0 if server_ms is None or server_ms != server_ms else server_ms,
        "initcwnd": latency_model.INITCWND if initcwnd is None or initcwnd != initcwnd else int(initcwnd),
    }
