"""photodup: find near-duplicate photos, and study how the embedding behind it is served.

For Python programs: `scan` and `find_duplicates` for photographs, `embed` for vectors, `load` and `compare` for servers.
Each shares its code with the command line, and imports it when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from photodup.bench.anyurl.comparison import ServerComparison
    from photodup.bench.anyurl.measure import LoadTarget, MeasuredLoad
    from photodup.photos.groups.results import Tiers
    from photodup.photos.library.scan import ScanReport

__all__ = ["compare", "embed", "find_duplicates", "load", "scan"]


def scan(folder: Path | str, **options: Any) -> ScanReport:
    """Bring the catalogue of a folder of photographs up to date; the photographs are only read.

    >>> photodup.scan("photos", progress=False).n_found
    3

    Args:
        options: keyword arguments of `photodup.photos.library.scan.scan`.

    Raises:
        PhotodupError: the folder cannot be read, or its catalogue cannot be written.
    """
    from photodup.photos.library.scan import scan as scan_library

    return scan_library(folder, **options)


def find_duplicates(
    folder: Path | str, *, weights: str | None = None, threshold: float | None = None
) -> Tiers:
    """Scan a folder, and return the groups of its copies and of its similar pictures; nothing is removed.

    >>> for group in photodup.find_duplicates("photos").copies:
    ...     print(group.keeper.path, [str(photo.path) for photo in group.may_go])
    large.jpg ['small.jpg']

    Args:
        weights: embed each photograph with them in this process first, to find similar pictures; the command's `stand-in`
            is `photodup.photos.demo.encoder.export_stand_in()`. Without embeddings, copies are found by hash and pixels.
        threshold: smallest cosine of similar pictures; default the library's setting, else the model's own.

    Raises:
        PhotodupError: the folder cannot be read, or the weights cannot be loaded.
    """
    from photodup.embedding.client.embedder import connect
    from photodup.photos.embed.batches import embed_library
    from photodup.photos.groups.tiers import find_tiers
    from photodup.photos.library.catalogue import Catalogue

    scan(folder, progress=False)
    with Catalogue(Path(folder)) as catalogue:
        if weights:
            with connect(mode="local", pretrained=weights) as embedder:
                embed_library(catalogue, embedder, progress=False)
        return find_tiers(catalogue, threshold=threshold)


def embed(
    images: Sequence[Path | str | bytes | Image], *, url: str | None = None, **options: Any
) -> np.ndarray:
    """Return an embedding of length 1 for each image, float32 [n, 512] of ViT-B/32, from this process or a server.

    >>> vectors = photodup.embed(["photos/large.jpg", "photos/small.jpg"], pretrained="random:0")
    >>> vectors.shape, float(vectors[0] @ vectors[1]) > 0.99
    ((2, 512), True)

    Args:
        images: paths, contents of files, or PIL images.
        url: of a server; default INFERENCE_SERVICE_URL, else this process.
        options: of `photodup.embedding.client.embedder.connect`, such as `pretrained`.

    Raises:
        PhotodupError: an image cannot be read, weights are missing, or the server does not answer.
    """
    from photodup.embedding.client.embedder import connect

    with connect(url, **options) as embedder:
        return embedder.embed([Path(image) if isinstance(image, str) else image for image in images])


def load(
    url: str, *, seconds: float = 20.0, concurrency: int = 1, rate_per_s: float | None = None
) -> MeasuredLoad:
    """Measure a server of any kind that `photodup load` knows, and return rate and latency with their intervals.

    Reasons to doubt a figure are printed to stderr.

    >>> figures = photodup.load(url, seconds=3)  # such as http://127.0.0.1:8002/embed
    >>> figures.n_failed, figures.percentiles_ms[50][0] > 0
    (0, True)

    Args:
        seconds: longest duration of the whole measurement.
        concurrency: requests in flight.
        rate_per_s: random arrivals at this rate instead, with at most `concurrency` in flight.

    Raises:
        PhotodupError: nothing answers there, or it refuses what it is sent.
    """
    from photodup.bench.anyurl.measure import LoadSpec, measure_loads, notes
    from photodup.bench.anyurl.watch import Watcher

    server, watcher = _server(url), Watcher(None)
    server.try_once()
    spec = LoadSpec(concurrency, rate_per_s, seconds=seconds)
    measured = measure_loads(server, [spec], watcher)[0]
    for note in notes(measured, server.target, watcher):
        print(f"Note: {note}", file=sys.stderr)
    return measured


def compare(url_a: str, url_b: str, *, seconds: float = 60.0, concurrency: int = 1) -> ServerComparison:
    """Compare two servers, which take turns, and return the outcomes with a sentence for each.

    The first outcome is a check: it compares two connections to one server, so a difference is an error of measurement.

    >>> versus = photodup.compare(url, url, seconds=15)
    >>> [outcome.comparison.metric for outcome in versus.outcomes[1:]]
    ['latency_ms_p50', 'latency_ms_p95', 'latency_ms_p99']

    Raises:
        PhotodupError: one does not answer, or the time is too short for them.
    """
    from photodup.bench.anyurl.comparison import compare_servers
    from photodup.bench.anyurl.measure import LoadSpec
    from photodup.bench.anyurl.watch import Watcher

    servers = _server(url_a), _server(url_b)
    for server in servers:
        server.try_once()
    return compare_servers(*servers, LoadSpec(concurrency, seconds=seconds), Watcher(None))


def _server(url: str) -> LoadTarget:
    from photodup.bench.anyurl.measure import LoadTarget
    from photodup.bench.anyurl.payloads import payloads_for
    from photodup.bench.anyurl.target import target_of

    target = target_of(url)
    return LoadTarget(target, payloads_for(target, kind=None, paths=[], texts=[]))
