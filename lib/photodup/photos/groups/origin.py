"""Who comes from whom: what names, programs, cameras and tones say about which of two files is the source.

An edit keeps the date and camera of its source, and may be the larger and finer file. So the first signs are what only an
edit has, then what only a source has; where neither is there, nothing is said.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from photodup.names import printable
from photodup.photos.compare.merit import Merit, Relation
from photodup.photos.library.catalogue import Photo

# As Google Photos (in the owner's language), Apple, Samsung, Snapseed and people name what they edited.
_EDIT_NAME = re.compile(
    r"^IMG_E\d{4}|[-_ (](edit(ed)?|bearbeitet|modifié|modifie|editado|editada|editat|modificato|bewerkt|edytowane|"
    r"redigerad|redigeret|redigert|muokattu|düzenlendi|изменено|编辑|已编辑|已修改|編集済み|수정됨|retouched|filtered|"
    r"enhanced|upscaled|sharpened|colou?ri[sz]ed)\)?([-_ ]?\(?\d+\)?)?$",
    re.IGNORECASE,
)
_COPY_NAME = re.compile(
    r"^(kopie|copy|copie|copia|cópia|kopia|kopi|kópia) (von|of|de|di|av|af|z) |"
    r"[-_ ](kopie|copy|copie|copia|cópia|kopia|kopi)( ?\(?\d+\)?)?$| ?\(\d+\)$|~\d$|(?<=\d) \d$|"
    r"\([^)]*(conflict|konflikt|conflit|conflicto|conflitto|conflito)[^)]*\)|[.-]sync-conflict-|-(desktop|laptop)-\w+$",
    re.IGNORECASE,
)
# Programs that change a picture which is there already. Those that develop a RAW file make an original of their own.
_EDITORS = re.compile(
    r"photoshop|gimp|snapseed|picasa|pixelmator|affinity|luminar|vsco|photoscape|paint|instagram|facetune|acdsee|xnview|"
    r"irfanview|photo editor|photofiltre|polarr|picsart|fotor|canva|afterlight|google photos|imagemagick|remini|topaz|krita",
    re.IGNORECASE,
)
_CAMERA_FOLDER = re.compile(r"dcim|camera|camera roll|\d{3}[A-Z_]{5}|(19|20)\d\d([-_. ].*)?", re.IGNORECASE)
_PASSING_FOLDER = re.compile(
    r"downloads?|te?mp|whatsapp.*|telegram.*|messenger|sent|received|.*papierkorb|.*trash|.*back-?ups?\b.*|.*sicherung.*",
    re.IGNORECASE,
)
# What an owner said, also of files whose own metadata was taken away.
_OWNERS = frozenset({"caption", "keywords", "people", "place"})
# More of the picture whose tones only one of two lost: that one was made brighter, darker or harder.
_LOST_TONES = 0.01
# Members of one tone, and how many times as many, of which the others are edits one by one.
_MANY, _TIMES = 5, 5


def is_edit(photo: Photo, described: Mapping[str, Any]) -> bool:
    """Return whether a file's name or the program that saved it says that it is an edit."""
    return bool(_EDIT_NAME.search(photo.path.stem) or _EDITORS.search(str(described.get("software", ""))))


def place(photo: Photo) -> tuple[bool, int, int, str]:
    """Return what settles equal files, best lowest: no name of a copy, a camera's or dated folder, a short path."""
    folders = photo.path.parts[:-1]
    passing = any(_PASSING_FOLDER.fullmatch(part) for part in folders)
    cameras = any(_CAMERA_FOLDER.fullmatch(part) for part in folders)
    is_copy = bool(_COPY_NAME.search(photo.path.stem))
    return is_copy, int(passing) - int(cameras and not passing), len(photo.path.parts), str(photo.path)


PLACES = (
    "its name is not that of a copy",
    "in a camera's or a dated folder, or not in one of copies",
    "the shortest path",
    "the first by name",
)


@dataclass
class _Look:
    """The members of one tone that are mirrored alike: how many, and the best that is known of any."""

    n: int = 0
    has_camera: bool = False
    in_colour: bool = False
    lost_tones: float = 1.0


