"""What the first edition left: `.photodup/` without a marker, and decisions loose beside a catalogue.

With `--catalogue FILE` the first edition wrote its files into that file's own folder, under names that other
programs use too. What is certainly ours there is copied; nothing there is moved, deleted or used otherwise.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

from photodup.names import printable
from photodup.photos.own.catalogue_file import kind_of
from photodup.photos.own.own_folder import OwnFolder

_NAMES = re.compile(
    r"(catalogue|evidence)\.sqlite(-wal|-shm|-journal|\.damaged-[\d-]+)?|neighbours-.+\.npz|\..+\.tmp"
    r"|settings\.json|feedback\.jsonl|lock|review|thumbnails"
)
_LABELS = frozenset({"same", "not_duplicate", "keep_both", "keeper", "undo"})
_STATES = frozenset({"todo", "marked", "skipped", "apart", "done"})
_SETTINGS = frozenset({"backend", "url", "keep", "folders"})
_MD5 = re.compile(r"[0-9a-f]{32}")


def is_own_folder_of_first_edition(folder: Path, names: frozenset[str]) -> bool:
    """Whether the first edition made a `.photodup` folder: it holds a catalogue, or none but our names."""
    return all(map(_NAMES.fullmatch, names)) or any(
        kind_of(folder / name).is_ours for name in names if not name.endswith(("-wal", "-shm"))
    )


def copy_decisions(catalogue: Path, own: OwnFolder) -> str | None:
    """Copy the decisions that lie beside a first-edition catalogue into its own folder.

    Only what is certainly ours, line by line, and only where the folder has none yet.

    Returns:
        One sentence about what was copied; None if there was nothing.

    Raises:
        OSError: the folder cannot be written.
    """
    copied = []
    for parts, is_ours in _DECISIONS.items():
        path = catalogue.parent.joinpath(*parts)
        if path.is_symlink() or not path.is_file() or own.path.joinpath(*parts).exists():
            continue
        data = path.read_bytes()
        if is_ours(data):
            own.write(data, *parts)
            copied.append("/".join(parts))
    if not copied:
        return None
    return (
        f"Your earlier decisions beside {printable(catalogue)} were copied into {printable(own.path)} "
        f"({', '.join(copied)}); the old files stay as they are and are no longer used."
    )


def _lines(is_ours: Callable[[dict], bool]) -> Callable[[bytes], bool]:
    def check(data: bytes) -> bool:
        try:
            lines = [json.loads(line) for line in data.split(b"\n")[:-1]]  # the last may have been cut short
        except ValueError:
            return False
        return bool(lines) and all(isinstance(line, dict) and is_ours(line) for line in lines)

    return check


def _is_label(line: dict) -> bool:
    if line.get("kind") not in _LABELS or not isinstance(line.get("time"), int | float):
        return False
    if line["kind"] == "undo":
        return isinstance(line.get("number"), int)
    md5s = line.get("md5s")
    return isinstance(md5s, list) and all(isinstance(md5, str) and _MD5.fullmatch(md5) for md5 in md5s)


def _is_decision(line: dict) -> bool:
    lists = isinstance(line.get("remove"), list) and isinstance(line.get("apart"), list)
    key = line.get("group")
    return lists and line.get("status") in _STATES and isinstance(key, str) and len(key) == 12


def _is_settings(data: bytes) -> bool:
    try:
        values = json.loads(data)
    except ValueError:
        return False
    return isinstance(values, dict) and values.keys() == _SETTINGS and isinstance(values["keep"], list)


_DECISIONS: dict[tuple[str, ...], Callable[[bytes], bool]] = {
    ("feedback.jsonl",): _lines(_is_label),
    ("review", "decisions.jsonl"): _lines(_is_decision),
    ("settings.json",): _is_settings,
}
