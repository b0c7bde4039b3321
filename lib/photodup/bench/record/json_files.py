"""One record as a JSON file: its fields, what is checked on reading, and how values become JSON."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from photodup.errors import PhotodupError

SCHEMA_VERSION = 2
FIELDS: dict[str, type | tuple[type, ...]] = {
    "schema_version": int,
    "key": str,
    "kind": str,
    "config": dict,
    "status": str,
    "error": (str, type(None)),
    "result": dict,
    "has_raw": bool,
    "started_at": str,
    "duration_s": (int, float),
    "photodup_version": str,
    "git_commit": (str, type(None)),
    "git_dirty": (bool, type(None)),
    "environment_digest": str,
}


class RecordError(PhotodupError):
    """A record that cannot be read, or a run that cannot be written."""


def read_record(path: Path) -> dict[str, Any]:
    """Read and check one record file.

    Raises:
        RecordError: names the file and the field that is missing or of the wrong type.
    """
    remedy = "restore it from git, or delete it and run again"
    record = read_json(path)
    version = record.get("schema_version")
    if type(version) is int and version != SCHEMA_VERSION:
        raise RecordError(
            f"{path}: the field 'schema_version' is {version}, this photodup reads {SCHEMA_VERSION}: use the "
            "photodup that wrote it, or delete it and run again."
        )
    for field, kind in FIELDS.items():
        if field not in record:
            raise RecordError(f"{path}: the field {field!r} is missing; {remedy}.")
        if not isinstance(record[field], kind) or (kind is int and isinstance(record[field], bool)):
            raise RecordError(
                f"{path}: the field {field!r} holds a {type(record[field]).__name__}; {remedy}."
            )
    if record["status"] not in ("ok", "failed"):
        raise RecordError(f"{path}: the field 'status' is {record['status']!r}; {remedy}.")
    expected = digest({"key": record["key"], "config": record["config"]})[:8]
    if not path.stem.endswith(f"-{expected}"):
        raise RecordError(f"{path}: the field 'config' or 'key' was changed after measuring; {remedy}.")
    return record


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


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file.

    Raises:
        RecordError: it cannot be read, or holds something else.
    """
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


def anonymous_texts(value: Any) -> Any:
    """Return `value` with every text in it made `anonymous`."""
    if isinstance(value, dict):
        return {key: anonymous_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [anonymous_texts(item) for item in value]
    return anonymous(value) if isinstance(value, str) else value


def slug(key: str) -> str:
    """Return a key as the beginning of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")[:100] or "record"
