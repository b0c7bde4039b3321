"""Which photo of a group to keep, by ordered rules, with the reason in words."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cmp_to_key
from pathlib import Path
from typing import Any

from photodup.errors import PhotodupError
from photodup.names import printable
from photodup.photos.compare.merit import COARSE, WHOLE, Merit, Relation
from photodup.photos.groups.origin import PLACES, Origins, format_rank, place
from photodup.photos.library import inventory
from photodup.photos.library.catalogue import Photo
from photodup.photos.library.hashing import Memory
from photodup.photos.library.metadata import KINDS, in_words, joined, lost_in_words, missing
from photodup.photos.library.sidecars import FILM_SUFFIXES, RAW_SUFFIXES, Sidecars

DEFAULT_RULES = (
    "source",
    "content",
    "resolution",
    "format",
    "compression",
    "metadata",
    "oldest",
    "size",
    "folder",
)
# Rules among photos that are equal as pictures; the last two may be wished for.
_PROTECTED, _OLDEST_FILE, _RAW_FIRST = "protected", "oldest_file", "raw"
WISHES = (_OLDEST_FILE, _RAW_FIRST)
_CHOSEN = "chosen before"
_OF_THE_PICTURE = (_CHOSEN, "source", "content", "resolution", "format", "compression")
FILM, RAW = "has a film beside it (Live Photo)", "has its RAW beside it"
DEVELOPED = "one is RAW, the other a picture made of it: keep both"
# By the suffix of a file beside a photo, what the photo has.
_HAS = (
    {".xmp": "has an edit in its .xmp file", "": "has a file beside it"}
    | dict.fromkeys(FILM_SUFFIXES, FILM)
    | dict.fromkeys(RAW_SUFFIXES, RAW)
)

# Shares by which pixels, blocks and steps are no different.
_SAME_PIXELS, _SAME_BLOCKS, _SAME_STEP = 0.85, 1.4, 1.15
# So much harder blocks come from a strong compression, whatever was done to the tones.
_HARD_BLOCKS = 1.7
# Shares of the picture whose tones are lost, beyond the best of the group.
_MANY_TONES, _LOST_TONES = 0.05, 0.01


@dataclass(frozen=True)
class Choice:
    """A keeper and why: `rule` names the first rule that told the photos apart, None if none did."""

    keeper: Photo
    rule: str | None
    reason: str


class KeepRules:
    """Ordered rules; the first that tells the photos apart decides.

    Args:
        order: some of `DEFAULT_RULES`, most important first; in the default order, `folders` come before all others.
        folders: folders by priority, for the rule `folder`; a photo in none of them comes last.
        chosen: contents (MD5) that the owner kept before, against the rules; they come before every rule.

    Raises:
        PhotodupError: an unknown rule.
    """

    def __init__(
        self,
        order: Sequence[str] = DEFAULT_RULES,
        *,
        folders: Sequence[str | Path] = (),
        chosen: Collection[str] = (),
    ) -> None:
        if not order:
            raise PhotodupError(f"Name at least one keep rule: {', '.join(DEFAULT_RULES)}.")
        if unknown := [rule for rule in order if rule not in DEFAULT_RULES]:
            raise PhotodupError(f"No keep rule {', '.join(unknown)}: choose from {', '.join(DEFAULT_RULES)}.")
        if folders and tuple(order) == DEFAULT_RULES:
            order = ("folder", *order)
        self.order = (*((_CHOSEN,) if chosen else ()), *dict.fromkeys(order))
        self._chosen = frozenset(chosen)
        self.folders = tuple(Path(folder) for folder in folders)
        self._protected: tuple[str, ...] = ()
        self._beside: Sidecars | None = None
        self._described: dict[int, Mapping[str, Any]] = {}

    def preferring(self, wishes: Collection[str], protected: Sequence[str]) -> "KeepRules":
        """Return these rules with others behind those of the picture: what is protected first, then what is wished for.

        Args:
            wishes: some of `WISHES`.
            protected: folders, relative to the library.
        """
        at = 1 + max((i for i, rule in enumerate(self.order) if rule in _OF_THE_PICTURE), default=-1)
        among = [*((_PROTECTED,) if protected else ()), *(wish for wish in WISHES if wish in wishes)]
        rules = copy(self)
        rules.order = tuple(dict.fromkeys((*self.order[:at], *among, *self.order[at:])))
        rules._protected = tuple(protected)
        return rules

    def look_beside(self, library: Path) -> None:
        """Ask in a library which files lie beside a photo, such as its RAW or its film (Live Photo), and what XMP says."""
        self._beside = Sidecars(library)
        self._described.clear()

    def remember_beside(self, memory: Memory) -> None:
        """Keep what has to be read of those files in a memory, which is open as long as these rules are asked."""
        if self._beside:
            self._beside.memory = memory

    def along(self, photo: Photo) -> Sequence[Path]:
        """Return the files beside a photo that belong to it; none where nobody looked beside."""
        return self._beside.along(photo.path) if self._beside else ()

    def _has(self, suffixes: Collection[str], photo: Photo) -> bool:
        return any(path.suffix.lower() in suffixes for path in self.along(photo))

    def described(self, photo: Photo) -> Mapping[str, Any]:
        """Return what a photo and its sidecars say of it, by kind."""
        if photo.id not in self._described:
            said = (
                self._beside.described(photo)
                if self._beside
                else joined(inventory.unpacked(photo.inventory).kinds)
            )
            self._described[photo.id] = said
        return self._described[photo.id]

    def lost_metadata(self, keeper: Photo, leaving: Photo) -> list[str]:
        """Return the metadata that would leave with a photo and the keeper lacks, in words; a sidecar can hold it."""
        return list(filter(None, [lost_in_words(self.described(keeper), self.described(leaving))]))

    def lost_beside(self, keeper: Photo, leaving: Photo) -> list[str]:
        """Return `lost_metadata`, and in words what lies beside a photo and has no equal beside the keeper."""
        suffixes = self._beside.lost(keeper.path, leaving.path) if self._beside else ()
        files = dict.fromkeys(_HAS.get(suffix) or f"has its {suffix} file beside it" for suffix in suffixes)
        is_developed = "RAW" in (keeper.format, leaving.format) and keeper.md5 != leaving.md5
        inside = inventory.missing(*(inventory.unpacked(photo.inventory) for photo in (keeper, leaving)))
        return [*self.lost_metadata(keeper, leaving), *inside, *files, *[DEVELOPED] * is_developed]

    def doubts(
        self,
        keeper: Photo,
        other: Photo,
        photos: Sequence[Photo],
        merits: Mapping[str, Merit],
        relation: Relation,
    ) -> list[str]:
        """Return why a member may be the source of the one to keep, or another photo, in words."""
        standards = _Standards(self, photos, merits)
        rule = self._telling(keeper, other, standards)
        owner_chose = rule == _CHOSEN or (rule == "folder" and bool(self.folders))
        return standards.origins.doubts(keeper, other, relation, owner_chose=owner_chose)

    def choose(self, photos: Sequence[Photo], merits: Mapping[str, Merit] | None = None) -> Choice:
        """Return the best of one or more photos; equal ones are settled by path, so the answer is stable.

        Args:
            photos: the photos.
            merits: what was measured of each content; without it the catalogue's facts count.
        """
        left = sorted(photos, key=place)
        standards = _Standards(self, photos, merits or {})
        for rule in self.order:
            values = {photo.id: self._value(rule, photo, standards) for photo in left}
            best = min(values.values())
            others = sorted(value for value in values.values() if value != best)
            losing = [photo for photo in left if values[photo.id] != best]
            left = [photo for photo in left if values[photo.id] == best]
            if others and len(left) == 1:
                rival = min(losing, key=lambda photo: values[photo.id])
                return Choice(left[0], rule, self._reason(rule, left[0], rival, standards))
        if len(photos) > 1 and len({standards.merit(photo).is_mirrored for photo in left}) > 1:
            return Choice(
                left[0], None, "one is the other's mirror image, and no file tells which came first"
            )
        pairs = zip(place(left[0]), place(left[1]), strict=True) if len(left) > 1 else ()
        settled = next((i for i, (first, second) in enumerate(pairs) if first != second), 2)
        return Choice(left[0], None, f"equal by every rule: {PLACES[settled]}")

    def over(
        self, keeper: Photo, rival: Photo, photos: Sequence[Photo], merits: Mapping[str, Merit] | None = None
    ) -> str:
        """Say why one of some photos is kept rather than another; empty where nothing tells them apart."""
        standards = _Standards(self, photos, merits or {})
        rule = self._telling(keeper, rival, standards)
        return self._reason(rule, keeper, rival, standards) if rule else ""

    def ranked(self, photos: Sequence[Photo]) -> list[Photo]:
        """Return photos of many groups from best to worst by what the catalogue knows of each alone."""
        standards = _Standards(self, photos, {}, together=False)

        def compare(first: Photo, second: Photo) -> int:
            for rule in self.order:
                a, b = (self._value(rule, photo, standards) for photo in (first, second))
                if a != b:
                    return -1 if a < b else 1
            return -1 if place(first) < place(second) else int(place(first) > place(second))

        return sorted(photos, key=cmp_to_key(compare))

    def _telling(self, first: Photo, second: Photo, standards: "_Standards") -> str | None:
        """Return the first rule that tells two photos apart; None where none does."""
        rules = (
            r for r in self.order if self._value(r, first, standards) != self._value(r, second, standards)
        )
        return next(rules, None)

    def _value(self, rule: str, photo: Photo, standards: "_Standards") -> tuple:
        """Return values to minimise, the first the most important."""
        merit = standards.merit(photo)
        if rule == _CHOSEN:
            return (photo.md5 not in self._chosen,)
        if rule == "source":
            return standards.origins.is_edit(photo), standards.origins.is_derived(photo)
        if rule == "content":
            unseen = standards.most_shown - merit.shown
            return (
                -merit.pages,
                not merit.in_colour,
                0.0 if unseen <= WHOLE else round(unseen, 3),
                len(merit.added),
                not self._has(FILM_SUFFIXES, photo),
            )
        if rule == "resolution":
            pixels = standards.pixels(photo)
            is_most = pixels >= _SAME_PIXELS * standards.most_pixels
            # A camera's file may be softer than its pixels; what it says of itself nobody gives to an enlargement.
            is_enlarged = merit.is_enlarged and photo.exif_fields <= standards.least_exif
            of_file = photo.width * photo.height
            return (-standards.most_pixels if is_most else -pixels, is_enlarged, -of_file)
        if rule == "format":
            # A JPEG that leaves takes its RAW along, which may be the only one.
            if self._has(RAW_SUFFIXES, photo):
                return (0,)
            return (1 if merit.is_untouched else format_rank(photo.format) + 0.5 * merit.is_converted,)
        if rule == "compression":
            return (
                merit.coarser > COARSE or merit.blockier > _HARD_BLOCKS,
                merit.lost_tones > standards.least_lost + _MANY_TONES,
                merit.blockier > _SAME_BLOCKS,
                merit.lost_tones > standards.least_lost + _LOST_TONES,
                merit.is_odd,
                merit.coarser > _SAME_STEP,
                merit.is_saved_again,
                merit.step > _SAME_STEP * standards.least_step > 0,
            )
        if rule == "metadata":
            described = self.described(photo)
            # A camera's HEIC says which; one that does not was mostly converted, and is larger than what it was made of.
            is_converted = photo.format == "HEIF" and "camera" not in described
            n_along = len(self.along(photo))
            return (-sum(kind in KINDS for kind in described), -photo.exif_fields, is_converted, -n_along)
        if rule == "size":
            return (-photo.size_bytes,)
        if rule == _PROTECTED:
            return (not photo.lies_in(self._protected),)
        if rule == _RAW_FIRST:
            return (format_rank(photo.format) > 0 and not self._has(RAW_SUFFIXES, photo),)
        if rule == "folder":
            ranks = [i for i, folder in enumerate(self.folders) if photo.path.is_relative_to(folder)]
            return (min(ranks, default=len(self.folders)),)
        # oldest; a photo without a date is newest. Local time: an offset is there or not, whoever wrote the file.
        taken = (photo.taken_at or "9999")[:19]
        return (taken, photo.mtime_ns) if rule == _OLDEST_FILE else (taken,)

    def _reason(self, rule: str, photo: Photo, rival: Photo, standards: "_Standards") -> str:
        merit, other = standards.merit(photo), standards.merit(rival)
        pairs = zip(self._value(rule, photo, standards), self._value(rule, rival, standards), strict=True)
        first = next(i for i, (a, b) in enumerate(pairs) if a != b)
        if rule == "source":
            return standards.origins.why(photo, rival) or "the others were made of it"
        if rule == "content":
            share = min(99, round(100 * other.shown / max(standards.most_shown, 1e-6)))
            return (
                f"holds {merit.pages} pages or frames",
                "in colour",
                f"shows the most, the next {share} % of it",
                f"the picture alone: the others have {' and '.join(other.added) or 'additions'}",
                "has its film beside it (Live Photo)",
            )[first]
        if rule == "resolution":
            if first == 1:
                return "not enlarged: the others have more pixels and no more detail"
            pixels = standards.pixels(photo), standards.pixels(rival)
            if first == 2:
                pixels = photo.width * photo.height, rival.width * rival.height
            what = "detail" if standards.known(photo) else "pixels"
            return f"most {what}: {_apart(*pixels, 'MP', 'pixels')}"
        if rule == "format":
            said = {
                " with its RAW": self._has(RAW_SUFFIXES, photo),
                ", not made of a JPEG": merit.is_untouched,
                f"; the {rival.format} was made of a JPEG": other.is_converted,
            }
            return f"best format: {photo.format}{next((why for why, is_so in said.items() if is_so), '')}"
        if rule == "compression":
            return (
                "least compressed: the others show traces of a stronger compression",
                "keeps light and dark tones that the others lost",
                "least compressed: the others show the blocks of an earlier compression",
                "keeps light and dark tones that the others lost",
                "as most of its copies: the others are mirrored, turned, lighter or darker",
                "least compressed: the others show traces of a stronger compression",
                "compressed once: the others were saved again",
                "least compressed, by the JPEG tables",
            )[first]
        if rule == "metadata":
            if own := missing(self.described(rival), self.described(photo)):
                return f"has {in_words(own)}, which the other lacks"
            if first == 2:
                return f"a {photo.format}: an HEIC that names no camera was mostly made of one"
            if first == 3:
                known = {p.suffix.lower() for p in self.along(rival)}
                more = [p.name for p in self.along(photo) if p.suffix.lower() not in known]
                return f"has {printable(', '.join(more or ['more']))} beside it"
            return f"most complete metadata: {photo.exif_fields} fields, next {rival.exif_fields}"
        where = printable(photo.path.parent)
        return {
            _CHOSEN: "you chose to keep it before",
            _PROTECTED: f"in a folder from which nothing goes: {where}",
            _RAW_FIRST: "is RAW, or has its RAW beside it",
            _OLDEST_FILE: "the oldest file",
            "size": f"largest file: {_apart(photo.size_bytes, rival.size_bytes, 'MB', 'bytes')}",
            "folder": f"preferred folder: {where}",
            "oldest": f"oldest: {photo.taken_at}",
        }[rule]


class _Standards:
    """What the members of one group are held against."""

    def __init__(
        self, rules: KeepRules, photos: Sequence[Photo], merits: Mapping[str, Merit], *, together: bool = True
    ) -> None:
        self._merits = merits
        self.origins = Origins(photos, self.merit, rules.described)
        found = [self.merit(photo) for photo in photos] if together else []
        self.most_shown = max((merit.shown for merit in found), default=1.0)
        self.most_pixels = max((self.pixels(photo) for photo in photos), default=0) if together else 1 << 62
        self.least_exif = min((photo.exif_fields for photo in photos), default=0)
        self.least_lost = min((merit.lost_tones for merit in found), default=0.0)
        self.least_step = min((merit.step for merit in found if merit.step), default=0.0)

    def known(self, photo: Photo) -> bool:
        """Return whether the photo was measured beside the others."""
        return photo.md5 in self._merits

    def merit(self, photo: Photo) -> Merit:
        """Return the merit of a photo; the best possible where it was not measured."""
        return self._merits.get(photo.md5, Merit(pixels=photo.width * photo.height))

    def pixels(self, photo: Photo) -> int:
        """Return the true pixels of a photo, or those of its file where they were not measured."""
        return self.merit(photo).pixels


def _apart(best: int, next_best: int, millions: str, ones: str) -> str:
    """Say two numbers in millions; in ones where they would read the same, or one as nothing."""
    rounded = [f"{value / 1e6:.1f} {millions}" for value in (best, next_best)]
    exact = [f"{value:,} {ones}" for value in (best, next_best)]
    return ", next ".join(rounded if rounded[0] != rounded[1] and min(best, next_best) >= 50_000 else exact)
