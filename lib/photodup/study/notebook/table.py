"""Points as one table that has its columns whatever was measured, sentences for those not valid, and tables as prose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_INTERVALS = ("latency_ms_mean", "latency_ms_p50", "latency_ms_p90", "throughput_images_per_s")
NUMBERS = (
    "n_requests",
    "duration_s",
    "payload_bytes",
    "latency_ms_p95",
    "latency_ms_p99",
    "little_ratio",
    *(f"{name}{end}" for name in _INTERVALS for end in ("", "_ci_low", "_ci_high")),
    *(f"{stage}_ms_mean" for stage in ("prepare", "request", "decode")),
    *(f"server_{stage}_ms_mean" for stage in ("request", "queue", "decode", "compute_infer")),
    "server_batch_mean",
)


def as_table(points: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row a point, without its windows and single requests.

    Every number of `NUMBERS` is a float column, NaN where it was not measured, and `valid` is a boolean: a notebook
    computes with a table of which nothing was measured as with any other.
    """
    import pandas as pd

    frame = pd.DataFrame([dict(point) for point in points])
    frame = frame.drop(columns=[name for name in ("windows", "raw") if name in frame])
    lacking = [name for name in ("valid", "invalid_because", *NUMBERS) if name not in frame]
    frame = frame.reindex(columns=[*frame.columns, *lacking])
    frame["valid"] = frame.valid.eq(True)
    return frame.astype(dict.fromkeys(NUMBERS, float))


def gaps(points: pd.DataFrame) -> list[str]:
    """Return one sentence for every point that is not valid, so that a notebook never hides one."""
    bad = points[~points.valid.eq(True)]
    return [f"{' '.join(filter(None, _words(p)))}: {p.invalid_because}" for p in bad.itertuples()]


def _words(point: Any) -> list[str]:
    repeat = f"repeat {point.repeat}" if getattr(point, "repeat", 0) else ""
    return [point.backend, point.scenario, f"b{point.batch}", f"c{point.concurrency}", point.label, repeat]


def as_markdown(table: pd.DataFrame) -> str:
    """Return a table without its index as Markdown: code in it is shown as code, and the same table is the same bytes."""
    cells = table.map(lambda c: "–" if c != c else f"{c:.6g}" if isinstance(c, float) else str(c))
    rows = [cells.columns, ["---"] * len(cells.columns), *cells.to_numpy()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
