"""The strongest features of each photo, kept in `features.sqlite` (about 18 kB a photo).

They alone rule out most pairs (`verify.could_be_one`), so a photo is not decoded again for later comparisons. Only pairs
that may be one picture need all features and the pixels.
"""

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from photodup.photos.compare.features import Features
from photodup.photos.compare.verify import FEW_FEATURES, STRONGEST, could_be_one
from photodup.photos.state.cache_file import CacheFile
from photodup.photos.state.sqlite_file import Form

MAX_PHOTOS = 240_000  # in the file (4 GB); beyond it the oldest are deleted
# A descriptor's numbers are kept in 4 bits instead of 8, and positions in eighths of a pixel. Of 8,974 pairs of 174
# photographs and their edits (tools/photographs) none was ruled out by it; of 5,576 pairs of strangers, 101 instead of 62
# were not ruled out, which costs a look at their pixels.
_STEP, _PER_PIXEL = 16, 8
_FEATURE = np.dtype([("point", "<u2", 2), ("descriptor", "u1", 128)])


@dataclass(frozen=True)
class Strongest:
    """The strongest features of one picture, without pixels.

    They are always rounded as in the store, so a verdict does not depend on whether they were read from it.

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
        """Return the strongest of a picture's features, rounded."""
        best = features.strongest(STRONGEST)
        rounded = np.zeros(len(best.points), _FEATURE)
        rounded["point"] = np.rint(best.points * _PER_PIXEL).clip(0, 65535)
        rounded["descriptor"] = best.descriptors // _STEP
        return cls(len(features.points), features.grey.shape[1], rounded)

    @cached_property
    def features(self) -> Features:
        """The features, with greys of no rows."""
        points = self.rounded["point"].astype(np.float32) / _PER_PIXEL
        return Features(
            np.zeros((0, self.width), np.uint8), points, self.rounded["descriptor"] * _STEP + _STEP // 2
        )

    def packed(self) -> bytes:
        """Return the features in Huffman coding alone: they hold no repetitions, but many small numbers."""
        compressor = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
        return compressor.compress(self.rounded.tobytes()) + compressor.flush()

    def may_be(self, other: "Strongest") -> bool:
        """Return False if `verify_copy` of both pictures would give up for lack of matches."""
        if min(self.n, other.n) < FEW_FEATURES:  # then the pixels decide
            return True
        return could_be_one(self.features, other.features)


class FeatureStore(CacheFile):
    """The feature file, by content (MD5). Missing or damaged features are extracted again."""

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
        """Return the stored features of these contents, by MD5."""
        strongest = {}
        with self._reading() as db:
            for md5 in md5s:
                sql = "SELECT n, width, packed FROM feature WHERE md5 = ?"
                for n, width, packed in db.execute(sql, (bytes.fromhex(md5),)):
                    # With a limit: the bytes of a foreign file may unpack to gigabytes.
                    unpacked = zlib.decompressobj().decompress(packed, STRONGEST * _FEATURE.itemsize + 1)
                    strongest[md5] = Strongest(n, width & 0xFFFF, np.frombuffer(unpacked, _FEATURE))
                    if len(strongest[md5].rounded) != min(n, STRONGEST):
                        raise ValueError("features of another length")
            return strongest
        return {}

    def add(self, strongest: Mapping[str, Strongest]) -> None:
        """Store features by content (MD5)."""
        if self.problem:
            return
        rows = [
            (bytes.fromhex(md5), features.n, features.width, features.packed())
            for md5, features in strongest.items()
        ]
        self._write("INSERT OR REPLACE INTO feature (md5, n, width, packed) VALUES (?, ?, ?, ?)", rows)
        self._write("DELETE FROM feature WHERE id <= (SELECT max(id) FROM feature) - ?", [(MAX_PHOTOS,)])

    def keep_only(self, md5s: Collection[str]) -> None:
        """Delete the features of all other contents, and shrink the file."""
        with self._reading() as db:
            stored = {md5.hex() for (md5,) in db.execute("SELECT md5 FROM feature")}
            if gone := stored.difference(md5s):
                self._write("DELETE FROM feature WHERE md5 = ?", [(bytes.fromhex(md5),) for md5 in gone])
                self._db.executescript("PRAGMA incremental_vacuum;")  # execute() would free one page
