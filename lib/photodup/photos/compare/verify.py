"""Are two pictures one picture? Decided on the pixels: local features, alignment, correlation.

An embedding says two pictures mean the same and a hash says they look alike; both say so of two shots
of one scene. Here the second picture is laid over the first by a single affine map, found from local
features and RANSAC, and what lies on top of each other is compared patch by patch. A crop, a border, a
mirror image or a rotation of one picture fits everywhere; two shots fit at most in parts. A picture with
too few features is laid over the other by its grey values (`dense`), and then held to a stricter bar.
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from photodup.photos.compare import dense

# Pictures are compared at this size (longer side, pixels): 480 keeps enough features in a 70 % crop.
SIZE = 480
MAX_FEATURES = 1000
# Length of a descriptor; 8 bits hold it with room to spare.
_LENGTH = 512
# Side of a patch, pixels. It agrees at this correlation, and has texture at this standard deviation (greys).
PATCH = 24
PATCH_AGREES = 0.6
TEXTURED = 6.0
# Strokes of a caption are thinner than this, pixels of 480.
MAX_STROKE = 9
# With fewer features than this in either picture, grey values may decide. There 2 greys of detail are
# texture: gradients have been taken out, so what is left is edges and not sky.
FEW_FEATURES = 150
FAINTLY_TEXTURED = 2.0


@dataclass(frozen=True)
class Features:
    """What is kept of one picture: uint8 greys, feature positions (x, y) and descriptors uint8[n, 128]."""

    grey: np.ndarray
    points: np.ndarray
    descriptors: np.ndarray

    def mirrored(self) -> "Features":
        """Return the features of the mirror image, without looking at pixels again.

        Seen in a mirror, the 4 × 4 cells around a point change places top to bottom (in the point's own
        frame) and their 8 directions turn the other way round.
        """
        cells = self.descriptors.reshape(-1, 4, 4, 8)[:, ::-1, :, (-np.arange(8)) % 8]
        points = self.points * (-1, 1) + (self.grey.shape[1] - 1, 0)
        grey = np.ascontiguousarray(self.grey[:, ::-1])
        return Features(grey, points.astype(np.float32), np.ascontiguousarray(cells).reshape(-1, 128))


@dataclass(frozen=True)
class Thresholds:
    """What a copy must reach; see `Verification`. Chosen from measured curves (`photodup evaluate`)."""

    min_inliers: int = 10
    min_tightness: float = 0.5
    min_overlap: float = 0.3
    min_correlation: float = 0.6
    max_spot: float = 0.35
    min_agreement: float = 0.95
    # Where grey values were aligned instead of features:
    min_patches: int = 20
    min_grey_correlation: float = 0.9
    min_detail: float = 0.5
    max_stretch: float = 1.25


@dataclass(frozen=True)
class Verification:
    """The evidence for and against a copy; all but `inliers` are 0..1, or -1..1 for `correlation`.

    Attributes:
        inliers: feature pairs that agree on one affine map (within 3 pixels of 480).
        tightness: of the feature pairs within 12 pixels of the map, the share within 1.5. Between two
            shots from two places, near and far things move differently, and this falls.
        overlap: share of the smaller picture that lies on the other.
        correlation: normalised correlation of all aligned pixels.
        spot: share of the textured patches that differ by writing alone: thin strokes of one grey.
        agreement: share of the textured patches that agree, or differ by writing alone. Whoever moved in
            front of a fixed camera counts against it.
        mirrored: the map was found against the mirror image.
        by_grey: grey values were aligned, for want of features: `inliers` and `tightness` stay 0, and the
            following three count.
        patches: textured patches that were compared.
        detail: correlation of the aligned structure of 2 to 12 pixels, gradients taken out.
        stretch: the larger scale of the map over the smaller, 1 or more.
    """

    inliers: int = 0
    tightness: float = 0.0
    overlap: float = 0.0
    correlation: float = 0.0
    spot: float = 0.0
    agreement: float = 0.0
    mirrored: bool = False
    by_grey: bool = False
    patches: int = 0
    detail: float = 0.0
    stretch: float = 1.0

    def passes(self, thresholds: Thresholds) -> bool:
        """Return whether all but `agreement` reach their thresholds."""
        if self.by_grey:
            return (
                self.patches >= thresholds.min_patches
                and self.overlap >= thresholds.min_overlap
                and self.correlation >= thresholds.min_grey_correlation
                and self.detail >= thresholds.min_detail
                and self.stretch <= thresholds.max_stretch
                and self.spot <= thresholds.max_spot
            )
        return (
            self.inliers >= thresholds.min_inliers
            and self.tightness >= thresholds.min_tightness
            and self.overlap >= thresholds.min_overlap
            and self.correlation >= thresholds.min_correlation
            and self.spot <= thresholds.max_spot
        )

    def score(self, thresholds: Thresholds = Thresholds()) -> float:
        """Return one number to rank pairs by, 0..1: the agreement, halved if any other test fails."""
        return self.agreement * (1.0 if self.passes(thresholds) else 0.5)

    def is_copy(self, thresholds: Thresholds = Thresholds()) -> bool:
        """Return the decision."""
        return self.passes(thresholds) and self.agreement >= thresholds.min_agreement


def features(image: Image.Image) -> Features:
    """Extract the features of a picture once, however often it is compared (about 0.3 MB each)."""
    import cv2

    scale = SIZE / max(image.size)  # small pictures are enlarged: copies may be thumbnails
    size = [max(1, round(side * scale)) for side in image.size]
    grey = np.asarray(image.convert("L").resize(size, Image.Resampling.LANCZOS))
    # A low contrast threshold finds features in haze, snow and blur; RANSAC deals with the bad ones.
    sift = cv2.SIFT_create(nfeatures=MAX_FEATURES, contrastThreshold=0.01)
    keypoints, descriptors = sift.detectAndCompute(grey, None)
    if descriptors is None or not len(keypoints):
        return Features(grey, np.zeros((0, 2), np.float32), np.zeros((0, 128), np.uint8))
    # RootSIFT (Arandjelović and Zisserman 2012): Euclidean distance becomes the Hellinger distance.
    root = np.sqrt(descriptors / np.maximum(descriptors.sum(axis=1, keepdims=True), 1e-6))
    order = np.argsort([-keypoint.response for keypoint in keypoints], kind="stable")  # the strongest first
    points, root = np.array([keypoint.pt for keypoint in keypoints], np.float32)[order], root[order]
    return Features(grey, points, np.rint(_LENGTH * root).clip(0, 255).astype(np.uint8))


def verify(first: Features, second: Features) -> Verification:
    """Lay the second picture over the first, as it is and mirrored, and return the better evidence."""
    flipped = None
    found = [Verification()]
    few = min(len(first.points), len(second.points)) < FEW_FEATURES
    for compare in (_compare, _compare_greys) if few else (_compare,):
        found.append(compare(first, second, mirrored=False))
        if not found[-1].is_copy():
            flipped = flipped or second.mirrored()
            found.append(compare(first, flipped, mirrored=True))
        if found[-1].is_copy():
            return found[-1]
    return max(found, key=Verification.score)


def _compare_greys(first: Features, second: Features, *, mirrored: bool) -> Verification:
    import cv2

    found = [Verification(mirrored=mirrored)]
    for transform in dense.align(first.grey, second.grey):
        scales = np.linalg.svd(transform[:, :2], compute_uv=False)
        if not 0.1 < scales[1] <= scales[0] < 10 or scales[0] / scales[1] > Thresholds.max_stretch:
            continue
        overlap, correlation, *_ = _overlay(first.grey, second.grey, transform)
        warped, covered = _laid_over(first.grey, second.grey, transform)
        a, b = dense.detail(first.grey, covered), dense.detail(warped, covered)
        # Near the edge a blur sees one side only, and a plain gradient gets structure it does not have.
        margin = np.ones((2 * PATCH + 1, 2 * PATCH + 1), np.uint8)
        inside = cv2.erode(covered.astype(np.uint8), margin, borderValue=0) > 0
        patches = _patch_correlations(a, b, inside, texture=FAINTLY_TEXTURED)
        spot, agreement = _differences(patches, first.grey, warped, covered)
        found.append(
            Verification(
                overlap=overlap, correlation=correlation, spot=spot, agreement=agreement, mirrored=mirrored,
                by_grey=True, patches=int(np.isfinite(patches).sum()),
                detail=_correlation(a[inside], b[inside]), stretch=float(scales[0] / scales[1]),
            )
        )  # fmt: skip
        if found[-1].is_copy():
            break
    return max(found, key=Verification.score)


def _compare(first: Features, second: Features, *, mirrored: bool) -> Verification:
    matches = _matches(first.descriptors, second.descriptors)
    if len(matches) < Thresholds.min_inliers:
        return Verification(mirrored=mirrored)
    target, source = first.points[matches[:, 0]], second.points[matches[:, 1]]
    transform, inliers = _align(target, source)
    if transform is None:
        return Verification(mirrored=mirrored)
    distance = np.linalg.norm(source @ transform[:, :2].T + transform[:, 2] - target, axis=1)
    tightness = float((distance < 1.5).sum() / max((distance < 12).sum(), 1))
    overlay = _overlay(first.grey, second.grey, transform)
    return Verification(inliers, tightness, *overlay, mirrored=mirrored)


def _matches(first: np.ndarray, second: np.ndarray, ratio: float = 0.85) -> np.ndarray:
    """Return index pairs [n, 2] of features that are each other's nearest and clearly so (Lowe's ratio)."""
    if len(first) < 3 or len(second) < 3:
        return np.zeros((0, 2), int)
    # Descriptors have one length, so the nearest is the one with the largest product.
    products = first.astype(np.float32) @ second.astype(np.float32).T
    rows, nearest = np.arange(len(first)), products.argmax(axis=1)
    mutual = products.argmax(axis=0)[nearest] == rows
    best = products[rows, nearest]
    products[rows, nearest] = -np.inf
    square = _LENGTH**2
    clear = square - best < ratio**2 * (square - products.max(axis=1))
    keep = clear & mutual
    return np.stack([rows[keep], nearest[keep]], axis=1)


def _align(target: np.ndarray, source: np.ndarray) -> tuple[np.ndarray | None, int]:
    """Return the affine map source -> target [2, 3] and its inliers; None if it is no plausible edit."""
    import cv2

    cv2.setRNGSeed(0)  # the same pair gets the same verdict every time
    transform, mask = cv2.estimateAffine2D(
        source, target, method=cv2.RANSAC, ransacReprojThreshold=3.0, maxIters=3000, confidence=0.999
    )
    if transform is None:
        return None, 0
    scales = np.linalg.svd(transform[:, :2], compute_uv=False)
    # An edit scales both axes about alike (within 2) and does not turn the picture inside out.
    if scales[1] < 0.1 or scales[0] > 10 or scales[0] / scales[1] > 2 or np.linalg.det(transform[:, :2]) <= 0:
        return None, 0
    return transform, int(mask.sum())


def _laid_over(
    target: np.ndarray, source: np.ndarray, transform: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the source in the frame of the target, and where it is (bool)."""
    import cv2

    size = target.shape[::-1]
    # Beyond its edge the last pixel is repeated: black there would be blurred into the patches inside.
    warped = cv2.warpAffine(source, transform, size, flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REPLICATE)
    return warped, cv2.warpAffine(np.full_like(source, 255), transform, size) == 255


