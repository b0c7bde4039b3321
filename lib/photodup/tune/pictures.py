"""Photographs for a precision: some to calibrate on, others to judge by, with edits that bring pairs near thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from photodup.embedding.imaging import View, decode, to_jpeg, to_uint8
from photodup.errors import PhotodupError
from photodup.photos.quality.edits import Transform, named
from photodup.photos.quality.pairs import Original
from photodup.study.evaluate import originals_of

MIN_ORIGINALS = 20
MAX_CALIBRATION, MAX_HELD_OUT = 128, 40
_ENOUGH = 48  # photographs to calibrate on; with fewer, these edits of them join
_CALIBRATION_EDITS = ("crop 90%", "crop 50%", "resize 0.25x", "rotate 15°")


# Shorter side of a picture written as a camera's JPEG, pixels: its decoder shrinks it by 4, to no more than it must keep.
_CAMERA_SIDE = 4 * View().draft_size
_GRAIN, _QUALITY = 5, 90  # greys; a camera's noise is what a reduced decode sees otherwise


@dataclass(frozen=True)
class Picture:
    """A held-out photograph or an edit of one. Pictures of one `photograph` are copies of each other."""

    photograph: int
    name: str
    original: Image.Image
    edit: Transform | None = None

    def open(self) -> Image.Image:
        """Return the RGB picture; an edit is made anew, so that hundreds need no memory."""
        return self.edit(self.original) if self.edit else self.original


@dataclass(frozen=True)
class Pictures:
    """What a precision is made and judged with: no scene is in both parts.

    Attributes:
        calibration: uint8 [n, 3, 224, 224].
        held_out: the pictures to judge by.
        source: where they come from, in words.
    """

    calibration: np.ndarray
    held_out: tuple[Picture, ...]
    source: str

    @property
    def n_photographs(self) -> int:
        """Return how many different photographs are held out."""
        return len({picture.photograph for picture in self.held_out})

    def pixels(self) -> np.ndarray:
        """Return the held-out pictures as uint8 [n, 3, 224, 224]."""
        return np.stack([to_uint8(picture.open()) for picture in self.held_out])

    def both_decodings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the held-out pictures as camera's JPEGs decoded whole, and at a reduced scale; as `pixels` does."""
        view = View()
        jpegs = (_as_camera_jpeg(picture.open(), seed) for seed, picture in enumerate(self.held_out))
        both = [
            [view.pixels(decode(jpeg, draft_size=size)) for size in (None, view.draft_size)] for jpeg in jpegs
        ]
        whole, drafted = zip(*both, strict=True)
        return np.stack(whole), np.stack(drafted)


def _as_camera_jpeg(image: Image.Image, seed: int) -> bytes:
    scale = _CAMERA_SIDE / min(image.size)
    large = image.resize([round(side * scale) for side in image.size], Image.Resampling.BICUBIC)
    grain = np.random.default_rng(seed).standard_normal((large.height, large.width, 1), np.float32) * _GRAIN
    noisy = np.clip(np.asarray(large) + grain, 0, 255).astype(np.uint8)
    return to_jpeg(Image.fromarray(noisy), _QUALITY)


def choose_pictures(folder: Path | None = None, edits: Sequence[str] = ()) -> Pictures:
    """Divide photographs into two halves by scene, and edit the held-out ones.

    Args:
        folder: the owner's photographs; default the demonstration's.
        edits: names of edits (`photodup.photos.quality.edits`); default all of them.

    Raises:
        PhotodupError: the folder has too few photographs.
    """
    originals = originals_of(folder)
    if len(originals) < MIN_ORIGINALS:
        raise PhotodupError(
            f"{folder} has {len(originals)} photographs that can be read, and {MIN_ORIGINALS} are needed, half to "
            "calibrate on and half to judge by: name a folder with more, or none for the demonstration's."
        )
    scenes = sorted({original.scene for original in originals})
    to_calibrate = set(scenes[::2])
    calibration = [o for o in originals if o.scene in to_calibrate][:MAX_CALIBRATION]
    held_out = [o for o in originals if o.scene not in to_calibrate][:MAX_HELD_OUT]
    pictures = [o.image for o in calibration]
    if len(pictures) < _ENOUGH:
        pictures += [edit(o.image) for edit in named(_CALIBRATION_EDITS) for o in calibration]
    return Pictures(
        np.stack([to_uint8(picture) for picture in pictures]),
        tuple(_edited(held_out, named(list(edits) or None))),
        str(folder) if folder else "the demonstration photographs",
    )


def _edited(originals: Sequence[Original], edits: Sequence[Transform]):
    for index, original in enumerate(originals):
        yield Picture(index, original.name, original.image)
        for edit in edits:
            yield Picture(index, f"{original.name}, {edit.name}", original.image, edit)
