"""A decoded photo and how its file was saved."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image, JpegImagePlugin

from photodup.photos.compare.features import Features, features

BLOCK = 8  # side of a JPEG's block, pixels
_COSINES = np.cos(np.pi / BLOCK * np.outer(np.arange(BLOCK), np.arange(BLOCK) + 1 / 2))
# A JPEG's transform: the coefficients of a block are DCT @ block @ DCT.T.
DCT = (_COSINES * np.sqrt(np.where(np.arange(BLOCK) == 0, 1, 2) / BLOCK)[:, None]).astype(np.float32)
_LOSSLESS = frozenset({"PNG", "TIFF", "BMP", "GIF", "RAW"})


def coefficients(greys: np.ndarray) -> np.ndarray:
    """Return a JPEG's DCT coefficients, float32[h/8, w/8, 8, 8], of greys float32[h, w]; h and w are multiples of 8."""
    rows, columns = (length // BLOCK for length in greys.shape)
    return DCT @ greys.reshape(rows, BLOCK, columns, BLOCK).swapaxes(1, 2) @ DCT.T


@dataclass(frozen=True)
class Saving:
    """How a file was saved.

    Attributes:
        format: as Pillow calls it.
        tables: a JPEG's quantization tables, luminance and colour, 64 steps each, row by row; empty for other formats.
        subsampling: of a JPEG's colours, as Pillow takes it.
        n_pages: pictures in the file: more than one of animations, sequences and paged TIFFs.
        orientation: EXIF's, 1 to 8: how to turn the stored picture upright.
    """

    format: str
    tables: tuple[tuple[int, ...], ...] = ()
    subsampling: int = 0
    orientation: int = 1
    n_pages: int = 1

    def as_saved(self, upright: np.ndarray) -> np.ndarray:
        """Return an upright picture [h, w, …] in the file's orientation, in which a JPEG's blocks begin at the corner."""
        lying = upright[self._flips]
        return np.ascontiguousarray(lying.swapaxes(0, 1) if self.orientation > 4 else lying)

    def upright(self, lying: np.ndarray) -> np.ndarray:
        """Undo `as_saved`."""
        return np.ascontiguousarray((lying.swapaxes(0, 1) if self.orientation > 4 else lying)[self._flips])

    @property
    def _flips(self) -> tuple[slice, slice]:
        """Slices that flip rows and columns of the upright picture; orientations from 5 on also exchange the two."""
        over, as_it_is = slice(None, None, -1), slice(None)
        way = (self.orientation - 1) % 4
        return over if way >= 2 else as_it_is, over if way in (1, 2) else as_it_is

    @property
    def is_lossless(self) -> bool:
        """Return whether the format keeps every pixel."""
        return self.format in _LOSSLESS

    @property
    def steps(self) -> np.ndarray:
        """Return a JPEG's luminance steps, float32[8, 8]."""
        return np.array(self.tables[0], np.float32).reshape(BLOCK, BLOCK)

    @property
    def step(self) -> float:
        """Return the mean luminance step of a JPEG; 0 for other formats."""
        return float(np.mean(self.tables[0])) if self.tables else 0.0

    @classmethod
    def of(cls, header: Image.Image) -> "Saving":
        """Return how an opened file was saved."""
        tables, kind = getattr(header, "quantization", None), header.format or ""
        if not tables:
            # Cameras put previews and depth behind the one picture of an MPO.
            n_pages = 1 if kind == "MPO" else max(1, int(getattr(header, "n_frames", 1)))
            return cls(kind, n_pages=n_pages)
        steps = tuple(tuple(tables[i]) for i in sorted(tables))[:2]
        orientation = header.getexif().get(0x0112, 1)
        orientation = orientation if orientation in range(1, 9) else 1
        return cls("JPEG", steps, max(0, JpegImagePlugin.get_sampling(header)), orientation)


@dataclass(frozen=True, eq=False)
class Picture:
    """One photo: its upright picture, how its file was saved, and whether its metadata names a camera."""

    image: Image.Image
    saving: Saving
    has_camera: bool = False

    @cached_property
    def rgb(self) -> np.ndarray:
        """The pixels, uint8[h, w, 3]."""
        return np.asarray(self.image)

    @cached_property
    def features(self) -> Features:
        """Local features at the size of comparison."""
        return features(self.image)
