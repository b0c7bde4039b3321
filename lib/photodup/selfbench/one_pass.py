"""How much faster a library is scanned and embedded in one pass than in two, on 12-megapixel JPEGs, in one run.

Two passes read and decode each file twice: at 1/8 for the hash, then whole for the embedding. One pass decodes once, whole
or at a reduced scale, while another batch is computed. The encoder is ViT-B/32 with random weights (no timing depends on
them) in the fastest precision that this machine computes; whether decisions may rest on that precision and on the
reduced scale, the gate says, of trained weights.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from photodup.embedding.client.client import Embedder

GOAL_PHOTOS_PER_S = 25.0
WEIGHTS = "random:0"


def run(n: int = 64, repeats: int = 3, weights: str = WEIGHTS, backend: str | None = None) -> dict:
    """Time each way on the same n files, in turn, and return photographs per second and their ratios.

    Args:
        n: photographs; the pictures of twelve, each file's bytes its own.
        repeats: how often each side is timed; the median counts.
        weights: as MODEL_PRETRAINED.
        backend: who embeds in this process; default OpenVINO or ONNX Runtime in the fastest precision there is.
    """
    from photodup.embedding.client.client import connect
    from photodup.files import available_cores
    from photodup.photos.embed.embed import OnePass, embed_library
    from photodup.photos.library.catalogue import Catalogue
    from photodup.photos.library.scan import scan

    with tempfile.TemporaryDirectory(prefix="photodup-bench-") as folder:
        library = Path(folder, "library")
        _make(library, n)
        backend = backend or fastest(weights)

        def connected(is_drafted: bool = False) -> "Embedder":
            embedder = connect(mode="local", backend=backend, pretrained=weights)
            embedder.gate = "passed"  # for a timing; nothing is decided from these vectors
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
            sides: dict[str, Callable[[], None]] = {
                "two_passes": lambda: two_passes(whole),
                "one_pass_whole": lambda: one_pass(whole),
                "one_pass": lambda: one_pass(drafted),
            }
            for work in sides.values():  # a first computation is slow, and so is a cold page cache
                work()
            rates = rates_in_turn(sides, n, repeats)
    return {
        "cores": available_cores(),
        "backend": backend,
        "two_passes_photos_per_s": rates["two_passes"],
        "one_pass_whole_photos_per_s": rates["one_pass_whole"],
        "one_pass_photos_per_s": rates["one_pass"],
        "ratio": rates["one_pass"] / rates["two_passes"],
        "ratio_whole": rates["one_pass_whole"] / rates["two_passes"],
        "goal_photos_per_s": GOAL_PHOTOS_PER_S,
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


def _make(library: Path, n: int) -> None:
    from photodup.demo.photographs import make_12mp

    files = make_12mp(library, min(n, 12))
    for i in range(len(files), n):
        copy = library / f"{i:04d}.jpg"
        shutil.copy(files[i % len(files)], copy)
        with copy.open("ab") as file:  # behind the end of the picture: another content, decoded all the same
            file.write(i.to_bytes(4, "big"))


def fastest(weights: str) -> str:
    """Return the backend of the fastest precision with a file and instructions here, whatever the gate said."""
    from importlib.util import find_spec

    from photodup.embedding.engines.encoder import export_of
    from photodup.embedding.engines.model import can_compute
    from photodup.embedding.engines.reduced import reduced_path, source_of

    if not find_spec("openvino"):
        return "local-onnx-fp32"
    source = source_of(export_of(weights))
    if can_compute("int8") and reduced_path(source, "openvino", "int8").is_file():
        return "local-openvino-int8"
    return f"local-openvino-{'bf16' if can_compute('bf16') else 'fp32'}"


def _check(found: int, n: int) -> None:
    if found != n:
        raise RuntimeError(f"{found} of {n} photographs were embedded: nothing to compare.")


def main() -> None:
    """Print the rates and their ratios."""
    result = run()
    print(
        "scan and embed of 12-megapixel JPEGs ({backend}, random weights, {cores} cores): one pass "
        "{one_pass_photos_per_s:.1f} photos/s (goal ≥ {goal_photos_per_s:g}), with JPEGs decoded whole "
        "{one_pass_whole_photos_per_s:.1f}; two passes {two_passes_photos_per_s:.1f}; ratio {ratio:.2f}, "
        "whole {ratio_whole:.2f}".format(**result)
    )
