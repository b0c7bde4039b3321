"""The records of a run: one self-contained JSON file per measurement, never overwritten once finished.

A run is a folder: `environment.json`, `records/<key>-<hash>.json`, and the single requests of all points in
`latencies.parquet` (see `latencies`).
"""

import atexit
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench import Columns
from photodup.bench.record import environment, latencies
from photodup.bench.record.json_files import (
    SCHEMA_VERSION,
    RecordError,
    anonymous,
    digest,
    read_json,
    read_record,
    reading,
    slug,
    to_json_value,
)
from photodup.bench.stats.figures import figures_of_windows
from photodup.core.errors import PhotodupError, is_expected
from photodup.core.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)
# fmt: off
FIGURE_COLUMNS = [
    "run", "backend", "server", "engine", "precision", "protocol", "wire", "device", "channel", "connection",
    "scenario", "batch", "concurrency", "offered_per_s", "arrived_per_s", "link", "rtt_ms", "rate_mbit_s", "loss",
    "initcwnd", "congestion", "slow_start_after_idle", "label", "n_visits", "n_requests", "duration_s",
    "latency_ms_p50", "latency_ms_p90", "latency_ms_p95", "latency_ms_p99", "latency_ms_mean",
    "throughput_images_per_s", "payload_bytes", "client_cpu_cores", "client_cpu_share", "status", "error",
]
# fmt: on
_locked: dict[Path, int] = {}  # what this process holds: a notebook may open its own run twice


