"""Compare many pairs of photos on their pixels, in parallel; results are stored as they come."""

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from time import monotonic

import numpy as np
from PIL import Image

from photodup.core.files import available_cores
from photodup.core.progress import bar
from photodup.embedding import imaging
from photodup.photos.compare.evidence import EvidenceStore, pair_rows
from photodup.photos.compare.features import SIZE, Features, features
from photodup.photos.compare.kept_features import FeatureStore, Strongest
from photodup.photos.compare.pictures import Picture, Saving
from photodup.photos.compare.verify import STRANGERS, Verification, verify_copy
from photodup.photos.library.catalogue import Catalogue, Photo

# Pairs in a block; results are stored after each block, and every few seconds within one.
_BLOCK, _SECONDS = 32, 5.0
# Held in memory: photos with all features (0.6 GB), with the strongest (0.7 GB), and bytes of pictures (4 a pixel).
_MAX_HELD, _MAX_STRONGEST, _MAX_BYTES = 2000, 10_000, 256_000_000


class Pixels:
    """The pictures and features of a library's photos, decoded on demand.

    Args:
        catalogue: of these photos.
        photos: by row.
        store: keeps each comparison, so that a stopped run resumes where it ended.
        feature_store: keeps the strongest features of each photo.

    Attributes:
        problems: one sentence for each photo that cannot be read, by row.
    """

    def __init__(
        self, catalogue: Catalogue, photos: Sequence[Photo], store: EvidenceStore, feature_store: FeatureStore
    ) -> None:
        self._catalogue, self._photos = catalogue, photos
        self._store, self._feature_store = store, feature_store
        self._lock = threading.Lock()
        self._pictures: OrderedDict[int, Image.Image] = OrderedDict()
        self._features = lru_cache(_MAX_HELD)(self._look)
        self._of_whole: set[int] = set()  # rows whose features come from the full-size picture
        self._strongest: dict[int, Strongest | None] = {}  # the last used come last
        self.problems: dict[int, str] = {}

    def verify_pairs(self, codes: np.ndarray, deadline_s: float = math.inf) -> dict[int, Verification]:
        """Return the evidence of pairs (int64[n] from `pair_codes`) by code, without pairs of unreadable photos.

        No block of pairs is begun after the deadline, on the monotonic clock.
        """
        compared = bar(self._through(codes, deadline_s), total=len(codes), desc="compare", unit="pair")
        return {code: verification for code, verification in compared if verification}

    def picture(self, i: int) -> Picture:
        """Return a photo at full size.

        Raises:
            OSError, photodup.embedding.imaging.ImageError: it cannot be read.
        """
        photo = self._photos[i]
        # Decode first: that refuses files that must not be opened.
        image = self._pictures.get(i) or self._decoded(i)
        with imaging.open_image((self._catalogue.root / photo.path).read_bytes()) as header:
            saving = Saving.of(header)
        features_of_whole = self._features(i) if i in self._of_whole else None
        return Picture(image, saving, photo.camera is not None, features_of_whole)

    def _decoded(self, i: int, size: int | None = None) -> Image.Image:
        """Decode a photo with a shorter side of at least `size` pixels; hold the latest full-size pictures."""
        photo = self._photos[i]
        image = imaging.decode(self._catalogue.root / photo.path, draft_size=size)
        if image.size == (photo.width, photo.height):
            with self._lock:
                if size:
                    self._of_whole.add(i)
                self._pictures[i] = image
                while 4 * sum(math.prod(image.size) for image in self._pictures.values()) > _MAX_BYTES:
                    self._pictures.popitem(last=False)
        return image

    def _through(self, codes: np.ndarray, deadline_s: float) -> Iterator[tuple[int, Verification | None]]:
        """Yield (code, evidence) of each compared pair, and store it; the evidence is None if a photo cannot be read."""
        with one_thread_each(), ThreadPoolExecutor(available_cores()) as pool:
            for begin in range(0, len(codes), _BLOCK):
                if monotonic() >= deadline_s:
                    return
                block = codes[begin : begin + _BLOCK].tolist()
                pairs = [pair_rows(code) for code in block]
                self._hold_strongest({i for pair in pairs for i in pair}, pool)
                may_be = list(pool.map(self._may_be, pairs))
                # Extract the features of each photo once, not once a pair.
                likely = {i for pair, may in zip(pairs, may_be, strict=True) if may for i in pair}
                list(pool.map(self._features, likely))
                evidence: list[tuple[str, str, Verification]] = []
                last = monotonic()
                try:
                    compared = pool.map(self._compared, pairs, may_be)
                    for code, (a, b), verification in zip(block, pairs, compared, strict=True):
                        if verification:
                            evidence.append((self._photos[a].md5, self._photos[b].md5, verification))
                        if monotonic() - last >= _SECONDS:
                            self._store.add(evidence)
                            evidence, last = [], monotonic()
                        yield code, verification
                finally:  # also if the caller stops early
                    self._store.add(evidence)

    def _hold_strongest(self, rows: set[int], pool: ThreadPoolExecutor) -> None:
        """Hold the strongest features of these rows, from the store or else from the photos."""
        missing = {self._photos[i].md5: i for i in sorted(rows - self._strongest.keys())}
        strongest = {
            missing[md5]: features_of for md5, features_of in self._feature_store.read(missing).items()
        }
        new = [i for i in missing.values() if i not in strongest]
        looked = zip(new, pool.map(self._features, new), strict=True)
        extracted = {i: Strongest.of(features_of) for i, features_of in looked if features_of}
        for i in rows:
            self._strongest[i] = self._strongest.pop(i, None) or strongest.get(i) or extracted.get(i)
        for i in list(self._strongest)[:-_MAX_STRONGEST]:
            del self._strongest[i]
        unchanged = {self._photos[i].md5: extracted[i] for i in extracted if self._is_unchanged(i)}
        self._feature_store.add(unchanged)

    def _is_unchanged(self, i: int) -> bool:
        """Return whether the file is as scanned: features of a changed file must not be stored under its old MD5."""
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
            return None if may_be is None else STRANGERS
        first, second = map(self._features, pair)
        return None if first is None or second is None else verify_copy(first, second)


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
