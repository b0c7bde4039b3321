"""How long an owner waits for the first page of `photodup review`: from the command to the answer over real HTTP."""

import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.rows import Row, row
from photodup.bench.load.usage import memory_mib
from photodup.bench.stats.figures import interval
from photodup.core.paths import build_dir
from photodup.embedding.imaging import to_jpeg
from photodup.serving.process.server_process import ServerProcess
from photodup.study.notebook.weights import review_library

STARTS = 6
GOAL_S = 1.5
LARGE, LARGE_GOAL_S = 20_000, 5.0


def rows(n: int = STARTS, photos: int = LARGE) -> Iterator[Row]:
    """Time starts of `photodup review` on known libraries: the demonstration's, and one of so many made-up photographs."""
    name = "first page of `photodup review` on a known library"
    waits, memory = _first_pages(review_library(), n)
    yield row(f"{name} (the demonstration's)", interval(waits), "s", most=GOAL_S, memory_mib=memory)
    with tempfile.TemporaryDirectory(prefix="photodup-bench-") as folder:
        made_up_library(Path(folder), photos)
        waits, memory = _first_pages(Path(folder), n)
    yield row(f"{name} of {photos:,} photos", interval(waits), "s", most=LARGE_GOAL_S, memory_mib=memory)


def made_up_library(root: Path, n: int) -> None:
    """Make a library of `n` small photographs, a tenth of them copies of the same bytes, pairs by hash refused."""
    from photodup.photos.compare.evidence import EvidenceStore
    from photodup.photos.library.catalogue import Catalogue, by_content
    from photodup.photos.library.scan import scan
    from photodup.photos.search.candidates import find_neighbours
    from photodup.photos.search.pair_codes import pair_rows

    rng = np.random.default_rng(0)
    for i in range(n):
        path = root / f"{i // 1000}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        if i % 10 != 9:  # else the one before again
            data = to_jpeg(Image.fromarray(rng.integers(0, 256, (48, 64, 3), np.uint8)))
        path.write_bytes(data)
    scan(root, progress=False)
    with Catalogue(root) as catalogue, EvidenceStore(catalogue.own.evidence) as store:
        photos = [same[0] for same in by_content(catalogue.photos()).values()]
        near = find_neighbours(catalogue, photos, None, None).by_hash
        pairs = zip(*pair_rows(near), strict=True)
        store.add([(photos[a].md5, photos[b].md5, 0.0) for a, b in pairs])


def _first_pages(library: Path, n: int) -> tuple[list[float], float | None]:
    """Return the seconds of `n` starts of the page, after a first one that compares pixels, and the last one's memory."""
    log = build_dir() / "logs" / "bench-review.log"
    command = [sys.executable, "-P", "-m", "photodup", "review", str(library), "--port", "0"]
    waits = []
    for _ in range(n + 1):
        began = time.perf_counter()
        with ServerProcess("photodup review", command, log) as process:
            process.wait_ready(partial(_shows_groups, process), 1800)
            waits.append(time.perf_counter() - began)
            memory = memory_mib(process.pid)
    return waits[1:], memory


def _shows_groups(process: ServerProcess) -> bool:
    """Return whether the page whose address was printed is there; while the folder opens, it leads elsewhere."""
    page = re.search(r"^The page: (\S+)$", process.log_text(), re.MULTILINE)
    if page is None:
        return False
    with urllib.request.urlopen(page[1], timeout=10) as answer:
        return answer.url == page[1]
