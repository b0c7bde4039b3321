"""A small scanned library for the review tests: real photographs, copies, a burst, a sidecar, odd names."""

import atexit
import functools
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pillow_heif
from PIL import ExifTags, Image

from photodup.photos.groups.results import Group
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue, Photo
from photodup.photos.library.metadata import collect_kinds, kinds_of, read_xmp
from photodup.photos.library.scan import scan
from photodup.photos.review.serve import ReviewServer
from photodup.photos.review.session import Item, RemovalResult, ReviewSession

# What a scan knows of a file of which nothing stands out.
BASE = Photo(
    "0" * 32, 1000, "JPEG", 100, 100, None, b"", "2020-01-02T00:00:00", "Cam", 5, None, None,
    id=1, path=Path("a.jpg"), mtime_ns=0,
)  # fmt: skip


def photo(name: str) -> Image.Image:
    import skimage.data

    return Image.fromarray(getattr(skimage.data, name)()).convert("RGB")


def save(image: Image.Image, path: Path, *, quality=92, taken: str | None = None, camera="Test") -> None:
    found = Image.Exif()
    if taken:
        found[0x010F] = camera
        found.get_ifd(0x8769)[0x9003] = taken
    write(image, path, quality=quality, data=found.tobytes() if taken else b"", format="JPEG")


def exif(*, camera: bool = True, rating: int = 0, **details) -> bytes:
    """EXIF as phones write it; `details` by tag name of the Exif directory."""
    found = Image.Exif()
    if camera:
        found[0x010F], found[0x0110] = "Maker", "Model 1"
        found.get_ifd(0x8825).update({1: "N", 2: (48.0, 12.0, 5.0), 3: "E", 4: (11.0, 30.0, 5.0)})
        found.get_ifd(0x8769)[0x9003] = "2022:05:17 18:10:00"
    if rating:
        found[0x4746] = rating
    found.get_ifd(0x8769).update({ExifTags.Base[name].value: value for name, value in details.items()})
    return found.tobytes()


