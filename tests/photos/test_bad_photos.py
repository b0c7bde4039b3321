"""Whatever lies in a photo folder: what can be read is read right, the rest is listed with its reason."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.command import run_command, run_python
from support.images import png
from support.library import photo

from photodup.core.errors import PhotodupError
from photodup.core.names import printable
from photodup.photos.demo.photographs import SOURCES
from photodup.photos.library import scan as library_module
from photodup.photos.library.catalogue import Catalogue, CatalogueError
from photodup.photos.library.hashing import hamming, perceptual_hash
from photodup.photos.library.scan import scan


def reasons(report) -> dict[str, str]:
    return {printable(problem.path): problem.reason for problem in report.problems}


def test_every_kind_of_unreadable_file_is_listed_and_the_scan_goes_on(tmp_path):
    whole = photo(tmp_path / "good.jpg", size=(640, 480)).read_bytes()
    bad = {
        "zero.jpg": b"", "text.jpg": b"I am a letter, not a picture.\n" * 20,
        "truncated.jpg": whole[: len(whole) // 2], "header_only.jpg": whole[:200],
        "corrupt.png": png(64, 64, bytes(32)), "bomb.png": png(40_000, 40_000), "nulls.heic": bytes(4096),
        "cut.webp": b"RIFF\x24\x00\x00\x00WEBPVP8 ",
    }  # fmt: skip
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
    report = scan(tmp_path, progress=False)
    found = reasons(report)
    assert set(found) == set(bad)
    assert all(len(reason) > 10 for reason in found.values()), found
    assert "empty" in found["zero.jpg"]
    assert "not an image" in found["text.jpg"]
    assert "truncated" in found["truncated.jpg"]
    assert "1,600 megapixels" in found["bomb.png"]
    assert (report.n_found, report.n_read) == (9, 1)
    # They are in the catalogue too, not read again, and still reported the second time.
    again = scan(tmp_path, progress=False)
    assert (again.n_read, again.n_unchanged, reasons(again)) == (0, 9, found)
    with Catalogue(tmp_path) as catalogue:
        assert {str(path): reason for path, reason in catalogue.problems()} == found
        assert [str(p.path) for p in catalogue.photos()] == ["good.jpg"]
    # Repaired, it is read like any other.
    (tmp_path / "text.jpg").write_bytes(whole)
    repaired = scan(tmp_path, progress=False)
    assert repaired.n_read == 1
    assert "text.jpg" not in reasons(repaired)


def test_damaged_exif_costs_neither_the_photograph_nor_lines_of_source(tmp_path):
    exif = Image.Exif()
    exif[0x010F] = "Canon"
    data = bytearray(photo(tmp_path / "a.jpg", exif=exif).read_bytes())
    count = data.index(b"Exif\0\0") + 14  # of fields in the first directory: there are fewer than it says
    data[count : count + 2] = b"\xff\xff"
    (tmp_path / "a.jpg").write_bytes(data)
    command = [sys.executable, "-W", "default", "-m", "photodup", "scan", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "1 photograph found, 1 read" in done.stdout
    assert "Warning" not in done.stderr


def test_a_decompression_bomb_costs_no_memory(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png(40_000, 40_000))
    photo(tmp_path / "a.jpg")
    scan(tmp_path, progress=False)  # imports
    os.utime(tmp_path / "bomb.png", (1, 1))
    tracemalloc.start()
    try:
        assert "megapixels" in reasons(scan(tmp_path, progress=False))["bomb.png"]
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_unusual_pixels_are_read_right(tmp_path):
    """Every one is the same picture in another guise, so every perceptual hash must agree with the plain one."""
    import pillow_heif

    pillow_heif.register_heif_opener()
    image = SOURCES[0].open().resize((320, 214), Image.Resampling.LANCZOS)
    grey16 = np.asarray(image.convert("L")).astype(np.uint16) * 257
    image.save(tmp_path / "plain.png")
    image.save(tmp_path / "scan.BMP")
    Image.fromarray(grey16).save(tmp_path / "grey16.png")
    Image.fromarray(grey16).save(tmp_path / "grey16.tif")
    image.convert("CMYK").save(tmp_path / "cmyk.jpg", quality=95)
    image.quantize(256).save(tmp_path / "palette.png")
    opaque = image.convert("RGBA")
    opaque.putalpha(Image.new("L", image.size, 255))
    opaque.save(tmp_path / "alpha.webp", lossless=True)
    other = SOURCES[1].open().resize(image.size)
    image.save(tmp_path / "animated.webp", save_all=True, append_images=[other], lossless=True)
    image.save(tmp_path / "animated.png", save_all=True, append_images=[other])
    image.save(tmp_path / "pages.tif", save_all=True, append_images=[other])
    image.save(tmp_path / "phone.heic", quality=95)
    image.save(tmp_path / "new.avif", quality=95)
    image.convert("L").save(tmp_path / "grey.jpg", quality=95)
    image.save(tmp_path / "progressive.jpg", quality=95, progressive=True)
    image.save(tmp_path / "png_called.jpg", format="PNG")
    report = scan(tmp_path, progress=False)
    assert reasons(report) == {}
    assert perceptual_hash(other) != perceptual_hash(image)  # else the first is not told from the second
    with Catalogue(tmp_path) as catalogue:
        photos = {str(p.path): p for p in catalogue.photos()}
    assert len(photos) == 15
    plain = photos["plain.png"].phash
    far = {name: hamming(p.phash, plain) for name, p in photos.items() if hamming(p.phash, plain) > 4}
    assert far == {}
    assert {(p.width, p.height) for p in photos.values()} == {(320, 214)}
    assert photos["png_called.jpg"].format == "PNG"
    assert photos["phone.heic"].format == "HEIF"


def test_links_are_listed_and_not_followed(tmp_path):
    photo(tmp_path / "library/a.jpg")
    photo(tmp_path / "outside/b.jpg", 2)
    root = tmp_path / "library"
    (root / "loop").symlink_to(root, target_is_directory=True)
    (root / "me.jpg").symlink_to(root / "me.jpg")  # a link to itself
    (root / "outside").symlink_to(tmp_path / "outside")
    (root / "again.jpg").symlink_to(root / "a.jpg")
    (root / "broken.jpg").symlink_to(root / "nothing.jpg")
    (root / "notes").symlink_to(root / "nothing")  # neither a folder nor a photograph: nobody's business
    report = scan(root, progress=False)
    assert set(reasons(report)) == {"loop", "me.jpg", "outside", "again.jpg", "broken.jpg"}
    assert all("link" in reason for reason in reasons(report).values())
    assert report.n_read == 1


@pytest.fixture
def after_listing(monkeypatch):
    """Lets something happen between the listing of a folder and the reading of its files."""
    walk = library_module.walk
    return lambda happens: monkeypatch.setattr(
        library_module, "walk", lambda root, only, **options: (walk(root, only, **options), happens(root))[0]
    )


def test_a_file_replaced_by_a_link_or_a_pipe_after_the_listing_is_not_read(tmp_path, after_listing):
    photo(tmp_path / "outside/secret.jpg", 2)
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        photo(tmp_path / "library" / name)

    def replace(root):
        (root / "a.jpg").unlink()
        (root / "a.jpg").symlink_to(tmp_path / "outside/secret.jpg")
        (root / "b.jpg").unlink()
        os.mkfifo(root / "b.jpg")  # reading it would wait for ever

    after_listing(replace)
    report = scan(tmp_path / "library", progress=False)
    assert set(reasons(report)) == {"a.jpg", "b.jpg"}
    assert report.n_read == 1


def test_a_file_that_vanishes_between_listing_and_reading(tmp_path, after_listing):
    photo(tmp_path / "a.jpg", 1)
    photo(tmp_path / "b.jpg", 2)
    after_listing(lambda root: (root / "a.jpg").unlink())
    report = scan(tmp_path, progress=False)
    assert (report.n_found, report.n_read, report.n_missing, report.problems) == (2, 1, 1, [])
    with Catalogue(tmp_path) as catalogue:
        assert [str(p.path) for p in catalogue.photos()] == ["b.jpg"]


def test_names_that_are_not_utf8(tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9 \xff.jpg"
    photo(tmp_path / "a.jpg")
    try:
        os.rename(tmp_path / "a.jpg", name)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    folder = os.fsencode(tmp_path) + b"/\xfe"
    os.mkdir(folder)
    with open(folder + b"/broken\xe9.jpg", "wb") as file:
        file.write(b"no picture")
    report = scan(tmp_path, progress=False)
    assert list(reasons(report)) == ["\ufffd/broken\ufffd.jpg"]
    str(report.problems[0]).encode("utf-8")  # can be printed
    with Catalogue(tmp_path) as catalogue:
        (found,) = catalogue.photos()
        assert os.fsencode(catalogue.root / found.path) == name
        assert (catalogue.root / found.path).is_file()
    assert scan(tmp_path, progress=False).n_unchanged == 2
    assert "not read: \ufffd/broken\ufffd.jpg" in run_command("scan", tmp_path)


def test_a_library_whose_name_is_not_utf8(tmp_path):
    """The terminal is the strictest there is: one that refuses what is no character."""
    root = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        photo(root / "a.jpg")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    shutil.copy(root / "a.jpg", root / "b.jpg")
    assert "caf\ufffd/.photodup/catalogue.sqlite" in run_command("scan", root)
    assert "same bytes" in run_command("group", root)
    assert "0 removals" in run_command("trash", "list", root)


UNREADABLE = """
import json, os, sys
from pathlib import Path
from photodup.core.errors import PhotodupError
from photodup.photos.library.hashing import read_facts_and_look
from photodup.photos.library.scan import scan
read_facts_and_look(Path(sys.argv[1], "a.jpg").read_bytes(), None)  # nobody may be unable to import what is still missing
os.setgid(65534); os.setuid(65534)  # root may read everything
try:
    report = scan(sys.argv[3] if len(sys.argv) > 3 else sys.argv[1], sys.argv[2], progress=False)
