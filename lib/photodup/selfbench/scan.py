"""How much faster a scan is than the obvious loop, on 12-megapixel JPEGs, in one run.

The loop reads each file twice (once for MD5, once for the picture) and decodes all 12 million pixels to
look at 32 × 32. The scan reads once, decodes at 1/8, and also writes its catalogue. Neither can do with less
than the floor: MD5 and the entropy decoding of every byte, which a JPEG at 1/8 needs as well.
"""

import hashlib
import io
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

GOAL_PER_CORE = 3.0


def run(n: int = 12, repeats: int = 3) -> dict:
    """Time both on the same n files, in turn, and return photographs per second and their ratio.

    Both use one core for `ratio_per_core`, so that cores which share an execution unit do not blur it; what
    all cores together give is measured beside it.

    Args:
        n: photographs; they are made first, which takes about a second each and is not timed.
        repeats: how often each side is timed; the median counts.
    """
    from photodup.demo.photographs import make_12mp
    from photodup.files import available_cores
    from photodup.photos.library.scan import scan

    cores = available_cores()
    with tempfile.TemporaryDirectory(prefix="photodup-bench-") as folder:
        files = make_12mp(folder, n)
        megabytes = sum(file.stat().st_size for file in files) / 1e6

        def scan_afresh(workers: int) -> None:
            catalogue = Path(tempfile.mkdtemp(dir=folder)) / "catalogue.sqlite"
            report = scan(folder, catalogue, workers=workers, progress=False)
            if report.n_read != n:
                raise RuntimeError(f"The scan read {report.n_read} of {n} photographs: nothing to compare.")

        sides: dict[str, Callable[[], object]] = {
            "loop": lambda: plain_loop(files),
            "floor": lambda: floor(files),
            "scan": lambda: scan_afresh(1),
            "scan_all_cores": lambda: scan_afresh(cores),
        }
        plain_loop(files[:1])  # Imports are not what is compared, nor is a cold page cache.
        scan_afresh(1)
        rates = rates_in_turn(sides, n, repeats)
    return {
        "n_photos": n,
        "megabytes_per_photo": megabytes / n,
        "repeats": repeats,
        "cores": cores,
        "loop_photos_per_s": rates["loop"],
        "scan_photos_per_s_per_core": rates["scan"],
        "scan_photos_per_s_all_cores": rates["scan_all_cores"],
        "ratio_per_core": rates["scan"] / rates["loop"],
        "floor_ratio": rates["floor"] / rates["loop"],
        "goal_per_core": GOAL_PER_CORE,
    }


def rates_in_turn(sides: Mapping[str, Callable[[], object]], n: int, repeats: int) -> dict[str, float]:
    """Return how many of n a second each side does, by the median of repeats that take turns."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, work in sides.items():
            started = time.perf_counter()
            work()
            seconds[side].append(time.perf_counter() - started)
    return {side: n / median(values) for side, values in seconds.items()}


def plain_loop(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Hash files the obvious way: MD5 of the bytes, then `imagehash.phash(Image.open(file))`."""
    import imagehash
    from PIL import Image

    hashes = []
    for file in files:
        digest = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
        with Image.open(file) as image:
            hashes.append((digest, str(imagehash.phash(image))))
    return hashes


def floor(files: Sequence[Path]) -> None:
    """Do what no scan can leave out: read, hash the bytes, decode at 1/8."""
    from PIL import Image

    from photodup.photos.library.hashing import DRAFT_SIZE

    for file in files:
        data = file.read_bytes()
        hashlib.md5(data, usedforsecurity=False).hexdigest()
        with Image.open(io.BytesIO(data)) as image:
            image.draft("L", (DRAFT_SIZE, DRAFT_SIZE))
            image.load()


def main() -> None:
    """Print the rates and the ratio per core."""
    result = run()
    print(
        "scan of 12-megapixel JPEGs: {scan_photos_per_s_per_core:.1f} photos/s on one core, "
        "{scan_photos_per_s_all_cores:.1f} on {cores}; plain loop {loop_photos_per_s:.1f} on one; "
        "ratio per core {ratio_per_core:.2f} (goal ≥ {goal_per_core:g}; "
        "reading, MD5 and decoding at 1/8 alone would give {floor_ratio:.2f})".format(**result)
    )


if __name__ == "__main__":
    main()
