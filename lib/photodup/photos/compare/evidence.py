"""Pairs of photos that were compared on their pixels, remembered by content in `evidence.sqlite`.

A cache: deleting the file costs time and nothing else. A million photos have millions of pairs, so they are
kept and handed over as arrays.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from photodup.photos.compare.cache_file import DAMAGE, CacheFile
from photodup.photos.compare.limits import LIMITS
from photodup.photos.compare.unexplained import Difference
from photodup.photos.compare.verify import Verification
from photodup.photos.state.sqlite_file import Form

_LACKING = "SELECT lower(hex(member)), reason, boxes FROM lacking WHERE keeper = ? ORDER BY member, place"
# As `Verification`, field by field.
_NAMES = tuple(field.name for field in fields(Verification))
RECORD = np.dtype([(field.name, np.dtype(field.type)) for field in fields(Verification)])


def pair_codes(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return one int64 for each pair of rows, whichever comes first."""
    low, high = np.minimum(first, second).astype(np.int64), np.maximum(first, second).astype(np.int64)
    return low << 32 | high


def pair_rows(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of `pair_codes`, the smaller first."""
    return codes >> 32, codes & 0xFFFFFFFF


@dataclass(frozen=True)
class Verified:
    """Evidence by pair: `codes` as `pair_codes` gives, rising; `records` of type `RECORD`."""

    codes: np.ndarray
    records: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def of(cls, codes: np.ndarray, records: np.ndarray) -> "Verified":
        """Sort; of a pair that is there twice the later one counts."""
        unique, last = np.unique(codes[::-1], return_index=True)
        return cls(unique, records[::-1][last])

    def among(self, codes: np.ndarray) -> "Verified":
        """Return the part about these pairs."""
        chosen = np.isin(self.codes, codes)
        return Verified(self.codes[chosen], self.records[chosen])

    def joined_with(self, newer: "Verified") -> "Verified":
        """Return both; the newer one counts where both have a pair."""
        parts = ((self.codes, newer.codes), (self.records, newer.records))
        return Verified.of(*(np.concatenate(part) for part in parts))

    def get(self, i: int, j: int) -> Verification | None:
        """Return what is known about rows `i` and `j`."""
        code = pair_codes(np.array([i]), np.array([j]))[0]
        place = np.searchsorted(self.codes, code)
        if place == len(self.codes) or self.codes[place] != code:
            return None
        return Verification(*self.records[place].item())

    def copies(self) -> dict[tuple[int, int], Verification]:
        """Return the pairs that are copies."""
        # Few are; so what decides most goes first, for all at once.
        likely = np.flatnonzero(self.records["agreement"] >= LIMITS.min_agreement)
        rows = zip(*(rows.tolist() for rows in pair_rows(self.codes[likely])), strict=True)
        evidence_of = {
            pair: Verification(*self.records[place].item())
            for pair, place in zip(rows, likely.tolist(), strict=True)
        }
        return {pair: evidence for pair, evidence in evidence_of.items() if evidence.is_copy()}


class EvidenceStore(CacheFile):
    """The file. Where it cannot be written, `problem` says so in a sentence, and nothing is remembered."""

    FORM: ClassVar = Form(
        version=11,  # raise when `verify_copy` or `lacks` change their verdicts, or `Verification` its fields
        statements=(
            "CREATE TABLE pair (a BLOB, b BLOB, found BLOB NOT NULL, PRIMARY KEY (a, b)) STRICT, WITHOUT ROWID",
            "CREATE TABLE digest (key TEXT PRIMARY KEY, digest TEXT NOT NULL) STRICT, WITHOUT ROWID",
            "CREATE TABLE lacking (keeper BLOB, member BLOB, place INTEGER, reason TEXT NOT NULL, boxes BLOB NOT NULL, "
            "PRIMARY KEY (keeper, member, place)) STRICT, WITHOUT ROWID",
        ),
    )
    AGAIN = "these comparisons will be made again the next time"

    def read(self, row: dict[str, int]) -> Verified:
        """Return what is known about pairs of these contents, by the rows that they are."""
        try:
            return self._read(row)
        except DAMAGE:
            self._db.close()
            self._begin_anew()
            return self._read(row)

    def _read(self, row: dict[str, int]) -> Verified:
        codes, records = [np.zeros(0, np.int64)], [np.zeros(0, RECORD)]
        cursor = self._db.execute("SELECT lower(hex(a)), lower(hex(b)), found FROM pair")
        while rows := cursor.fetchmany(100_000):
            present = [(row[a], row[b], packed) for a, b, packed in rows if a in row and b in row]
            if present:
                first, second, packed = zip(*present, strict=True)
                if any(len(record) != RECORD.itemsize for record in packed):
                    raise ValueError("a record of another length")
                codes.append(pair_codes(np.array(first), np.array(second)))
                records.append(np.frombuffer(b"".join(packed), RECORD))
        return Verified.of(np.concatenate(codes), np.concatenate(records))

    def add(self, pairs: Sequence[tuple[str, str, Verification]]) -> np.ndarray:
        """Remember these; return them as records."""
        records = np.array(
            [tuple(getattr(evidence, name) for name in _NAMES) for *_, evidence in pairs], RECORD
        )
        rows = [
            (*(bytes.fromhex(md5) for md5 in sorted(md5s)), record.tobytes())
            for (*md5s, _), record in zip(pairs, records, strict=True)
        ]
        try:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO pair VALUES (?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self._db.close()
            self._forget(error)
        return records

    def read_lacking(self, md5s: Collection[str]) -> dict[tuple[str, str], tuple[Difference, ...]]:
        """Return what members lack a keeper for, by the contents of keeper and member; of these contents alone."""
        differences: dict[tuple[str, str], list[Difference]] = {}
        try:
            for keeper in sorted(md5s):
                rows = self._db.execute(_LACKING, (bytes.fromhex(keeper),))
                for member, reason, packed in rows:
                    if member not in md5s:
                        continue
                    reasons = differences.setdefault((keeper, member), [])
                    boxes = np.frombuffer(packed, "<f4").reshape(-1, 2, 4)
                    places = tuple((tuple(ours.tolist()), tuple(theirs.tolist())) for ours, theirs in boxes)
                    reasons += [Difference(reason, places)] if reason else []
        except DAMAGE:
            return {}
        return {pair: tuple(reasons) for pair, reasons in differences.items()}

    def add_lacking(self, differences_of: Mapping[tuple[str, str], Sequence[Difference]]) -> None:
        """Remember these; a member that the keeper reproduces has one empty reason."""
        rows = [
            (bytes.fromhex(keeper), bytes.fromhex(member), place, difference.reason,
             np.array(difference.boxes, "<f4").tobytes())
            for (keeper, member), differences in differences_of.items()
            for place, difference in enumerate(differences or [Difference("")])
        ]  # fmt: skip
        with suppress(sqlite3.DatabaseError):
            self._db.executemany("INSERT OR REPLACE INTO lacking VALUES (?, ?, ?, ?, ?)", rows)

    def recall(self, key: str) -> str | None:
        """Return a digest that was remembered under a key; None where none was."""
        try:
            row = self._db.execute("SELECT digest FROM digest WHERE key = ?", (key,)).fetchone()
        except sqlite3.DatabaseError:
            return None
        return row[0] if row and isinstance(row[0], str) else None

    def remember(self, key: str, digest: str) -> None:
        """Remember a digest under a key; where the file cannot be written, it is made again the next time."""
        with suppress(sqlite3.DatabaseError):
            self._db.execute("INSERT OR REPLACE INTO digest VALUES (?, ?)", (key, digest))