class Origins:
    """What tells sources from edits within one group.

    Args:
        photos: the members.
        merit: what was measured of each.
        described: the metadata of each file, by kind.
    """

    def __init__(
        self,
        photos: Sequence[Photo],
        merit: Callable[[Photo], Merit],
        described: Callable[[Photo], Mapping[str, Any]],
    ) -> None:
        self._merit, self._described = merit, described
        self._looks: dict[tuple[int, bool], _Look] = {}
        said = {one: described(one) for one in photos}
        self._known = [one for one in photos if said[one].keys() - _OWNERS and not is_edit(one, said[one])]
        for photo in photos:
            own, look = merit(photo), self._looks.setdefault(self._key(photo), _Look())
            look.n += 1
            look.has_camera |= "camera" in described(photo)
            look.in_colour |= own.in_colour
            look.lost_tones = min(look.lost_tones, own.lost_tones)

    def is_edit(self, photo: Photo, other: Photo | None = None) -> bool:
        """Return whether a file says itself that it is an edit: beside another member, or beside any.

        The program that saved it says nothing beside files without metadata: what saved those may have been taken away.
        """
        is_beside_known = other in self._known if other else bool(self._known)
        return bool(_EDIT_NAME.search(photo.path.stem)) or (
            is_beside_known and is_edit(photo, self._described(photo))
        )

    def is_derived(self, photo: Photo) -> bool:
        """Return whether another member, or those of other tones, are shown to be the source of a photo's."""
        own = self._looks[self._key(photo)]
        return self._merit(photo).is_made_of_another or any(
            _from_looks(other, own) for other in self._looks.values() if other is not own
        )

    def why(self, source: Photo, other: Photo) -> str:
        """Return why one member is the source of another rather than the reverse; empty where nothing says so."""
        edits = self.is_edit(source, other), self.is_edit(other, source)
        if edits[0] != edits[1]:
            if edits[0]:
                return ""
            named = _EDIT_NAME.search(other.path.stem)
            program = printable(str(self._described(other).get("software", "")))
            return "the other is an edit, as its name says" if named else f"the other was saved by {program}"
        cameras = ["camera" in self._described(photo) for photo in (source, other)]
        if cameras[0] != cameras[1]:
            return "has its camera's metadata; the other has none" if cameras[0] else ""
        added = [self._merit(photo).added for photo in (source, other)]
        if bool(added[0]) != bool(added[1]):
            return f"the picture alone: the other has {' and '.join(added[1])}" if added[1] else ""
        looks = self._looks[self._key(source)], self._looks[self._key(other)]
        return _from_looks(*looks) if looks[0] is not looks[1] else ""

    def doubts(
        self, keeper: Photo, other: Photo, relation: Relation, *, owner_chose: bool = False
    ) -> list[str]:
        """Return why the other may be the source of the one to keep, or another photo, in words.

        Where it is known which came first, or the owner chose, only another photo matters.
        """
        is_made = self._merit(other).is_made_of_another
        origin = "made of a file here" if is_made else "and no file tells which came first"
        is_named = any(_EDIT_NAME.search(photo.path.stem) for photo in (keeper, other))
        may_be_reexposed = relation.may_be_reexposed and not is_named
        perhaps = "" if is_made else "perhaps another exposure, "
        said = [f"lighter or darker, {perhaps}{origin}"] if may_be_reexposed else []
        if owner_chose:
            return said
        # Whoever came first: somebody may have turned it to look at it.
        said += ["turned against the one to keep"] if relation.is_turned else []
        if relation.is_source or self.why(keeper, other):
            return said
        if self.is_edit(keeper, other) and not self.is_edit(other, keeper):
            said.append("the one to keep is an edit, by its name or the program that saved it")
        elif relation.is_retoned and not may_be_reexposed:
            said.append(f"has other tones or colours, {origin}")
        elif relation.is_mirrored:
            said.append(f"mirrored, {origin}")
        elif relation.is_stretched:
            said.append(f"has other proportions, {origin}")
        added = [self._merit(photo).added for photo in (keeper, other)]
        if only_in_it := [one for one in added[0] if one not in added[1]]:
            said.append(f"the one to keep has {' and '.join(only_in_it)}")
        if relation.is_sharper:
            said.append(f"the one to keep is sharper, perhaps only sharpened, {origin}")
        if relation.is_smoother:
            said.append(f"the one to keep is smoother, perhaps only filtered, {origin}")
        if relation.is_resaved:
            said.append("the one to keep may have been compressed harder before and saved again")
        if relation.is_larger:
            said.append("the one to keep has more pixels, but may be an enlargement")
        if relation.is_remade:
            said.append("the one to keep shows the compression of this file, and may be made of it")
        if relation.is_one_size and keeper.format != other.format and self._may_be_converted(keeper, other):
            said.append(f"a {other.format} file, the one to keep is {keeper.format}, {origin}")
        return said

    def _may_be_converted(self, keeper: Photo, other: Photo) -> bool:
        """Return whether the one to keep may have been made of the other, of another format."""
        if self._merit(keeper).is_untouched:
            return False
        ranks = [format_rank(photo.format) for photo in (keeper, other)]
        return (
            self._merit(other).is_untouched or ranks[0] > ranks[1] or "HEIF" in (keeper.format, other.format)
        )

    def _key(self, photo: Photo) -> tuple[int, bool]:
        merit = self._merit(photo)
        return merit.tone, merit.is_mirrored


def format_rank(name: str) -> int:
    """Return the place of a format, the best lowest."""
    return _FORMAT_RANK.get(name.upper(), 9)


# What cameras write, then what the web makes of it; GIF has 256 colours. MPO is Pillow's name for the JPEG of a camera
# that put a second picture behind the first. Of HEIC and JPEG either may be made of the other.
_FORMAT_RANK = {"DNG": 0, "RAW": 0, "HEIF": 2, "JPEG": 2, "MPO": 2, "TIFF": 2, "PNG": 2}
_FORMAT_RANK |= {"AVIF": 3, "JXL": 3, "WEBP": 3, "GIF": 4}


def _from_looks(source: _Look, edit: _Look) -> str:
    """Return why members of one look are the sources of those of another; empty where nothing says so."""
    if source.has_camera != edit.has_camera:
        return "has its camera's metadata; the other has none" if source.has_camera else ""
    if source.in_colour != edit.in_colour:
        return "in colour" if source.in_colour else ""
    votes = {
        "keeps light and dark tones that the other lost": _more(edit.lost_tones, source.lost_tones),
        "as most of its copies: the other is mirrored, lighter or darker": _outnumber(source.n, edit.n),
    }
    against = _more(source.lost_tones, edit.lost_tones) or _outnumber(edit.n, source.n)
    return next((said for said, is_so in votes.items() if is_so and not against), "")


def _more(first: float, second: float) -> bool:
    return first > second + _LOST_TONES


def _outnumber(first: int, second: int) -> bool:
    return first >= max(_MANY, _TIMES * second)
