"""Near and far things in two exposures: they lie displaced against each other, as no edit does."""

import numpy as np

from photodup.photos.compare.canvas import JITTER, Laid, grown


def displaced(first: Laid, second: Laid, patch: int = 40) -> float:
    """Return the share of the textured places that lie displaced against the rest: near things in two exposures."""
    import cv2

    a, b = first.grey, second.grey
    shared = grown(first.picture & second.picture, -2 * JITTER)
    shifts = []
    height, width = a.shape
    window = cv2.createHanningWindow((patch, patch), cv2.CV_32F)
    for top in range(0, height - patch, patch):
        for left in range(0, width - patch, patch):
            box = slice(top, top + patch), slice(left, left + patch)
            if not shared[box].all() or min(a[box].std(), b[box].std()) < 8:
                continue
            shift, response = cv2.phaseCorrelate(a[box] - a[box].mean(), b[box] - b[box].mean(), window)
            if response > 0.3:
                shifts.append(shift)
    if len(shifts) < 8:
        return 0.0
    found = np.array(shifts)
    return float((np.linalg.norm(found - np.median(found, axis=0), axis=1) > 1.0).mean())