def _overlay(target: np.ndarray, source: np.ndarray, transform: np.ndarray) -> tuple[float, ...]:
    """Lay one picture over the other; return overlap, correlation, spot and agreement."""
    import cv2

    warped, covered = _laid_over(target, source, transform)
    area = np.count_nonzero(covered)
    scale = abs(np.linalg.det(transform[:, :2]))
    overlap = float(area / min(target.size, max(source.size * scale, 1.0)))
    if area < 1000:
        return overlap, 0.0, 0.0, 0.0
    # A slight blur forgives JPEG noise and half a pixel of misalignment.
    a = cv2.GaussianBlur(target.astype(np.float32), (0, 0), 1.5)
    b = cv2.GaussianBlur(warped.astype(np.float32), (0, 0), 1.5)
    correlation = _correlation(a[covered], b[covered])
    patches = _patch_correlations(a, b, covered)
    if np.isfinite(patches).sum() < 8:
        return overlap, correlation, 0.0, max(correlation, 0.0)
    return overlap, correlation, *_differences(patches, target, warped, covered)


def _differences(
    patches: np.ndarray, target: np.ndarray, warped: np.ndarray, covered: np.ndarray
) -> tuple[float, float]:
    """Return spot and agreement of a grid of patch correlations, NaN where there was nothing to compare."""
    textured = np.isfinite(patches)
    differing = textured & (np.nan_to_num(patches) < PATCH_AGREES)
    if not differing.any():
        return 0.0, 1.0
    caption = differing & _caption(differing, textured, target, warped, covered)
    n = textured.sum()
    return float(caption.sum() / n), 1 - float((differing & ~caption).sum() / n)