class RunStore:
    """The records of one run.

    Reading needs no lock. The first measurement takes the run for this process, until `close()` or exit:
    two runs on one machine would disturb each other's numbers, so the second is refused.

    Args:
        directory: the run's folder, `results/<run>`; its name is the run's name.
        create: make the folder when it is missing.
        measure: False re-reads only: a missing or failed point stays a gap and `measure` is never called.
        model: facts about the weights for `environment.json` (`digest`, `pretrained`, …).
        servers: facts about a machine elsewhere that is measured, for the same file (`gpu`, `gpus`, …).
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        create: bool = True,
        measure: bool = True,
        model: Mapping[str, str | None] | None = None,
        servers: Mapping[str, str | float | None] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.records_dir = self.directory / "records"
        self._measure, self.model, self._servers = measure, model, servers
        self._environment_digest: str | None = None
        if not self.directory.is_dir():
            if not create:
                raise RecordError(f"There is no run in {self.directory}: check the name, or make it first.")
            self.directory.mkdir(parents=True)

    def measure_or_load(
        self, key: str, measure: Callable[[], Columns], *, config: Mapping[str, Any], kind: str = ""
    ) -> Columns:
        """Return the result recorded for `key` and `config`; measure and record it when there is none.

        Args:
            key: readable name of the point. Two points may share it when their `config` differs.
            measure: makes the result, a JSON-ready dictionary. Arrays under its key `raw` (name → 1-d
                numbers) are kept apart as float32 (see `latencies`) and are not part of what is returned;
                read them with `raw()`. `status: "failed"` in it, a `PhotodupError`, or an error of the network
                or the system (see `errors.is_expected`) makes a failed record.
            config: everything the result depends on; it is hashed into the file name.
            kind: what kind of result it is (`point`, `ladder`, `cold_start`, …), for those who collect them.

        Returns:
            The result, the same dictionary whether measured now or read back. A point that failed (or is
            missing from a run opened with `measure=False`) gives `status` and `error`; the next run tries it again,
            while a finished one is never repeated.

        Raises:
            Exception: any other exception of `measure`: a mistake in a program is no result. It is logged, nothing
                is recorded, and the next run measures again.
        """
        record = self.record(key, config=config)
        if record is not None and (record["status"] == "ok" or not self._measure):
            return _result_columns(record)
        if not self._measure:
            return {"status": "missing", "error": f"{key} was not measured in this run"}
        self.lock()
        return _result_columns(self._create(key, measure, config, kind))

    def record(self, key: str, *, config: Mapping[str, Any]) -> Columns | None:
        """Return the whole record (see `json_files.FIELDS`) or None.

        Raises:
            RecordError: the file is damaged; names the file and the field.
        """
        path = self.path_of(key, config)
        return read_record(path) if os.path.lexists(path) else None

    def has(self, key: str, *, config: Mapping[str, Any]) -> bool:
        """Return whether a measurement is finished: one that failed is not."""
        record = self.record(key, config=config)
        return record is not None and record["status"] == "ok"

    def read(self, key: str, *, config: Mapping[str, Any]) -> Columns | None:
        """Return the result of a finished measurement, its arrays under `raw`; None where there is none."""
        record = self.record(key, config=config)
        if record is None or record["status"] != "ok":
            return None
        return record["result"] | {"raw": _arrays(self.directory, record)}

    def raw(self, key: str, *, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the raw arrays of a finished point, float32; empty when it kept none."""
        record = self.record(key, config=config)
        return _arrays(self.directory, record) if record else {}

    def lock(self) -> None:
        """Take the run for this process.

        Raises:
            RecordError: another process has it. The kernel releases the lock of a killed process.
        """
        folder = self.directory.resolve()
        if folder in _locked:
            return
        handle = os.open(folder, os.O_RDONLY)  # the folder itself, so that no lock file is left behind
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise RecordError(
                f"Another run is writing to {self.directory}: wait for it to end or name this one otherwise."
            ) from None
        _locked[folder] = handle
        latencies.compact(folder)  # what a run that was killed left
        atexit.register(self.close)

    def close(self) -> None:
        """Put the latencies into one file, and let another process measure into this run."""
        if self.directory.resolve() in _locked:
            latencies.compact(self.directory)
        if (handle := _locked.pop(self.directory.resolve(), None)) is not None:
            os.close(handle)

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def path_of(self, key: str, config: Mapping[str, Any]) -> Path:
        """Return the file of a record (see `name_of`)."""
        return self.records_dir / name_of(key, config)

    def _create(self, key: str, measure: Callable[[], dict], config: Mapping[str, Any], kind: str) -> Columns:
        """Measure and write. An interruption (Ctrl-C) records nothing, so that the point is done again."""
        path, environment_digest = self.path_of(key, config), self._keep_environment()
        started, clock = datetime.now(UTC), time.perf_counter()
        try:
            result = dict(measure())
            raw = result.pop("raw", {})
            status = result.pop("status", "ok")
            error = result.pop("error", None)
        except Exception as caught:
            if not is_expected(caught):
                _log.exception("%s was not measured: this is a mistake in a program, not a result", key)
                raise
            result, raw, status, error = {}, {}, "failed", _sentence(caught)
        duration_s = round(time.perf_counter() - clock, 3)
        commit, dirty = environment.source_version()
        record = {
            "schema_version": SCHEMA_VERSION,
            "key": key,
            "kind": kind,
            "config": to_json_value(config),
            "status": "ok" if status == "ok" else "failed",
            "error": None if error is None else anonymous(str(error)),
            "result": to_json_value(result, anonymous),
            "has_raw": bool(raw),
            "started_at": started.isoformat(timespec="seconds"),
            "duration_s": duration_s,
            "photodup_version": environment.installed_version("photodup") or "not installed",
            "git_commit": commit,
            "git_dirty": dirty,
            "environment_digest": environment_digest,
        }
        if raw:
            latencies.write_part(path, raw)
        self._write(path, record)
        return record

    def _keep_environment(self) -> str:
        """Write environment.json once; a run resumed elsewhere or after an upgrade gets a second file."""
        if self._environment_digest is None:
            facts = to_json_value(environment.describe(self.model, self._servers))
            self._environment_digest = digest(facts)[:12]
            first = self.directory / "environment.json"
            content = {"digest": self._environment_digest, **facts}
            other = self.directory / f"environment-{self._environment_digest}.json"
            with reading(first):
                first_digest = read_json(first)["digest"] if os.path.lexists(first) else None
            if first_digest != self._environment_digest and not other.is_file():
                self._write(first if first_digest is None else other, content)
        return self._environment_digest

    def _write(self, path: Path, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        write_atomically(path, text, within=self.directory.parent, fsync=True)


def load_records(run_dir: Path | str) -> Iterator[Columns]:
    """Yield every record of a run in the order it was measured."""
    records = [read_record(path) for path in sorted((Path(run_dir) / "records").glob("*.json"))]
    yield from sorted(records, key=lambda record: (record["started_at"], record["key"]))


def figures_of_run(run_dir: Path | str) -> "pd.DataFrame":
    """Return one row a figure of a run: the mean over its visits, which are records of kind `figure`.

    Columns: `FIGURE_COLUMNS` first (None where a fact was not recorded), then every other plain value of config and
    figures (ends of intervals, stages), and `key`. A figure of which no window could be measured has no numbers, and the
    reason in `error`.
    """
    import pandas as pd

    run_dir, visits = Path(run_dir), dict[str, list[Columns]]()
    for record in load_records(run_dir):
        if record["kind"] == "figure":
            config = {name: value for name, value in record["config"].items() if name != "visit"}
            visits.setdefault(digest({"key": record["key"], "config": config}), []).append(record)
    rows = []
    for records in visits.values():
        first = records[0]
        with reading(run_dir / "records" / name_of(first["key"], first["config"])):
            windows = [_result_columns(record) | {"raw": _arrays(run_dir, record)} for record in records]
            row = {
                "run": run_dir.name,
                "status": "ok",
                **first["config"],
                **figures_of_windows(windows),
                "key": first["key"],
            }
        rows.append({name: value for name, value in row.items() if not isinstance(value, (dict, list))})
    frame = pd.DataFrame(rows)
    return frame.reindex(columns=[*FIGURE_COLUMNS, *(c for c in frame.columns if c not in FIGURE_COLUMNS)])


def name_of(key: str, config: Mapping[str, Any]) -> str:
    """Return the file name of a record; without its ending, `latencies.parquet` calls the record so."""
    return f"{slug(key)}-{digest({'key': key, 'config': config})[:8]}.json"


def _arrays(run_dir: Path, record: Columns) -> dict[str, np.ndarray]:
    """Return the arrays of a record by name; empty where it kept none."""
    name = name_of(record["key"], record["config"]).removesuffix(".json")
    return latencies.read_arrays(run_dir, name) if record["has_raw"] else {}


def _result_columns(record: Mapping[str, Any]) -> Columns:
    if record["status"] == "ok":
        return dict(record["result"])
    return {**record["result"], "status": "failed", "error": record["error"] or "failed without a reason"}


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, PhotodupError) else f"{type(error).__name__}: {text}"
