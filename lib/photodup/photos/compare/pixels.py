"""Many pairs compared on their pixels: in parallel, remembered as it goes, and only once."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from PIL import Image

from photodup.embedding import imaging
from photodup.files import available_cores
from photodup.photos.compare.evidence import RECORD, EvidenceStore, Verified, pair_rows
from photodup.photos.compare.features import SIZE, Features, features
from photodup.photos.compare.verify import Verification, verify
from photodup.photos.library.catalogue import Catalogue, Photo

# Pairs compared, and remembered, at a time.
_BLOCK = 32
# Pictures whose features are held: 0.6 GB.
_MAX_HELD = 2000


def verify_pairs(
    catalogue: Catalogue,
    photos: Sequence[Photo],
    codes: np.ndarray,
    store: EvidenceStore,
    progress: Callable[[Iterable, int], Iterable] = lambda pairs, total: pairs,
) -> tuple[Verified, list[str]]:
    """Compare pairs of photos on their pixels.

    Args:
        catalogue: of these photos.
        photos: by row.
        codes: the pairs, as `pair_codes` gives.
        store: remembers each block, so that whoever stops goes on from there.
        progress: wraps the pairs and their number, as tqdm does.

    Returns:
        The evidence (a pair with an unreadable photo has none), and one sentence for each such photo.
    """
    work = _Work(catalogue, photos, store)
    done = [code for code in progress(work.through(codes), len(codes)) if code is not None]
    found = np.concatenate([np.zeros(0, RECORD), *work.records])
    return Verified.of(np.array(done, np.int64), found), list(work.problems.values())


class _Work:
    """One pass over pairs; `records` are those of the pairs that had evidence, in their order."""

    def __init__(self, catalogue: Catalogue, photos: Sequence[Photo], store: EvidenceStore) -> None:
        self._catalogue, self._photos, self._store = catalogue, photos, store
        self._held: OrderedDict[int, Features | None] = OrderedDict()
        self.records: list[np.ndarray] = []
        self.problems: dict[int, str] = {}

    def through(self, codes: np.ndarray) -> Iterator[int | None]:
        """Yield each pair once it is compared; None where a photo cannot be read. A block is remembered together."""
        with one_thread_each(), ThreadPoolExecutor(available_cores()) as pool:
            for begin in range(0, len(codes), _BLOCK):
                block = codes[begin : begin + _BLOCK].tolist()
                pairs = list(zip(*(rows.tolist() for rows in pair_rows(np.array(block))), strict=True))
                self._hold({i for pair in pairs for i in pair}, pool)
                found: list[Verification | None] = []
                try:
                    for code, one in zip(block, pool.map(self._compared, pairs), strict=True):
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
        while len(self._held) > _MAX_HELD:
            self._held.popitem(last=False)

    def _features(self, i: int) -> Features | None:
        try:
            return features(picture(self._catalogue, self._photos[i]))
        except imaging.ImageError as error:
            self.problems[i] = str(error)
            return None

    def _compared(self, pair: tuple[int, int]) -> Verification | None:
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
    """Decode a photo at no less than `size` pixels.

    Only JPEG is scaled by its decoder. HEIC would answer with its embedded thumbnail, which is another
    picture as far as anybody can prove, and sharpened by the camera.
    """
    draft_size = size if photo.format == "JPEG" else None
    return imaging.decode(catalogue.root / photo.path, draft_size=draft_size)
