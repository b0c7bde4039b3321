"""How long grouping and the search for pairs take, and what they find, against the number of photographs.

    python -m benchmarks.scale group 10000 100000        (search: the same for catalogues; notebook 01 reads the JSON)

Each size runs in a process of its own, so that peak memory is that size's. Vectors and catalogues are synthetic (no library
of a million photographs is at hand): scenes of a low-rank mixture, so that unrelated pictures have the cosine of real ones
(about 0.5), with near-duplicates planted in a fifth of the rows. The files do not exist, so pixels are not part of this:
their price is the pairs a photo times what a pair takes (`crops`).
"""

import hashlib
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from photodup.study.precision.compiler import in_own_process

INCREMENT = 1000
DIGEST = "5" * 64
THRESHOLD, NEAREST_FROM = 0.9, 0.75


def synthetic_library(n: int, dim: int = 512, block: int = 50_000) -> np.ndarray:
    """Return float32[n, dim] unit vectors: every fifth row is a near-duplicate of one not far before it.

    The cosine of a duplicate with its original spreads over about 0.85 to 1, around any threshold in use.
    """
    rng = np.random.default_rng(0)
    common = rng.normal(size=dim).astype(np.float32)
    scenes = rng.normal(size=(max(16, min(n // 50, 5000)), dim)).astype(np.float32)
    vectors = np.empty((n, dim), np.float32)
    for start in range(0, n, block):
        rows = vectors[start : start + block]
        rows[:] = 0.7 * rng.standard_normal(rows.shape, np.float32)
        rows += scenes[rng.integers(len(scenes), size=len(rows))] + common
        copies = np.arange(5, len(rows), 5)
        originals = copies - rng.integers(1, 5, size=len(copies))
        noise = rng.standard_normal((len(copies), dim), np.float32)
        rows[copies] = rows[originals] + rng.uniform(0.02, 0.9, (len(copies), 1)).astype(np.float32) * noise
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return vectors


def group(n: int) -> dict[str, Any]:
    """Group `n` vectors, then add `INCREMENT` more; return what it took. Call in a fresh process."""
    from photodup.photos.search.neighbours import Bounds, similar_pairs
    from photodup.photos.search.stars import stars

    vectors = synthetic_library(n + INCREMENT)
    started = time.perf_counter()
    bounds = Bounds(THRESHOLD, THRESHOLD)
    pairs = similar_pairs(vectors[:n], bounds)
    largest = max((1 + len(members) for members in stars(pairs, n).values()), default=0)
    took = {"rows": n, "seconds": time.perf_counter() - started, "peak_memory_gb": peak_memory_gb()}
    pairs_found = {
        "method": pairs.method,
        "recall": pairs.recall,
        "pairs": len(pairs),
        "largest_group": largest,
    }
    started = time.perf_counter()
    similar_pairs(vectors, bounds, np.arange(n, n + INCREMENT))
    return {**took, **pairs_found, "seconds_to_add_1000": time.perf_counter() - started}


def search(n: int) -> dict[str, Any]:
    """Find the pairs worth comparing of a catalogue of `n` photos, then of `INCREMENT` more; each in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="photodup-bench-") as folder:
        vectors = synthetic_library(n + INCREMENT)
        add_photos(Path(folder), vectors, range(n))
        first = in_own_process(_find, folder)
        add_photos(Path(folder), vectors, range(n, n + INCREMENT))
        again = in_own_process(_find, folder)
    return {"photos": n, **first, "seconds_after_adding_1000": again["seconds"]}


def add_photos(root: Path, vectors: np.ndarray, places: range) -> None:
    """Add photos without files to the catalogue of a folder; every fifth one's hash is nearly that of the one before."""
    from photodup.photos.library.catalogue import Catalogue

    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 2**64, len(vectors), np.uint64)
    copies = np.arange(5, len(vectors), 5)
    flips = np.bitwise_or.reduce(np.uint64(1) << rng.integers(0, 64, (6, len(copies)), np.uint64), axis=0)
    hashes[copies] = hashes[copies - 1] ^ flips
    md5s = {i: hashlib.md5(str(i).encode(), usedforsecurity=False).hexdigest() for i in places}
    with Catalogue(root, create=True) as catalogue:
        with catalogue.transaction() as connection:
            connection.executemany(
                "INSERT INTO content (md5, size_bytes, format, width, height, phash, greys, exif_fields, inventory) "
                "VALUES (?, 3000000, 'JPEG', 4000, 3000, ?, zeroblob(1024), 10, '')",
                [(md5, f"{hashes[i]:016x}") for i, md5 in md5s.items()],
            )
            connection.executemany(
                "INSERT INTO file (path, size_bytes, mtime_ns, status, md5) VALUES (?, 3000000, 0, 'ok', ?)",
                [(f"{i // 1000}/{i}.jpg".encode(), md5) for i, md5 in md5s.items()],
            )
        for part in (places[begin : begin + 10_000] for begin in range(0, len(places), 10_000)):
            rows = {md5s[i]: vectors[i] for i in part}
            catalogue.store_embeddings(DIGEST, rows, name="synthetic", is_random=False)


def _find(folder: str) -> dict[str, Any]:
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.search.candidates import find_neighbours
    from photodup.photos.search.models import choose_model
    from photodup.photos.search.neighbours import Bounds

    started = time.perf_counter()
    with Catalogue(folder) as catalogue:
        photos = catalogue.photos()
        near = find_neighbours(catalogue, photos, choose_model(catalogue), Bounds(THRESHOLD, NEAREST_FROM))
    took = {"seconds": time.perf_counter() - started, "peak_memory_gb": peak_memory_gb()}
    pairs = len(np.union1d(near.alike, near.by_hash)) / len(photos)
    return {**took, "search": near.search, "recall": near.recall, "pairs_a_photo": pairs}


def peak_memory_gb() -> float:
    """Return the most memory that this process has had, 10⁹ bytes, as Linux counts it.

    Not `ru_maxrss`: a process starts with its parent's, and the parent may be a large notebook.
    """
    (peak_kib,) = re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(peak_kib) * 1024 / 1e9


if __name__ == "__main__":
    kind, *sizes = sys.argv[1:]
    print(json.dumps([in_own_process(group, int(n)) if kind == "group" else search(int(n)) for n in sizes]))