def write(image: Image.Image, path: Path, *, quality: int = 92, data: bytes = b"", **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".heic":
        pillow_heif.register_heif_opener()
    image.save(path, quality=quality, **options, **({"exif": data} if data else {}))


XMP = (
    '<?xpacket begin=""?><x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
    'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description {attributes} '
    'xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:dc="http://purl.org/dc/elements/1.1/">{elements}'
    "</rdf:Description></rdf:RDF></x:xmpmeta>"
)


def xmp(attributes: str = "", elements: str = "") -> str:
    return XMP.format(attributes=attributes, elements=elements)


def remove_all(session: ReviewSession) -> RemovalResult:
    """Do what the page suggests: mark all copies and remove what is marked."""
    session.accept_all()
    return session.apply()


def copies_in(library: Path) -> tuple[Group, ...]:
    """Scan a library and return its groups of copies."""
    scan(library, progress=False)
    with Catalogue(library) as catalogue:
        return find_tiers(catalogue).copies


def only_group(library: Path) -> Group:
    """Scan a library of one family and return its group."""
    (group,) = copies_in(library)
    return group


HOSTILE = "<img src=x onerror=alert(1)>.jpg"


def make_library(folder: Path, *, is_compared: bool = True) -> Path:
    """Put a scanned library there: three pictures with copies, one of them twice byte for byte, and a lone one."""
    caches = shutil.ignore_patterns(*(() if is_compared else ("evidence.*", "features.*", "neighbours.*")))
    return Path(shutil.copytree(_made_once(), folder, dirs_exist_ok=True, ignore=caches))


@functools.cache
def _made_once() -> Path:
    """Write and scan it, once for all tests of a process: a library that was moved or copied is as good."""
    folder = Path(tempfile.mkdtemp(prefix="photodup-library-"))
    atexit.register(shutil.rmtree, folder)
    coffee, cat, rocket = photo("coffee"), photo("chelsea"), photo("rocket")
    save(coffee, folder / "2020" / "IMG_1.jpg", taken="2020:05:16 09:00:00")
    (folder / "2020" / "IMG_1.xmp").write_text(xmp())
    save(coffee.resize((300, 200)), folder / "Shared" / "small coffee.jpg", quality=80)
    (folder / "Shared" / "small coffee.jpg.xmp").write_text(xmp())
    save(cat, folder / "2020" / "IMG_2.jpg", taken="2020:05:17 10:00:00", camera="<b>Camera</b>")
    with Image.open(folder / "2020" / "IMG_2.jpg") as opened:
        save(opened.crop((20, 20, 420, 290)), folder / "Edited" / HOSTILE)
    save(rocket, folder / "2021" / "IMG_3.jpg", taken="2021:01:01 00:00:00")
    (folder / "Backup").mkdir()
    (folder / "Backup" / "IMG_3.jpg").write_bytes((folder / "2021" / "IMG_3.jpg").read_bytes())
    noise = np.random.default_rng(0).integers(0, 255, (300, 300, 3), dtype=np.uint8)
    save(Image.fromarray(noise), folder / "lone.jpg")
    scan(folder, progress=False)
    with Catalogue(folder) as catalogue:  # two seconds of CPU, which the catalogue's own files remember
        find_tiers(catalogue)
    return folder


def forget_evidence(library: Path) -> None:
    """Delete what is remembered of compared pairs."""
    for file in (library / ".photodup").glob("evidence.sqlite*"):
        file.unlink()


def listed(library: Path) -> dict[str, Photo]:
    """Return the photos of a scanned library, by their paths."""
    with Catalogue(library) as catalogue:
        return {str(photo.path): photo for photo in catalogue.photos()}


def add_third_copy(folder: Path) -> None:
    """Write and scan one more file with the bytes of the picture that is there twice."""
    (folder / "Third").mkdir()
    (folder / "Third" / "IMG_3.jpg").write_bytes((folder / "2021" / "IMG_3.jpg").read_bytes())
    scan(folder, progress=False)


def client_of(server: ReviewServer, **options) -> httpx.Client:
    """Return a browser's stand-in that may post."""
    origin = {"Origin": f"http://127.0.0.1:{server.port}"}
    return httpx.Client(base_url=server.url, headers=origin, timeout=60, **options)


def group_of(session: ReviewSession, name: str) -> Item:
    """Return the group that a photo of this name is in."""
    return next(item for item in session.items.values() if any(p.path.name == name for p in item.photos))


MD5 = "ab" + "0" * 30


def users_files(folder: Path, elsewhere: Path) -> None:
    """Files of a user, under names that photodup uses too."""
    (folder / "thumbnails" / "ab").mkdir(parents=True)
    for seed, name in enumerate(("holiday.jpg", f"{MD5}.jpg", f"{MD5}-small.jpg")):
        noise = np.random.default_rng(seed + 1).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        save(Image.fromarray(noise), folder / "thumbnails" / "ab" / name)
    (elsewhere / "cd").mkdir(parents=True)
    save(photo("astronaut").resize((64, 64)), elsewhere / "cd" / f"{MD5}.jpg")
    (folder / "thumbnails" / "cd").symlink_to(elsewhere / "cd")
    with closing(sqlite3.connect(folder / "evidence.sqlite")) as db, db:
        db.execute("CREATE TABLE evidence (exhibit TEXT)")
        db.execute("CREATE TABLE pair (left TEXT, right TEXT)")
    (folder / "settings.json").write_text('{"theme": "dark"}\n')
    (folder / "feedback.jsonl").write_text('{"stars": 5}\n')
    (folder / "review").mkdir()
    (folder / "review" / "decisions.jsonl").write_text('{"paper": 7}\n')
    (folder / "lock").write_text("of another program")
    (folder / "neighbours.sqlite").write_text("a list of neighbours")


def described_by_xmp(packet: bytes) -> dict:
    """The metadata of an XMP packet, by kind."""
    return collect_kinds(kinds_of(read_xmp(packet.strip(b"\0 \r\n\t")).values))