except PhotodupError as error:
    print(json.dumps(str(error)))
    sys.exit()
problems = {str(p.path): p.reason for p in report.problems}
print(json.dumps([report.n_found, report.n_read, report.n_missing, problems]))
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to become nobody")
def test_a_folder_or_file_without_permission():
    base = Path(tempfile.mkdtemp(prefix="photodup-test-"))  # pytest's own folders are closed to others
    try:
        os.chmod(base, 0o755)
        for name in ("library/a.jpg", "library/closed/b.jpg", "library/c.jpg"):
            photo(base / name)
        (base / "catalogue").mkdir()
        os.chmod(base / "catalogue", 0o777)
        database = base / "catalogue/own"

        def scan_as_nobody(*folder):
            done = run_python(UNREADABLE, base / "library", database, *folder, check=True)
            return json.loads(done.stdout)

        assert scan_as_nobody() == [3, 3, 0, {}]
        os.chmod(base / "library/closed", 0)
        os.chmod(base / "library/c.jpg", 0)
        os.utime(base / "library/c.jpg", (1, 1))
        n_found, n_read, n_missing, problems = scan_as_nobody()
        # What lies behind a closed folder is not known to be gone.
        assert (n_found, n_read, n_missing) == (2, 0, 0)
        assert set(problems) == {"closed", "c.jpg"}
        assert all("Permission denied" in reason for reason in problems.values())
        # Opened again: neither its size nor its time has changed, and it is read all the same.
        os.chmod(base / "library/closed", 0o755)
        os.chmod(base / "library/c.jpg", 0o644)
        assert scan_as_nobody() == [3, 1, 0, {}]
        # A folder that may be listed and not entered: its files are seen and say nothing.
        os.chmod(base / "library/closed", 0o444)
        n_found, n_read, n_missing, problems = scan_as_nobody()
        assert (n_found, n_read, n_missing) == (2, 0, 0)
        assert set(problems) == {"closed/b.jpg"}
        # And a library inside a folder that is closed.
        os.chmod(base / "library/closed", 0)
        assert "cannot be opened (Permission denied)" in scan_as_nobody(base / "library/closed/inner")
    finally:
        shutil.rmtree(base)


