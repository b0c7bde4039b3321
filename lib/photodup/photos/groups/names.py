"""Which of equal files to keep, by their names, folders and formats."""

import re

from photodup.photos.library.catalogue import Photo

_COPY_NAME = re.compile(
    r"(?i)^(kopie|copy|copie|copia|cópia|kopia|kopi|kópia) (von|of|de|di|av|af|z) |"
    r"[-_ ](kopie|copy|copie|copia|cópia|kopia|kopi)( ?\(?\d+\)?)?$| ?\(\d+\)$|~\d$|(?<=\d) \d$|"
    r"\([^)]*(conflict|konflikt|conflit|conflicto|conflitto|conflito)[^)]*\)|[.-]sync-conflict-|-(desktop|laptop)-\w+$"
)
# A word that is no camera's or program's.
_WORD = re.compile(
    r"(?i)(?<![^\W_])(?!(img|dsc[nf]?|pxl|image|photo|screenshot|scan|edited|small|unnamed)(?![^\W_]))[^\W\d_]{3,}(?![^\W_])"
)
_CAMERA_FOLDER = re.compile(r"dcim|camera|camera roll|\d{3}[A-Z_]{5}|(19|20)\d\d([-_. ].*)?", re.IGNORECASE)
_PASSING_FOLDER = re.compile(
    r"(?i)downloads?|te?mp|whatsapp.*|telegram.*|messenger|sent|received|.*papierkorb|.*trash|.*back-?ups?\b.*|.*sicherung.*"
)


def place(photo: Photo) -> tuple[bool, int, bool, int, str]:
    """Return a rank among equal files, best lowest: no name of a copy, a camera's or dated folder, words, a short path."""
    path, folders = photo.path, photo.path.parts[:-1]
    passing, cameras = (any(map(kind.fullmatch, folders)) for kind in (_PASSING_FOLDER, _CAMERA_FOLDER))
    is_copy, has_words = (bool(pattern.search(path.stem)) for pattern in (_COPY_NAME, _WORD))
    return is_copy, int(passing) - int(cameras and not passing), not has_words, len(path.parts), str(path)


PLACES = (
    "its name is not that of a copy",
    "in a camera's or a dated folder, or not in one of copies",
    "its name has words",
    "the shortest path",
    "the first by name",
)


# Formats of cameras, then those of the web; GIF has 256 colours. MPO is Pillow's name for a camera's JPEG with a second
# picture. JPEG and lossless formats are equal here: the pixels tell which can reproduce the other.
_FORMATS = ({"DNG", "RAW"}, {"TIFF", "PNG", "BMP", "HEIF", "JPEG", "MPO"}, {"AVIF", "JXL", "WEBP"}, {"GIF"})


def format_rank(name: str) -> int:
    """Return the place of a format, the best lowest."""
    return next((rank for rank, formats in enumerate(_FORMATS) if name.upper() in formats), len(_FORMATS))
