"""Many pairs compared on their pixels: in parallel, remembered as it goes, and only once."""

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from PIL import Image

from photodup.embedding import imaging
from photodup.files import available_cores
from photodup.photos.compare.evidence import RECORD, EvidenceStore, Verified, pair_rows
from photodup.photos.compare.features import SIZE, Features, features
from photodup.photos.compare.kept_features import FeatureStore, Strongest
from photodup.photos.compare.verify import Verification, verify
from photodup.photos.library.catalogue import Catalogue, Photo
from photodup.progress import bar

# Pairs compared, and remembered, at a time.
_BLOCK = 32
# Pictures whose features are held, 0.6 GB, and whose strongest are, 0.5 GB.
_MAX_HELD, _MAX_STRONGEST = 2000, 10_000


def verify_pairs(
    catalogue: Catalogue,
    photos: Sequence[Photo],
    codes: np.ndarray,
    store: EvidenceStore,
    kept: FeatureStore | None = None,
) -> tuple[Verified, list[str]]:
    """Compare pairs of photos on their pixels.

    Args:
        catalogue: of these photos.
        photos: by row.
        codes: the pairs, as `pair_codes` gives.
        store: remembers each block, so that whoever stops goes on from there.
        kept: features of photos that were looked at before; default: all are looked at again.

    Returns:
        The evidence (a pair with an unreadable photo has none), and one sentence for each such photo.
    """
    work = _Work(catalogue, photos, store, kept)
    compared = bar(work.through(codes), total=len(codes), desc="compare", unit="pair")
    done = [code for code in compared if code is not None]
    found = np.concatenate([np.zeros(0, RECORD), *work.records])
    return Verified.of(np.array(done, np.int64), found), list(work.problems.values())


class _Work:
    """One pass over pairs; `records` are those of the pairs that had evidence, in their order."""

    def __init__(
        self,
        catalogue: Catalogue,
        photos: Sequence[Photo],
        store: EvidenceStore,
        kept: FeatureStore | None,
    ) -> None:
        self._catalogue, self._photos, self._store, self._kept = catalogue, photos, store, kept
        self._held: OrderedDict[int, Features | None] = OrderedDict()
        self._strongest: OrderedDict[int, Strongest | None] = OrderedDict()
        self.records: list[np.ndarray] = []
        self.problems: dict[int, str] = {}

    def through(self, codes: np.ndarray) -> Iterator[int | None]:
        """Yield each pair once it is compared; None where a photo cannot be read. A block is remembered together."""
        with one_thread_each(), ThreadPoolExecutor(available_cores()) as pool:
            for begin in range(0, len(codes), _BLOCK):
                block = codes[begin : begin + _BLOCK].tolist()
                pairs = list(zip(*(rows.tolist() for rows in pair_rows(np.array(block))), strict=True))
                self._hold_strongest({i for pair in pairs for i in pair}, pool)
                may_be = list(pool.map(self._may_be, pairs))
                self._hold({i for pair, may in zip(pairs, may_be, strict=True) if may for i in pair}, pool)
                found: list[Verification | None] = []
                try:
                    for code, one in zip(block, pool.map(self._compared, pairs, may_be), strict=True):
                        found.append(one)
                        yield code if one else None
                finally:  # also when nobody asks for the rest: what was compared need not be again
                    md5s = [[self._photos[i].md5 for i in pair] for pair in pairs]
                    known = zip(md5s, found, strict=False)
                    self.records.append(self._store.add([(*a_b, one) for a_b, one in known if one]))

    def _hold(self, rows: set[int], pool: ThreadPoolExecutor) -> None:
        for i in rows & self._held.keys():
            self._held.move_to_end(i)
        missing = sorted(rows - self._held.keys())
        self._held.update(zip(missing, pool.map(self._features, missing), strict=True))
        while len(self._held) > max(_MAX_HELD, len(rows)):
            self._held.popitem(last=False)

    def _hold_strongest(self, rows: set[int], pool: ThreadPoolExecutor) -> None:
        """Hold the strongest features of these rows: kept ones, or those of photos that are looked at now."""
        for i in rows & self._strongest.keys():
            self._strongest.move_to_end(i)
        missing = sorted(rows - self._strongest.keys())
        known = self._kept.read([self._photos[i].md5 for i in missing]) if self._kept else {}
        new = [i for i in missing if self._photos[i].md5 not in known]
        self._hold(set(new), pool)
        made = {i: Strongest.of(found) for i in new if (found := self._held[i]) is not None}
        self._strongest.update((i, known.get(self._photos[i].md5) or made.get(i)) for i in missing)
        while len(self._strongest) > _MAX_STRONGEST:
            self._strongest.popitem(last=False)
        if self._kept:
            same = [i for i in made if self._is_unchanged(i)]
            packed = pool.map(lambda i: made[i].packed(), same)
            self._kept.add([(self._photos[i].md5, one) for i, one in zip(same, packed, strict=True)])

    def _is_unchanged(self, i: int) -> bool:
        """Return whether the file is the one that was scanned: features of another content are not kept as its own."""
        photo = self._photos[i]
        try:
            now = os.stat(self._catalogue.root / photo.path)
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns) == (photo.size_bytes, photo.mtime_ns)

    def _may_be(self, pair: tuple[int, int]) -> bool | None:
        first, second = (self._strongest[i] for i in pair)
        return None if first is None or second is None else first.may_be(second)

    def _features(self, i: int) -> Features | None:
        try:
            return features(picture(self._catalogue, self._photos[i]))
        except imaging.ImageError as error:
            self.problems[i] = str(error)
            return None

    def _compared(self, pair: tuple[int, int], may_be: bool | None) -> Verification | None:
        if not may_be:
            return None if may_be is None else Verification()
        first, second = (self._held[i] for i in pair)
        return None if first is None or second is None else verify(first, second)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep OpenCV from using every core for each of the pairs that are compared side by side."""
    import cv2

    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def picture(catalogue: Catalogue, photo: Photo, size: int = SIZE) -> Image.Image:
    """Decode a photo at no less than `size` pixels."""
    return imaging.decode(catalogue.root / photo.path, draft_size=size)