def test_a_time_that_the_catalogue_cannot_hold(tmp_path):
    """A clock that was wrong by centuries: past the year 2262, nanoseconds take more than 63 bits."""
    late = photo(tmp_path / "late.jpg")
    os.utime(late, ns=(10**18, 17 * 10**18))
    if late.stat().st_mtime_ns != 17 * 10**18:
        shared = Path("/dev/shm")
        if not os.access(shared, os.W_OK):
            pytest.skip("this file system knows no year 2508")
        with tempfile.TemporaryDirectory(dir=shared) as folder:
            shutil.copy(late, Path(folder) / "late.jpg")
            os.utime(Path(folder) / "late.jpg", ns=(10**18, 17 * 10**18))
            assert_read_once(Path(folder))
    else:
        assert_read_once(tmp_path)


def assert_read_once(folder: Path) -> None:
    assert scan(folder, progress=False).n_read == 1
    assert scan(folder, progress=False).n_unchanged == 1


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(PhotodupError, match="not a folder"):
        scan(tmp_path / "nowhere", progress=False)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(PhotodupError, match=r"loop cannot be opened \(Too many levels"):
        scan(tmp_path / "loop", progress=False)
    with pytest.raises(CatalogueError, match="No catalogue"):
        Catalogue(tmp_path / "loop")
    (tmp_path / "file").write_text("x")
    with pytest.raises(PhotodupError, match="--catalogue"):
        photo(tmp_path / "library/a.jpg")
        scan(tmp_path / "library", tmp_path / "file/own", progress=False)


