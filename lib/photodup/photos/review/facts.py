"""What the page says about two photos, side by side, in words."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from photodup.names import printable
from photodup.photos.groups.results import Evidence
from photodup.photos.library.catalogue import Photo
from photodup.photos.review.pictures import exif


@dataclass(frozen=True)
class Row:
    """One line of the comparison."""

    name: str
    left: str
    right: str
    is_detail: bool = False

    @property
    def differs(self) -> bool:
        """Whether the two say different things."""
        return self.left != self.right


def freed(root: Path, leaving: Iterable[Photo]) -> tuple[set[int], int]:
    """Return which photos free nothing, for a hard link to the same content stays, and the bytes that the others free."""
    names: dict[tuple[int, int], list[Photo]] = {}
    links: dict[tuple[int, int], int] = {}
    for photo in leaving:
        with suppress(OSError):  # gone since: it will stay in the list, and frees nothing
            status = os.lstat(root / photo.path)
            names.setdefault((status.st_dev, status.st_ino), []).append(photo)
            links[status.st_dev, status.st_ino] = status.st_nlink
    stay = {photo.id for file, photos in names.items() if links[file] > len(photos) for photo in photos}
    return stay, sum(photos[0].size_bytes for photos in names.values() if photos[0].id not in stay)


def compare(root: Path, left: Photo, right: Photo) -> list[Row]:
    """Return size, date, camera, path and EXIF of two photos; details only where they differ."""
    rows = [
        Row("Folder", _folder(left), _folder(right)),
        Row("Name", left.path.name, right.path.name),
        Row("Pixels", _pixels(left), _pixels(right)),
        Row("File", f"{left.format} · {size(left.size_bytes)}", f"{right.format} · {size(right.size_bytes)}"),
        Row("Taken", _when(left), _when(right)),
        Row("Camera", left.camera or "–", right.camera or "–"),
        Row("Metadata", f"{left.exif_fields} fields", f"{right.exif_fields} fields"),
    ]
    fields = exif(root, left), exif(root, right)
    for name in sorted(set(fields[0]) | set(fields[1])):
        row = Row(_words(name), fields[0].get(name, "–"), fields[1].get(name, "–"), is_detail=True)
        if row.differs and name not in ("Make", "Model", "DateTimeOriginal"):
            rows.append(row)
    return [
        row if row.name != "Name" else Row("Name", printable(Path(row.left)), printable(Path(row.right)))
        for row in rows
    ]


def evidence(why: Evidence, difference: str = "") -> str:
    """Say in plain words why a photo is here; `difference` is what it has that the keeper would not keep."""
    if why.exact:
        return "An exact copy: the two files are the same, byte for byte."
    found = why.verification
    if found is not None and found.is_copy():
        mirrored = ", mirrored" if found.mirrored else ""
        if difference:
            return f"The same picture{mirrored}, but for what is named above: photodup suggests no removal."
        return f"The same picture{mirrored}: laid over each other, they agree everywhere they both show."
    if found is not None and found.overlap > 0:
        return "Alike, but laid over each other they do not agree everywhere: two photographs of one scene, perhaps."
    return "Alike at a glance; they could not be laid over each other."


def technical(why: Evidence) -> list[tuple[str, str]]:
    """Return the measurements as (name, value), for those who want them."""
    lines = []
    if why.similarity is not None:
        lines.append(("Embedding", f"{why.similarity:.3f} cosine"))
    if (found := why.verification) is not None and found.overlap > 0:
        lines.append(("Pixels agree", percent(found.agreement)))
        how = "by grey values" if found.by_grey else f"{found.inliers} points"
        lines.append(("Aligned", f"{how}{', mirrored' if found.mirrored else ''}"))
    elif found is not None:
        lines.append(("Pixels", "cannot be laid over each other"))
    return lines


def size(n_bytes: int) -> str:
    """Return a size as people write it."""
    value = float(n_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit in ("bytes", "kB") else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def percent(share: float) -> str:
    """Return a share as a whole percentage, never rounded up to 100."""
    return "100 %" if share == 1 else f"{min(share * 100, 99):.0f} %"


def _words(name: str) -> str:
    """Write an EXIF name as words: `FocalLengthIn35mmFilm` becomes `Focal length in 35mm film`."""
    parts = re.findall(r"[A-Z]{2,}(?![a-z])|\d+[a-z]*|[A-Z]?[^A-Z\d]+|[A-Z]", name)
    return " ".join(part if part.isupper() or not i else part.lower() for i, part in enumerate(parts))


def _folder(photo: Photo) -> str:
    return printable(photo.path.parent) if photo.path.parent.parts else "the library's own"


def _pixels(photo: Photo) -> str:
    return f"{photo.width} × {photo.height} · {photo.width * photo.height / 1e6:.1f}\N{NO-BREAK SPACE}MP"


def _when(photo: Photo) -> str:
    return photo.taken_at.replace("T", " ") if photo.taken_at else "–"
