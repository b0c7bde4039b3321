"""Which photo of a group to keep, by ordered rules, with the reason in words."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from pathlib import Path

from photodup.errors import PhotodupError
from photodup.names import printable
from photodup.photos.library.catalogue import Photo

# RAW, then what phones write, then the rest. A lossless file is no better than a JPEG: most TIFFs and PNGs
# were made from one. MPO is Pillow's name for the JPEG of a camera that put a second picture behind the first.
# WebP and AVIF are what the web makes of photographs.
_FORMAT_RANK = {"DNG": 0, "RAW": 0, "HEIF": 1, "JPEG": 2, "MPO": 2, "TIFF": 2, "PNG": 2, "AVIF": 3, "WEBP": 3}

DEFAULT_RULES = ("resolution", "format", "metadata", "sharpness", "size", "folder", "oldest")
_CHOSEN = "chosen before"


@dataclass(frozen=True)
class Choice:
    """A keeper and why: `rule` names the first rule that told the photos apart, None if none did."""

    keeper: Photo
    rule: str | None
    reason: str


class KeepRules:
    """Ordered rules; the first that tells the photos apart decides.

    Args:
        order: some of `DEFAULT_RULES`, most important first.
        folders: folders by priority, for the rule `folder`; a photo in none of them comes last.
        sharpness: measures a photo's sharpness; called only for photos that earlier rules leave equal.
        chosen: contents (MD5) that the owner kept before, against the rules; they come before every rule.

    Raises:
        PhotodupError: an unknown rule.
    """

    def __init__(
        self,
        order: Sequence[str] = DEFAULT_RULES,
        *,
        folders: Sequence[str | Path] = (),
        sharpness: Callable[[Photo], float] | None = None,
        chosen: Collection[str] = (),
    ) -> None:
        if not order:
            raise PhotodupError(f"Name at least one keep rule: {', '.join(DEFAULT_RULES)}.")
        if unknown := [rule for rule in order if rule not in DEFAULT_RULES]:
            raise PhotodupError(f"No keep rule {', '.join(unknown)}: choose from {', '.join(DEFAULT_RULES)}.")
        self.order = (*((_CHOSEN,) if chosen else ()), *dict.fromkeys(order))
        self._chosen = frozenset(chosen)
        self.folders = tuple(Path(folder) for folder in folders)
        self._measure, self._measured = sharpness, {}
        self._has_raw: Callable[[Path], bool] = lambda path: False

    def choose(self, photos: Sequence[Photo]) -> Choice:
        """Return the best of one or more photos; equal ones are settled by path, so the answer is stable."""
        left = sorted(photos, key=lambda photo: (len(photo.path.parts), str(photo.path)))
        for rule in self.order:
            values = {photo.id: self._value(rule, photo) for photo in left}
            best = min(values.values())
            others = sorted(value for value in values.values() if value != best)
            left = [photo for photo in left if values[photo.id] == best]
            if others and len(left) == 1:
                return Choice(
                    left[0], rule, self._reason(rule, left[0], -others[0] if rule in _MORE else others[0])
                )
        return Choice(left[0], None, "equal by every rule: the shortest path")

    def ranked(self, photos: Sequence[Photo]) -> list[Photo]:
        """Return the photos from best to worst; a rule is looked at only where all before it are equal."""

        def compare(first: Photo, second: Photo) -> int:
            for rule in self.order:
                a, b = self._value(rule, first), self._value(rule, second)
                if a != b:
                    return -1 if a < b else 1
            a, b = ((len(photo.path.parts), str(photo.path)) for photo in (first, second))
            return -1 if a < b else int(a > b)

        return sorted(photos, key=cmp_to_key(compare))

    def _value(self, rule: str, photo: Photo):
        """Return a value to minimise."""
        if rule == _CHOSEN:
            return photo.md5 not in self._chosen
        if rule == "resolution":
            return -photo.width * photo.height
        if rule == "format":
            # A JPEG that leaves takes its RAW along, which may be the only one.
            return 0 if self._has_raw(photo.path) else _FORMAT_RANK.get(photo.format.upper(), 9)
        if rule == "metadata":
            return -photo.exif_fields
        if rule == "sharpness":
            return -self._sharpness(photo)
        if rule == "size":
            return -photo.size_bytes
        if rule == "folder":
            ranks = [i for i, folder in enumerate(self.folders) if photo.path.is_relative_to(folder)]
            return min(ranks, default=len(self.folders))
        # oldest; a photo without a date is newest. Local time: an offset is there or not, whoever wrote the file.
        return (photo.taken_at or "9999")[:19]

    def find_raw_with(self, has_raw: Callable[[Path], bool]) -> None:
        """Use this to ask whether a photo has its RAW beside it (`photodup.photos.library.sidecars.raw_beside`)."""
        self._has_raw = has_raw

    def measure_sharpness_with(self, measure: Callable[[Photo], float]) -> None:
        """Use this measure unless one was given."""
        self._measure = self._measure or measure

    def _sharpness(self, photo: Photo) -> float:
        if self._measure is None:
            return 0.0
        if photo.md5 not in self._measured:
            # In steps of a fifth: JPEG noise must not decide before file size does.
            self._measured[photo.md5] = round(math.log(max(self._measure(photo), 1e-9)) / math.log(1.2))
        return self._measured[photo.md5]

    def _reason(self, rule: str, photo: Photo, next_best) -> str:
        if rule == _CHOSEN:
            return "you chose to keep it before"
        if rule == "resolution":
            return f"most pixels: {_apart(photo.width * photo.height, next_best, 'MP', 'pixels')}"
        if rule == "format":
            return f"best format: {photo.format}{' with its RAW' if self._has_raw(photo.path) else ''}"
        if rule == "metadata":
            return f"most complete metadata: {photo.exif_fields} fields, next {next_best}"
        if rule == "sharpness":
            return "sharpest"
        if rule == "size":
            return f"largest file: {_apart(photo.size_bytes, next_best, 'MB', 'bytes')}"
        if rule == "folder":
            return f"preferred folder: {printable(photo.path.parent)}"
        return f"oldest: {photo.taken_at}"


def _apart(best: int, next_best: int, millions: str, ones: str) -> str:
    """Say two numbers in millions; in ones where they would read the same."""
    rounded = [f"{value / 1e6:.1f} {millions}" for value in (best, next_best)]
    exact = [f"{value:,} {ones}" for value in (best, next_best)]
    return ", next ".join(rounded if rounded[0] != rounded[1] else exact)


_MORE = frozenset({"resolution", "metadata", "sharpness", "size"})


def sharpness(grey) -> float:
    """Return the variance of the Laplacian over that of the grey picture (uint8 array), at one size only.

    Over the variance of the picture, because a brighter or harder copy is not a sharper one.
    """
    import cv2

    return float(cv2.Laplacian(grey, cv2.CV_64F).var() / max(grey.var(), 1.0))
