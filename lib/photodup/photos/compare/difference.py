"""Where and how strongly two files of one picture differ, drawn for a person to look at."""

import numpy as np
from PIL import Image

from photodup.photos.compare.alignment import align
from photodup.photos.compare.canvas import JITTER, common_fineness, grown, lay, on_fine_canvas, on_size, small
from photodup.photos.compare.features import features
from photodup.photos.compare.snapping import maps_to

# Greys by which a colour differs: less is not drawn, for any compression does that, and more is drawn no brighter.
LEAST, _MOST = 8, 72
_SOFT = 0.8  # pixels
# How dark the picture behind is; stripes where one file alone shows it: their width (pixels) and greys.
_DARK, _STRIPE, _STRIPED = 0.35, 8, 60


def drawn_difference(first: Image.Image, second: Image.Image) -> tuple[Image.Image, float, int] | None:
    """Draw the first picture in dark grey, red where the second differs and yellow where it differs most.

    The second lies where it lies in the first, as for the boxes of what looks different. What one of them alone shows is
    striped, also beyond the first's frame. None where the two cannot be laid over each other.

    Returns:
        The picture; of what both show, the share that is drawn as different; and the greys of 255 by which a pixel
        differs most at the size drawn, whether that is drawn or not.
    """
    import cv2

    images = {0: first, 1: second}
    sizes = {row: image.size for row, image in images.items()}
    maps = maps_to(0, {row: features(image) for row, image in images.items()}, sizes, [(0, 1)])
    if len(maps) < len(images):
        return None
    laid = lay({row: small(image) for row, image in images.items()}, maps, sizes)
    fineness = common_fineness(laid[0], laid[1])
    a, b = (on_fine_canvas(images[row], one, fineness) for row, one in laid.items())
    height, width = a.shape[:2]
    frames = [on_size(one.frame, (width, height)) for one in laid.values()]
    both, either = frames[0] & frames[1], frames[0] | frames[1]
    b = align(a, b, both).moved(b)
    apart = cv2.absdiff(*(cv2.GaussianBlur(one, (0, 0), _SOFT) for one in (a, b))).max(axis=2)
    heat = both * ((apart - np.float32(LEAST)) / (_MOST - LEAST)).clip(0, 1)
    grey = _DARK * cv2.cvtColor(np.where(frames[0][:, :, None], a, b), cv2.COLOR_RGB2GRAY)
    stripes = np.add.outer(np.arange(height), np.arange(width)) // _STRIPE % 2 == 0
    grey = grown(either, JITTER) * (grey + _STRIPED * (stripes & ~grown(both, JITTER)))
    glow = 255 * np.stack([(2 * heat).clip(0, 1), (2 * heat - 1).clip(0, 1), np.zeros_like(heat)], axis=2)
    drawn = (1 - heat)[:, :, None] * grey[:, :, None] + glow
    n, most = max(int(both.sum()), 1), cv2.absdiff(a, b)[both].max(initial=0)
    picture = Image.fromarray(drawn.clip(0, 255).astype(np.uint8))
    return picture, float((heat > 0).sum() / n), int(most)
