"""How much faster a library is scanned and embedded in one pass than in two, on 12-megapixel JPEGs, in one run.

Two passes read and decode each file twice: at 1/8 for the hash, then whole for the embedding. One pass decodes once, whole
or at a reduced scale, while another batch is computed. The encoder is ViT-B/32 with random weights (no timing depends on
them), with the engine that is here.
"""

import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.rows import Row, compared, in_turns, ratio, row
from photodup.bench.stats.figures import interval

GOALS = {"scaled": 38.0, "whole": 18.0}  # photographs/s
WEIGHTS = "random:0"


def rows(n: int = 32, quads: int = 6, weights: str = WEIGHTS, backend: str | None = None) -> Iterator[Row]:
    """Time each way on the same n files, in turns; yield photographs per second and how often two passes' they are.

    Args:
        n: photographs; the pictures of twelve, each file's bytes its own.
        quads: palindromes of turns: each side is timed twice as often.
        weights: as MODEL_PRETRAINED.
        backend: who embeds in this process; default OpenVINO if it is here, else ONNX Runtime.
    """
    from benchmarks.large_photographs import make_12mp
    from photodup.core.files import available_cores
    from photodup.embedding.client.embedder import Embedder, connect
    from photodup.photos.embed.batches import EmbeddingPass, embed_library
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.library.scan import scan

    backend = backend or f"local-{'openvino' if find_spec('openvino') else 'onnx'}-fp32"
    open_embedder = partial(connect, mode="local", backend=backend, pretrained=weights)
    with tempfile.TemporaryDirectory(prefix="photodup-bench-") as folder:
        library = Path(folder, "library")
        photos = [path.read_bytes() for path in make_12mp(library, min(n, 12))]
        for i in range(
            len(photos), n
        ):  # behind the end of the picture: another content, decoded all the same
            (library / f"{i:04d}.jpg").write_bytes(photos[i % len(photos)] + i.to_bytes(4, "big"))

        def rate(embedder: Embedder, is_one_pass: bool) -> float:
            own_folder = tempfile.mkdtemp(dir=folder)
            sinks: list[EmbeddingPass] = []

            def open_sink(catalogue: Catalogue) -> EmbeddingPass:
                sinks.append(EmbeddingPass(catalogue, embedder, progress=False))
                return sinks[0]

            started = time.perf_counter()
            scan(library, own_folder, progress=False, open_sink=open_sink if is_one_pass else None)
            if is_one_pass:
                report = sinks[0].report
            else:
                with Catalogue(library, own_folder) as catalogue:
                    report = embed_library(catalogue, embedder, progress=False)
            if report.n_embedded != n:
                raise RuntimeError(f"{report.n_embedded} of {n} photographs were embedded.")
            return n / (time.perf_counter() - started)

        with open_embedder() as whole, open_embedder() as drafted:
            drafted.at_reduced_scale()
            sides = [partial(rate, whole, False), partial(rate, drafted, True), partial(rate, whole, True)]
            for side in sides:  # a first computation is slow, and so is a cold page cache
                side()
            turns = in_turns(sides, quads, random.Random(0))
    name = f"scan and embed 12 MP ({backend}, {available_cores()} cores)"
    yield row(f"{name}, two passes", interval(turns[0]), "photos/s")
    for side_number, (decoded, goal) in enumerate(GOALS.items(), start=1):
        one_pass = f"{name}, one pass, decoded {decoded}"
        yield row(one_pass, interval(turns[side_number]), "photos/s", least=goal)
        yield row(f"{one_pass} ÷ two passes", ratio(compared([turns], 0, side_number)))
