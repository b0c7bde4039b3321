"""Which backend for this workload: rank what was measured by latency, goodput and cost, or say it cannot be said.

Only valid points are used, only at the batch and link the workload has. Where loads were measured with inputs prepared
beforehand, the client's own preparation is not in the latency. Ties within the noise floor share a
rank, and what was not measured is listed, not filled in.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from photodup.embedding.backends import engine_family
from photodup.errors import PhotodupError
from photodup.study.claims.selection import once_as_deployed

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Workload:
    """What is to be served.

    Attributes:
        images_per_s: sustained demand.
        kind: "interactive" (one image a request, somebody waits) or "batch" (a library, nobody waits).
        rtt_ms: round-trip time between clients and server; 0 on one machine.
        uplink_mbit_s: what the clients can send together; None: no limit known.
        latency_limit_ms: at the 95th percentile, for interactive work.
        price_usd_per_hour: of one server, where the points do not say; None leaves cost out. Points of several
            devices are priced as so many servers.
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
COLUMNS = [
    *("rank", "backend", "run", "latency_ms", "latency_percentile", "goodput_images_per_s", "servers"),
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


def rank(workload: Workload, points: "pd.DataFrame", *, noise_floor: float = 0.05) -> "pd.DataFrame":
    """Rank the backends for a workload.

    A backend's goodput is its highest measured throughput whose 95th percentile (the 90th or the median where
    the sample carries no more, and then it says so) is within the limit; for batch work, its highest throughput.
    `servers` is how many it takes, assuming that independent servers add up. `fits` is "yes", "no" or "unknown".
    Interactive work is ranked by latency at a measured load that meets each server's share of the demand, batch
    work by cost where there is a price and by goodput where there is none. Ties within the noise floor share
    a rank.

    Returns:
        `COLUMNS`, best first; empty when nothing usable was measured. See `conclusion` for the sentence.
    """
    import pandas as pd

    found = usable(workload, points)
    # One device or four, in one machine or in several: each is an offer of its own.
    apart = ["run", "backend", *(c for c in ("devices", "arrangement") if c in found)]
    groups = found.groupby(apart, dropna=False) if len(found) else ()
    rows = [_advise(workload, group) for _, group in groups]
    table = pd.DataFrame(rows, columns=COLUMNS)
    if not len(table):
        return table
    key = "latency_ms" if workload.kind == "interactive" else "goodput_images_per_s"
    if workload.kind == "batch" and table["usd_per_1000_images"].notna().all():
        key = "usd_per_1000_images"
    order = table["fits"].map({"yes": 0, "unknown": 1, "no": 2})
    sign = -1 if key == "goodput_images_per_s" else 1
    table = table.assign(_order=order, _key=sign * table[key]).sort_values(["_order", "_key", "backend"])
    return _with_ranks(table, key, noise_floor)[COLUMNS].reset_index(drop=True)


def _advise(workload: Workload, group: "pd.DataFrame") -> dict:
    if "span" in group and group["span"].eq("prepared").any():
        group = group[
            group["span"].eq("prepared")
        ]  # never mixed with latencies that hold the client's own work
    best_effort = group.loc[group["throughput_images_per_s"].idxmax()]
    if workload.kind == "interactive":
        latency, carried = _tail(group)
        within = group.loc[latency.index[latency <= workload.latency_limit_ms]]
    else:
        within, carried = group, group["backend"].map(lambda _: "mean")
        latency = group["latency_ms_mean"] if "latency_ms_mean" in group else group["batch"] * math.nan
    goodput = float(within["throughput_images_per_s"].max()) if len(within) else 0.0
    servers = math.ceil(workload.images_per_s / goodput) if goodput > 0 else math.inf
    meets = within.index[within["throughput_images_per_s"] >= min(workload.images_per_s / servers, goodput)]
    serving = latency.loc[meets if len(meets) else latency.index].dropna()
    lone = serving.min() if len(serving) else math.nan
    tail = carried[serving.idxmin()] if len(serving) else "nothing"
    price = group["price_usd_per_hour"].dropna().max() if "price_usd_per_hour" in group else math.nan
    devices, arrangement = _devices(best_effort)
    if price != price and workload.price_usd_per_hour is not None:
        price = workload.price_usd_per_hour * devices
    cost = math.nan
    if (
        price == price and goodput > 0
    ):  # a batch ends when it is done; whoever waits for people pays idle time
        paid_for = goodput if workload.kind == "batch" else workload.images_per_s / servers
        cost = price / (3600 * paid_for) * 1000
    payload = best_effort.get("payload_bytes")
    per_image = math.nan if payload is None or payload != payload else payload / best_effort["batch"]
    uplink = per_image * workload.images_per_s * 8 / 1e6
    fits, because = "yes", f"{len(group)} points"
    if goodput == 0:
        fits, because = "no", f"no load keeps {tail} within {workload.latency_limit_ms:g} ms"
    elif workload.uplink_mbit_s is not None and uplink > workload.uplink_mbit_s:
        fits, because = "no", f"needs {uplink:.0f} Mb/s of an uplink of {workload.uplink_mbit_s:g}"
    elif workload.uplink_mbit_s is not None and uplink != uplink:
        fits, because = "unknown", "the payload was not recorded, the uplink cannot be judged"
    elif workload.kind == "interactive" and tail != "p95":
        fits, because = "unknown", f"the samples carry no p95, judged by {tail}"
    return {
        "rank": 0,
        "backend": best_effort["backend"] + (f" × {devices} ({arrangement})" if devices > 1 else ""),
        "run": best_effort["run"],
        "latency_ms": float(lone),
        "latency_percentile": tail,
        "goodput_images_per_s": goodput,
        "servers": servers,
        "usd_per_1000_images": cost,
        "uplink_mbit_per_s": uplink,
        "fits": fits,
        "because": because,
    }


def _devices(point: "pd.Series") -> tuple[int, str]:
    """Return how many devices answered a point and how they were arranged; one where it does not say."""
    devices, arrangement = point.get("devices"), point.get("arrangement")
    known = devices is not None and devices == devices
    return int(devices) if known else 1, arrangement if isinstance(arrangement, str) else "together"


def _tail(group: "pd.DataFrame") -> tuple["pd.Series", "pd.Series"]:
    """Each point's highest percentile up to p95 that its sample carries, and which it is."""
    latency, carried = group["throughput_images_per_s"] * math.nan, group["backend"].map(lambda _: "nothing")
    for name in ("p50", "p90", "p95"):
        if (column := f"latency_ms_{name}") in group:
            known = group[column].notna()
            latency, carried = latency.mask(known, group[column]), carried.mask(known, name)
    return latency.dropna(), carried


def _with_ranks(table: "pd.DataFrame", key: str, noise_floor: float) -> "pd.DataFrame":
    ranks, leader, previous = [], None, None
    for position, (_, row) in enumerate(table.iterrows(), 1):
        value, fits = row[key], row["fits"]
        tied = leader is not None and fits == previous and value > 0 and leader > 0
        tied = tied and abs(math.log(value / leader)) <= noise_floor
        if not tied:
            leader, place = value, position
        ranks.append(place)
        previous = fits
    return table.assign(rank=ranks)


def conclusion(workload: Workload, ranked: "pd.DataFrame", points: "pd.DataFrame") -> str:
    """Return one sentence: the choice, a tie, or why the records cannot decide."""
    if not len(ranked):
        here = sorted(points["rtt_ms"].dropna().unique()) if "rtt_ms" in points else []
        at = ", ".join(f"{rtt:g}" for rtt in here) or "none"
        uplink = f" and {workload.uplink_mbit_s:g} Mb/s" if workload.uplink_mbit_s and workload.rtt_ms else ""
        return (
            f"The records cannot decide: nothing valid was measured for {workload.kind} work at "
            f"{workload.rtt_ms:g} ms of round trip{uplink} (measured: {at}). Measure that link first."
        )
    first = ranked[ranked["rank"] == ranked["rank"].min()]
    if first["fits"].iloc[0] == "no":
        return f"No measured backend fits: {first['backend'].iloc[0]} comes nearest, but {first['because'].iloc[0]}."
    names = " and ".join(first["backend"])
    if len(ranked) == 1:
        return f"Only {names} was measured for this workload; one backend is no comparison."
    if len(first) > 1:
        return f"The records cannot decide between {names}: they differ by less than the noise floor."
    return _best(first.iloc[0])


def _best(best: "pd.Series") -> str:
    cost = best["usd_per_1000_images"]
    priced = f", {cost:.4f} USD per 1,000 images" if cost == cost else ""
    doubt = "" if best["fits"] == "yes" else f" Take it as likely, not as shown: {best['because']}."
    tail = best["latency_percentile"]
    return (
        f"{best['backend']}: {best['latency_ms']:.0f} ms ({tail}), {best['goodput_images_per_s']:.1f} images/s per "
        "server, "
        f"{best['servers']:.0f} server{'s' if best['servers'] != 1 else ''}{priced}.{doubt}"
    )
