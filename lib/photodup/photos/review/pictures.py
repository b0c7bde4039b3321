"""Pictures for the page: served by catalogue id, re-encoded, cached; never a path from outside."""

import os
import stat
from pathlib import Path

from PIL import ExifTags, Image

from photodup.embedding import imaging
from photodup.errors import PhotodupError
from photodup.photos.catalogue import Photo
from photodup.photos.metadata import is_metadata

# Longer side in pixels: grid, side by side, zoomed in.
SIZES = {"small": 360, "screen": 1600, "large": 6000}
_QUALITY = {"small": 80, "screen": 88, "large": 92}


class Refused(PhotodupError):
    """A file that is not shown: outside the library, a link, gone, or changed since the scan."""


def read_photo(root: Path, photo: Photo) -> bytes:
    """Read a catalogued file, if it still is the file that was scanned.

    No part of the path below the library may be a link: it could point anywhere.

    Raises:
        Refused: see there.
    """
    here = root
    for part in photo.path.parts:
        here = here / part
        if part == ".." or here.is_symlink():
            raise Refused(f"{photo.path} leads outside the library: scan again.")
    try:
        descriptor = os.open(here, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{photo.path} is no regular file any more: scan again.")
            if (status.st_size, status.st_mtime_ns) != (photo.size_bytes, photo.mtime_ns):
                raise Refused(f"{photo.path} has changed since the scan: scan again.")
            return file.read()
    except OSError as error:
        raise Refused(f"{photo.path} cannot be read ({error.strerror}): scan again.") from None


def picture(root: Path, cache: Path, photo: Photo, size: str) -> bytes:
    """Return a JPEG of one of `SIZES`; made once per content, decoded at reduced scale where that helps."""
    data = read_photo(root, photo)  # also when cached: a changed file is refused, not shown as it was
    cached = cache / photo.md5[:2] / f"{photo.md5}-{size}.jpg"
    if cached.is_file():
        return cached.read_bytes()
    image = imaging.decode(data, draft_size=SIZES[size])
    image.thumbnail((SIZES[size], SIZES[size]), Image.Resampling.LANCZOS)
    encoded = imaging.to_jpeg(image, _QUALITY[size])
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        temporary = cached.with_name(f".{cached.name}.{os.getpid()}.tmp")
        temporary.write_bytes(encoded)
        os.replace(temporary, cached)
    except OSError:  # a full disk costs time, not the page
        temporary.unlink(missing_ok=True)
    return encoded


def exif(root: Path, photo: Photo, most: int = 40) -> dict[str, str]:
    """Return readable EXIF fields, by name; an unreadable file has none. Values are for display, escaped later."""
    try:
        with imaging._open(read_photo(root, photo)) as header:
            tags = header.getexif()
            fields = dict(tags) | dict(tags.get_ifd(ExifTags.IFD.Exif))
    except Exception:  # Broken EXIF must not cost the page.
        return {}
    shown = {}
    for tag, value in sorted(fields.items()):
        name = ExifTags.TAGS.get(tag) if is_metadata(tag) or tag == ExifTags.Base.Orientation else None
        if name and not isinstance(value, bytes | dict) and len(text := str(value).strip("\0 ")) <= 120:
            shown[name] = text
    skipped = {"MakerNote", "PrintImageMatching"}
    return {name: value for name, value in list(shown.items())[:most] if name not in skipped}
