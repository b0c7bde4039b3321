"""Photographs to calibrate a precision on, and others to check it with, edited so that pairs lie near thresholds."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import DRAFT_SIZE, ImageError, decode, to_jpeg, to_uint8
from photodup.photos.demo.photographs import SOURCES
from photodup.photos.library.hashing import perceptual_hash
from photodup.photos.library.walking import walk

if TYPE_CHECKING:
    from photodup.photos.compare.features import Features

MIN_ORIGINALS = 20
MAX_CALIBRATION, MAX_HELD_OUT = 128, 40
MAX_PHOTOGRAPHS, MAX_SIDE = 500, 1024  # of a folder; pixels of a photograph from it
_ENOUGH = 48  # photographs to calibrate on; with fewer, these edits of them join
_CALIBRATION_EDITS = ("crop 90%", "crop 50%", "resize 0.25x", "rotate 15°")
Edit = Callable[[Image.Image], Image.Image]


def _crop(share: float, image: Image.Image) -> Image.Image:
    """Keep this share of the area, off centre."""
    width, height = (round(side * share**0.5) for side in image.size)
    left, top = (image.width - width) // 3, (image.height - height) // 3
    return image.crop((left, top, left + width, top + height))


def _jpeg(quality: int, image: Image.Image) -> Image.Image:
    return Image.open(io.BytesIO(to_jpeg(image, quality))).convert("RGB")


def _rotate(degrees: float, image: Image.Image) -> Image.Image:
    """Turn counter-clockwise; small angles keep the frame."""
    return image.rotate(degrees, Image.Resampling.BICUBIC, expand=degrees % 90 == 0)


def _blur(share: float, image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(share * max(image.size)))


EDITS: dict[str, Edit] = {
    "resize 0.25x": lambda image: image.reduce(4),
    **{f"jpeg q {quality}": partial(_jpeg, quality) for quality in (30, 10)},
    **{f"crop {share:.0%}": partial(_crop, share) for share in (0.9, 0.8, 0.7, 0.6, 0.5)},
    **{f"rotate {degrees}°": partial(_rotate, degrees) for degrees in (2, 5, 15, 90)},
    **{f"blur {share:.1%}": partial(_blur, share) for share in (0.005, 0.01)},
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.6),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.4),
    "contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.5),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "mirror": ImageOps.mirror,
    "border": lambda image: ImageOps.expand(image, max(image.size) // 20, "white"),
}
"""Edits by name: each makes a copy of a photograph, and so pairs near the thresholds."""


# Shorter side of the JPEGs that stand for a camera's, pixels: a decode at a reduced scale shrinks them by 4.
_CAMERA_SIDE = 4 * DRAFT_SIZE
_GRAIN, _QUALITY = 5, 90  # noise in grey levels, which a reduced decode changes; JPEG quality


@dataclass(frozen=True)
class EditedPicture:
    """A held-out photograph or an edit of one. Pictures of one `photograph` are copies of each other."""

    photograph: int
    name: str
    original: Image.Image
    edit: Edit | None = None

    def open(self) -> Image.Image:
        """Return the RGB picture; an edit is made anew, so that hundreds need no memory."""
        return self.edit(self.original) if self.edit else self.original

    @cached_property
    def description(self) -> "tuple[Features, str | None]":
        """Return what the photo library compares pictures by: features, and the perceptual hash."""
        from photodup.photos.compare.features import features

        image = self.open()
        return features(image), perceptual_hash(image)


@dataclass(frozen=True)
class Pictures:
    """The pictures to calibrate a precision on and to check it with; no scene is in both parts.

    Attributes:
        calibration: uint8 [n, 3, 224, 224].
        held_out: the pictures to judge by.
        source: where they come from, in words.
    """

    calibration: np.ndarray
    held_out: tuple[EditedPicture, ...]
    source: str

    @property
    def n_photographs(self) -> int:
        """Return how many different photographs are held out."""
        return len({picture.photograph for picture in self.held_out})

    def pixels(self) -> np.ndarray:
        """Return the held-out pictures as uint8 [n, 3, 224, 224]."""
        return np.stack([to_uint8(picture.open()) for picture in self.held_out])

    def both_decodings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the held-out pictures as a camera's JPEGs, decoded whole and at a reduced scale; both like `pixels`."""
        jpegs = (_as_camera_jpeg(picture.open(), seed) for seed, picture in enumerate(self.held_out))
        decoded = [[to_uint8(decode(jpeg, draft_size=size)) for size in (None, DRAFT_SIZE)] for jpeg in jpegs]
        whole, drafted = zip(*decoded, strict=True)
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
        edits: names in `EDITS`; default all of them.

    Raises:
        PhotodupError: the folder has too few photographs.
    """
    originals = _photographs(folder) if folder else [(s.name, s.open(), s.scene) for s in SOURCES]
    if len(originals) < MIN_ORIGINALS:
        raise PhotodupError(
            f"{folder} has {len(originals)} photographs that can be read, and {MIN_ORIGINALS} are needed, half to "
            "calibrate on and half to judge by: name a folder with more, or none for the demonstration's."
        )
    to_calibrate = set(sorted({scene for _, _, scene in originals})[::2])
    calibration = [image for _, image, scene in originals if scene in to_calibrate][:MAX_CALIBRATION]
    held_out = [(name, image) for name, image, scene in originals if scene not in to_calibrate][:MAX_HELD_OUT]
    pictures = list(calibration)
    if len(pictures) < _ENOUGH:
        pictures += [EDITS[name](image) for name in _CALIBRATION_EDITS for image in calibration]
    return Pictures(
        np.stack([to_uint8(picture) for picture in pictures]),
        tuple(_edited(held_out, edits or tuple(EDITS))),
        str(folder) if folder else "the demonstration photographs",
    )


def _photographs(folder: Path) -> list[tuple[str, Image.Image, str]]:
    """Return name, RGB picture and scene of what can be read in a folder; each photograph is a scene of its own."""
    photographs = []
    for entry in walk(folder).entries[:MAX_PHOTOGRAPHS]:
        path = folder / entry.path.decode("utf-8", "surrogateescape")
        try:
            photographs.append((path.name, decode(path, draft_size=MAX_SIDE), str(path)))
        except ImageError:
            continue
    return photographs


def _edited(photographs: Sequence[tuple[str, Image.Image]], edits: Sequence[str]) -> Iterator[EditedPicture]:
    for index, (name, image) in enumerate(photographs):
        yield EditedPicture(index, name, image)
        for edit in edits:
            yield EditedPicture(index, f"{name}, {edit}", image, EDITS[edit])
