"""The measurement of copies as text, and as JSON."""

from dataclasses import asdict

import numpy as np

from photodup.photos.quality.pairs import Quality

# Photos in a library: for what finding copies in it would be like.
LIBRARY_SIZES = tuple(round(10 ** (step / 4)) for step in range(8, 29))


def report(quality: Quality) -> str:
    """Return the measurement as text."""
    weights = quality.model or "no weights"
    lines = [
        f"{quality.n_photos} photographs ({quality.n_same_scene} same-scene pairs), "
        f"{len(quality.transforms)} edits of each; {weights}; "
        f"{quality.n_verified:,} pairs verified, {quality.verify_ms:.0f} ms each",
        f"{'detector':34}{'AP':>7}{'R@P90':>8}{'R@0FP':>8}{'as shipped':>22}",
    ]
    for entry in quality.curves:
        shipped = ""
        if entry.at_default:
            right, wrong = entry.at_default
            shipped = f"R {right / entry.n_positive:.3f}, {wrong} false"
        lines.append(
            f"{entry.name:34}{entry.average_precision:7.3f}{entry.recall_at_p90:8.3f}"
            f"{entry.recall_at_zero_fp:8.3f}{shipped:>22}"
        )
    lines.append("recall before the first false positive, by edit:")
    for label in quality.transforms:
        values = "  ".join(f"{entry.name} {entry.recall_by_transform[label]:.2f}" for entry in quality.curves)
        lines.append(f"  {label:22}{values}")
    if chosen := quality.cosines:
        lines.append(
            f"cosines to use: verify from {chosen.candidate:.2f}, similar from {chosen.similar:.2f}, "
            f"in a burst from {chosen.burst:.2f} ({chosen.measured})"
        )
    for n in (10_000, 1_000_000):
        alone, beside = quality.recall_among(n)
        words = "" if beside is None else f", with the embedding {beside:.3f}"
        lines.append(f"as shipped among {n:,} photos (computed): by hash alone {alone:.3f}{words}")
    for chain in quality.chaining:
        lines.append(
            f"cosine {chain.threshold:.2f}: largest star {chain.largest_star}, component {chain.largest_component}; "
            f"smallest cosine inside {chain.smallest_in_star:.2f} / {chain.smallest_in_component:.2f}; "
            f"groups of different pictures {chain.mixed_stars} / {chain.mixed_components}"
        )
    return "\n".join(lines)


def as_record(quality: Quality, most_points: int = 120) -> dict:
    """Return the measurement as JSON: all numbers, and each curve by at most `most_points` of its points."""
    curves = []
    for entry in quality.curves:
        # A curve turns where a copy is found; between those points precision only falls.
        turns = np.append(np.flatnonzero(np.diff(entry.recall, prepend=0) > 0), len(entry.recall) - 1)
        kept = np.unique(turns[np.linspace(0, len(turns) - 1, most_points).astype(int)])
        right, wrong = entry.at_default or (None, None)
        curves.append(
            {
                "detector": entry.name,
                "recall": np.round(entry.recall[kept], 4).tolist(),
                "precision": np.round(entry.precision[kept], 4).tolist(),
                "average_precision": entry.average_precision,
                "recall_at_precision_90": entry.recall_at_p90,
                "recall_at_zero_fp": entry.recall_at_zero_fp,
                "n_found_as_shipped": right,
                "n_false_as_shipped": wrong,
                "recall_by_edit": entry.recall_by_transform,
                "n_true_pairs": entry.n_positive,
                "n_false_pairs": entry.n_negative,
            }
        )
    return {
        "model": quality.model,
        "n_photos": quality.n_photos,
        "n_same_scene": quality.n_same_scene,
        "edits": list(quality.transforms),
        "curves": curves,
        "chaining": [asdict(entry) for entry in quality.chaining],
        "cosines": asdict(quality.cosines) if quality.cosines else None,
        "n_verified": quality.n_verified,
        "verify_ms": quality.verify_ms,
        "recall_by_library_size": [
            dict(zip(("photos", "hash_alone", "with_embedding"), (n, *quality.recall_among(n)), strict=True))
            for n in LIBRARY_SIZES
        ],
    }
