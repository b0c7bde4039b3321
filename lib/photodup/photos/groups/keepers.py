"""Which photo of a group to keep, by ordered rules, with the reason in words."""

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cmp_to_key
from itertools import takewhile
from pathlib import Path

from photodup.core.names import printable
from photodup.photos.groups.names import PLACES, format_rank, place
from photodup.photos.library import inventory
from photodup.photos.library.catalogue import Photo
from photodup.photos.library.metadata import KINDS, Description, in_words, lost_in_words, missing_kinds
from photodup.photos.library.settings import DEFAULT_RULES
from photodup.photos.library.sidecars import FILM_SUFFIXES, RAW_SUFFIXES, Sidecars

_PROTECTED = "protected"  # a rule among photos that are equal as pictures
_CHOSEN = "chosen before"
_OF_THE_OWNER = (_CHOSEN, "folder")
_OF_THE_PICTURE = (_CHOSEN, "resolution", "format")
FILM, RAW = "has a film beside it (Live Photo)", "has its RAW beside it"
DEVELOPED = "one is RAW, the other a picture made of it: keep both"
# The words for a photo, by the suffix of a file beside it.
_HAS = (
    {".xmp": "has an edit in its .xmp file", "": "has a file beside it"}
    | dict.fromkeys(FILM_SUFFIXES, FILM)
    | dict.fromkeys(RAW_SUFFIXES, RAW)
)

_SAME_PIXELS = 0.95  # ratio of pixel counts that count as equal


@dataclass(frozen=True)
class Choice:
    """A keeper and why: `rule` names the first rule that told the photos apart, None if none did."""

    keeper: Photo
    rule: str | None
    reason: str


