"""Pairs of photos that were compared on their pixels, remembered by content in `evidence.sqlite`.

A cache: deleting the file costs time and nothing else.
"""

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import ClassVar

from pydantic import TypeAdapter

from photodup.photos.compare.unexplained import Difference
from photodup.photos.search.pair_codes import pair_code
from photodup.photos.state.cache_file import DAMAGE, CacheFile
from photodup.photos.state.sqlite_file import Form

_DIFFERENCES = TypeAdapter(tuple[Difference, ...])


class EvidenceStore(CacheFile):
    """The evidence file. If it cannot be written, `problem` is a sentence about it, and nothing is stored."""

    FORM: ClassVar = Form(
        version=16,  # raise when `may_be_one`, `verify_copy` or `lacks` change their verdicts
        statements=(
            "CREATE TABLE pair (a BLOB, b BLOB, score REAL NOT NULL, PRIMARY KEY (a, b)) STRICT, WITHOUT ROWID",
            "CREATE TABLE digest (key TEXT PRIMARY KEY, digest TEXT NOT NULL) STRICT, WITHOUT ROWID",
            "CREATE TABLE lacking (keeper BLOB, member BLOB, differences TEXT NOT NULL, PRIMARY KEY (keeper, member)) "
            "STRICT, WITHOUT ROWID",
        ),
    )
    AGAIN = "these comparisons will be made again the next time"

    def read(self, row: Mapping[str, int]) -> dict[int, float]:
        """Return the stored `CopyEvidence.score` by `pair_code`; `row` maps contents (MD5) to rows."""
        with self._reading() as db:
            stored = db.execute("SELECT lower(hex(a)), lower(hex(b)), score FROM pair")
            return {pair_code(row[a], row[b]): score for a, b, score in stored if a in row and b in row}
        return {}

    def add(self, pairs: Iterable[tuple[str, str, float]]) -> None:
        """Store the scores of pairs of contents (MD5)."""
        rows = [(*map(bytes.fromhex, sorted(md5s)), score) for *md5s, score in pairs]
        self._write("INSERT OR REPLACE INTO pair VALUES (?, ?, ?)", rows)

    def read_lacking(self, md5s: Collection[str]) -> dict[tuple[str, str], tuple[Difference, ...]]:
        """Return the stored differences by (keeper, member), for pairs of these contents."""
        with self._reading() as db:
            stored = db.execute("SELECT lower(hex(keeper)), lower(hex(member)), differences FROM lacking")
            pairs = ((a, b, packed) for a, b, packed in stored if a in md5s and b in md5s)
            return {(a, b): _DIFFERENCES.validate_json(packed) for a, b, packed in pairs}
        return {}

    def add_lacking(self, differences_of: Mapping[tuple[str, str], tuple[Difference, ...]]) -> None:
        """Store differences by (keeper, member), both MD5."""
        rows = [
            (*map(bytes.fromhex, pair), _DIFFERENCES.dump_json(differences).decode())
            for pair, differences in differences_of.items()
        ]
        self._write("INSERT OR REPLACE INTO lacking VALUES (?, ?, ?)", rows)

    def recall(self, key: str) -> str | None:
        """Return the digest stored under a key, or None."""
        with suppress(*DAMAGE):
            (digest,) = self._db.execute("SELECT digest FROM digest WHERE key = ?", (key,)).fetchone()
            return digest
        return None

    def remember(self, key: str, digest: str) -> None:
        """Store a digest under a key, if the file can be written."""
        with suppress(sqlite3.DatabaseError):  # also in a thread that did not open the file
            self._db.execute("INSERT OR REPLACE INTO digest VALUES (?, ?)", (key, digest))
