"""How a number is kept: one self-sufficient JSON file per measurement, never overwritten once finished.

A run is a folder: `environment.json`, `records/<key>-<hash>.json`, and the raw latencies beside each record.
"""

import fcntl
import hashlib
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.bench.record import environment
from photodup.errors import PhotodupError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

SCHEMA_VERSION = 1
FIELDS: dict[str, type | tuple[type, ...]] = {
    "schema_version": int,
    "key": str,
    "config": dict,
    "status": str,
    "error": (str, type(None)),
    "result": dict,
    "raw_file": (str, type(None)),
    "started_at": str,
    "duration_s": (int, float),
    "photodup_version": str,
    "git_commit": (str, type(None)),
    "git_dirty": (bool, type(None)),
    "environment_digest": str,
}
# fmt: off
POINT_COLUMNS = [
    "run", "backend", "server", "engine", "protocol", "wire", "connection", "scenario", "batch",
    "concurrency", "offered_per_s", "link", "n_requests", "duration_s", "latency_ms_p50", "latency_ms_p90",
    "latency_ms_p95", "latency_ms_p99", "latency_ms_mean", "throughput_images_per_s", "payload_bytes",
    "valid", "invalid_because",
]
# fmt: on
_locked: dict[Path, int] = {}  # what this process holds: a notebook may open its own run twice


class RecordError(PhotodupError):
    """A record that cannot be read, or a run that cannot be written."""


