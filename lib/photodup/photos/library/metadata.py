"""Which EXIF fields say something about a picture, and which only how its pixels are laid out."""

from collections.abc import Mapping
from typing import Any

# Baseline TIFF: a TIFF's first directory also holds the file's structure, and a JPEG's holds pointers. Tag
# numbers from the TIFF 6.0 and Exif 2.32 specifications; what is not listed is metadata.
# fmt: off
_LAYOUT = frozenset({
    254, 255, 256, 257, 258, 259, 262, 263, 264, 265, 266,       # kind, size, depth, compression, halftones
    273, 274, 277, 278, 279, 280, 281,                           # strips, orientation, range of samples
    282, 283, 284, 288, 289, 290, 291, 292, 293, 296,            # resolution, planes, fax options
    301, 317, 318, 319, 320, 321, 322, 323, 324, 325, 330,       # transfer curve, predictor, palette, tiles
    332, 334, 336, 337, 338, 339, 340, 341, 342, 347,            # inks, extra samples, JPEG tables
    512, 513, 514, 515, 517, 518, 519, 520, 521,                 # JPEG in TIFF, and the thumbnail's place
    529, 530, 531, 532, 34675,                                   # YCbCr coefficients, colour profile
    34665, 34853, 40965,                                         # pointers to Exif, GPS and interoperability
    36864, 37121, 37122, 40960, 40961, 40962, 40963,             # versions, components, colour space, size
})
# fmt: on


def count_fields(*directories: Mapping[int, Any]) -> int:
    """Return how many fields of EXIF directories hold metadata: neither layout, nor pointer, nor empty."""
    return sum(
        is_metadata(tag) and not _is_empty(value)
        for directory in directories
        for tag, value in directory.items()
    )


def is_metadata(tag: int) -> bool:
    """Return whether a tag says something about the picture."""
    return tag not in _LAYOUT


def _is_empty(value: Any) -> bool:
    if isinstance(value, bytes):
        return not value.strip(b"\0 ")
    return isinstance(value, str) and not value.strip("\0 ")
