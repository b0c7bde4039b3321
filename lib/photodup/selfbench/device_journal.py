"""Where the device benchmark keeps each step as soon as it is done, so that the next start goes on from there.

Either a file of JSON lines, or a run's records (`photodup.bench.record.record.RunStore`, which has the same method).
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from photodup.errors import PhotodupError
from photodup.files import real_path, write_atomically


class Journal(Protocol):
    """Keeps what a step measured."""

    def record(self, key: str, *, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the step's whole record, with `status` (`ok` or `failed`) and `result`, or None."""

    def measure_or_load(
        self, key: str, measure: Callable[[], dict[str, Any]], *, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the finished step of `key` and `config`; else measure it and keep it before returning it."""


class InMemory:
    """Keeps nothing beyond the process."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, Any]] = {}

    def record(self, key: str, *, config: Mapping[str, Any]) -> dict[str, Any] | None:
        return self._records.get(_name(key, config))

    def measure_or_load(
        self, key: str, measure: Callable[[], dict[str, Any]], *, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        known = self.record(key, config=config)
        if known is not None and known["status"] == "ok":
            return known["result"]
        started, clock = datetime.now(UTC), time.perf_counter()
        found = dict(measure())
        record = {
            "key": key,
            "config": dict(config),
            "status": found.pop("status", "ok"),
            "error": found.pop("error", None),
            "result": found,
            "started_at": started.isoformat(timespec="seconds"),
            "duration_s": round(time.perf_counter() - clock, 3),
        }
        self._keep(record)
        if record["status"] == "ok":
            return found
        return {**found, "status": record["status"], "error": record["error"]}

    def _keep(self, record: dict[str, Any]) -> None:
        self._records[_name(record["key"], record["config"])] = record


class JsonLines(InMemory):
    """One JSON object a line: first the machine (`environment`), then a record for each step.

    Args:
        path: the file; made if missing, continued if it is there.
        environment: facts about this machine and its software.

    Raises:
        PhotodupError: the file cannot be written, is something else, or comes from another machine.
    """

    def __init__(self, path: Path, environment: Mapping[str, Any]) -> None:
        super().__init__()
        self.path = path = real_path(path)
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError):
            raise PhotodupError(f"{path} cannot be read: choose another file.") from None
        whole, _, _ = text.rpartition("\n")  # a line that was cut short is measured again
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            known = lines[0]["environment"] if lines else None
            for record in lines[1:]:
                self._records[_name(record["key"], record["config"])] = record
        except (ValueError, KeyError, TypeError):
            raise PhotodupError(
                f"{path} holds something else than this benchmark's lines: choose another file."
            ) from None
        if text and known is None:
            raise PhotodupError(
                f"{path} holds something else than this benchmark's lines: choose another file."
            )
        facts = json.loads(json.dumps(environment))
        if known is not None and known != facts:
            raise PhotodupError(
                f"{path} was measured on another machine or with other software: choose another file."
            )
        try:
            if text != f"{whole}\n" and known is not None:
                write_atomically(path, f"{whole}\n")
            if known is None:
                write_atomically(path, json.dumps({"environment": facts}) + "\n")
        except OSError as error:
            raise PhotodupError(f"Cannot write {path} ({error.strerror}): choose another file.") from None

    def _keep(self, record: dict[str, Any]) -> None:
        super()._keep(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _name(key: str, config: Mapping[str, Any]) -> str:
    return json.dumps([key, config], sort_keys=True)
