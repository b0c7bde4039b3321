"""Rank what was measured by latency, goodput and cost for a workload.

Only valid points are used, only at the batch and link the workload has. Where loads were measured with inputs prepared
beforehand, the client's own preparation is not in the latency. Points are measured one after the other: figures that
their intervals do not tell apart share a rank, and a comparison decides between two servers, not this table.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from photodup.bench.stats.interval import Interval, interval_in
from photodup.embedding.backends import engine_family
from photodup.errors import PhotodupError
from photodup.study.claims.selection import once_as_deployed

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Workload:
    """A workload to be served.

    Attributes:
        images_per_s: sustained demand.
        kind: "interactive" (one image a request, somebody waits) or "batch" (a library, nobody waits).
        rtt_ms: round-trip time between clients and server; 0 on one machine.
        uplink_mbit_s: what the clients can send together; None: no limit known.
        latency_limit_ms: at the 95th percentile, for interactive work.
        price_usd_per_hour: of one server like the one measured, where the points do not say; None leaves cost out.
            Points of several devices are priced as so many servers.
        rtt_tolerance: how far a measured link's round trip may be from `rtt_ms`, relative; its rate from
            `uplink_mbit_s` likewise.
        emulated: rank emulated GPUs, and only them: their compute is a wait, so they never meet real engines.
    """

    images_per_s: float
    kind: str = "interactive"
    rtt_ms: float = 0.0
    uplink_mbit_s: float | None = None
    latency_limit_ms: float = 200.0
    price_usd_per_hour: float | None = None
    rtt_tolerance: float = 0.25
    emulated: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("interactive", "batch"):
            raise PhotodupError(f"A workload is 'interactive' or 'batch', not {self.kind!r}.")
        if not self.images_per_s > 0 or self.rtt_ms < 0 or not self.latency_limit_ms > 0:
            raise PhotodupError(
                "A workload needs images_per_s and latency_limit_ms above 0 and rtt_ms of 0 or more."
            )


SERVERS = ("fastapi", "triton")
FITS = ("yes", "unknown", "no")
COLUMNS = [
    *("rank", "backend", "latency_ms", "latency_percentile", "goodput_images_per_s", "servers"),
    *("usd_per_1000_images", "uplink_mbit_per_s", "fits", "because"),
]


def usable(workload: Workload, points: "pd.DataFrame") -> "pd.DataFrame":
    """Return the valid points that were measured under the workload's link and kind."""
    needed = {"backend", "valid", "throughput_images_per_s", "scenario", "rtt_ms", "server", "engine"}
    if not needed <= set(points.columns) or not len(points):
        return points.iloc[0:0]
    found = points[points["valid"].eq(True) & points["throughput_images_per_s"].notna()]
    emulated = found["engine"].map(engine_family).eq("emulated")
    found = found[found["server"].isin(SERVERS) & (emulated == workload.emulated)]
    found = found[found["engine"] != "emulated-zero"]  # no device at all
    found = found[once_as_deployed(found)]
    if len(found):
        rtt = found["rtt_ms"].astype(float)
        allowed = max(1.0, workload.rtt_tolerance * workload.rtt_ms)
        found = found[(rtt - workload.rtt_ms).abs() <= allowed]
    if len(found):
        found = found[_rate_fits(workload, found)]
    if workload.kind == "interactive" and len(found):
        return found[found["batch"].eq(1)]
    return found


def _rate_fits(workload: Workload, points: "pd.DataFrame") -> "pd.Series":
    """A link slower or faster than the workload's says nothing about it; one of unknown rate is left in."""
    if "rate_mbit_s" not in points or workload.rtt_ms == 0:
        return points["backend"].notna()
    rate = points["rate_mbit_s"].astype(float)
    wanted = rate.max() if workload.uplink_mbit_s is None else workload.uplink_mbit_s
    return rate.isna() | ((rate / wanted - 1).abs() <= workload.rtt_tolerance)


def rank(workload: Workload, points: "pd.DataFrame") -> "pd.DataFrame":
    """Rank the backends for a workload.

    A backend's goodput is its highest measured throughput whose 95th percentile (the 90th or the median where
    the sample carries no more, and then it says so) is within the limit; for batch work, its highest throughput.
    `servers` is how many it takes, assuming that independent servers add up. `fits` is "yes", "no" or "unknown".
    Interactive work is ranked by latency at a measured load that meets each server's share of the demand, batch
    work by goodput per dollar where there is a price, else by goodput.

    Returns:
        `COLUMNS`, best first; empty when nothing usable was measured.
    """
    import pandas as pd

    found = usable(workload, points)
    # One device or four, in one machine or in several: each is an offer of its own.
    apart = ["run", "backend", *(c for c in ("devices", "arrangement") if c in found)]
    offers = [
        _offer(workload, group) for _, group in (found.groupby(apart, dropna=False) if len(found) else ())
    ]
    offers.sort(key=lambda offer: (FITS.index(offer[0]["fits"]), offer[1].value))
    rows: list[dict] = []
    leader: Interval | None = None
    for place, (row, slowness) in enumerate(offers, 1):
        if leader is None or row["fits"] != rows[-1]["fits"] or not _are_tied(slowness, leader):
            shared, leader = place, slowness
        rows.append(row | {"rank": shared})
    return pd.DataFrame(rows, columns=COLUMNS)


