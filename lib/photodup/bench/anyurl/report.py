"""Write the files of a run: `result.json`, `requests.parquet` with one row a request, and one page that needs no network."""

import io
import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from photodup.bench import Columns
from photodup.bench.anyurl.measure import MeasuredLoad
from photodup.bench.load.workers import COLUMNS
from photodup.bench.pairs.alternate import Visit
from photodup.bench.stats.metrics import METRICS
from photodup.core.errors import PhotodupError
from photodup.core.files import available_cores, write_atomically

Table = Mapping[str, Any]  # columns of `requests.parquet`


def write(folder: Path, result: Mapping[str, Any], rows: Table, page: str) -> list[Path]:
    """Write the three files and return them.

    Args:
        result: everything that `result.json` keeps.
        rows: of `requests.parquet` (see `request_rows` and `answer_rows`).

    Raises:
        PhotodupError: the folder cannot be written to.
    """
    text = json.dumps(result, indent=1, default=str, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, str | bytes] = {
            "result.json": text,
            "requests.parquet": _parquet(rows),
            "index.html": page,
        }
        for name, data in files.items():
            write_atomically(folder / name, data, within=folder)
    except OSError as error:
        raise PhotodupError(
            f"{folder} cannot be written ({error.strerror}): name another with --out."
        ) from None
    return [folder / name for name in files]


def _parquet(rows: Table) -> bytes:
    import pyarrow as pa  # slow to load, so only when a run is written
    import pyarrow.parquet as pq

    columns = {
        name: pa.array(column, pa.string() if name in ("url", "server", "error") else None, from_pandas=True)
        for name, column in rows.items()
    }
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def answer_rows(visits: Sequence[Visit], sides: Sequence[str]) -> Table:
    """Return one row for each counted answer of a comparison; in a visit each server has one block of each number."""
    return {
        "visit": np.repeat(np.arange(1, len(visits) + 1), [len(visit.side) for visit in visits]),
        "server": [sides[int(side)] for visit in visits for side in visit.side],
        "block": np.concatenate([visit.half for visit in visits]),
        "latency_ms": np.concatenate([visit.latency_ms for visit in visits]),
    }


def request_rows(url: str, measured: Sequence[MeasuredLoad]) -> Table:
    """Return one row for each request of the measurements of a server; those that failed come last in their window.

    Times are seconds since the window opened. `done_s` is when the answer was read and checked, or when the request failed;
    `latency_ms` counts from `due_s`, when the request was to be sent.
    """
    windows = [
        (number, visit, window)
        for number, load in enumerate(measured)
        for visit, window in enumerate(load.windows, start=1)
    ]
    if not windows:
        return {}
    tables, texts = [], []
    for _, _, window in windows:
        failed = np.full((len(window.errors), len(COLUMNS)), np.nan)
        failed[:, -1] = [at_s for at_s, _ in window.errors]
        tables.append(np.vstack([window.rows, failed]))
        texts += [None] * len(window.rows) + [text for _, text in window.errors]
    lengths = list(map(len, tables))
    payload_bytes, due_s, _, begun_s, _, answered_s, done_s = np.concatenate(tables).T
    return {
        "measurement": np.repeat([number for number, _, _ in windows], lengths),
        "visit": np.repeat([visit for _, visit, _ in windows], lengths),
        "url": [url] * len(done_s),
        "request": np.concatenate([np.arange(length) for length in lengths]),
        "due_s": due_s,
        "sent_s": begun_s,
        "answered_s": answered_s,
        "done_s": done_s,
        "latency_ms": (done_s - due_s) * 1000,
        "payload_bytes": payload_bytes,
        "error": texts,
    }


def result_facts(
    target_columns: Sequence[Mapping[str, str | None]], description: str, payload: str
) -> Columns:
    """Return the facts with which every result begins: targets, load, time, and the client's machine."""
    client = {"system": platform.platform(), "python": platform.python_version(), "cores": available_cores()}
    return {
        "made_by": "photodup load",
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "targets": list(target_columns),
        "load": description,
        "payload": payload,
        "client": client,
        "metrics": {m.name: f"{m.label}, {m.unit}" for m in METRICS.values()},
    }
