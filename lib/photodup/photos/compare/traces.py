"""What a file tells of its own history: how many pictures it holds, and how coarsely it was compressed."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

# MPO is a camera's JPEG with a depth map or a preview behind the first picture: one photograph.
_ONE_PICTURE = frozenset({"JPEG", "MPO", "BMP", "PPM"})
# From each place of a JPEG's 8 × 8 table, as Pillow gives it (in rows), to its frequency in cycles a pixel.
_FREQUENCY = np.hypot(*np.mgrid[0:8, 0:8]).ravel() / 16
_LOW = (_FREQUENCY > 0) & (_FREQUENCY < 0.25)
# A coefficient that was rounded to zero carries less noise than a step would allow: measured, about this share.
_NOISE_SHARE = 0.15


@dataclass(frozen=True)
class FileTraces:
    """Traces of one file.

    Attributes:
        pages: pictures in the file; more than one for animations, sequences and paged TIFFs.
        step: mean step of the JPEG's brightness table at low frequencies, greys; 0 for other formats.
        table: that table, 64 steps by row; empty for other formats.
    """

    pages: int
    step: float
    table: tuple[int, ...]

    def noise(self, low: float, high: float) -> float:
        """Return the variance (greys²) that rounding put between two frequencies (cycles a pixel of the file)."""
        if not self.table:
            return 0.0
        inside = (low <= _FREQUENCY) & (high > _FREQUENCY)
        return float(_NOISE_SHARE * (np.square(np.array(self.table, float)[inside]) / 12).sum() / 64)


def file_traces(image: Image.Image) -> FileTraces:
    """Read the traces of an open, undecoded picture (its header)."""
    table = tuple(getattr(image, "quantization", {}).get(0, ()))[:64]
    step = float(np.array(table, float)[_LOW].mean()) if len(table) == 64 else 0.0
    return FileTraces(_pages(image), step, table if len(table) == 64 else ())


def blockiness(grey: np.ndarray) -> float:
    """Return how much harder the steps between blocks of 8 pixels are than those within them; 1 without blocks.

    Strong compression leaves them, and a better one afterwards keeps them.

    Args:
        grey: uint8[h, w], the file at full size.
    """
    found = []
    for values in (grey, grey.T):
        rows = values[:: max(1, len(values) // 400)].astype(np.int16)
        if rows.shape[1] < 64:
            return 1.0
        # The jump between two pixels beyond what the slopes beside it let expect.
        jump = np.abs(3 * (rows[:, 2:-1] - rows[:, 1:-2]) - (rows[:, 3:] - rows[:, :-3]))
        jump = np.minimum(jump, 60).mean(axis=0)
        jump = jump[: len(jump) // 8 * 8].reshape(-1, 8).mean(axis=0) + 0.5
        found.append(float(jump.max() / np.median(jump)))
    return max(1.0, float(np.mean(found)))


def _pages(image: Image.Image) -> int:
    if image.format in _ONE_PICTURE:
        return 1
    try:
        return max(1, int(getattr(image, "n_frames", 1)))
    except Exception:  # A damaged second page raises nearly anything, and there is more than one then.
        return 2
