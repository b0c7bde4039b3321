"""Verify on the pixels whether two files show one picture: local features, alignment, correlation.

Embeddings and perceptual hashes are also close for two shots of one scene. Here one affine map, found from local features
with RANSAC, places the second picture on the first, and both are compared patch by patch. A crop, a border, a mirror image
or a rotation of one picture fits everywhere; two shots fit at most in parts. Pictures with few features may be aligned by
their grey values (`dense`); of these the structure is compared, without gradients.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from photodup.photos.compare import dense
from photodup.photos.compare.features import LENGTH, Features
from photodup.photos.compare.limits import LIMITS
from photodup.photos.compare.patches import overlay

FEW_FEATURES = 150  # with fewer in either picture, grey values may decide
# The strongest features are compared first, at a fifth of the cost of all. With fewer inliers among them a pair is given up;
# none of 1,441 proven pairs of 50 photographs had so few.
STRONGEST, LEAST_INLIERS = 400, 5
_MOST_SCALED = 10  # largest scale of an edit, or 1 over the smallest


@dataclass(frozen=True)
class CopyEvidence:
    """The evidence for and against a copy. Shares are 0..1, correlations -1..1.

    Attributes:
        inliers: feature pairs that agree on one affine map (within 3 pixels, at a longer side of 480).
        overlap: share of the smaller picture that lies on the other.
        correlation: normalised correlation of all aligned pixels; `by_grey` of their structure, without gradients.
        spot: share of the textured patches that differ by writing alone: thin strokes of one grey.
        agreement: share of the textured patches that agree, or differ by writing alone; a person who moved lowers it.
        patches: textured patches that were compared.
        mirrored: the map was found against the mirror image.
        by_grey: grey values were aligned, for lack of features; then `inliers` is 0, and `patches` count.
    """

    inliers: int = 0
    overlap: float = 0.0
    correlation: float = 0.0
    spot: float = 0.0
    agreement: float = 0.0
    patches: int = 0
    mirrored: bool = False
    by_grey: bool = False

    def passes(self) -> bool:
        """Return whether all but `agreement` reach their thresholds."""
        n, least = (self.patches, LIMITS.min_patches) if self.by_grey else (self.inliers, LIMITS.min_inliers)
        is_aligned = n >= least and self.overlap >= LIMITS.min_overlap
        return is_aligned and self.correlation >= LIMITS.min_correlation and self.spot <= LIMITS.max_spot

    def score(self) -> float:
        """Return one number to rank pairs by, 0..1: the agreement, halved if any other test fails."""
        return self.agreement * (1.0 if self.passes() else 0.5)

    def is_copy(self) -> bool:
        """Return whether all thresholds are reached."""
        return self.score() >= LIMITS.min_agreement


STRANGERS = CopyEvidence()
_Map = tuple[Features, bool, np.ndarray, int]  # picture, whether it is mirrored, map and inliers


def verify_copy(first: Features, second: Features) -> CopyEvidence:
    """Lay the second picture over the first, as it is and mirrored, and return the better evidence."""
    return verify_with_map(first, second)[0]


def verify_with_map(first: Features, second: Features) -> tuple[CopyEvidence, np.ndarray | None]:
    """Return what `verify_copy` does, and the map it rests on.

    Returns:
        The evidence, and float64[2, 3] from pixels (x, y) of the second's grey picture, not mirrored, to
        those of the first's; None where none was found.
    """
    best: tuple[CopyEvidence, np.ndarray | None] = STRANGERS, None
    for evidence, transform in _attempts(first, second):
        if evidence.score() > best[0].score():
            back = np.array([[-1.0, 0, second.grey.shape[1] - 1], [0, 1, 0], [0, 0, 1]])
            best = evidence, transform @ back if evidence.mirrored else transform
        if evidence.is_copy():
            break
    return best


def _attempts(first: Features, second: Features) -> Iterator[tuple[CopyEvidence, np.ndarray]]:
    """Yield evidence with its map, the cheapest first; maps of a mirror image start from the mirrored picture."""
    if min(len(first.points), len(second.points)) < FEW_FEATURES:
        yield from _by_features(first, _maps(first, second))
        for mirrored in (False, True):
            source = second.mirrored() if mirrored else second
            for transform in dense.grey_maps(first.grey, source.grey):
                if _is_plausible(transform, LIMITS.max_stretch):
                    evidence = overlay(first.grey, source.grey, transform, of_structure=True)
                    yield CopyEvidence(0, *evidence, mirrored=mirrored, by_grey=True), transform
        return
    strongest = list(_maps(first.strongest(STRONGEST), second.strongest(STRONGEST)))
    if any(inliers >= LEAST_INLIERS for *_, inliers in strongest):
        yield from _by_features(first, strongest)
        yield from _by_features(first, _maps(first, second))


def matches(first: np.ndarray, second: np.ndarray, ratio: float = 0.85) -> np.ndarray:
    """Return index pairs [n, 2] of features that are each other's nearest and clearly so (Lowe's ratio)."""
    if len(first) < 3 or len(second) < 3:
        return np.zeros((0, 2), int)
    # Descriptors have equal norms, so the nearest has the largest product.
    products = first.astype(np.float32) @ second.astype(np.float32).T
    rows, nearest = np.arange(len(first)), products.argmax(axis=1)
    mutual = products.argmax(axis=0)[nearest] == rows
    best = products[rows, nearest]
    products[rows, nearest] = -np.inf
    square = LENGTH**2
    clear = square - best < ratio**2 * (square - products.max(axis=1))
    keep = clear & mutual
    return np.stack([rows[keep], nearest[keep]], axis=1)


def _is_plausible(transform: np.ndarray, most_stretched: float) -> bool:
    """Return whether an edit may scale like a map: by at most ten, and both axes nearly alike."""
    if not np.isfinite(transform).all():
        return False
    larger, smaller = np.linalg.svd(transform[:, :2], compute_uv=False)
    return bool(1 / _MOST_SCALED <= smaller <= larger <= _MOST_SCALED and larger <= most_stretched * smaller)


def _maps(target: Features, second: Features) -> Iterator[_Map]:
    """Yield (picture, mirrored, map, inliers) for the second picture and its mirror image, where a plausible map fits."""
    import cv2

    for mirrored in (False, True):
        source = second.mirrored() if mirrored else second
        near = matches(target.descriptors, source.descriptors)
        if len(near) < LEAST_INLIERS:
            continue
        points = source.points[near[:, 1]], target.points[near[:, 0]]
        cv2.setRNGSeed(0)  # the same pair gets the same verdict every time
        transform, mask = cv2.estimateAffine2D(*points, method=cv2.RANSAC, maxIters=3000, confidence=0.999)
        # The mirror image is tried separately.
        if transform is not None and _is_plausible(transform, 2) and np.linalg.det(transform[:, :2]) > 0:
            yield source, mirrored, transform, int(mask.sum())


def _by_features(target: Features, maps: Iterable[_Map]) -> Iterator[tuple[CopyEvidence, np.ndarray]]:
    for source, mirrored, transform, inliers in maps:
        if inliers >= LIMITS.min_inliers:
            measures = overlay(target.grey, source.grey, transform)
            yield CopyEvidence(inliers, *measures, mirrored=mirrored), transform