class KeepRules:
    """Ordered rules; the first that tells the photos apart decides.

    Args:
        beside: the files beside the photos, such as RAW, films (Live Photo) and XMP.
        order: some of `DEFAULT_RULES`, most important first; in the default order, `folders` come before all others.
        folders: folders by priority, for the rule `folder`; a photo in none of them comes last.
        chosen: contents (MD5) that the owner kept before, against the rules; they come before every rule.
    """

    def __init__(
        self,
        beside: Sidecars,
        order: Sequence[str] = DEFAULT_RULES,
        *,
        folders: Sequence[str] = (),
        chosen: Collection[str] = (),
    ) -> None:
        if folders and tuple(order) == DEFAULT_RULES:
            order = ("folder", *order)
        self.order = (*((_CHOSEN,) if chosen else ()), *dict.fromkeys(order))
        self._chosen = frozenset(chosen)
        self.folders = tuple(Path(folder) for folder in folders)
        self._protected: tuple[str, ...] = ()
        self._beside = beside
        self._described: dict[int, Description] = {}

    def preferring(self, protected: Sequence[str]) -> "KeepRules":
        """Return these rules with one more behind those of the picture: keep the photo that lies in one of these folders."""
        at = 1 + max((i for i, rule in enumerate(self.order) if rule in _OF_THE_PICTURE), default=-1)
        rules = copy(self)
        rules.order = (*self.order[:at], _PROTECTED, *self.order[at:])
        rules._protected = tuple(protected)
        return rules

    def _has_raw(self, photo: Photo) -> bool:
        return any(path.suffix.lower() in RAW_SUFFIXES for path in self._beside.along(photo.path))

    def described(self, photo: Photo) -> Description:
        """Return the metadata of a photo and its sidecars, by kind."""
        if photo.id not in self._described:
            self._described[photo.id] = self._beside.describe(photo)
        return self._described[photo.id]

    def lost_metadata(self, keeper: Photo, leaving: Photo) -> str:
        """Return in words the metadata of a leaving photo that the keeper lacks; a sidecar can hold it."""
        return lost_in_words(self.described(keeper), self.described(leaving))

    def lost_with(self, keeper: Photo, leaving: Photo) -> list[str]:
        """Return in words `lost_metadata`, other data in the file, and files beside it that the keeper's lack."""
        suffixes = self._beside.lost(keeper.path, leaving.path)
        files = dict.fromkeys(_HAS.get(suffix) or f"has its {suffix} file beside it" for suffix in suffixes)
        is_developed = "RAW" in (keeper.format, leaving.format) and keeper.md5 != leaving.md5
        inside = inventory.lost_parts(*(inventory.unpack(photo.inventory) for photo in (keeper, leaving)))
        lost = self.lost_metadata(keeper, leaving), *inside, *files, DEVELOPED * is_developed
        return list(filter(None, lost))

    def owner_rank(self, photo: Photo) -> dict[str, tuple]:
        """Return the values of the owner's rules, which head the order; one of the lowest is kept, whatever its pixels."""
        return {rule: self._value(rule, photo) for rule in takewhile(_OF_THE_OWNER.__contains__, self.order)}

    def choose(self, photos: Sequence[Photo]) -> Choice:
        """Return the best of one or more photos; equal ones are settled by path, so the answer is stable."""
        return self.choice(self.ranked(photos))

    def choice(self, ranked: Sequence[Photo]) -> Choice:
        """Return the first of some photos, and why it comes before the second."""
        keeper, second = ranked[0], ranked[min(1, len(ranked) - 1)]
        rule, *values = self._deciding(keeper, second)
        if rule:
            return Choice(keeper, rule, self._reason(rule, keeper, second))
        settled = next((i for i, (a, b) in enumerate(zip(*values, strict=True)) if a != b), -1)
        return Choice(keeper, None, f"equal by every rule: {PLACES[settled]}")

    def by_owner(self, keeper: Photo, copies: Sequence[Photo]) -> Choice | None:
        """Return a keeper with the owner's rule that prefers it to one of its copies; None without such a rule."""
        for rule, value in self.owner_rank(keeper).items():
            if value < max(self._value(rule, photo) for photo in copies):
                return Choice(keeper, rule, self._reason(rule, keeper, copies[0]))
        return None

    def ranked(self, photos: Sequence[Photo]) -> list[Photo]:
        """Return photos from best to worst."""

        def compare(first: Photo, second: Photo) -> int:
            _, a, b = self._deciding(first, second)
            return (a > b) - (a < b)

        return sorted(photos, key=cmp_to_key(compare))

    def _deciding(self, first: Photo, second: Photo) -> tuple[str | None, tuple, tuple]:
        """Return the first rule that tells two photos apart, and their values by it; without one, their places.

        Nearly as many pixels are as good.
        """
        for rule in self.order:
            a, b = self._value(rule, first), self._value(rule, second)
            if a != b and not (rule == "resolution" and max(a, b)[0] <= _SAME_PIXELS * min(a, b)[0]):
                return rule, a, b
        return None, place(first), place(second)

    def _value(self, rule: str, photo: Photo) -> tuple:
        """Return values to minimise, the first the most important."""
        if rule == _CHOSEN:
            return (photo.md5 not in self._chosen,)
        if rule == "resolution":
            return (-photo.width * photo.height,)
        if rule == "format":
            # A JPEG that leaves takes its RAW along, which may be the only one.
            return (0,) if self._has_raw(photo) else (format_rank(photo.format),)
        if rule == "metadata":
            described = self.described(photo)
            # A HEIC that names no camera was mostly converted from another file, and is larger than that.
            is_converted = photo.format == "HEIF" and "camera" not in described
            n_along = len(self._beside.along(photo.path))
            return (-sum(kind in KINDS for kind in described), -photo.exif_fields, is_converted, -n_along)
        if rule == "size":
            return (-photo.size_bytes,)
        if rule == _PROTECTED:
            return (not photo.lies_in(self._protected),)
        if rule == "folder":
            ranks = [i for i, folder in enumerate(self.folders) if photo.path.is_relative_to(folder)]
            return (min(ranks, default=len(self.folders)),)
        # oldest; a photo without a date is newest. Local time, as not every program writes the offset.
        return ((photo.taken_at or "9999")[:19],)

    def _reason(self, rule: str, photo: Photo, rival: Photo) -> str:
        pixels = photo.width * photo.height, rival.width * rival.height
        if rule == "format":
            return f"best format: {photo.format}{' with its RAW' if self._has_raw(photo) else ''}"
        if rule == "metadata":
            pairs = zip(self._value(rule, photo), self._value(rule, rival), strict=True)
            first = next(i for i, (a, b) in enumerate(pairs) if a != b)
            if more := missing_kinds(self.described(rival), self.described(photo)):
                return f"has {in_words(more)}, which the other lacks"
            if first == 2:
                return f"a {photo.format}: an HEIC that names no camera was mostly made of one"
            if first == 3:
                beside = {p.suffix.lower() for p in self._beside.along(rival.path)}
                names = [p.name for p in self._beside.along(photo.path) if p.suffix.lower() not in beside]
                return f"has {printable(', '.join(names or ['more']))} beside it"
            return f"most complete metadata: {photo.exif_fields} fields, next {rival.exif_fields}"
        where = printable(photo.path.parent)
        return {
            _CHOSEN: "you chose to keep it before",
            "resolution": f"most pixels: {_apart(*pixels, 'MP', 'pixels')}",
            _PROTECTED: f"in a folder from which nothing goes: {where}",
            "size": f"largest file: {_apart(photo.size_bytes, rival.size_bytes, 'MB', 'bytes')}",
            "folder": f"preferred folder: {where}",
            "oldest": f"oldest: {photo.taken_at}",
        }[rule]


def _apart(best: int, next_best: int, millions: str, ones: str) -> str:
    """Return two numbers in millions, or exactly if they would look equal, or one like zero."""
    rounded = [f"{value / 1e6:.1f} {millions}" for value in (best, next_best)]
    exact = [f"{value:,} {ones}" for value in (best, next_best)]
    return ", next ".join(rounded if rounded[0] != rounded[1] and min(best, next_best) >= 50_000 else exact)
