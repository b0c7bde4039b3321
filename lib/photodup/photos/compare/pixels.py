"""Compare many pairs of photos on their pixels, in parallel; results are stored as they come."""

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from time import monotonic

import numpy as np

from photodup.core.files import available_cores
from photodup.core.names import printable
from photodup.core.progress import bar
from photodup.embedding import imaging
from photodup.photos.compare.evidence import EvidenceStore
from photodup.photos.compare.features import SIZE, Features
from photodup.photos.compare.pictures import Picture, Saving
from photodup.photos.compare.thumbnails import Thumbnail, may_be_one
from photodup.photos.compare.verify import STRANGERS, verify_copy
from photodup.photos.library.catalogue import Photo
from photodup.photos.library.hashing import md5
from photodup.photos.library.walking import read_bytes
from photodup.photos.search.pair_codes import pair_rows

_BLOCK = 32  # pairs after which results are stored
# Held in memory: photos with features (0.6 GB), thumbnails with their middles (0.3 GB), and bytes of pictures.
_MAX_HELD, _MAX_THUMBNAILS, _MAX_BYTES = 2000, 20_000, 350_000_000
_BYTES_A_PIXEL = 7  # as an image and as an array


def read_scanned(root: Path, photo: Photo) -> bytes:
    """Return the bytes of a photo as it was scanned; its path is relative to the root.

    Raises:
        OSError: it cannot be read, lies behind a link, or has changed since the scan.
        photodup.embedding.imaging.ImageError: it is larger than any photograph.
    """
    data, entry = read_bytes(root, os.fsencode(photo.path))
    is_touched = (entry.size_bytes, entry.mtime_ns) != (photo.size_bytes, photo.mtime_ns)
    if is_touched and md5(data) != photo.md5:
        raise OSError("changed since the scan: scan again")
    return data


class Pixels:
    """The pictures and features of photos, decoded on demand.

    Args:
        read: returns the bytes of a photo, as `read_scanned` does.
        photos: by row.
        store: keeps each comparison, so that a stopped run resumes where it ended.

    Attributes:
        unreadable: one sentence for each photo that cannot be read, by row.
    """

    def __init__(self, read: Callable[[Photo], bytes], photos: Sequence[Photo], store: EvidenceStore) -> None:
        self._read, self.photos, self.store = read, photos, store
        self._lock = threading.Lock()
        self._pictures: OrderedDict[int, Picture] = OrderedDict()  # the last used come last
        self._features = lru_cache(_MAX_HELD)(self._look)
        self._thumbnail = lru_cache(_MAX_THUMBNAILS)(self._reduced)
        self.unreadable: dict[int, str] = {}

    @property
    def problems(self) -> list[str]:
        """Return one sentence for each photo that cannot be read, and for a store that cannot be written."""
        of_photos = (self.unreadable[row] for row in sorted(self.unreadable))
        return list(filter(None, (*of_photos, self.store.problem)))

    def verify_pairs(self, codes: np.ndarray, deadline_s: float = math.inf) -> dict[int, float | None]:
        """Return the `CopyEvidence.score` of pairs (int64[n] from `pair_codes`) by code, None where a photo is unreadable.

        No block of pairs is begun after the deadline, on the monotonic clock: such pairs are left out.
        """
        return dict(bar(self._scores(codes, deadline_s), total=len(codes), desc="compare", unit="pair"))

    def picture(self, i: int) -> Picture:
        """Return a photo at full size.

        Raises:
            photodup.embedding.imaging.ImageError: it cannot be read, or has changed since the scan.
        """
        with self._lock:
            if i in self._pictures:
                self._pictures.move_to_end(i)
                return self._pictures[i]
        return self._decoded(i)

    def _decoded(self, i: int, size: int | None = None) -> Picture:
        """Decode a photo with a shorter side of at least `size` pixels; hold the latest full-size pictures."""
        photo = self.photos[i]
        try:
            data = self._read(photo)
            image = imaging.decode(data, draft_size=size)
            with imaging.open_image(data) as header:
                picture = Picture(image, Saving.of(header), photo.camera is not None)
        except Exception as error:  # decoders raise nearly anything on hostile bytes
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            self.unreadable[i] = f"{printable(photo.path)} was skipped: {reason}"
            raise imaging.ImageError(reason) from error
        if image.size == (photo.width, photo.height):
            with self._lock:
                self._pictures[i] = picture
                n_pixels = sum(math.prod(picture.image.size) for picture in self._pictures.values())
                while _BYTES_A_PIXEL * n_pixels > _MAX_BYTES:
                    n_pixels -= math.prod(self._pictures.popitem(last=False)[1].image.size)
        return picture

    def _scores(self, codes: np.ndarray, deadline_s: float) -> Iterator[tuple[int, float | None]]:
        """Yield code and score of each pair that is compared, and store them."""
        with one_thread_each(), ThreadPoolExecutor(available_cores()) as pool:
            for begin in range(0, len(codes), _BLOCK):
                if monotonic() >= deadline_s:
                    return
                block = codes[begin : begin + _BLOCK].tolist()
                pairs = [pair_rows(code) for code in block]
                may_be = list(pool.map(lambda pair: may_be_one(*map(self._thumbnail, pair)), pairs))
                # Extract the features of each photo once, not once a pair.
                likely = {i for pair, may in zip(pairs, may_be, strict=True) if may for i in pair}
                list(pool.map(self._features, likely))
                scored: list[tuple[str, str, float]] = []
                try:
                    scores = pool.map(self._score, pairs, may_be)
                    for code, (a, b), score in zip(block, pairs, scores, strict=True):
                        if score is not None:
                            scored.append((self.photos[a].md5, self.photos[b].md5, score))
                        yield code, score
                finally:  # also if the caller stops early
                    self.store.add(scored)

    def _reduced(self, i: int) -> Thumbnail:
        return Thumbnail.of(self.photos[i].greys, (self.photos[i].width, self.photos[i].height))

    def _look(self, i: int) -> Features | None:
        try:
            return self._decoded(i, SIZE).features
        except imaging.ImageError:  # it is in `unreadable`
            return None

    def _score(self, pair: tuple[int, int], may_be: bool) -> float | None:
        if not may_be:
            return STRANGERS.score()
        first, second = map(self._features, pair)
        return None if first is None or second is None else verify_copy(first, second).score()


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