class RunStore:
    """The records of one run.

    Reading needs no lock. The first measurement takes the run for this process, until `close()` or exit:
    two runs on one machine would disturb each other's numbers, so the second is refused.

    Args:
        directory: the run's folder, `results/<run>`; its name is the run's name.
        create: make the folder when it is missing.
        measure: False re-reads only: a missing or failed point stays a gap and `measure` is never called.
        model: facts about the weights for `environment.json` (`digest`, `pretrained`, …).
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        create: bool = True,
        measure: bool = True,
        model: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.records_dir = self.directory / "records"
        self._measure, self._model, self._environment_digest = measure, model, None
        if not self.directory.is_dir():
            if not create:
                raise RecordError(f"There is no run in {self.directory}: check the name, or make it first.")
            self.directory.mkdir(parents=True)

    @property
    def name(self) -> str:
        return self.directory.name

    def measure_or_load(
        self, key: str, measure: Callable[[], dict[str, Any]], *, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the result recorded for `key` and `config`; measure and record it when there is none.

        Args:
            key: readable name of the point. Two points may share it when their `config` differs.
            measure: makes the result, a JSON-ready dictionary. Arrays under its key `raw` (name → 1-d
                numbers) are kept beside the record as float32 and are not part of what is returned;
                read them with `raw()`. `status: "failed"` in it, or an exception, makes a failed record.
            config: everything the result depends on; it is hashed into the file name.

        Returns:
            The result, the same dictionary whether measured now or read back. A point that failed (or is
            missing from a run opened with `measure=False`) gives `status`, `error`, `valid: False` and
            `invalid_because`; the next run tries it again, while a finished one is never repeated.
        """
        record = self.record(key, config=config)
        if record is not None and (record["status"] == "ok" or not self._measure):
            return _outcome(record)
        if not self._measure:
            return _gap("missing", f"{key} was not measured in this run")
        self.lock()
        record = self._run(key, measure, config)
        return _outcome(record)

    def record(self, key: str, *, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the whole record (see `FIELDS`) or None.

        Raises:
            RecordError: the file is damaged; names the file and the field.
        """
        path = self._path(key, config)
        return read_record(path) if path.is_file() else None

    def raw(self, key: str, *, config: Mapping[str, Any]) -> "dict[str, np.ndarray]":
        """Return the raw arrays of a finished point, float32; empty when it kept none."""
        import numpy as np

        record = self.record(key, config=config)
        if record is None or record["raw_file"] is None:
            return {}
        path = self.records_dir / record["raw_file"]
        try:
            with np.load(path) as arrays:
                return dict(arrays)
        except (OSError, ValueError) as error:
            raise RecordError(
                f"{path} cannot be read ({error}): delete it and its record, then run again."
            ) from None

    def lock(self) -> None:
        """Take the run for this process.

        Raises:
            RecordError: another process has it. A run that was killed holds nothing: the kernel lets go.
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

    def close(self) -> None:
        """Let another process measure into this run."""
        if (handle := _locked.pop(self.directory.resolve(), None)) is not None:
            os.close(handle)

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _path(self, key: str, config: Mapping[str, Any]) -> Path:
        return self.records_dir / f"{_slug(key)}-{digest({'key': key, 'config': config})[:8]}.json"

    def _run(self, key: str, measure: Callable[[], dict], config: Mapping[str, Any]) -> dict[str, Any]:
        """Measure and write. An interruption (Ctrl-C) records nothing, so that the point is done again."""
        path = self._path(key, config)
        started, clock = datetime.now(UTC), time.perf_counter()
        try:
            result = dict(measure())
            raw = result.pop("raw", {})
            status = result.pop("status", "ok")
            error = result.pop("error", None)
        except Exception as caught:
            result, raw, status, error = {}, {}, "failed", _sentence(caught)
        duration_s = round(time.perf_counter() - clock, 3)
        commit, dirty = environment.source_version()
        record = {
            "schema_version": SCHEMA_VERSION,
            "key": key,
            "config": plain(config),
            "status": "ok" if status == "ok" else "failed",
            "error": None if error is None else anonymous(str(error)),
            "result": _anonymous_texts(plain(result)),
            "raw_file": f"{path.stem}.latencies.npz" if raw else None,
            "started_at": started.isoformat(timespec="seconds"),
            "duration_s": duration_s,
            "photodup_version": environment.photodup_version(),
            "git_commit": commit,
            "git_dirty": dirty,
            "environment_digest": self._keep_environment(),
        }
        self.records_dir.mkdir(parents=True, exist_ok=True)
        if raw:
            write_atomically(path.with_name(record["raw_file"]), _compress(raw))
        write_atomically(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
        return record

    def _keep_environment(self) -> str:
        """Write environment.json once; a run resumed elsewhere or after an upgrade gets a second file."""
        if self._environment_digest is None:
            facts = plain(environment.describe(self._model))
            self._environment_digest = digest(facts)[:12]
            first = self.directory / "environment.json"
            content = {"digest": self._environment_digest, **facts}
            other = self.directory / f"environment-{self._environment_digest}.json"
            known = _read_json(first)["digest"] if first.is_file() else None
            if known != self._environment_digest and not other.is_file():
                data = (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
                write_atomically(first if known is None else other, data)
        return self._environment_digest


def read_record(path: Path) -> dict[str, Any]:
    """Read and check one record file.

    Raises:
        RecordError: names the file and the field that is missing or of the wrong type.
    """
    remedy = "restore it from git, or delete it and run again"
    record = _read_json(path)
    for field, kind in FIELDS.items():
        if field not in record:
            raise RecordError(f"{path}: the field {field!r} is missing; {remedy}.")
        if not isinstance(record[field], kind) or (kind is int and isinstance(record[field], bool)):
            raise RecordError(
                f"{path}: the field {field!r} holds a {type(record[field]).__name__}; {remedy}."
            )
    if record["schema_version"] > SCHEMA_VERSION:
        raise RecordError(
            f"{path}: the field 'schema_version' is {record['schema_version']}, this photodup reads up to "
            f"{SCHEMA_VERSION}; update photodup."
        )
    if record["status"] not in ("ok", "failed"):
        raise RecordError(f"{path}: the field 'status' is {record['status']!r}; {remedy}.")
    expected = digest({"key": record["key"], "config": record["config"]})[:8]
    if not path.stem.endswith(f"-{expected}"):
        raise RecordError(f"{path}: the field 'config' or 'key' was changed after measuring; {remedy}.")
    return record


def load_records(run_dir: Path | str) -> Iterator[dict[str, Any]]:
    """Yield every record of a run in the order it was measured."""
    records = [read_record(path) for path in sorted((Path(run_dir) / "records").glob("*.json"))]
    yield from sorted(records, key=lambda record: (record["started_at"], record["key"]))


def load_points(run_dir: Path | str) -> "pd.DataFrame":
    """Return one row per point of a run: the records whose config or result names a `scenario`.

    Columns: `POINT_COLUMNS` first, then every other plain value of config and result (confidence bounds,
    stages), `key`, `status`, `error`, `started_at`. A result with a list `points` gives one row for each.
    Failed points are rows too: no numbers, `valid` False and the reason in `invalid_because`.
    """
    import pandas as pd

    rows = []
    for record in load_records(run_dir):
        outcome = _outcome(record)
        several = outcome.get("points")
        for point in several if isinstance(several, list) else [outcome]:
            row = {**record["config"], **point, "run": Path(run_dir).name}
            row |= {name: record[name] for name in ("key", "status", "error", "started_at")}
            if "scenario" in row:
                rows.append({k: v for k, v in row.items() if not isinstance(v, (dict, list))})
    frame = pd.DataFrame(rows)
    others = [name for name in frame.columns if name not in POINT_COLUMNS]
    return frame.reindex(columns=[*POINT_COLUMNS, *others])


def digest(value: Any) -> str:
    """Return the SHA-256 (hex) of a JSON-ready value; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()


def plain(value: Any) -> Any:
    """Return `value` as JSON can hold it: numpy scalars and arrays unwrapped, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if hasattr(value, "tolist"):  # numpy
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise RecordError(f"A {type(value).__name__} cannot be recorded: give numbers, texts, lists or mappings.")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a power cut, sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _outcome(record: Mapping[str, Any]) -> dict[str, Any]:
    if record["status"] == "ok":
        return dict(record["result"])
    return {**record["result"], **_gap("failed", record["error"] or "failed without a reason")}


def _gap(status: str, error: str) -> dict[str, Any]:
    return {"status": status, "error": error, "valid": False, "invalid_because": error}


def _compress(raw: Mapping[str, Any]) -> bytes:
    import io

    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: np.asarray(array, np.float32) for name, array in raw.items()})
    return buffer.getvalue()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{path} cannot be read ({error}): restore it from git, or delete it and run again."
        ) from None
    if not isinstance(value, dict):
        raise RecordError(f"{path}: the field 'schema_version' is missing; delete it and run again.")
    return value


def anonymous(text: str) -> str:
    """Leave out folders and addresses: a committed record must not name its machines."""
    text = re.sub(r"(?<![\w:/])/(?:[\w.+@~-]+/)+", "…/", text)
    text = re.sub(r"(\w+://)(?!127\.0\.0\.1|localhost)[^\s/:]+", r"\1…", text)
    return re.sub(r"\b(?!127\.)\d{1,3}(?:\.\d{1,3}){3}\b", "…", text)


def _anonymous_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _anonymous_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_anonymous_texts(item) for item in value]
    return anonymous(value) if isinstance(value, str) else value


def _sentence(error: BaseException) -> str:
    """One line."""
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, PhotodupError) else f"{type(error).__name__}: {text}"


def _slug(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")[:100] or "record"
