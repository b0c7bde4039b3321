"""Photos for the page: JPEGs by catalogue id, and comparisons of two photos in words."""

import errno
import os
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from PIL import ExifTags, Image

from photodup.core.errors import PhotodupError
from photodup.core.names import printable
from photodup.embedding import imaging
from photodup.photos.groups.results import Member
from photodup.photos.library.catalogue import Photo
from photodup.photos.library.hashing import md5
from photodup.photos.library.metadata import is_metadata
from photodup.photos.library.walking import open_photo_file
from photodup.photos.review.drawn_difference import LEAST, drawn_difference
from photodup.photos.trash.entries import Moved
from photodup.photos.trash.files import TRASH_FOLDER

# Longer side in pixels: grid, side by side, zoomed in.
SIZES = {"small": 360, "screen": 1600, "large": 6000}
_QUALITY = {"small": 80, "screen": 88, "large": 92}
# Zoomed in, a JPEG up to this many pixels is sent unchanged.
_AS_IT_IS_PIXELS = 64_000_000
# EXIF is in the first segments of a JPEG; the rest of a 20 MB file need not be read for it.
_JPEG_HEADER_BYTES = 1_000_000
_MOST_FIELDS = 40  # of EXIF, for one page
# How many are decoded at a time: one of 200 megapixels takes 1 GB.
_making = threading.BoundedSemaphore(2)


class PictureRefused(PhotodupError):
    """A file that is not shown: outside the library, a link, missing, or changed since the scan."""


def open_photo(root: Path, photo: Photo) -> BinaryIO:
    """Open a catalogued file if it is unchanged since the scan.

    Raises:
        PictureRefused: it is outside the library, behind a link, missing, or changed since the scan.
    """
    name = printable(photo.path)
    try:
        file = open_photo_file(root, os.fspath(photo.path))
    except FileNotFoundError:
        raise PictureRefused(f"{name} is no longer there: scan again.") from None
    except OSError as error:
        if error.errno == errno.EINVAL:
            reason = "is no regular file any more, or leads outside the library"
        else:
            link = error.errno in (errno.ELOOP, errno.ENOTDIR)
            reason = "is, or lies behind, a link" if link else f"cannot be read ({error.strerror})"
        raise PictureRefused(f"{name} {reason}: scan again.") from None
    status = os.fstat(file.fileno())
    if (status.st_size, status.st_mtime_ns) != (photo.size_bytes, photo.mtime_ns):
        file.close()
        raise PictureRefused(f"{name} has changed since the scan: scan again.")
    return file


def problems(root: Path, photos: Iterable[Photo]) -> dict[int, str]:
    """Return why photos cannot be shown, by their id."""
    reasons: dict[int, str] = {}
    for photo in photos:
        try:
            open_photo(root, photo).close()
        except PictureRefused as error:
            reasons[photo.id] = str(error)
    return reasons


def trash_picture(root: Path, moved: Moved) -> bytes:
    """Return a small JPEG of a photo in the trash.

    Raises:
        PictureRefused: it is missing, or is not the removed file.
    """
    try:
        with open_photo_file(root, f"{TRASH_FOLDER}/{moved.trash}") as file:
            data = file.read(moved.size + 1)
        if len(data) != moved.size or md5(data) != moved.md5:
            raise PictureRefused(f"{printable(moved.home)} in the trash is not the file that was removed.")
        with _making:
            return _encoded(imaging.decode(data, draft_size=SIZES["small"]), "small")
    except (OSError, imaging.ImageError):
        raise PictureRefused(f"{printable(moved.home)} in the trash cannot be shown.") from None


def photo_picture(root: Path, photo: Photo, size: str) -> bytes:
    """Return a JPEG of one of `SIZES`; as `large`, a JPEG file of at most 64 megapixels is returned unchanged.

    Raises:
        PictureRefused: as of `open_photo`.
        ImageError: it cannot be decoded.
    """
    with open_photo(root, photo) as file:
        if size == "large" and photo.format == "JPEG" and photo.width * photo.height <= _AS_IT_IS_PIXELS:
            return file.read()
        with _making:
            return _encoded(_decoded(file.read(), photo, size), size)


def difference_picture(root: Path, left: Photo, right: Photo) -> tuple[bytes, str]:
    """Return a JPEG of the differences of two photos, and how much they differ in words.

    Raises:
        PictureRefused: one cannot be shown, or they cannot be laid over each other.
    """
    with _making:
        images = []
        for photo in (left, right):
            with open_photo(root, photo) as file:
                images.append(_shrunk(_decoded(file.read(), photo, "screen"), "screen"))
        comparison = drawn_difference(*images)
    if comparison is None:
        raise PictureRefused(
            "These two cannot be laid over each other exactly, so no difference can be drawn."
        )
    drawn, share, largest = comparison
    sentence = f"No pixel differs{f' by more than {largest} greys of 255' if largest else ''} at this size."
    if share:
        much = "Less than 1%" if share < 0.01 else whole_percent(share)
        sentence = f"{much} of what both show differs by more than {LEAST} greys of 255."
    return imaging.to_jpeg(drawn, _QUALITY["screen"]), sentence


def _decoded(data: bytes, photo: Photo, size: str) -> Image.Image:
    shorter = SIZES[size] * min(photo.width, photo.height) // max(photo.width, photo.height)
    return imaging.decode(data, draft_size=max(shorter, 1))