def _caption(
    differing: np.ndarray, textured: np.ndarray, target: np.ndarray, warped: np.ndarray, covered: np.ndarray
) -> np.ndarray:
    """Return which patches differ by writing alone: thin strokes of one grey in one of the two pictures.

    Someone who moved in front of a fixed camera is neither thin nor of one grey.
    """
    import cv2

    def pixels(patch: np.ndarray) -> np.ndarray:
        return np.kron(patch, np.ones((PATCH, PATCH), bool)) & covered[:height, :width]

    height, width = (PATCH * side for side in differing.shape)
    a, b = (grey[:height, :width].astype(np.float32) for grey in (target, warped))
    same, other = pixels(textured & ~differing), pixels(differing)
    if np.count_nonzero(same) < PATCH**2:
        return np.zeros_like(differing)
    # Brightness and contrast by what agrees; what is left is what was written, or moved.
    deviation = b[same] - b[same].mean()
    gain = float((deviation * a[same]).sum() / max(float((deviation**2).sum()), 1e-6))
    residual = np.abs(a - a[same].mean() - gain * (b - b[same].mean()))
    written = other & (residual > 30)
    if not written.any():
        return np.zeros_like(differing)
    solid = cv2.morphologyEx(
        written.astype(np.uint8), cv2.MORPH_OPEN, np.ones((MAX_STROKE, MAX_STROKE), np.uint8)
    )
    strong = written & (residual >= np.median(residual[written]))  # without the soft edges of strokes

    def count(values: np.ndarray) -> np.ndarray:
        return values.reshape(differing.shape[0], PATCH, differing.shape[1], PATCH).sum(axis=(1, 3))

    total, thin = count(strong), count(solid.astype(bool)) <= 0.1 * count(written)
    found = [
        thin & (count(strong & (np.abs(grey - np.median(grey[strong])) <= 35)) >= 0.75 * total)
        for grey in (a, b)
    ]
    return max(found, key=np.count_nonzero)


