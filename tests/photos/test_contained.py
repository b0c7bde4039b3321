"""What an old drive has and a library has not: nothing is called there that is not, and nothing is written into either."""

import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from subprocess import CompletedProcess, run

import pytest
from PIL import Image
from support.command import photodup, run_program
from support.old_drive import Planted, plant, save, scene
from support.trash_kills import present

from photodup.core.errors import PhotodupError
from photodup.core.progress import watched_by
from photodup.photos.across import contained
from photodup.photos.across.contained import Contained, Location, find_contained
from photodup.photos.across.copy_new import copy_new
from photodup.photos.trash.files import md5_of

RATED = (
    "<x:xmpmeta xmlns:x='adobe:ns:meta/'><rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#'>"
    "<rdf:Description xmlns:xmp='http://ns.adobe.com/xap/1.0/' xmp:Rating='5'/></rdf:RDF></x:xmpmeta>"
)
SAME, AS_GOOD, PROBABLY, ONLY_HERE = Location
THERE = (SAME, AS_GOOD)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compare(folder: Path) -> Contained:
    return find_contained(folder / "old", folder / "library", progress=False)


def compare_and_count(folder: Path) -> tuple[Contained, Counter]:
    """Return also how many things there were to do of each kind."""
    todo = Counter()
    with watched_by(lambda what, done, total: todo.update({what: total * (not done)})):
        return compare(folder), todo


def where(found: Contained) -> dict[str, Location]:
    return {str(photo.path): photo.where for photo in found.photos}


def as_it_is(*folders: Path) -> dict[str, tuple]:
    files = [path for folder in folders for path in sorted(folder.rglob("*"))]
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_ino, p.is_dir() or md5_of(p)) for p in files}


def check(found: Contained, planted: Planted) -> Counter:
    """Hold what was found against the truth; return how many copies were found as what."""
    said = where(found)
    assert said.keys() == planted.same | planted.as_good | planted.not_there
    assert {name for name in planted.same if said[name] is not SAME} == set()
    assert {name for name in planted.not_there if said[name] in THERE} == set(), "a false `there`"
    counts = Counter((name.split("/")[0], said[name].name) for name in sorted(said))
    print(*(f"{kind} {name} {count}" for (kind, name), count in sorted(counts.items())), sep="\n")
    of = Counter(said[name] for name in planted.as_good)
    assert of[AS_GOOD] >= 0.92 * len(planted.as_good) and not of[ONLY_HERE], of
    return of


def test_a_planted_old_drive_is_told_apart_and_neither_folder_is_written(tmp_path):
    planted = plant(tmp_path / "library", tmp_path / "old", 2)
    before = as_it_is(tmp_path / "library", tmp_path / "old")
    found, todo = compare_and_count(tmp_path)
    check(found, planted)
    assert todo["compare"] < 10 and todo["check"] <= 6, "of most photos one pair is asked"
    assert as_it_is(tmp_path / "library", tmp_path / "old") == before
    again, todo = compare_and_count(tmp_path)
    assert again == found and (todo["scan"], todo["compare"]) == (0, 0), "what was compared is kept"


def test_what_the_best_of_several_copies_proves_is_asked_of_no_other_and_decoded_once(tmp_path, monkeypatch):
    for name, quality in (("a", 92), ("b", 60), ("c", 50)):
        save(scene(1), tmp_path / f"library/{name}.jpg", quality)
    save(Image.open(tmp_path / "library/a.jpg"), tmp_path / "old/d.jpg", 30)  # made of a file
    decoded, read = Counter(), contained.read_scanned
    monkeypatch.setattr(
        contained, "read_scanned", lambda root, photo: decoded.update([photo.path.name]) or read(root, photo)
    )
    found, todo = compare_and_count(tmp_path)
    assert (found.photos[0].where, str(found.photos[0].match)) == (AS_GOOD, "a.jpg")
    assert (todo["compare"], todo["check"]) == (1, 1)
    assert decoded == {"a.jpg": 1, "d.jpg": 1}, "features and families are of one picture"


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_ten_thousand_files(tmp_path):
    planted = plant(tmp_path / "library", tmp_path / "old", 200, others=8300)
    assert sum(len(list((tmp_path / name).rglob("*.jpg"))) for name in ("library", "old")) >= 10_000
    check(compare(tmp_path), planted)


