"""What it takes to find what is worth comparing in a whole library, and again when photos have been added.

From the catalogue on disk to the pairs to look at: reading it, the neighbours by embedding and by hash, what
is kept for the next run. The catalogue is synthetic (no library of a million photographs is at hand): the
vectors of `photodup.selfbench.grouping`, random hashes, and of each fifth photo a copy's. Its files do not
exist, so the pixels are not part of this; their price is the pairs a photo times what a pair takes
(`photodup.selfbench.crops`).
"""

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from photodup.selfbench.grouping import INCREMENT, MIN_RECALL, SIZES, peak_memory_gb, synthetic_library
from photodup.selfbench.rows import Row, row
from photodup.study.precision.compiler import alone

DIGEST = "5" * 64
THRESHOLD, NEAREST_FROM = 0.9, 0.75


def synthetic_catalogue(root: Path, n: int) -> Callable[[int, int], None]:
    """Make a catalogue without photos; return what adds rows `start` to `end` of `n` to it."""
    from photodup.photos.library.catalogue import Catalogue

    vectors = synthetic_library(n)
    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 2**64, n, np.uint64)
    copies = np.arange(5, n, 5)
    # A copy's hash differs in a few bits of its original's, which is the row before.
    flips = np.bitwise_or.reduce(np.uint64(1) << rng.integers(0, 64, (6, len(copies)), np.uint64), axis=0)
    hashes[copies] = hashes[copies - 1] ^ flips
    with Catalogue(root, create=True) as catalogue:
        catalogue.register_model(DIGEST, name="synthetic", dim=vectors.shape[1], is_random=False)

    def add(start: int, end: int) -> None:
        md5s = [hashlib.md5(str(i).encode(), usedforsecurity=False).hexdigest() for i in range(start, end)]
        with Catalogue(root) as catalogue:
            with catalogue.transaction() as connection:
                connection.executemany(
                    "INSERT INTO content (md5, size_bytes, format, width, height, phash, exif_fields) "
                    "VALUES (?, 3000000, 'JPEG', 4000, 3000, ?, 10)",
                    [
                        (md5, f"{bits:016x}")
                        for md5, bits in zip(md5s, hashes[start:end].tolist(), strict=True)
                    ],
                )
                connection.executemany(
                    "INSERT INTO file (path, size_bytes, mtime_ns, status, md5) VALUES (?, 3000000, 0, 'ok', ?)",
                    [(f"{i // 1000}/{i}.jpg".encode(), md5) for i, md5 in enumerate(md5s, start)],
                )
            for begin in range(0, end - start, 10_000):
                stop = min(begin + 10_000, end - start)
                catalogue.store_embeddings(DIGEST, md5s[begin:stop], vectors[start + begin : start + stop])

    return add


def measure(n: int) -> dict:
    """Find the candidates of `n` photos, then of `INCREMENT` more; each in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="photodup-bench-") as folder:
        add = synthetic_catalogue(Path(folder), n + INCREMENT)
        add(0, n)
        first = alone(_find, folder)
        add(n, n + INCREMENT)
        again = alone(_find, folder)
    return {"photos": n, **first, "seconds_after_adding_1000": again["seconds"]}


def _find(folder: str) -> dict:
    from photodup.photos.groups.model_thresholds import choose_model
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.search.candidates import find_neighbours

    started = time.perf_counter()
    with Catalogue(folder) as catalogue:
        photos = catalogue.photos()
        near = find_neighbours(catalogue, photos, choose_model(catalogue), THRESHOLD, NEAREST_FROM)
    return {
        "seconds": time.perf_counter() - started,
        "peak_memory_gb": peak_memory_gb(),
        "search": near.search,
        "recall": near.recall,
        "pairs_a_photo": len(np.union1d(near.alike, near.by_hash)) / len(photos),
    }


def rows() -> Iterator[Row]:
    """Yield time, memory and recall of each size, and how many pairs there are to compare."""
    for found in map(measure, SIZES):
        what = f"candidate pairs of {found['photos']:,} photos"
        yield row(what, found["seconds"], "s", because=found["search"])
        yield row(f"{what}: after a thousand more", found["seconds_after_adding_1000"], "s")
        yield row(f"{what}: peak memory", found["peak_memory_gb"], "GB")
        yield row(f"{what}: recall of pairs", found["recall"], least=MIN_RECALL)
        yield row(f"{what}: pairs", found["pairs_a_photo"], "a photo")