def _patch_correlations(
    a: np.ndarray, b: np.ndarray, covered: np.ndarray, *, patch: int = PATCH, texture: float = TEXTURED
) -> np.ndarray:
    """Return the correlation of each patch of two aligned pictures; NaN where there is nothing to compare."""
    rows, columns = a.shape[0] // patch, a.shape[1] // patch

    def sums(values: np.ndarray) -> np.ndarray:
        blocks = (values * covered)[: rows * patch, : columns * patch].reshape(rows, patch, columns, patch)
        return blocks.sum(axis=(1, 3), dtype=np.float64)

    n = sums(np.ones_like(a))
    mean_a, mean_b = sums(a) / np.maximum(n, 1), sums(b) / np.maximum(n, 1)
    var_a = np.maximum(sums(a * a) / np.maximum(n, 1) - mean_a**2, 0)
    var_b = np.maximum(sums(b * b) / np.maximum(n, 1) - mean_b**2, 0)
    covariance = sums(a * b) / np.maximum(n, 1) - mean_a * mean_b
    correlation = covariance / np.maximum(np.sqrt(var_a * var_b), 1e-6)
    textured = np.maximum(var_a, var_b) >= texture**2  # sky agrees with any sky
    return np.where((n >= 0.9 * patch**2) & textured, correlation, np.nan)


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    if not len(a):
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm > 1e-6 else 0.0
