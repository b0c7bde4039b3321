"""One record as a JSON file: its fields, what is checked on reading, and how values become JSON."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from photodup.bench import Columns
from photodup.core.errors import PhotodupError
from photodup.core.files import check_json
from photodup.core.names import escaped, printable
from photodup.core.safe_open import open_file, opened

SCHEMA_VERSION = 2
MOST_BYTES = 200_000_000  # of a file of a run: a record has kilobytes, a notebook megabytes
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


def read_record(path: Path) -> Columns:
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
    if {"status", "error"} & set(record["result"]):
        raise RecordError(f"{path}: the field 'result' holds a status, which stands beside it; {remedy}.")
    return record | {"error": record["error"] and escaped(record["error"])}


def digest(value: object) -> str:
    """Return the SHA-256 (hex) of a JSON-ready value; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(to_json_value(value), sort_keys=True).encode()).hexdigest()


def to_json_value(value: object, text: Callable[[str], str] = str) -> Any:
    """Return `value` as JSON can hold it: NumPy unwrapped, NaN and infinity as None, texts passed through `text`."""
    if isinstance(value, Mapping):
        return {str(k): to_json_value(v, text) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [
            to_json_value(item, text)
            for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)
        ]
    if hasattr(value, "tolist"):  # numpy
        return to_json_value(value.tolist(), text)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return text(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    raise RecordError(f"A {type(value).__name__} cannot be recorded: give numbers, texts, lists or mappings.")


@contextmanager
def reading(source: Path | str) -> Iterator[None]:
    """Turn whatever damaged content raises in this block into one sentence that names it.

    A run may be somebody else's or cut short. Each reader would otherwise need a check of its own for each value.

    Raises:
        RecordError: names what was read, the reason and the remedy.
    """
    try:
        yield
    except RecordError:
        raise
    except Exception as error:  # of json, nbformat, Arrow, NumPy and our own look-ups: a dozen kinds
        kind = (
            f"{type(error).__name__}: " if isinstance(error, LookupError | TypeError | AttributeError) else ""
        )
        reason = escaped(" ".join(f"{kind}{error}".split())[:160]) or type(error).__name__
        raise RecordError(
            f"{printable(str(source))} cannot be read ({reason}): restore it from git, or delete it and run again."
        ) from error


def read_json_text(path: Path) -> str:
    """Return a text file of a run, JSON of some kind.

    Raises:
        RecordError: it is missing, no regular file, a link or in a linked folder, larger than `MOST_BYTES`, too large once
            parsed, or no UTF-8.
    """
    whole = path.absolute()
    with reading(path), opened(whole.parents[1], str(whole.relative_to(whole.parents[1]))) as place:
        with open(open_file(place), "rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes")
        check_json(content)
        return content.decode()


def read_json(path: Path, default: Any = None, **fields: type | tuple[type, ...]) -> Any:
    """Return what a JSON file of a run holds.

    Args:
        path: the file.
        default: what to return where there is no file, of the kind that the file must hold; without it the file must
            be there and hold a mapping.
        **fields: names and types of the values that each mapping in a list must have.

    Raises:
        RecordError: it cannot be read, or holds something else.
    """
    if default is not None and not os.path.lexists(path):
        return default
    text = read_json_text(path)
    with reading(path):
        value = json.loads(text)
        kind = dict if default is None else type(default)
        if not isinstance(value, kind):
            raise ValueError(f"it holds a {type(value).__name__}, not a {kind.__name__}")
        for number, row in enumerate(value) if fields else ():
            wrong = [name for name, kinds in fields.items() if not isinstance(row[name], kinds)]
            if wrong:
                raise ValueError(f"{wrong[0]!r} of entry {number} is a {type(row[wrong[0]]).__name__}")
    return value


def anonymous(text: str) -> str:
    """Return a text without folders and addresses: a committed record must not name its machines."""
    text = re.sub(r"(?<![\w:/])/(?:[\w.+@~-]+/)+", "…/", text)
    text = re.sub(r"(\w+://)(?!127\.0\.0\.1|localhost)[^\s/:]+", r"\1…", text)
    return re.sub(r"\b(?!127\.)\d{1,3}(?:\.\d{1,3}){3}\b", "…", text)


def slug(key: str) -> str:
    """Return a key as the beginning of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")[:100] or "record"
