"""The strongest features of each photo, made once and kept in `features.sqlite`.

Most pairs that are asked are no copies, and their strongest features say so without a look at any pixel
(`verify.could_be_one`). So a photo that far ones are compared with, or new ones on another day, is not decoded again.
Only what may be one picture needs all features and the pixels. About 18 kB a photo.
"""

import sqlite3
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from photodup.photos.compare.features import Features
from photodup.photos.compare.verify import FEW_FEATURES, STRONGEST, could_be_one
from photodup.photos.state.cache_file import DAMAGE, CacheFile
from photodup.photos.state.sqlite_file import Form

MAX_PHOTOS = 240_000  # in the file, 4 GB; beyond it the oldest make room
# A descriptor's numbers are kept in 4 bits instead of 8, and positions in eighths of a pixel. Of 8,974 pairs of 174
# photographs and their edits (tools/photographs) none was ruled out by it; of 5,576 pairs of strangers, 101 instead of 62
# were not ruled out, which costs a look at their pixels.
_STEP, _PER_PIXEL = 16, 8
_FEATURE = np.dtype([("point", "<u2", 2), ("descriptor", "u1", 128)])


@dataclass(frozen=True)
class Strongest:
    """Of one picture, its strongest features without the pixels, rounded as they are kept.

    So a verdict does not depend on whether the photo was looked at before.

    Attributes:
        n: features of the picture in all.
        width: of its greys, pixels; the mirror image needs it.
        rounded: [at most `STRONGEST`] of type `_FEATURE`, the strongest first.
    """

    n: int
    width: int
    rounded: np.ndarray

    @classmethod
    def of(cls, features: Features) -> "Strongest":
        """Return the part of a picture's features that is kept."""
        best = features.strongest(STRONGEST)
        rounded = np.zeros(len(best.points), _FEATURE)
        rounded["point"] = np.rint(best.points * _PER_PIXEL).clip(0, 65535)
        rounded["descriptor"] = best.descriptors // _STEP
        return cls(len(features.points), features.grey.shape[1], rounded)

    @cached_property
    def features(self) -> Features:
        """The features, of no pixels."""
        points = self.rounded["point"].astype(np.float32) / _PER_PIXEL
        return Features(
            np.zeros((0, self.width), np.uint8), points, self.rounded["descriptor"] * _STEP + _STEP // 2
        )

    def packed(self) -> bytes:
        """Return the rounded ones compressed; they repeat nothing, but small numbers are frequent."""
        compressor = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
        return compressor.compress(self.rounded.tobytes()) + compressor.flush()

    def may_be(self, other: "Strongest") -> bool:
        """Return False where `verify_copy` of both pictures would find no copy, for want of matches."""
        if min(self.n, other.n) < FEW_FEATURES:  # then the pixels decide
            return True
        return could_be_one(self.features, other.features)


class FeatureStore(CacheFile):
    """The file: what is kept by content (MD5). A photo that is not there, or is damaged there, is looked at again."""

    FORM: ClassVar = Form(
        version=4,  # raise when `features` finds others, or more of them are kept
        pragmas=("auto_vacuum = INCREMENTAL",),  # what is deleted then makes the file smaller
        statements=(
            "CREATE TABLE feature (id INTEGER PRIMARY KEY, md5 BLOB NOT NULL UNIQUE, n INTEGER NOT NULL, "
            "width INTEGER NOT NULL, packed BLOB NOT NULL) STRICT",
        ),
    )
    AGAIN = "features will be found again the next time"

    def read(self, md5s: Collection[str]) -> dict[str, Strongest]:
        """Return what is kept of these contents, by MD5."""
        strongest = {}
        try:
            for md5 in md5s:
                sql = "SELECT n, width, packed FROM feature WHERE md5 = ?"
                for n, width, packed in self._db.execute(sql, (bytes.fromhex(md5),)):
                    # No more than was written: somebody else's bytes may unpack to gigabytes.
                    unpacked = zlib.decompressobj().decompress(packed, STRONGEST * _FEATURE.itemsize + 1)
                    strongest[md5] = Strongest(n, width & 0xFFFF, np.frombuffer(unpacked, _FEATURE))
                    if len(strongest[md5].rounded) != min(n, STRONGEST):
                        raise ValueError("features of another length")
        except (*DAMAGE, zlib.error):
            self._db.close()
            self._begin_anew()
            return {}
        return strongest

    def add(self, strongest: Mapping[str, Strongest]) -> None:
        """Keep these, by MD5."""
        if self.problem:
            return
        rows = [
            (bytes.fromhex(md5), features.n, features.width, features.packed())
            for md5, features in strongest.items()
        ]
        sql = "INSERT OR REPLACE INTO feature (md5, n, width, packed) VALUES (?, ?, ?, ?)"
        try:
            self._db.execute("BEGIN")
            self._db.executemany(sql, rows)
            self._db.execute(
                "DELETE FROM feature WHERE id <= (SELECT max(id) FROM feature) - ?", (MAX_PHOTOS,)
            )
            self._db.execute("COMMIT")
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
