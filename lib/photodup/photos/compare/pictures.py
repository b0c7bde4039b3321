"""A decoded photo and how its file was saved."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image, JpegImagePlugin

from photodup.photos.compare.features import Features, features

_LOSSLESS = frozenset({"PNG", "TIFF", "BMP", "PPM", "GIF", "RAW"})


@dataclass(frozen=True)
class Saving:
    """How a file was saved.

    Attributes:
        format: as Pillow calls it.
        tables: luminance and colour steps of a JPEG, 64 each, row by row; empty for other formats.
        subsampling: of a JPEG's colours, as Pillow takes it.
    """

    format: str
    tables: tuple[tuple[int, ...], ...] = ()
    subsampling: int = 0

    @property
    def is_lossless(self) -> bool:
        """Return whether the format keeps every pixel."""
        return self.format in _LOSSLESS

    @property
    def step(self) -> float:
        """Return the mean luminance step of a JPEG; 0 for other formats."""
        return float(np.mean(self.tables[0])) if self.tables else 0.0

    @classmethod
    def of(cls, header: Image.Image) -> "Saving":
        """Return how an opened file was saved."""
        tables = getattr(header, "quantization", None)
        if not tables:
            return cls(header.format or "")
        steps = tuple(tuple(tables[i]) for i in sorted(tables))[:2]
        return cls("JPEG", steps, max(0, JpegImagePlugin.get_sampling(header)))


@dataclass(frozen=True, eq=False)
class Picture:
    """One photo: its upright picture, how its file was saved, and whether that names a camera."""

    image: Image.Image
    saving: Saving
    has_camera: bool = False
    known_features: Features | None = None

    @cached_property
    def rgb(self) -> np.ndarray:
        """The pixels, uint8[h, w, 3]."""
        return np.asarray(self.image)

    @cached_property
    def features(self) -> Features:
        """Local features at the size of comparison."""
        return self.known_features or features(self.image)
