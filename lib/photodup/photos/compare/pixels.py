"""Pixels of photos, read once: many pairs compared on them, in parallel, remembered as it goes, and only once."""

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from PIL import Image

from photodup.core.files import available_cores
from photodup.core.progress import bar
from photodup.embedding import imaging
from photodup.photos.compare.evidence import RECORD, EvidenceStore, Verified, pair_rows
from photodup.photos.compare.features import SIZE, Features, features
from photodup.photos.compare.kept_features import FeatureStore, Strongest
from photodup.photos.compare.pictures import Saving
from photodup.photos.compare.verify import Verification, verify
from photodup.photos.library.catalogue import Catalogue, Photo

# Pairs compared at a time. What was found is remembered with them, and every few seconds at the latest.
_BLOCK, _SECONDS = 32, 5.0
# Photos whose features are held, 0.6 GB, and whose strongest are, 0.5 GB; and bytes of pictures, of 4 a pixel.
_MAX_HELD, _MAX_STRONGEST, _MAX_BYTES = 2000, 10_000, 256_000_000


class Pixels:
    """The pixels of a library's photos, and what is made of them.

    Args:
        catalogue: of these photos.
        photos: by row.
        store: keeps each comparison, so that a stopped run resumes where it ended.
        kept: features of photos that were looked at before; default: all are looked at again.
        clock: seconds that only rise.

    Attributes:
        problems: one sentence for each photo that cannot be read, by row.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        photos: Sequence[Photo],
        store: EvidenceStore,
        kept: FeatureStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalogue, self._photos, self._store, self._kept = catalogue, photos, store, kept
        self._clock, self._lock = clock, threading.Lock()
        self._pictures: OrderedDict[int, Image.Image] = OrderedDict()
        self._held: OrderedDict[int, Features | None] = OrderedDict()
        self._of_whole: set[int] = set()  # whose features are of that picture, though a smaller one would do
        self._strongest: OrderedDict[int, Strongest | None] = OrderedDict()
        self._records: list[np.ndarray] = []
        self.problems: dict[int, str] = {}

    def verify_pairs(self, codes: np.ndarray, deadline_s: float = math.inf) -> Verified:
        """Return the evidence of pairs of photos, int64[n] as `pair_codes` gives; a pair with an unreadable one has none.

        No pair is begun after the deadline, on the clock.
        """
        self._records = [np.zeros(0, RECORD)]
        compared = bar(self._through(codes, deadline_s), total=len(codes), desc="compare", unit="pair")
        done = [code for code in compared if code is not None]
        return Verified.of(np.array(done, np.int64), np.concatenate(self._records))

    def load(self, i: int) -> tuple[Image.Image, Saving]:
        """Return a photo's upright picture at full size, decoded anew or held since it was, and how its file was saved.

        Raises:
            OSError, photodup.embedding.imaging.ImageError: it cannot be read.
        """
        # In this order: decoding refuses what should not be opened.
        image = self._pictures.get(i) or self._decoded(i)
        with imaging.open_image((self._catalogue.root / self._photos[i].path).read_bytes()) as header:
            return image, Saving.of(header)

    def features(self, i: int, image: Image.Image) -> Features:
        """Return the features of a photo's picture at full size: those it was compared by, where they are of that."""
        return (self._held.get(i) if i in self._of_whole else None) or features(image)

    def _decoded(self, i: int, size: int | None = None) -> Image.Image:
        """Decode a photo at no less than `size` pixels; whole pictures are held, the last ones."""
        photo = self._photos[i]
        image = imaging.decode(self._catalogue.root / photo.path, draft_size=size)
        if image.size == (photo.width, photo.height):
            with self._lock:
                if size:
                    self._of_whole.add(i)
                self._pictures[i] = image
                while 4 * sum(one.width * one.height for one in self._pictures.values()) > _MAX_BYTES:
                    self._pictures.popitem(last=False)
        return image

    def _through(self, codes: np.ndarray, deadline_s: float) -> Iterator[int | None]:
        """Yield each pair once it is compared; None where a photo cannot be read. What was compared is remembered."""
        with one_thread_each(), ThreadPoolExecutor(available_cores()) as pool:
            for begin in range(0, len(codes), _BLOCK):
                if self._clock() >= deadline_s:
                    return
                block = codes[begin : begin + _BLOCK].tolist()
                pairs = list(zip(*(rows.tolist() for rows in pair_rows(np.array(block))), strict=True))
                self._hold_strongest({i for pair in pairs for i in pair}, pool)
                may_be = list(pool.map(self._may_be, pairs))
                self._hold({i for pair, may in zip(pairs, may_be, strict=True) if may for i in pair}, pool)
                found: list[tuple[str, str, Verification]] = []
                last = self._clock()
                try:
                    compared = pool.map(self._compared, pairs, may_be)
                    for code, (a, b), one in zip(block, pairs, compared, strict=True):
                        if one:
                            found.append((self._photos[a].md5, self._photos[b].md5, one))
                        if self._clock() - last >= _SECONDS:
                            self._records.append(self._store.add(found))
                            found, last = [], self._clock()
                        yield code if one else None
                finally:  # also when nobody asks for the rest: what was compared need not be again
                    self._records.append(self._store.add(found))

    def _hold(self, rows: set[int], pool: ThreadPoolExecutor) -> None:
        for i in rows & self._held.keys():
            self._held.move_to_end(i)
        missing = sorted(rows - self._held.keys())
        self._held.update(zip(missing, pool.map(self._look, missing), strict=True))
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

    def _look(self, i: int) -> Features | None:
        try:
            return features(self._decoded(i, SIZE))
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
