"""Figures as a table that always has all its columns, the reasons why some are missing, and tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from photodup.bench.stats.metrics import METRICS
from photodup.bench.stats.sentence import number
from photodup.study.notebook.gaps import NotMeasured

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = (
    "n_visits", "n_requests", "n_errors", "duration_s", "payload_bytes", "little_ratio", "client_cpu_cores",
    *(f"{name}{end}" for name in METRICS for end in ("", "_ci_low", "_ci_high")),
    *(f"{stage}_ms_mean" for stage in ("prepare", "request", "decode")),
    *(f"server_{stage}_ms_mean" for stage in ("request", "queue", "decode", "compute_infer")),
    "server_batch_mean",
)  # fmt: skip


def as_table(figures: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row a figure; every number of `NUMBERS` is a float column, NaN where a server does not tell it."""
    import pandas as pd

    frame = pd.DataFrame([dict(figure) for figure in figures])
    missing = [name for name in ("status", "because", *NUMBERS) if name not in frame]
    return frame.reindex(columns=[*frame.columns, *missing]).astype(dict.fromkeys(NUMBERS, float))


def measured(figures: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that were measured, and print once why the others were not.

    Raises:
        NotMeasured: none was.
    """
    sentences = []
    for reason, rows in figures[figures["because"].astype(bool)].groupby("because", sort=False):
        names = [" ".join(filter(None, row)) for row in zip(rows["backend"], rows["label"], strict=True)]
        unnamed = [name for name in dict.fromkeys(names) if name not in reason]
        sentences.append(f"{', '.join(unnamed)}: {reason}" if unnamed else reason)
    complete = figures[figures["status"] == "ok"]
    if complete.empty:
        raise NotMeasured("; ".join(sentences) or "no load was planned")
    for sentence in sentences:
        print(sentence)
    return complete


def with_intervals(figures: pd.DataFrame, metric: str) -> pd.Series:
    """Return a metric of each row as text, with its interval where it has one: `48.9 [46.9, 51]`; empty without a value."""
    import pandas as pd

    def text(value: float, low: float, high: float) -> str:
        ends = f" [{number(low)}, {number(high)}]" if low == low and high == high else ""
        return f"{number(value)}{ends}" if value == value else ""

    columns = (figures[f"{metric}{end}"].astype(float) for end in ("", "_ci_low", "_ci_high"))
    texts = [text(*row) for row in zip(*columns, strict=True)]
    return pd.Series(texts, index=figures.index, dtype=object)


def as_markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown; a notebook shows every table in this way, and the same table is the same bytes.

    An index that has a name stands in the first columns. Numbers have three digits, what is missing is an empty cell,
    code in a text is shown as code, and a table without rows is an empty text.
    """
    table = table.reset_index(drop=not any(table.index.names))
    sides = ["---:" if kind.kind in "if" else "---" for kind in table.dtypes]
    rows = [table.columns, sides, *table.map(_cell).to_numpy()]
    return "" if table.empty else "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value or 0) if isinstance(value, int | float) else str(value)  # no "-0"