@contextlib.contextmanager
def small_disk(folder: Path, size: str):
    """Mount a file system of a few hundred kilobytes; skips where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    mounted = subprocess.run(command, capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount a small file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts a tmpfs")
def test_a_full_disk_is_one_sentence_and_the_catalogue_stays_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(library_module, "_BATCH_FILES", 20)
    n = 3000
    first = photo(tmp_path / "library/0000.jpg", size=(16, 16)).read_bytes()
    for i in range(1, n):  # a comment after the end of the picture makes another content of the same picture
        (tmp_path / f"library/{i:04}.jpg").write_bytes(first + b"%04d" % i)
    with small_disk(tmp_path / "disk", "1m") as disk:
        with pytest.raises(CatalogueError, match="free some space") as caught:
            scan(tmp_path / "library", disk / "own", progress=False)
        assert "\n" not in str(caught.value)
        with Catalogue(tmp_path / "library", disk / "own") as catalogue:
            assert catalogue.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            kept = len(catalogue.photos())
        assert 0 < kept < n
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        report = scan(tmp_path / "library", disk / "own", progress=False)
        assert (report.n_unchanged, report.n_read) == (kept, n - kept)


def test_a_catalogue_that_may_not_grow(tmp_path, monkeypatch):
    """The same by SQLite's own limit, for systems where nothing can be mounted."""
    monkeypatch.setattr(library_module, "_BATCH_FILES", 5)
    for i in range(400):
        photo(tmp_path / f"{i:03}{'x' * 120}.jpg", i, size=(16, 16))
    check = Catalogue._check_root

    def check_and_limit(self):
        check(self)
        self.connection.execute("PRAGMA max_page_count = 20")

    with monkeypatch.context() as patch:
        patch.setattr(Catalogue, "_check_root", check_and_limit)
        with pytest.raises(CatalogueError, match="full"):
            scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        kept = len(catalogue.photos())
    assert 0 < kept < 400
    assert scan(tmp_path, progress=False).n_read == 400 - kept
