"""How much faster a library is scanned and embedded in one pass than in two, on 12-megapixel JPEGs, in one run.

Two passes read and decode each file twice: at 1/8 for the hash, then whole for the embedding. One pass decodes once, whole
or at a reduced scale, while another batch is computed. The encoder is ViT-B/32 with random weights (no timing depends on
them) in FP32; whether decisions may rest on the reduced scale, the accuracy check says, of trained weights.
"""

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from photodup.bench.pairs.alternate import in_turns
from photodup.selfbench.rows import Row, compared, ratio, row, several

if TYPE_CHECKING:
    from photodup.embedding.client.client import Embedder

GOALS = {"scaled": 38.0, "whole": 18.0}  # photographs/s
WEIGHTS = "random:0"


def rows(n: int = 32, quads: int = 6, weights: str = WEIGHTS, backend: str | None = None) -> Iterator[Row]:
    """Time each way on the same n files, in turns; yield photographs per second and how often two passes' they are.

    Args:
        n: photographs; the pictures of twelve, each file's bytes its own.
        quads: palindromes of turns: each side is timed twice as often.
        weights: as MODEL_PRETRAINED.
        backend: who embeds in this process; default OpenVINO, or ONNX Runtime where it is not installed.
    """
    from photodup.embedding.client.client import connect
    from photodup.files import available_cores
    from photodup.photos.embed.embed import OnePass, embed_library
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.library.scan import scan

    with tempfile.TemporaryDirectory(prefix="photodup-bench-") as folder:
        library = Path(folder, "library")
        _make(library, n)
        backend = backend or f"local-{'openvino' if find_spec('openvino') else 'onnx'}-fp32"

        def connected(is_drafted: bool = False) -> "Embedder":
            embedder = connect(mode="local", backend=backend, pretrained=weights)
            if is_drafted:
                embedder.at_reduced_scale()
            return embedder

        def afresh() -> Path:
            return Path(tempfile.mkdtemp(dir=folder), "catalogue.sqlite")

        def two_passes(embedder: "Embedder") -> None:
            place = afresh()
            scan(library, place, progress=False)
            with Catalogue(library, place) as catalogue:
                _check(embed_library(catalogue, embedder, progress=False).n_embedded, n)

        def one_pass(embedder: "Embedder") -> None:
            passes = []

            def open_sink(catalogue: Catalogue) -> OnePass:
                passes.append(OnePass(catalogue, embedder, progress=False))
                return passes[0]

            scan(library, afresh(), progress=False, open_sink=open_sink)
            _check(passes[0].report.n_embedded, n)

        with connected() as whole, connected(is_drafted=True) as drafted:
            ways: dict[str, Callable[[], None]] = {
                "two passes": lambda: two_passes(whole),
                "scaled": lambda: one_pass(drafted),
                "whole": lambda: one_pass(whole),
            }
            for work in ways.values():  # a first computation is slow, and so is a cold page cache
                work()
            turns = in_turns([partial(_rate, way, n) for way in ways.values()], quads, random.Random(0))
    what = f"scan and embed 12 MP ({backend}, {available_cores()} cores)"
    yield row(f"{what}, two passes", several(turns[0]), "photos/s")
    for side, (decoded, goal) in enumerate(GOALS.items(), start=1):
        one = f"{what}, one pass, decoded {decoded}"
        yield row(one, several(turns[side]), "photos/s", least=goal)
        yield row(f"{one} ÷ two passes", ratio(compared([turns], 0, side)))


def _rate(work: Callable[[], None], n: int) -> float:
    started = time.perf_counter()
    work()
    return n / (time.perf_counter() - started)


def _make(library: Path, n: int) -> None:
    from photodup.demo.photographs import make_12mp

    files = make_12mp(library, min(n, 12))
    for i in range(len(files), n):
        copy = library / f"{i:04d}.jpg"
        shutil.copy(files[i % len(files)], copy)
        with copy.open("ab") as file:  # behind the end of the picture: another content, decoded all the same
            file.write(i.to_bytes(4, "big"))


def _check(found: int, n: int) -> None:
    if found != n:
        raise RuntimeError(f"{found} of {n} photographs were embedded: nothing to compare.")
