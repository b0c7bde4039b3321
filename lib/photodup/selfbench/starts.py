"""How long somebody waits at the start: for the service's first answer, and for the first page of `photodup review`.

From the command to the answer over real HTTP, each time in a process of its own. The service is started with what earlier
starts left in build/models, which export holds which weights, and without.
"""

import json
import random
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

from photodup.bench.anyurl.payloads import made_up_images
from photodup.bench.backends.adapters import adapter, answers_to
from photodup.bench.load.usage import cpu_s, memory_mib
from photodup.bench.pairs.alternate import in_turns
from photodup.embedding.engines.export import MADE_FROM
from photodup.embedding.imaging import to_jpeg
from photodup.paths import build_dir
from photodup.selfbench.rows import Row, guarded, row, several
from photodup.selfbench.service import BACKEND, WEIGHTS
from photodup.serving.process.process import ServerProcess
from photodup.serving.service.start import ServiceProcess

STARTS = 6  # even: the service's take turns
GOALS_S = {"with": 2.0, "without": 5.0}
PAGE_GOAL_S = 1.5
LARGE, LARGE_GOAL_S = 20_000, 5.0


def rows() -> Iterator[Row]:
    """Yield both waits."""
    yield from guarded("first answer of the service", first_answers)
    yield from guarded("first page of `photodup review`", first_page)
    yield from guarded("first page of a large library", first_page_of_many)


def first_answers(
    engine: str = "openvino", precision: str = "int8", *, weights: str = WEIGHTS, n: int = STARTS
) -> Iterator[Row]:
    """Time starts of the service until it has answered a photograph, with and without what earlier ones left."""
    photos = made_up_images(1).items
    settings = {"MODEL_PRETRAINED": weights, "ENGINE": engine, "PRECISION": precision}
    memory = []

    def seconds(**more: str) -> float:
        began = time.perf_counter()
        with ServiceProcess(settings={**settings, **more}) as service:
            answers_to(adapter(BACKEND, service.url, jpeg_quality=None), photos)
            waited = time.perf_counter() - began
            memory.append(memory_mib(service.pid))
            return waited

    def from_nothing() -> float:
        with tempfile.TemporaryDirectory() as root:
            _forgetful(Path(root, "build", "models"))
            return seconds(PHOTODUP_ROOT=root)

    seconds()  # leaves it
    for (how, goal), found in zip(
        GOALS_S.items(), in_turns([seconds, from_nothing], n // 2, random.Random(0)), strict=True
    ):
        name = f"first answer of the service, {engine} {precision}, {how} a cache"
        yield row(name, several(found), "s", most=goal, memory_mib=max(memory))


def _forgetful(folder: Path) -> None:
    """Fill a folder with links to the models that there are, and with what is written of them but for who they are."""
    folder.mkdir(parents=True)
    for path in filter(Path.is_file, (build_dir() / "models").glob("*")):
        if path.suffix == ".json":
            facts = json.loads(path.read_text(encoding="utf-8"))
            facts.pop(MADE_FROM, None)
            (folder / path.name).write_text(json.dumps(facts), encoding="utf-8")
        else:
            (folder / path.name).symlink_to(path)


def first_page(n: int = STARTS) -> Iterator[Row]:
    """Time starts of `photodup review` on the demonstration library until the page shows groups."""
    from photodup.study.evaluate import review_library

    name = "first page of `photodup review` on a known library (the demonstration's)"
    found, _, memory = _opened(review_library(), n)
    yield row(name, several(found), "s", most=PAGE_GOAL_S, memory_mib=memory)


def first_page_of_many(n: int = STARTS, photos: int = LARGE) -> Iterator[Row]:
    """Time the same on made-up photographs, a tenth of them copies of the same bytes; each pair by hash was refused."""
    with tempfile.TemporaryDirectory(prefix="photodup-bench-") as folder:
        made_up_library(Path(folder), photos)
        found, core, memory = _opened(Path(folder), n)
    name = f"first page of `photodup review` on a known library of {photos:,} photos"
    yield row(name, several(found), "s", most=LARGE_GOAL_S, memory_mib=memory)
    yield row(f"{name}: computing", several(core), "core-s")


def made_up_library(root: Path, n: int) -> None:
    """Make a library of `n` small photographs, as one is that was grouped before."""
    from photodup.photos.compare.evidence import EvidenceStore, pair_rows
    from photodup.photos.compare.verify import Verification
    from photodup.photos.library.catalogue import Catalogue, by_content
    from photodup.photos.library.scan import scan
    from photodup.photos.search.candidates import find_neighbours

    rng = np.random.default_rng(0)
    for i in range(n):
        path = root / f"{i // 1000}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        if i % 10 != 9:  # else the one before again
            data = to_jpeg(Image.fromarray(rng.integers(0, 256, (48, 64, 3), np.uint8)))
        path.write_bytes(data)
    scan(root, progress=False)
    with Catalogue(root) as catalogue:
        photos = [same[0] for same in by_content(catalogue.photos()).values()]
        near = find_neighbours(catalogue, photos, None, 1.0, 1.0).by_hash
        with EvidenceStore(catalogue.own.evidence) as store:
            pairs = zip(*pair_rows(near), strict=True)
            store.add([(photos[a].md5, photos[b].md5, Verification()) for a, b in pairs])


def _opened(library: Path, n: int) -> tuple[list[float], list[float], float | None]:
    """Return of `n` starts of the page, after a first one, the seconds, the core-seconds and the last one's memory."""
    log = build_dir() / "logs" / "bench-review.log"
    command = [sys.executable, "-P", "-m", "photodup", "review", str(library), "--port", "0"]
    seconds, core = [], []
    for _ in range(n + 1):
        began = time.perf_counter()
        with ServerProcess("photodup review", command, log) as process:
            process.wait_ready(partial(_shows_groups, process), 1800)  # the first compares pixels
            seconds.append(time.perf_counter() - began)
            core.append(cpu_s(process.pid))
            memory = memory_mib(process.pid)
    return seconds[1:], core[1:], memory


def _shows_groups(process: ServerProcess) -> bool:
    """Return whether the page whose address was printed is there; while the folder opens, it leads elsewhere."""
    page = re.search(r"^The page: (\S+)$", process.log_text(), re.MULTILINE)
    if page is None:
        return False
    with urllib.request.urlopen(page[1], timeout=10) as answer:
        return answer.url == page[1]
