"""The core time of grouping crops that look alike, from a scanned catalogue to families and suggestions.

The photographs of the demonstration are enlarged, and of each so many parts are cut out at random, lighter or darker and
with noise of their own. Some share a part of the picture, most only look like others: their hashes are near, and the pixels
decide. Time of one core (children included) changes less on a busy machine than seconds do.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from benchmarks.rows import Row, core_s, row

N = 600  # crops that are measured
LIBRARY, GOAL = 19_919, 25.0  # photos for which the time is computed, and the minutes of one core it may take
_LONGER_SIDE, _SHARES = 2400, (0.3, 0.6)  # pixels of a photograph, and of its sides that a crop has


def make(folder: Path, n: int) -> None:
    """Write n crops as JPEGs, the same ones each time."""
    from photodup.embedding.imaging import to_jpeg
    from photodup.photos.demo.photographs import SOURCES

    rng = np.random.default_rng(0)
    for number, source in enumerate(SOURCES[:n]):
        image = ImageOps.contain(source.open(), (_LONGER_SIDE, _LONGER_SIDE))
        for i in range(number, n, len(SOURCES)):
            width, height = (round(side * rng.uniform(*_SHARES)) for side in image.size)
            left, top = int(rng.integers(image.width - width)), int(rng.integers(image.height - height))
            crop = np.asarray(image.crop((left, top, left + width, top + height))) * rng.uniform(0.8, 1.2)
            noisy = (crop + rng.normal(0, rng.uniform(0, 5), (height, width, 1))).clip(0, 255)
            (folder / f"{i:05d}.jpg").write_bytes(to_jpeg(Image.fromarray(noisy.astype(np.uint8))))


def rows(n: int = N) -> Iterator[Row]:
    """Yield what a pair takes of n crops, how many pairs are asked, and the time that a library of `LIBRARY` would take."""
    from photodup.photos.groups.tiers import find_tiers
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.library.scan import scan

    with tempfile.TemporaryDirectory(prefix="photodup-bench-") as folder:
        make(Path(folder), n)
        scan(folder, progress=False)
        with Catalogue(folder) as catalogue:
            began_s = core_s()
            tiers = find_tiers(catalogue)
            seconds = core_s() - began_s
    name, pairs = f"grouping {n:,} look-alike crops", tiers.n_verified
    yield row(name, 1000 * seconds / max(pairs, 1), "core-ms a pair", because=f"{len(tiers.copies)} groups")
    yield row(f"{name}: pairs", pairs / n, "a photo")
    yield row(f"grouping {LIBRARY:,}", seconds / n * LIBRARY / 60, "core-min", most=GOAL, because="computed")
