"""What it costs to serve more: one machine with k GPUs, k machines with one, or k FastAPI services, in one table.

Throughput is what was measured in each arrangement. Where an arrangement was not measured with k devices, one device's
throughput is multiplied and the row says so: nobody measured that k of them add up. A price is that of a whole machine;
devices that are emulated have none, and their rows show throughput alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from photodup.study.notebook.gaps import NotMeasured

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["way", "devices", "images_per_s", "efficiency", "usd_per_hour", "usd_per_million_images", "how"]
WAYS = {
    "one machine, Triton": ("triton", "instances"),
    "k machines, Triton": ("triton", "servers"),
    "k machines, FastAPI": ("fastapi", "services"),
}
"""Way of scaling -> server and arrangement of its figures (see `topology`). FastAPI uses one GPU a process."""

MEASURED = "measured"


def scaling_costs(
    points: "pd.DataFrame", prices_usd_per_hour: Mapping[int, float] | None = None, *, devices: Sequence[int]
) -> "pd.DataFrame":
    """Return one row for each way of scaling and number of devices.

    Args:
        points: with `server` and `throughput_images_per_s`; `arrangement` and `devices` where there are several. One kind
            of engine: real and emulated devices do not belong in one table. A row without them is one device.
        prices_usd_per_hour: GPUs in one machine -> what it costs; k machines with one cost k times the price of 1.
        devices: the k to show.

    Returns:
        `COLUMNS`; `efficiency` is the throughput ÷ (k × that of one in the same way), and NaN where it is multiplied.
    """
    import pandas as pd

    prices = dict(prices_usd_per_hour or {})
    rows = [row for way in WAYS for row in _rows(way, _best(points, *WAYS[way]), prices, devices)]
    return pd.DataFrame(rows, columns=COLUMNS)


def fastest_in_both(arms: "pd.DataFrame", gpus: int = 1) -> "tuple[str, pd.DataFrame]":
    """Return the fastest engine that both servers answered with at eight in flight, and one row a server for it.

    A rented machine has PyTorch in FastAPI and other engines in Triton: then each server's fastest.

    Args:
        arms: of notebook 06's rounds: `load`, `server`, `engine`, `precision`, `label`, `throughput_images_per_s`.
        gpus: of the machine. A Triton has an instance on each of them, a FastAPI service uses one.

    Raises:
        NotMeasured: one of the servers was not measured.
    """
    eight = arms[(arms["load"] == "eight") & arms["throughput_images_per_s"].notna()]
    ranked = eight.sort_values("throughput_images_per_s", ascending=False)
    if not {"triton", "fastapi"} <= set(ranked["server"]):
        raise NotMeasured("nothing was measured behind both servers with eight requests in flight")
    engines = (rows for _, rows in ranked.groupby(["engine", "precision"], sort=False))
    shared = next((rows for rows in engines if {"triton", "fastapi"} <= set(rows["server"])), ranked)
    fastest = shared.drop_duplicates("server").assign(arrangement="instances")
    label = " and ".join(sorted(fastest["label"])) + (", two engines" if shared is ranked else "")
    return label, fastest.assign(devices=[gpus if server == "triton" else 1 for server in fastest["server"]])


def cost_table(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows that have a number, with their units; without a column of which no row knows anything."""
    rows = table[table["images_per_s"].notna()].assign(efficiency=100 * table["efficiency"])
    names = ("way", "k", "images/s", "efficiency (%)", "USD an hour", "USD per million images", "how")
    return rows.set_axis(names, axis="columns").dropna(axis="columns", how="all")


def cheapest(table: "pd.DataFrame", images_per_s: float) -> str:
    """Return one sentence: the cheapest row that serves so much, or why there is none."""
    enough = table[table["images_per_s"] >= images_per_s]
    if not len(enough):
        highest = table["images_per_s"].max()
        limit = f"; the most is {highest:.0f}" if highest == highest else ", since nothing was measured"
        return f"Nothing in the table serves {images_per_s:.0f} images/s{limit}."
    priced = enough.dropna(subset=["usd_per_hour"])
    if not len(priced):
        return f"Nothing that serves {images_per_s:.0f} images/s has a price here."
    best = priced.loc[priced["usd_per_hour"].idxmin()]
    doubt = "" if best["how"] == MEASURED else f" ({best['how']})"
    return (
        f"{images_per_s:.0f} images/s cost least with {best['way'].replace('k machines', f'{best.devices} × one GPU')}: "
        f"{best['usd_per_hour']:.2f} USD/h, {best['images_per_s']:.0f} images/s{doubt}."
    )


def _best(points: "pd.DataFrame", server: str, arrangement: str) -> dict[int, float]:
    """Return the most images/s by number of devices; one device is the same in every arrangement."""
    columns = ["server", "arrangement", "devices", "throughput_images_per_s"]
    rows = points.reindex(columns=columns)
    rows = rows[rows["server"].eq(server) & rows["throughput_images_per_s"].notna()]
    count = rows["devices"].astype(float).fillna(1).astype(int)
    fits = rows["arrangement"].eq(arrangement) | (count == 1)
    return rows[fits].groupby(count[fits])["throughput_images_per_s"].max().to_dict()


def _rows(
    way: str, best: Mapping[int, float], prices: Mapping[int, float], devices: Sequence[int]
) -> Iterator[dict[str, Any]]:
    single = best.get(1, math.nan)
    for k in devices:
        rate, origin = best.get(k, math.nan), MEASURED
        if rate != rate:
            rate, origin = single * k, f"not measured with {k}: {k} × one"
        if rate != rate:
            origin = "not measured"
        # One machine with several has an offer of its own: k single prices do not make it up.
        is_one_machine = WAYS[way][1] == "instances"
        apart = k * prices[1] if 1 in prices and (k == 1 or not is_one_machine) else math.nan
        hourly = prices.get(k, apart) if is_one_machine else apart
        yield {
            "way": way,
            "devices": k,
            "images_per_s": rate,
            "efficiency": rate / (k * single) if origin == MEASURED else math.nan,
            "usd_per_hour": hourly,
            "usd_per_million_images": hourly / (3600 * rate) * 1e6,
            "how": origin,
        }
