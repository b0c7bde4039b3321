"""Local features of one picture (SIFT, as RootSIFT), at the size at which pictures are compared."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

# Pictures are compared at this size (longer side, pixels): 480 keeps enough features in a 70% crop.
SIZE = 480
MAX_FEATURES = 1000
# Norm of a descriptor; its values then hardly ever exceed 8 bits.
LENGTH = 512


@dataclass(frozen=True)
class Features:
    """One picture: greys uint8[h, w], feature positions float32[n, 2] (x, y; pixels) and descriptors uint8[n, 128]."""

    grey: np.ndarray
    points: np.ndarray
    descriptors: np.ndarray

    def strongest(self, n: int) -> "Features":
        """Return the picture with its n strongest features alone."""
        return Features(self.grey, self.points[:n], self.descriptors[:n])

    def mirrored(self) -> "Features":
        """Return the features of the mirror image, without looking at pixels again.

        Seen in a mirror, the 4 × 4 cells around a point change places top to bottom (in the point's own
        frame) and their 8 directions turn the other way round.
        """
        cells = self.descriptors.reshape(-1, 4, 4, 8)[:, ::-1, :, (-np.arange(8)) % 8]
        points = self.points * (-1, 1) + (self.grey.shape[1] - 1, 0)
        grey = np.ascontiguousarray(self.grey[:, ::-1])
        return Features(grey, points.astype(np.float32), np.ascontiguousarray(cells).reshape(-1, 128))


def features(image: Image.Image) -> Features:
    """Return the features of a picture (about 0.3 MB), the strongest first."""
    import cv2

    scale = SIZE / max(image.size)  # small pictures are enlarged: copies may be thumbnails
    size = [max(1, round(side * scale)) for side in image.size]
    grey = np.asarray(image.convert("L").resize(size, Image.Resampling.LANCZOS))
    # A low contrast threshold finds features in haze, snow and blur; RANSAC deals with the bad ones.
    sift = cv2.SIFT.create(nfeatures=MAX_FEATURES, contrastThreshold=0.01)
    keypoints, descriptors = sift.detectAndCompute(grey, None)
    if descriptors is None or not len(keypoints):
        return Features(grey, np.zeros((0, 2), np.float32), np.zeros((0, 128), np.uint8))
    # RootSIFT (Arandjelović and Zisserman 2012): Euclidean distance becomes the Hellinger distance.
    root = np.sqrt(descriptors / np.maximum(descriptors.sum(axis=1, keepdims=True), 1e-6))
    order = np.argsort([-keypoint.response for keypoint in keypoints], kind="stable")  # the strongest first
    points, root = np.array([keypoint.pt for keypoint in keypoints], np.float32)[order], root[order]
    return Features(grey, points, np.rint(LENGTH * root).clip(0, 255).astype(np.uint8))
