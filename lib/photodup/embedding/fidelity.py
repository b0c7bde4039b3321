"""How much a change of precision or engine changes embeddings, neighbours and decisions."""

from collections.abc import Mapping

import numpy as np


def compare_embeddings(reference: np.ndarray, changed: np.ndarray, threshold: float) -> dict[str, float]:
    """Compare two sets of embeddings of the same photographs.

    Args:
        reference: float32 [n, dim] of length 1.
        changed: embeddings of the same photographs in the same order. Rows that are not finite count as lost.
        threshold: smallest cosine at which two photographs are taken for duplicates.

    Returns:
        `cosine_min`, `cosine_median` (between the two embeddings of a photograph), `max_abs`, `distance_max`
        (length of the difference), `neighbour_kept` (share of photographs with the same nearest neighbour),
        `neighbour_rank_max` (worst new rank, from 1, of a former nearest neighbour), `pairs`, `same` (duplicate
        pairs in the reference), `flipped` (pairs decided differently), `shift_max` (largest change of a pair's
        cosine), `n`, `n_not_finite`. All but the last two leave out rows that are
        not finite, and are missing if fewer than two rows are left.
    """
    finite = np.isfinite(changed).all(axis=1)
    a, b = reference[finite].astype(np.float64), changed[finite].astype(np.float64)
    counts: dict[str, float] = {"n": len(reference), "n_not_finite": int((~finite).sum())}
    if len(a) < 2:
        return counts
    cosines = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    before, after = a @ a.T, b @ b.T
    upper = np.triu_indices(len(a), 1)
    np.fill_diagonal(before, -np.inf)
    np.fill_diagonal(after, -np.inf)
    nearest = before.argmax(axis=1)
    rows = np.arange(len(a))
    rank = 1 + (after > after[rows, nearest][:, None]).sum(axis=1)
    return counts | {
        "cosine_min": float(cosines.min()),
        "cosine_median": float(np.median(cosines)),
        "max_abs": float(np.abs(a - b).max()),
        "distance_max": float(np.linalg.norm(a - b, axis=1).max()),
        "neighbour_kept": float((rank == 1).mean()),
        "neighbour_rank_max": int(rank.max()),
        "pairs": len(upper[0]),
        "same": int((before[upper] >= threshold).sum()),
        "flipped": int(((before[upper] >= threshold) != (after[upper] >= threshold)).sum()),
        "shift_max": float(np.abs(before[upper] - after[upper]).max()),
    }


def flips(reference: np.ndarray, changed: np.ndarray, thresholds: Mapping[str, float]) -> dict[str, int]:
    """Count the pairs that each threshold decides differently, leaving out rows that are not finite.

    Args:
        reference: float32 [n, dim] of length 1.
        changed: embeddings of the same photographs in the same order.
        thresholds: smallest cosine of a duplicate pair, by the name of the decision.
    """
    return {
        f"flipped_{name}": int(compare_embeddings(reference, changed, value).get("flipped", 0))
        for name, value in thresholds.items()
    }