def pair(folder: Path) -> tuple[Path, Path]:
    """Write one photo into both folders, and one into the old one only."""
    save(scene(1), folder / "library/a.jpg")
    (folder / "old").mkdir()
    shutil.copy2(folder / "library/a.jpg", folder / "old/b.jpg")
    save(scene(2), folder / "old/sub/new.jpg")
    return folder / "library/a.jpg", folder / "old/b.jpg"


def test_what_changed_with_its_size_and_time_kept_is_not_there(tmp_path):
    there, _ = pair(tmp_path)
    assert where(compare(tmp_path)) == {"b.jpg": SAME, "sub/new.jpg": ONLY_HERE}
    status, data = there.stat(), bytearray(there.read_bytes())
    data[-20] ^= 1
    there.write_bytes(data)
    os.utime(there, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert where(compare(tmp_path))["b.jpg"] is PROBABLY


@pytest.mark.parametrize(
    "names", [("link", "library"), ("library", "library/sub"), ("library/sub", "library")]
)
def test_a_folder_is_not_compared_with_itself(tmp_path, names):
    (tmp_path / "library/sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "library")
    with pytest.raises(PhotodupError, match="name two folders apart"):
        find_contained(*(tmp_path / name for name in names))


def test_what_shows_something_else_is_not_there(tmp_path):
    """The library's file is larger and the same picture, but for a thing in the old one."""
    save(scene(1), tmp_path / "library/a.jpg")
    image = scene(1).reduce(2)
    image.paste(scene(2).crop((0, 0, 36, 36)), (100, 60))
    save(image, tmp_path / "old/b.jpg")
    (photo,) = compare(tmp_path).photos
    assert photo.where is PROBABLY and "looks different" in photo.reason


@pytest.mark.parametrize("way", list(Image.Transpose))
def test_what_was_turned_or_mirrored_is_at_most_probably_there(tmp_path, way):
    save(scene(1), tmp_path / "library/a.jpg", shot=0)
    save(scene(1).transpose(way), tmp_path / "old/b.jpg", 70, shot=0)
    save(scene(2), tmp_path / "old/c.jpg")
    turned, other = compare(tmp_path).photos
    assert (turned.where, str(turned.match), other.where) == (PROBABLY, "a.jpg", ONLY_HERE)
    assert "turned" in turned.reason or "mirrored" in turned.reason


def test_what_cannot_be_read_is_listed_apart(tmp_path):
    there, old = pair(tmp_path)
    old.write_bytes(old.read_bytes()[:200])
    (tmp_path / "old/empty.jpg").touch()
    (tmp_path / "old/link.jpg").symlink_to(there)
    found = compare(tmp_path)
    assert where(found) == {"sub/new.jpg": ONLY_HERE}
    assert [str(one.path) for one in found.unread] == ["b.jpg", "empty.jpg", "link.jpg"]


def test_what_lies_beside_a_photo_counts(tmp_path):
    there, old = pair(tmp_path)
    old.with_suffix(".mov").write_bytes(b"film")
    there.with_suffix(".mov").write_bytes(b"mail")  # as long, and another
    save(scene(3), tmp_path / "library/c.jpg")
    shutil.copy2(tmp_path / "library/c.jpg", tmp_path / "old")
    (tmp_path / "old/c.aae").touch()
    save(scene(1).resize((240, 180)), tmp_path / "old/small.jpg", 70)
    (tmp_path / "old/small.xmp").write_text(RATED)
    found = compare(tmp_path)
    said = {str(p.path): (p.where, "Live Photo" in p.reason, "rating" in p.reason) for p in found.photos}
    assert said["b.jpg"] == (SAME, True, False) and said["small.jpg"] == (PROBABLY, False, True), found.photos
    assert {str(p.path): p.reason for p in found.photos}["c.jpg"] == "has its .aae file beside it"
    shutil.copy2(old.with_suffix(".mov"), there.with_suffix(".mov"))
    assert {str(p.path): p.reason for p in compare(tmp_path).photos}["b.jpg"] == ""


def test_a_folder_that_the_library_shows_by_another_path_is_no_second_copy(tmp_path):
    pair(tmp_path)
    shutil.move(tmp_path / "old", tmp_path / "library/old")
    shutil.copy2(tmp_path / "library/old/sub/new.jpg", tmp_path / "library/old/twice.jpg")
    (tmp_path / "library/old/hard.jpg").hardlink_to(tmp_path / "library/old/twice.jpg")
    (tmp_path / "bound").mkdir()

    def mounted(script: str) -> CompletedProcess:
        command = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, sys.executable]
        return run(command, cwd=tmp_path, capture_output=True, text=True)

    def bound(folder: str, named: str) -> CompletedProcess:
        return mounted(
            f'mount --bind {folder} bound && exec "$0" -m photodup contained {named} --in library --json'
        )

    if not shutil.which("unshare") or mounted("mount --bind . .").returncode:
        pytest.skip("nothing may be mounted here")
    refused = bound("library", "bound/old")
    assert refused.returncode == 2 and "name two folders apart" in refused.stderr
    found = json.loads(bound("library/old", "bound").stdout)["photos"]
    said = {one["path"]: (one["where"], one["match"]) for one in found}
    only = dict.fromkeys(("sub/new.jpg", "twice.jpg", "hard.jpg"), (ONLY_HERE, None))
    assert said == {"b.jpg": (SAME, "a.jpg"), **only}, "what the old folder has twice goes with it twice"


def test_a_hard_link_in_the_library_is_a_copy(tmp_path):
    """Who gives the old name up still has the file by the other."""
    _, old = pair(tmp_path)
    (tmp_path / "library/b.jpg").hardlink_to(old)
    (tmp_path / "library/a.jpg").unlink()
    assert where(compare(tmp_path))["b.jpg"] is SAME


def made(folder: Path) -> Contained:
    pair(folder)
    (folder / "old/sub/new.xmp").write_text("<x:xmpmeta/>")
    (folder / "old/sub/new.mov").write_bytes(b"film")
    return compare(folder)


NEW = {"sub/new.jpg", "sub/new.mov", "sub/new.xmp"}


def test_what_is_only_here_is_copied_once_and_never_over_a_file(tmp_path):
    found, target = made(tmp_path), tmp_path / "library/from the old drive"
    before = as_it_is(tmp_path / "old")
    (target / "sub").mkdir(parents=True)
    (target / "sub/new.mov").write_bytes(b"of another photo")
    n_copied, n_there, refused = copy_new(found, found.of(ONLY_HERE), target)
    assert (n_copied, n_there) == (2, 0) and len(refused) == 1 and "is not replaced" in refused[0]
    assert (target / "sub/new.mov").read_bytes() == b"of another photo"
    (target / "sub/new.mov").unlink()
    assert copy_new(found, found.of(ONLY_HERE), target) == (1, 2, [])
    lines = [json.loads(line) for line in (target / ".photodup/copied.jsonl").read_text().splitlines()]
    assert Counter(line["state"] for line in lines) == {"copying": 3, "copied": 3}
    old = as_it_is(tmp_path / "old")
    assert old == before
    for name in NEW:
        first, second = (folder / name for folder in (tmp_path / "old", target))
        assert md5_of(first) == md5_of(second) and first.stat().st_mtime_ns == second.stat().st_mtime_ns
    assert where(compare(tmp_path))["sub/new.jpg"] is SAME
    with pytest.raises(PhotodupError, match="name two folders apart"):
        copy_new(found, found.photos, tmp_path / "old/inside")
    assert not (tmp_path / "old/inside").exists()


def test_everything_in_the_old_folder_counts_and_in_the_library_what_nothing_empties(tmp_path):
    places = [
        ".dtrash/files",
        "$RECYCLE.BIN/S-1",
        "Old.aplibrary/Masters",
        ".photodup-trash/items",
        "lost+found",
        "2020",
    ]
    for seed, place in enumerate(places):
        save(scene(seed), tmp_path / "old" / place / "a.jpg")
        (tmp_path / "old" / place / "a_HEVC.MOV").write_bytes(place.encode())
        save(scene(seed), tmp_path / "library/#recycle" / f"{seed}.jpg")
    (tmp_path / "old/2020/.comments").mkdir()
    (tmp_path / "old/2020/.comments/a.jpg.xml").touch()
    save(scene(7), tmp_path / "old/2020/.hidden.jpg")
    save(scene(8), tmp_path / "old/2020/.trashed-1712345678-b.jpg")
    found, target = compare(tmp_path), tmp_path / "library/from old"
    assert [photo.where for photo in found.photos] == [ONLY_HERE] * (len(places) + 2)
    assert [str(one.path) for one in found.unread_there] == ["#recycle"]
    assert copy_new(found, found.to_copy(ONLY_HERE), target) == (2 * len(places) + 3, 0, [])
    assert (target / "2020/.comments/a.jpg.xml").exists() and (target / "2020/.hidden.jpg").exists()
    again = compare(tmp_path)
    assert {(photo.where, photo.reason) for photo in again.photos} == {(SAME, "")}, (
        "no copy lies where it is passed over"
    )


def test_what_only_the_old_folder_has_beside_a_photo_is_copied_with_it(tmp_path):
    """Of the same bytes, too: without the photo nobody knows what the film is of."""
    there, old = pair(tmp_path)
    beside = {"b_HEVC.MOV", "b.CRW", "b_01.jpg.xmp", "NKSC_PARAM/b.jpg.nksc", "Metadaten.json", "sub/new.vrd"}
    (tmp_path / "old/NKSC_PARAM").mkdir()
    for name in beside:
        (tmp_path / "old" / name).write_bytes(b"it")
    (tmp_path / "old/Metadaten.json").write_text('{"title": "Sea", "description": "", "access": ""}')
    (tmp_path / "old/readme.txt").touch()
    found = compare(tmp_path)
    (same,) = found.of(SAME)
    assert all(words in same.reason for words in ("film", "RAW", ".xmp", ".nksc", "keywords"))
    copy_new(found, found.to_copy(ONLY_HERE), tmp_path / "library/old")
    copies = {path for path in present(tmp_path / "library/old") if not path.startswith(".photodup")}
    assert copies == beside | {"b.jpg", "sub/new.jpg"}
    found = compare(tmp_path)
    assert [(photo.where, photo.reason) for photo in found.photos] == [
        (SAME, ""),
        (SAME, ""),
    ] and not found.to_copy(ONLY_HERE)
    assert there.exists() and old.exists()


def test_a_copy_is_refused_that_is_not_the_photo_that_was_compared_or_whose_name_is_taken_meanwhile(tmp_path):
    found, target = made(tmp_path), tmp_path / "target"

    def take(name):
        if name == "compare":
            (target / "sub/new.jpg").write_bytes(b"of another program")

    assert "File exists" in copy_new(found, found.of(ONLY_HERE), target, take)[2][0]
    assert (target / "sub/new.jpg").read_bytes() == b"of another program"
    (target / "sub/new.jpg").unlink()
    with open(tmp_path / "old/sub/new.jpg", "ab") as file:
        file.write(b"more")
    assert "differs from the original" in copy_new(found, found.of(ONLY_HERE), target)[2][0]
    assert set(present(target)) - {"sub/new.mov", "sub/new.xmp"} == {
        ".photodup/copied.jsonl", ".photodup/lock", ".photodup/photodup-folder.txt"
    }  # fmt: skip


def test_killed_at_every_step_a_copy_goes_on_and_no_part_has_a_name(tmp_path):
    assert int(run_program("trash_kills", "copy", tmp_path)) > 40


def test_the_command_counts_writes_a_page_and_copies_after_a_yes(tmp_path, cache):
    pair(tmp_path)
    (tmp_path / "old/sub/new.jpg").rename(tmp_path / "old/sub/<b>new.jpg")
    command = ["contained", tmp_path / "old", "--in", tmp_path / "library", "--json"]
    said = photodup(*command)
    record = json.loads(said.stdout)
    assert [one["photos"] for one in record["counts"].values()] == [1, 0, 0, 1]
    (page,) = (cache / "photodup/libraries").glob("*.html")
    assert "&lt;b&gt;new.jpg" in page.read_text() and "<b>new" not in page.read_text()
    refused = photodup(*command, "--copy-new-to", tmp_path / "target")
    assert refused.returncode == 2 and "add --yes" in refused.stderr and not (tmp_path / "target").exists()
    assert photodup(*command, "--copy-new-to", tmp_path / "target", "--yes").returncode == 0
    assert (tmp_path / "target/sub/<b>new.jpg").exists() and not (tmp_path / "target/b.jpg").exists()