def _shrunk(image: Image.Image, size: str) -> Image.Image:
    image.thumbnail((SIZES[size], SIZES[size]), Image.Resampling.LANCZOS)
    return image


def _encoded(image: Image.Image, size: str) -> bytes:
    image = _shrunk(image, size)
    # Phones use Display P3: without the profile an sRGB copy would look different.
    profile = image.info.get("icc_profile") or b""
    options = {"icc_profile": profile} if profile[16:20] == b"RGB " else {}
    return imaging.encode(image, "JPEG", quality=_QUALITY[size], **options)


def exif(root: Path, photo: Photo) -> dict[str, str]:
    """Return readable EXIF fields, by name; empty for an unreadable file. The page escapes the values."""
    try:
        with open_photo(root, photo) as file:
            data = file.read(_JPEG_HEADER_BYTES if photo.format == "JPEG" else -1)
        with imaging.open_image(data) as header:
            tags = header.getexif()
            fields = dict(tags) | dict(tags.get_ifd(ExifTags.IFD.Exif))
    except Exception:  # Broken EXIF must not cost the page.
        return {}
    readable = {}
    for tag, value in sorted(fields.items()):
        name = ExifTags.TAGS.get(tag) if is_metadata(tag) or tag == ExifTags.Base.Orientation else None
        if name and not isinstance(value, bytes | dict) and len(text := str(value).strip("\0 ")) <= 120:
            readable[name] = text
    skipped = {"MakerNote", "PrintImageMatching"}
    return {name: value for name, value in list(readable.items())[:_MOST_FIELDS] if name not in skipped}


@dataclass(frozen=True)
class SideBySide:
    """One line of the comparison."""

    name: str
    left: str
    right: str
    is_detail: bool = False

    @property
    def differs(self) -> bool:
        """Return whether the two differ."""
        return self.left != self.right


def links_to(root: Path, leaving: Iterable[Photo], only: Sequence[str] = ()) -> dict[int, list[str]]:
    """Return the symbolic links in the library to each leaving photo, by its id.

    `only` are the folders to search, relative to the library; empty for all.
    """
    targets = {os.path.realpath(root / photo.path): photo.id for photo in leaving}
    links: dict[int, list[str]] = {}
    walks = chain.from_iterable(os.walk(root / name) for name in only or (".",))
    for folder, folders, names in walks if targets else ():
        folders[:] = [name for name in folders if not name.startswith(".photodup")]
        for path in (os.path.join(folder, name) for name in names):
            if os.path.islink(path) and (number := targets.get(os.path.realpath(path))):
                links.setdefault(number, []).append(printable(Path(path).relative_to(root)))
    return links


def side_by_side(root: Path, left: Photo, right: Photo) -> list[SideBySide]:
    """Return size, date, camera, path and EXIF of two photos; details only where they differ."""
    pairs = zip(_facts(left).items(), _facts(right).values(), strict=True)
    rows = [SideBySide(name, of_left, of_right) for (name, of_left), of_right in pairs]
    fields = exif(root, left), exif(root, right)
    for name in sorted(set(fields[0]) | set(fields[1])):
        row = SideBySide(_words(name), fields[0].get(name, "–"), fields[1].get(name, "–"), is_detail=True)
        if row.differs and name not in ("Make", "Model", "DateTimeOriginal"):
            rows.append(row)
    return rows


def evidence_sentence(member: Member, tier: str) -> str:
    """Return a sentence why a photo is in its group."""
    if member.is_same_bytes:
        return "An exact copy: the two files are the same, byte for byte."
    if tier != "copies":
        return "Alike, and not seen to be the same picture: two photographs of one scene, perhaps."
    if member.differences:
        return "The same picture, but for what is named above: photodup suggests no removal."
    return "The same picture: laid over each other, they agree everywhere they both show."


def size(n_bytes: int) -> str:
    """Return a size with its unit."""
    value = float(n_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit in ("bytes", "kB") else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def whole_percent(share: float) -> str:
    """Return a share as a whole percentage, never rounded up to 100."""
    return "100%" if share == 1 else f"{min(share * 100, 99):.0f}%"


def _words(name: str) -> str:
    """Write an EXIF name as words: `FocalLengthIn35mmFilm` becomes `Focal length in 35mm film`."""
    parts = re.findall(r"[A-Z]{2,}(?![a-z])|\d+[a-z]*|[A-Z]?[^A-Z\d]+|[A-Z]", name)
    return " ".join(part if part.isupper() or not i else part.lower() for i, part in enumerate(parts))


def _facts(photo: Photo) -> dict[str, str]:
    """Return a photo's facts in the catalogue, in words."""
    pixels = photo.width * photo.height
    megapixels = f" · {pixels / 1e6:.1f}\N{NO-BREAK SPACE}MP" if pixels >= 50_000 else ""
    return {
        "Folder": printable(photo.path.parent) if photo.path.parent.parts else "the library's own",
        "Name": printable(photo.path.name),
        "Pixels": f"{photo.width} × {photo.height}{megapixels}",
        "File": f"{photo.format} · {size(photo.size_bytes)}",
        "Taken": photo.taken_at.replace("T", " ") if photo.taken_at else "–",
        "Camera": photo.camera or "–",
        "Metadata": f"{photo.exif_fields} fields",
    }
