"""Points as one table that has its columns whatever was measured, which are not valid and why, and tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from photodup.bench.stats.sentence import number

if TYPE_CHECKING:
    import pandas as pd

_INTERVALS = ("latency_ms_mean", "latency_ms_p50", "latency_ms_p90", "throughput_images_per_s")
NUMBERS = (
    "n_requests", "duration_s", "payload_bytes", "latency_ms_p95", "latency_ms_p99", "little_ratio",
    *(f"{name}{end}" for name in _INTERVALS for end in ("", "_ci_low", "_ci_high")),
    *(f"{stage}_ms_mean" for stage in ("prepare", "request", "decode")),
    *(f"server_{stage}_ms_mean" for stage in ("request", "queue", "decode", "compute_infer")),
    "server_batch_mean",
)  # fmt: skip


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


def gaps(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points that are not valid with the reason, so that a notebook never hides one.

    One row stands for all `points` of a backend that have the same reason.
    """
    names = ("backend", "scenario", "batch", "concurrency", "label", "repeat", "points", "invalid_because")
    bad = points[~points.valid.eq(True)]
    alike = bad.groupby(["backend", "invalid_because"], dropna=False).backend.transform("size")
    bad = bad.assign(points=alike.where(alike > 1)).drop_duplicates(["backend", "invalid_because"])
    told = bad[[name for name in names if name in bad and bad[name].any()]]
    return told.rename(columns={"concurrency": "in flight", "invalid_because": "why it is not valid"})


def as_markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown; a notebook shows every table in this way, and the same table is the same bytes.

    An index that has a name stands in the first columns. Numbers have three digits, what is missing is "–", code in a
    text is shown as code, and a table without rows is an empty text.
    """
    table = table.reset_index(drop=not any(table.index.names))
    sides = ["---:" if kind.kind in "if" else "---" for kind in table.dtypes]
    rows = [table.columns, sides, *table.map(_cell).to_numpy()]
    return "" if table.empty else "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value or 0) if isinstance(value, int | float) else str(value)  # no "-0"
