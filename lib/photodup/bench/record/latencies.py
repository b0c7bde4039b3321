"""Single requests of a run: `results/<run>/latencies.parquet`, one row a request.

Columns:
    record: file name of the point's JSON record in `records/`, without its ending.
    request: number within the point, from 0, in order of completion.
    latency_ms: from when the request was begun (open loop: due) to its embedding in hand.
    finished_s: when that was, in seconds from the opening of the measured window.
    vectors: of the few records that keep embeddings instead of requests: their values, row after row.

All numbers are float32 (24 bits: a latency of 100 ms to 8 ns, 60 s to 4 µs). A column that a record does not have
is null in its rows; rows of one record stand together, records in the order of their names. To read one point:

    pandas.read_parquet("results/NAME/latencies.parquet", filters=[("record", "==", "figure-…")])

While a run is measured each point has a small file of its own beside its record, of the same form, so that nothing
is lost when the run is killed. `compact` puts them into the one file; reading asks the small files first.
"""

import io
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import ArrayLike

from photodup.bench import Columns
from photodup.bench.record.json_files import MOST_BYTES, reading
from photodup.core.files import remove, write_atomically

NAME = "latencies.parquet"
PART = ".latencies.parquet"


def write_part(record: Path, raw: Mapping[str, ArrayLike]) -> None:
    """Keep the arrays of a record (name → 1-d numbers) in a small Parquet file beside it."""
    part, run = record.with_name(record.stem + PART), record.parent.parent
    write_atomically(part, _bytes(_table(record.stem, raw)), within=run.parent, fsync=True)


def read_arrays(run: Path, record: str) -> dict[str, np.ndarray]:
    """Return the arrays of one record, float32, by name; empty when it kept none.

    Args:
        run: the run's folder.
        record: file name of the record without its ending.

    Raises:
        RecordError: the file cannot be read; names it and the remedy.
    """
    for table in _tables(run, record):
        arrays = {
            name: table[name].drop_null().to_numpy().copy()
            for name in table.column_names
            if name not in ("record", "request") and table[name].null_count < len(table)
        }
        if arrays:
            return arrays
    return {}


def check_readable(run: Path) -> None:
    """Read a run's file of single requests, as every look-up of one of them does.

    Raises:
        RecordError: they cannot be read; names the file and the remedy.
    """
    for _ in _tables(run, ""):
        pass


def compact(run: Path) -> int:
    """Put the small files of a run into its one file; return how many there were.

    The one file is replaced before a small one is deleted, so an interruption loses nothing. Rows whose record is
    gone, or was measured again, are left out.
    """
    parts = {path.name.removesuffix(PART): path for path in sorted((run / "records").glob(f"*{PART}"))}
    if not parts:
        return 0
    recorded = {path.stem for path in (run / "records").glob("*.json")}
    tables = [_read(path) for name, path in parts.items() if name in recorded]
    if (run / NAME).is_file():
        whole = _read(run / NAME)
        unchanged = pa.array(sorted(recorded - parts.keys()), pa.string())
        tables.append(whole.filter(pc.is_in(whole["record"], unchanged)))
    table = pa.concat_tables(tables, promote_options="default") if tables else _table("", {})
    names = ["record", "request", *sorted(set(table.column_names) - {"record", "request"})]
    order = [("record", "ascending"), ("request", "ascending")]
    rows = _bytes(table.select(names).sort_by(order))
    write_atomically(run / NAME, rows, within=run.parent, fsync=True)
    for path in parts.values():
        remove(path, within=run.parent)
    return len(parts)


def _table(record: str, raw: Mapping[str, ArrayLike]) -> pa.Table:
    """One row a value; arrays of unlike lengths are filled up with nulls."""
    arrays = {name: np.asarray(values, np.float32).ravel() for name, values in raw.items()}
    n = max(map(len, arrays.values()), default=0)
    columns: Columns = {
        "record": pa.array([record] * n, pa.string()),
        "request": pa.array(range(n), pa.int32()),
    }
    for name, values in sorted(arrays.items()):
        missing = pa.nulls(n - len(values), pa.float32())
        columns[name] = pa.concat_arrays([pa.array(values, pa.float32()), missing])
    return pa.table(columns)


def _bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    numbers = [name for name in table.column_names if name not in ("record", "request")]
    encodings = dict.fromkeys(numbers, "BYTE_STREAM_SPLIT") | {"request": "DELTA_BINARY_PACKED"}
    pq.write_table(
        table,
        buffer,
        compression="brotli",  # at its highest level 3% smaller than zstd at its own
        compression_level=11,
        use_dictionary=["record"],
        column_encoding=encodings,
        write_statistics=["record"],
    )
    return buffer.getvalue()


def _tables(run: Path, record: str) -> Iterator[pa.Table]:
    """Yield a record's rows: those of its small file, then those in the one file."""
    part, whole = run / "records" / (record + PART), run / NAME
    if part.is_file():
        yield _read(part)
    if whole.is_file():
        stat = whole.stat()
        by_record = _by_record(whole, stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if record in by_record:
            yield by_record[record]


@lru_cache(maxsize=2)
def _by_record(path: Path, *state: int) -> dict[str, pa.Table]:
    """Return the rows of each record in a run's one file; `state` changes with the file.

    Once for all records: the file is one block, so that reading one record costs as much as reading all (20 ms).
    """
    table = _read(path)
    names = table["record"].combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy(zero_copy_only=False)
    begins = np.flatnonzero(np.diff(codes, prepend=-1))  # rows of one record stand together
    ends = np.append(begins, len(codes))[1:]
    return {
        names.dictionary[codes[begin].item()].as_py(): table.slice(begin, end - begin)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    }


def _read(path: Path) -> pa.Table:
    with reading(path):
        metadata = pq.read_metadata(path)
        if 4 * metadata.num_rows * metadata.num_columns > MOST_BYTES:
            raise ValueError(f"{metadata.num_rows:,} rows are more than any run has")
        # As a dictionary: one long name, repeated, would unpack to any size.
        table = pq.read_table(path, read_dictionary=["record"])
        kinds = {"record": pa.dictionary(pa.int32(), pa.string()), "request": pa.int32()}
        if wrong := [f.name for f in table.schema if f.type != kinds.pop(f.name, pa.float32())] or list(
            kinds
        ):
            raise ValueError(f"the column {wrong[0]} is missing or of another type")
        records = table["record"]
        if records.null_count or any(
            pc.any(pc.greater(pc.utf8_length(c.dictionary), 255)).as_py() for c in records.chunks
        ):
            raise ValueError("a row names no record")
        return table.set_column(table.column_names.index("record"), "record", records.cast(pa.string()))
