"""Are two pictures one picture? Decided on the pixels: local features, alignment, correlation.

An embedding says two pictures mean the same and a hash says they look alike; both say so of two shots
of one scene. Here the second picture is laid over the first by a single affine map, found from local
features and RANSAC, and what lies on top of each other is compared patch by patch. A crop, a border, a
mirror image or a rotation of one picture fits everywhere; two shots fit at most in parts. A picture with
too few features is laid over the other by its grey values (`dense`), and then held to a stricter bar.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from photodup.photos.compare import dense
from photodup.photos.compare.features import Features
from photodup.photos.compare.limits import LIMITS
from photodup.photos.compare.matching import affine_map, correlation, laid_over, matches
from photodup.photos.compare.patches import PATCH, differences, overlay, patch_correlations

# With fewer features than this in either picture, grey values may decide. There 2 greys of detail are
# texture: gradients have been taken out, so what is left is edges and not sky.
FEW_FEATURES = 150
FAINTLY_TEXTURED = 2.0
# The strongest features are compared first, which costs a fifth of comparing all. Of 1,441 proven pairs of 50 photographs
# none had so few of them on one map, nor do they need the others once these prove them.
STRONGEST, LEAST_INLIERS = 400, 5


@dataclass(frozen=True)
class Verification:
    """The evidence for and against a copy; all but `inliers` are 0..1, or -1..1 for `correlation`.

    Attributes:
        inliers: feature pairs that agree on one affine map (within 3 pixels of 480).
        overlap: share of the smaller picture that lies on the other.
        correlation: normalised correlation of all aligned pixels.
        spot: share of the textured patches that differ by writing alone: thin strokes of one grey.
        agreement: share of the textured patches that agree, or differ by writing alone. Whoever moved in
            front of a fixed camera counts against it.
        mirrored: the map was found against the mirror image.
        by_grey: grey values were aligned, for want of features: `inliers` stay 0, and the following two count.
        patches: textured patches that were compared.
        detail: correlation of the aligned structure of 2 to 12 pixels, gradients taken out.
    """

    inliers: int = 0
    overlap: float = 0.0
    correlation: float = 0.0
    spot: float = 0.0
    agreement: float = 0.0
    mirrored: bool = False
    by_grey: bool = False
    patches: int = 0
    detail: float = 0.0

    def passes(self) -> bool:
        """Return whether all but `agreement` reach their thresholds."""
        if self.overlap < LIMITS.min_overlap or self.spot > LIMITS.max_spot:
            return False
        if self.by_grey:
            return (
                self.patches >= LIMITS.min_patches
                and self.correlation >= LIMITS.min_grey_correlation
                and self.detail >= LIMITS.min_detail
            )
        return self.inliers >= LIMITS.min_inliers and self.correlation >= LIMITS.min_correlation

    def score(self) -> float:
        """Return one number to rank pairs by, 0..1: the agreement, halved if any other test fails."""
        return self.agreement * (1.0 if self.passes() else 0.5)

    def is_copy(self) -> bool:
        """Return the decision."""
        return self.passes() and self.agreement >= LIMITS.min_agreement


STRANGERS = Verification()


def verify_copy(first: Features, second: Features) -> Verification:
    """Lay the second picture over the first, as it is and mirrored, and return the better evidence."""
    return verify_with_map(first, second)[0]


def verify_with_map(first: Features, second: Features) -> tuple[Verification, np.ndarray | None]:
    """Return what `verify_copy` does, and the map it rests on.

    Returns:
        The evidence, and float64[2, 3] from pixels (x, y) of the second's grey picture, not mirrored, to
        those of the first's; None where none was found.
    """
    best: tuple[Verification, np.ndarray | None] = STRANGERS, None
    for evidence, transform in _attempts(first, second):
        if evidence.score() > best[0].score():
            back = np.array([[-1.0, 0, second.grey.shape[1] - 1], [0, 1, 0], [0, 0, 1]])
            best = evidence, transform @ back if evidence.mirrored else transform
        if evidence.is_copy():
            break
    return best


def could_be_one(first: Features, second: Features) -> bool:
    """Return False where so few of the strongest features match that `verify_copy` looks no further; no pixels are needed.

    Args:
        first, second: the strongest features of pictures that have `FEW_FEATURES` or more in all.
    """
    return any(inliers >= LEAST_INLIERS for *_, inliers in _maps(first, second))


def _attempts(first: Features, second: Features) -> Iterator[tuple[Verification, np.ndarray]]:
    """Yield evidence and its maps, what costs least first; those of a mirror image lie on that."""
    if min(len(first.points), len(second.points)) < FEW_FEATURES:
        yield from _by_features(first, _maps(first, second))
        for mirrored in (False, True):
            yield from _by_greys(first, second.mirrored() if mirrored else second, mirrored=mirrored)
        return
    strongest = list(_maps(first.strongest(STRONGEST), second.strongest(STRONGEST)))
    if any(inliers >= LEAST_INLIERS for *_, inliers in strongest):
        yield from _by_features(first, strongest)
        yield from _by_features(first, _maps(first, second))


def _maps(target: Features, second: Features) -> Iterator[tuple[Features, bool, np.ndarray | None, int]]:
    """Yield the second picture as it is and mirrored, where enough matches: it, whether mirrored, its map and inliers."""
    for mirrored in (False, True):
        source = second.mirrored() if mirrored else second
        near = matches(target.descriptors, source.descriptors)
        if len(near) >= LEAST_INLIERS:
            yield source, mirrored, *affine_map(target.points[near[:, 0]], source.points[near[:, 1]])


def _by_features(
    target: Features, maps: Iterable[tuple[Features, bool, np.ndarray | None, int]]
) -> Iterator[tuple[Verification, np.ndarray]]:
    for source, mirrored, transform, inliers in maps:
        if transform is not None and inliers >= LIMITS.min_inliers:
            measures = overlay(target.grey, source.grey, transform)
            yield Verification(inliers, *measures, mirrored=mirrored), transform


def _by_greys(
    first: Features, second: Features, *, mirrored: bool
) -> Iterator[tuple[Verification, np.ndarray]]:
    import cv2

    for transform in dense.grey_maps(first.grey, second.grey):
        scales = np.linalg.svd(transform[:, :2], compute_uv=False)
        if not 0.1 < scales[1] <= scales[0] < 10 or scales[0] / scales[1] > LIMITS.max_stretch:
            continue
        overlap, whole, *_ = overlay(first.grey, second.grey, transform)
        warped, covered = laid_over(first.grey, second.grey, transform)
        a, b = dense.structure(first.grey, covered), dense.structure(warped, covered)
        # Near the edge a blur sees one side only, and a plain gradient gets structure it does not have.
        margin = np.ones((2 * PATCH + 1, 2 * PATCH + 1), np.uint8)
        inside = cv2.erode(covered.astype(np.uint8), margin, borderValue=0) > 0
        patches = patch_correlations(a, b, inside, texture=FAINTLY_TEXTURED)
        spot, agreement = differences(patches, first.grey, warped, covered)
        evidence = Verification(
            overlap=overlap, correlation=whole, spot=spot, agreement=agreement, mirrored=mirrored,
            by_grey=True, patches=int(np.isfinite(patches).sum()), detail=correlation(a[inside], b[inside]),
        )  # fmt: skip
        yield evidence, transform
