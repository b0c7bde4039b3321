"""The strongest features of each photo, made once and kept in `features.sqlite`.

Most pairs that are asked are no copies, and their strongest features say so without a look at any pixel
(`verify.could_be_one`). So a photo that far ones are compared with, or new ones on another day, is not decoded again.
Only what may be one picture needs all features and the pixels. About 16 kB a photo.
"""

import sqlite3
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from photodup.photos.compare.cache_file import DAMAGE, CacheFile
from photodup.photos.compare.features import Features
from photodup.photos.compare.verify import FEW_FEATURES, STRONGEST, could_be_one
from photodup.photos.state.sqlite_file import Form

# What the file may hold; some 240,000 photos. Beyond it the oldest make room.
MAX_BYTES = 4_000_000_000
_AT_ONCE = 500  # parameters of one query; SQLite allows 999 in old versions
_LEVEL = 1  # of compression: the highest saves 2% more in ten times the time
# A descriptor's numbers are kept in 4 bits instead of 8, and positions in eighths of a pixel. Of 8,974 pairs of 174
# photographs and their edits (tools/photographs) none was ruled out by it; of 5,576 pairs of strangers, 101 instead of 62
# were not ruled out, which costs a look at their pixels.
_STEP, _PER_PIXEL = 16, 8
_BYTES = 2 * 2 + 128 // 2  # of one feature


@dataclass(frozen=True)
class Strongest:
    """Of one picture, its strongest features without the pixels, and how many it has in all."""

    features: Features
    n: int

    @classmethod
    def of(cls, features: Features) -> "Strongest":
        """Return the part of a picture's features that is kept, rounded as it is kept.

        So a verdict does not depend on whether the photo was looked at before.
        """
        best = features.strongest(STRONGEST)
        points = np.rint(best.points * _PER_PIXEL).clip(0, 65535).astype("<u2")
        return cls._read(points, best.descriptors // _STEP, features.grey.shape[1], len(features.points))

    @classmethod
    def _read(cls, points: np.ndarray, descriptors: np.ndarray, width: int, n: int) -> "Strongest":
        """Make one of whole numbers: positions in eighths of a pixel, descriptors of 4 bits."""
        # The width stays, since the mirror image needs it.
        pixels = np.zeros((0, width), np.uint8)
        centres = (descriptors * _STEP + _STEP // 2).astype(np.uint8)
        return cls(Features(pixels, points.astype(np.float32) / _PER_PIXEL, centres), n)

    def may_be(self, other: "Strongest") -> bool:
        """Return False where `verify_copy` of both pictures would find no copy, for want of matches."""
        if min(self.n, other.n) < FEW_FEATURES:  # then the pixels decide
            return True
        return could_be_one(self.features, other.features)

    def packed(self) -> bytes:
        """Return it as bytes: three numbers, then positions and descriptors, compressed."""
        head = np.array([self.n, self.features.grey.shape[1], len(self.features.points)], "<u4")
        points = (self.features.points * _PER_PIXEL).astype("<u2")
        four_bits = self.features.descriptors // _STEP
        two_a_byte = four_bits[:, 0::2] << 4 | four_bits[:, 1::2]
        return head.tobytes() + zlib.compress(points.tobytes() + two_a_byte.tobytes(), _LEVEL)

    @classmethod
    def unpacked(cls, packed: bytes) -> "Strongest":
        """Undo `packed`.

        Raises:
            ValueError: the bytes are not what was written.
        """
        n, width, n_packed = (int(value) for value in np.frombuffer(packed[:12], "<u4"))
        try:
            # No more than was written: somebody else's bytes may unpack to gigabytes.
            data = zlib.decompressobj().decompress(packed[12:], STRONGEST * _BYTES + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        if len(data) != n_packed * _BYTES:
            raise ValueError("features of another length")
        points = np.frombuffer(data, "<u2", 2 * n_packed).reshape(n_packed, 2)
        two_a_byte = np.frombuffer(data, np.uint8, offset=4 * n_packed).reshape(n_packed, 64)
        descriptors = np.stack([two_a_byte >> 4, two_a_byte & 15], axis=2).reshape(n_packed, 128)
        return cls._read(points, descriptors, width, n)


class FeatureStore(CacheFile):
    """The file: what is kept by content (MD5). A photo that is not there, or is damaged there, is looked at again."""

    FORM: ClassVar = Form(
        version=3,  # raise when `features` finds others, or more of them are kept
        pragmas=("auto_vacuum = INCREMENTAL",),  # what is deleted then makes the file smaller
        statements=(
            "CREATE TABLE feature (id INTEGER PRIMARY KEY, md5 BLOB NOT NULL UNIQUE, found BLOB NOT NULL) STRICT",
        ),
    )
    AGAIN = "features will be found again the next time"

    def read(self, md5s: Sequence[str]) -> dict[str, Strongest]:
        """Return what is kept of these contents, by MD5."""
        strongest = {}
        for begin in range(0, len(md5s), _AT_ONCE):
            chosen = [bytes.fromhex(md5) for md5 in md5s[begin : begin + _AT_ONCE]]
            marks = ", ".join("?" * len(chosen))
            try:
                rows = self._db.execute(f"SELECT md5, found FROM feature WHERE md5 IN ({marks})", chosen)
                for md5, packed in rows:
                    strongest[md5.hex()] = Strongest.unpacked(packed)
            except DAMAGE:
                self._db.close()
                self._begin_anew()
        return strongest

    def add(self, strongest: Collection[tuple[str, bytes]]) -> None:
        """Keep what `packed` gave, by MD5; where the file would grow too large the oldest go."""
        if self.problem or not strongest:
            return
        rows = [(bytes.fromhex(md5), packed) for md5, packed in strongest]
        try:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO feature (md5, found) VALUES (?, ?)", rows)
            self._db.execute("COMMIT")
            while self._bytes() > MAX_BYTES and (n := self._count()):
                self._db.execute(
                    "DELETE FROM feature WHERE id IN (SELECT id FROM feature ORDER BY id LIMIT ?)",
                    (-(-n // 20),),
                )
        except sqlite3.DatabaseError as error:
            self._db.close()
            self._forget(error)

    def keep_only(self, md5s: Collection[str]) -> None:
        """Drop what is kept of other contents, whose photos are gone, and make the file smaller by it."""
        try:
            stored = {md5.hex() for (md5,) in self._db.execute("SELECT md5 FROM feature")}
            if gone := stored.difference(md5s):
                self._db.executemany(
                    "DELETE FROM feature WHERE md5 = ?", [(bytes.fromhex(md5),) for md5 in gone]
                )
                self._db.executescript("PRAGMA incremental_vacuum;")  # execute() would free one page
        except sqlite3.DatabaseError:
            self._db.close()
            self._begin_anew()

    def _count(self) -> int:
        return self._db.execute("SELECT count(*) FROM feature").fetchone()[0]

    def _bytes(self) -> int:
        """Return the size of what the file holds, without the pages that are free."""
        pages, free, size = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size
