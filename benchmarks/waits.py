"""How long an owner waits for all groups of a new library: photographs of 12 megapixels, one in twenty with a copy.

The photographs are those of tools/photographs, of different things, enlarged and given a sensor's grain; a copy is a
messenger's: 1,600 pixels wide, of quality 75, without EXIF. Nothing but hash and pixels is asked. Time of one core, children
included, changes less on a busy machine than seconds do.
"""

import tempfile
from collections.abc import Iterator

from PIL import Image

from benchmarks.large_photographs import make_12mp
from benchmarks.rows import Row, core_s, row
from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir

N, COPY_EVERY = 240, 20
# Photographs for which the time is computed, the unit of their time in seconds, and the goal in that unit.
LIBRARIES = ((1_000, "core-s", 1, 150.0), (10_000, "core-min", 60, 25.0))


def rows(n: int = N) -> Iterator[Row]:
    """Yield the time of scanning and of grouping n photographs, a photograph, and what larger libraries would take."""
    from photodup.photos.groups.tiers import find_tiers
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.library.scan import scan

    photographs = sorted((build_dir() / "photographs").glob("drawn*/*"))
    if not photographs:
        raise PhotodupError("There are no photographs here: run tools/photographs/get.py drawn-again.")
    n = min(n, len(photographs))
    with tempfile.TemporaryDirectory(prefix="photodup-bench-") as folder:
        for path in make_12mp(folder, n, photographs)[::COPY_EVERY]:
            with Image.open(path) as image:
                image.resize((1600, 1200)).save(path.with_stem(f"{path.stem}-WA"), quality=75)
        began_s = core_s()
        scan(folder, progress=False)
        scanned_s = core_s()
        with Catalogue(folder) as catalogue:
            n_groups = len(find_tiers(catalogue).copies)
        times_s = scanned_s - began_s, core_s() - scanned_s
    yield row("scanning photographs of 12 MP", 1000 * times_s[0] / n, "core-ms each", because=f"{n} of them")
    yield row("grouping them", 1000 * times_s[1] / n, "core-ms each", because=f"{n_groups} groups")
    for size, unit, unit_s, most in LIBRARIES:
        seconds = sum(times_s) / n * size
        yield row(
            f"{size:,} of them, to the last group", seconds / unit_s, unit, most=most, because="computed"
        )
