"""Two tables of notebook 13: each server at its fastest precision, and the rate that it holds under a bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from photodup.study.peers.outcomes import Compared
from photodup.study.peers.peers import SERVERS, fastest

if TYPE_CHECKING:
    import pandas as pd


def at_fastest(fp32: Compared, fast: Compared) -> pd.DataFrame:
    """Return one row a server: precision, engine, latency of one request and throughput at 8 and 32, with the gain."""
    import pandas as pd

    before = {row["server"]: row for row in fp32.arms.to_dict("records")}
    rows = []
    for row in fast.arms.to_dict("records"):
        server = fastest(SERVERS[row["server"]])
        was = before.get(server.name, {})
        rows.append(
            {
                "server": server.label,
                "precision, engine": f"{server.computed}, {server.engine}",
                "one in flight (ms)": _with_interval(row, "one"),
                "÷ FP32's latency": _ratio(row, was, "one"),
                "eight in flight (images/s)": _with_interval(row, "eight"),
                "÷ FP32's throughput": _ratio(row, was, "eight"),
                "thirty-two in flight (images/s)": _with_interval(row, "thirty-two"),
            }
        )
    return pd.DataFrame(rows or [{"server": "none was measured in this run"}])


def under_bound(found: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row a server: the highest rate with its interval, or why there is none."""
    import pandas as pd

    rows = [
        {
            "server": SERVERS[name].label,
            "precision": fastest(SERVERS[name]).computed,
            "highest rate (requests/s)": "–" if rate["because"] else f"{rate['rate_per_s']:.1f}",
            "between": "" if rate["because"] else f"{rate['low']:.1f} to {rate['high']:.1f}",
            "why not": rate["because"],
        }
        for name, rate in found.items()
    ]
    if not any(row["why not"] for row in rows):
        rows = [{k: v for k, v in row.items() if k != "why not"} for row in rows]
    return pd.DataFrame(rows or [{"server": "none was measured in this run"}])


def _with_interval(row: Mapping[str, Any], load: str) -> str:
    value = row.get(load)
    if not value or value != value:
        return "–"
    digits = 0 if value >= 30 else 1
    return f"{value:.{digits}f} [{row[f'{load}_low']:.{digits}f}, {row[f'{load}_high']:.{digits}f}]"


def _ratio(row: Mapping[str, Any], was: Mapping[str, Any], load: str) -> str:
    now, then = row.get(load), was.get(load)
    return f"{now / then:.2f}" if now and then and now == now and then == then else "–"
