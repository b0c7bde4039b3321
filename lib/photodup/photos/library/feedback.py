"""The owner's labels of photos, by content, so that they survive rescans, renames and moves.

They are in `feedback.jsonl` in the library's own folder, not in the catalogue, which can be made again from the files.
"""

import time
from collections.abc import Collection, Iterable
from itertools import combinations
from pathlib import Path
from typing import Literal, TypeGuard

from photodup.photos.state.journal import Journal, Line
from photodup.photos.state.own_folder import OwnFolder

# keep_both: never show these together again; keeper: kept against the suggestion.
LabelKind = Literal["keep_both", "keeper"]

_DAMAGED = {"kind": "damaged"}  # keeps its place: labels are taken back by their number
_MAX_LABELLED = 1000  # contents in one label; their pairs grow with the square


class Feedback:
    """The labels of one library. Changes are synced before they count, and can be undone.

    `problems` holds a sentence about each damaged line; the other lines are used.
    """

    def __init__(self, folder: Path) -> None:
        self._journal = Journal(OwnFolder(folder).feedback)
        self.problems: list[str] = []
        self._lines = self._read()

    def add(self, kind: LabelKind, md5s: Iterable[str]) -> int:
        """Record a label for these contents together; return its number, for `undo`."""
        return self._append([_line(kind, md5s)])[0]

    def add_keepers(self, md5s: Iterable[str]) -> list[int]:
        """Record with one write that each of these contents is kept against the suggestion; return the labels' numbers."""
        return self._append([_line("keeper", [md5]) for md5 in md5s])

    def choose_keeper(self, md5: str, instead_of: Iterable[str]) -> list[int]:
        """Record that a content is kept instead of others and cancel their labels; return the numbers for `undo`."""
        rivals = set(instead_of) - {md5}
        former = [
            number
            for number, line in self._numbered()
            if line["kind"] == "keeper" and rivals & set(line["md5s"])
        ]
        return self._append([*map(_undo, former), _line("keeper", [md5])])

    def undo(self, *numbers: int) -> None:
        """Undo labels; undoing an `undo` restores its label."""
        self._append([_undo(number) for number in numbers])

    def dismissed_pairs(self, among: Collection[str] | None = None) -> set[frozenset[str]]:
        """Return the pairs of contents (`among` these) that must not be grouped again."""
        labels = (
            [md5 for md5 in md5s if among is None or md5 in among] for md5s in self._labelled("keep_both")
        )
        return {frozenset(pair) for md5s in labels for pair in combinations(md5s, 2)}

    def kept_copies(self) -> set[str]:
        """Return the contents of which all files stay: byte-identical copies that the owner keeps."""
        return {md5s[0] for md5s in self._labelled("keep_both") if len(md5s) == 1}

    def keepers(self) -> set[str]:
        """Return the contents that the owner chose to keep against the suggestion."""
        return {md5 for md5s in self._labelled("keeper") for md5 in md5s}

    def _read(self) -> list[Line]:
        lines = [line if _is_sound(line) else _DAMAGED for line in self._journal.read()]
        damaged = [number for number, line in enumerate(lines, start=1) if line is _DAMAGED]
        self.problems = [self._journal.damaged(number) for number in damaged]
        return lines

    def _labelled(self, kind: LabelKind) -> list[list[str]]:
        return [line["md5s"] for _, line in self._numbered() if line["kind"] == kind]

    def _numbered(self) -> list[tuple[int, Line]]:
        undone = set[int]()
        for number, line in reversed(list(enumerate(self._lines))):
            if line["kind"] == "undo" and number not in undone:
                undone.add(line["number"])
        return [(number, line) for number, line in enumerate(self._lines) if number not in undone]

    def _append(self, lines: list[Line]) -> list[int]:
        def write() -> list[int]:
            self._lines = self._read()  # another window may have written
            start = len(self._lines)
            self._journal.append(*(line | {"time": time.time()} for line in lines))
            self._lines += lines
            return list(range(start, len(self._lines)))

        return self._journal.while_held(write) if lines else []


def _line(kind: LabelKind, md5s: Iterable[str]) -> Line:
    return {"kind": kind, "md5s": sorted(set(md5s))}


def _undo(number: int) -> Line:
    return {"kind": "undo", "number": number}


def _is_sound(line: Line | None) -> TypeGuard[Line]:
    """Return whether a line is a label or an undo."""
    if line is None or not isinstance(line.get("kind"), str):
        return False
    if line["kind"] == "undo":
        return isinstance(line.get("number"), int)
    md5s = line.get("md5s")
    if not isinstance(md5s, list) or len(md5s) > _MAX_LABELLED:
        return False
    return all(isinstance(name, str) for name in md5s)
