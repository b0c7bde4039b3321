"""Neighbour pairs kept between runs, so that adding photos compares the new ones with all, not all with all.

The state lies beside the catalogue, one per model: `neighbours-<digest>.npz` holds which contents were compared
and the pairs found, `…-cells.npz` the index where there is one. It is a cache: delete it, and the next run
compares everything once.
"""

import os
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from photodup.errors import PhotodupError
from photodup.photos.neighbours import EXACT_BELOW, NeighbourIndex, Pairs

_VERSION = 1
# With more than this share of the contents gone, the index no longer fits what is left.
_MAX_GONE = 0.2


def stored_pairs(
    folder: Path,
    digest: str,
    md5s: Sequence[str],
    vectors: np.ndarray,
    threshold: float,
    *,
    exact_below: int = EXACT_BELOW,
) -> Pairs:
    """Return the pairs at or above a threshold; contents compared in an earlier run are not compared again.

    Args:
        folder: where the catalogue lies.
        digest: the model.
        md5s: the content of each row.
        vectors: float32[n, dim] of length 1, in any order; the pairs name rows of this array.
        threshold: smallest cosine; another one than last time compares everything again.
        exact_below: as in `NeighbourIndex`.
    """
    store = Path(folder) / f"neighbours-{digest[:16]}.npz"
    row = {md5: i for i, md5 in enumerate(md5s)}
    index = NeighbourIndex(vectors.shape[1], threshold, exact_below=exact_below)
    known, before = _load(store, index, row, vectors, threshold)
    seen = set(known)
    new = [md5 for md5 in md5s if md5 not in seen]
    order = np.array([row[md5] for md5 in (*known, *new)], np.int64)
    found = before
    if new or before is None:
        # In the caller's order a first run hands its array over as it is: a million rows are two gigabytes.
        rows = vectors if not known else vectors[order[len(known) :]]
        added = index.add(rows)
        found = added if before is None else _together(before, added, len(new), len(order))
        _save(store, index, [*known, *new], found, threshold)
    first, second = order[found.first], order[found.second]
    return replace(found, first=np.minimum(first, second), second=np.maximum(first, second))


def _together(before: Pairs, added: Pairs, n_new: int, n: int) -> Pairs:
    parts = [(getattr(before, name), getattr(added, name)) for name in ("first", "second", "similarity")]
    method = f"{added.method}, {n_new:,} new among {n:,}"
    arrays = (np.concatenate(part) for part in parts)
    return Pairs(*arrays, method, min(before.recall, added.recall), added.n_sampled)


def _load(
    store: Path, index: NeighbourIndex, row: dict[str, int], vectors: np.ndarray, threshold: float
) -> tuple[list[str], Pairs | None]:
    """Fill the index with what was compared before and is still there; nothing if that does not fit."""
    cells = _cells(store)
    # Asked first: where the archive is cut short, np.load raises and leaves the file open.
    if not zipfile.is_zipfile(store) or (cells.exists() and not zipfile.is_zipfile(cells)):
        return [], None
    try:
        with np.load(store, allow_pickle=False) as saved:
            if int(saved["version"]) != _VERSION or float(saved["threshold"]) != threshold:
                return [], None
            md5s = [md5.decode() for md5 in saved["md5s"]]
            first, second, similarity = saved["first"], saved["second"], saved["similarity"]
            method, recall = str(saved["method"]), float(saved["recall"])
        stays = np.array([md5 in row for md5 in md5s], bool)
        if not len(md5s) or (~stays).mean() > _MAX_GONE:
            return [], None
        known = [md5 for md5, there in zip(md5s, stays, strict=True) if there]
        old = np.ascontiguousarray(vectors[[row[md5] for md5 in known]], np.float32)
        if cells.is_file():
            _load_cells(index, cells, stays, old)
        else:
            index.vectors = old
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, PhotodupError):
        return [], None
    place = np.cumsum(stays) - 1
    keep = stays[first] & stays[second]
    pairs = Pairs(place[first[keep]], place[second[keep]], similarity[keep], method, recall, 0)
    return known, pairs


def _load_cells(index: NeighbourIndex, cells: Path, stays: np.ndarray, old: np.ndarray) -> None:
    if stays.all():
        return index.load(cells, old)
    with np.load(cells) as saved:
        centres, rows = saved["centres"], saved["cells"]
    if len(rows) != len(stays):
        raise ValueError("the index is not that of these pairs")
    left = cells.with_name(f".{cells.name}.{os.getpid()}.tmp")
    try:
        with open(left, "wb") as file:
            np.savez(file, centres=centres, cells=rows[stays])
        index.load(left, old)
    finally:
        left.unlink(missing_ok=True)


def _save(store: Path, index: NeighbourIndex, md5s: list[str], pairs: Pairs, threshold: float) -> None:
    """Write the state; a full disk costs the next run time and nothing else."""
    temporary = store.with_name(f".{store.name}.{os.getpid()}.tmp")
    try:
        store.unlink(missing_ok=True)  # first: pairs must never meet the cells of another run
        _cells(store).unlink(missing_ok=True)
        index.save(_cells(store))
        with open(temporary, "wb") as file:
            np.savez(
                file,
                version=_VERSION,
                threshold=threshold,
                md5s=np.array([md5.encode() for md5 in md5s]),
                first=pairs.first,
                second=pairs.second,
                similarity=pairs.similarity,
                method=pairs.method.split(",")[0] if "new among" in pairs.method else pairs.method,
                recall=pairs.recall,
            )
        os.replace(temporary, store)
    except OSError:
        temporary.unlink(missing_ok=True)


def _cells(store: Path) -> Path:
    return store.with_name(f"{store.stem}-cells.npz")