def _are_tied(one: Interval, leader: Interval) -> bool:
    """Return whether two figures cannot be told apart by their intervals; without intervals they never can."""
    ratio = one / leader
    return not ratio.is_known or ratio.low <= 1


def _offer(workload: Workload, group: "pd.DataFrame") -> tuple[dict, Interval]:
    """Return an offer's row, and what it is ranked by: the smaller the better."""
    if "span" in group and (prepared := group["span"].eq("prepared")).any():
        group = group[prepared]  # never mixed with latencies that hold the client's own work
    tails = {index: _tail(point) for index, point in group.iterrows()}
    rates = group["throughput_images_per_s"]
    within = group
    if workload.kind == "interactive":
        within = group.loc[
            [i for i, (ms, _) in tails.items() if ms and ms.value <= workload.latency_limit_ms]
        ]
    goodput = float(within["throughput_images_per_s"].max()) if len(within) else 0.0
    servers = math.ceil(workload.images_per_s / goodput) if goodput > 0 else math.inf
    meets = within.index[within["throughput_images_per_s"] >= min(workload.images_per_s / servers, goodput)]
    known = [(ms, name) for i in (meets if len(meets) else group.index) for ms, name in [tails[i]] if ms]
    latency, tail = min(known, key=lambda pair: pair[0].value, default=(None, "nothing"))
    best = group.loc[rates.idxmax()]
    devices, arrangement = _devices(best)
    price = best.get("price_usd_per_hour")
    if price is None or price != price:
        price = math.nan if workload.price_usd_per_hour is None else workload.price_usd_per_hour * devices
    # A batch ends when it is done; whoever waits for people pays idle time.
    paid_for = goodput if workload.kind == "batch" else workload.images_per_s / servers
    payload = best.get("payload_bytes")
    per_image = math.nan if payload is None or payload != payload else payload / best["batch"]
    uplink = per_image * workload.images_per_s * 8 / 1e6
    fits, because = "yes", f"{len(group)} points"
    if goodput == 0:
        fits, because = "no", f"no load keeps {tail} within {workload.latency_limit_ms:g} ms"
    elif workload.uplink_mbit_s is not None and uplink > workload.uplink_mbit_s:
        fits, because = "no", f"needs {uplink:.0f} Mbit/s of an uplink of {workload.uplink_mbit_s:g}"
    elif workload.uplink_mbit_s is not None and uplink != uplink:
        fits, because = "unknown", "the payload was not recorded, the uplink cannot be judged"
    elif workload.kind == "interactive" and tail != "p95":
        fits, because = "unknown", f"the samples carry no p95, judged by {tail}"
    row = {
        "backend": best["backend"] + (f" × {devices} ({arrangement})" if devices > 1 else ""),
        "latency_ms": latency.value if latency else math.nan,
        "latency_percentile": tail,
        "goodput_images_per_s": goodput,
        "servers": servers,
        "usd_per_1000_images": price / (3600 * paid_for) * 1000 if paid_for else math.nan,
        "uplink_mbit_per_s": uplink,
        "fits": fits,
        "because": because,
    }
    nothing = Interval(math.inf, math.inf, math.inf)
    if workload.kind == "interactive":
        return row, latency or nothing
    rate = interval_in(best, "throughput_images_per_s")
    each = price if price == price else 1.0
    return row, Interval(*(each / end for end in (rate.value, rate.high, rate.low))) if rate else nothing


def _devices(point: "pd.Series") -> tuple[int, str]:
    """Return how many devices answered a point and how they were arranged; one where it does not say."""
    devices, arrangement = point.get("devices"), point.get("arrangement")
    known = devices is not None and devices == devices
    return int(devices) if known else 1, arrangement if isinstance(arrangement, str) else "together"


def _tail(point: "pd.Series") -> tuple[Interval | None, str]:
    """Return the highest percentile of latency up to p95 that a point's sample carries, and which it is."""
    for name in ("p95", "p90", "p50"):
        if found := interval_in(point, f"latency_ms_{name}"):
            return found, name
    return None, "nothing"
