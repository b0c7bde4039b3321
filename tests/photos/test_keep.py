"""Keep-best rules, the two tiers, and what makes two pictures two shots."""

import os
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from support.images import read_facts
from support.review_library import BASE, forget_evidence, make_library, only_group, photo, save

from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import encode
from photodup.photos.compare import evidence, pixels
from photodup.photos.demo.photographs import SOURCES
from photodup.photos.groups.keepers import KeepRules
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue, Model, Photo
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.hashing import hamming, perceptual_hash
from photodup.photos.library.scan import scan
from photodup.photos.library.settings import DEFAULT_RULES, LibrarySettings
from photodup.photos.library.sidecars import Sidecars
from photodup.photos.search.hash_neighbours import mirrored_hash, near_hashes
from photodup.photos.search.pair_codes import pair_code


def other(**changes) -> Photo:
    return replace(BASE, **({"id": 2, "path": Path("b.jpg"), "md5": "1" * 32} | changes))


rules_of = partial(KeepRules, Sidecars(Path("no such library")))
NOT_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize(("rules", "better", "keeper", "rule", "words"), [
    (rules_of(folders=["Originals"]), {"width": 200}, 2, "resolution", "most pixels: 20,000 pixels, next 10,000 pixels"),
    (rules_of(folders=["Originals"]), {"path": Path("Originals/b.jpg")}, 2, "folder", "preferred folder: Originals"),
    (rules_of(), {"format": "DNG"}, 2, "format", "best format: DNG"),
    (rules_of(), {"exif_fields": 9}, 2, "metadata", "9 fields, next 5"),
    (rules_of(), {"size_bytes": 2_000_000}, 2, "size", "largest file: 2,000,000 bytes, next "),
    (rules_of(), {"taken_at": "2019-01-01T00:00:00"}, 2, "oldest", "oldest: 2019"),
    # One moment is not older because nobody wrote its offset.
    (rules_of(["oldest"]), {"taken_at": "2020-01-02T00:00:00+02:00", "path": Path("a/b.jpg")}, 1, None, "shortest path"),
    # A preferred folder comes before what the files show, unless the owner ordered otherwise.
    (rules_of(folders=["Mine"]), {"path": Path("Mine/b.jpg"), "width": 50}, 2, "folder", "preferred folder: Mine"),
    (rules_of(["resolution", "folder"], folders=["Mine"]), {"path": Path("Mine/b.jpg"), "width": 50}, 1, "resolution", ""),
    (rules_of(["size", "resolution"]), {"width": 300, "size_bytes": 10}, 1, "size", "largest file"),
    # A HEIC that names no camera is no original for its size.
    (rules_of(), {"format": "HEIF", "size_bytes": 2_000_000}, 1, "metadata", "made of one"),
    # A name that is not UTF-8 must not break the page or the terminal that shows the reason.
    (rules_of(["folder"], folders=[NOT_UTF8]), {"path": Path(NOT_UTF8, "b.jpg")}, 2, "folder", "folder: caf\ufffd"),
])  # fmt: skip
def test_each_rule_decides_when_it_is_the_first_to_differ(rules, better, keeper, rule, words):
    choice = rules.choose([BASE, other(**better)])
    assert (choice.keeper.id, choice.rule) == (keeper, rule) and words in choice.reason


def test_the_order_is_checked():
    with pytest.raises(PhotodupError, match="No keep rule biggest"):
        LibrarySettings(keep=("biggest",))


photos = st.builds(
    lambda i, w, s, f, e: replace(BASE, id=i, path=Path(f"{i}.jpg"), width=w, size_bytes=s, format=f, exif_fields=e),
    st.integers(0, 99), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["JPEG", "HEIF", "PNG"]), st.integers(0, 2),
)  # fmt: skip


@given(st.lists(photos, min_size=1, max_size=6, unique_by=lambda p: p.id), st.permutations(DEFAULT_RULES))
def test_the_choice_is_the_first_of_the_ranking_whatever_the_order(found, order):
    rules = rules_of(order)
    best = rules.choose(found).keeper
    assert rules.choose(found[::-1]).keeper == best == rules.ranked(found)[0]


# ---- candidates and tiers --------------------------------------------------------------------------------


def test_the_mirrored_hash_is_that_of_the_mirror_image():
    for name in ("astronaut", "coffee", "chelsea", "rocket"):
        image = photo(name)
        real = perceptual_hash(ImageOps.mirror(image))
        assert hamming(mirrored_hash(perceptual_hash(image)), real) <= 10
        assert hamming(perceptual_hash(image), real) > 16, "which the plain hash would miss"


def test_near_hashes_find_a_copy_in_every_orientation():
    """None of them is near the plain hash: what is found is found by turning that, and not the picture again."""
    for name in ("astronaut", "coffee"):
        hashes = [perceptual_hash(photo(name).transpose(turn).resize((300, 200))) for turn in Image.Transpose]
        plain = perceptual_hash(photo(name))
        assert {(0, i + 1) for i in range(len(hashes))} <= near([plain, *hashes])
        assert min(hamming(plain, one) for one in hashes) > 14
    assert near(hashes[:1]) == near([]) == set()
    far = [f"{value:016x}" for value in (0, 2**64 - 1)]
    assert (0, 1) not in near(far)


def near(hashes: list[str]) -> set[tuple[int, int]]:
    pairs = near_hashes(np.array([int(phash, 16) for phash in hashes], np.uint64), 24)
    return set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))


def embed_by_pixels(catalogue: Catalogue) -> None:
    """Real pixels as vectors, no weights: enough to tell these few pictures apart."""
    rows = {}
    for item in catalogue.photos():
        small = Image.open(catalogue.root / item.path).convert("RGB").resize((8, 8))
        row = np.asarray(small, np.float32).ravel()
        rows[item.md5] = (row - row.mean()) / np.linalg.norm(row - row.mean())
    catalogue.store_embeddings("d" * 64, rows, name="pixels", is_random=False)


@pytest.fixture
def library(tmp_path):
    """Scanned, and nothing of it compared yet."""
    return make_library(tmp_path / "library", is_compared=False)


def test_a_burst_is_similar_and_a_copy_is_a_copy(library):
    shot = photo("coffee")
    save(
        shot.transform(shot.size, Image.Transform.AFFINE, (1, 0, 9, 0, 1, 5)),
        library / "2020" / "IMG_1b.jpg",
        taken="2020:05:16 09:00:01",
    )
    scan(library, progress=False)
    with Catalogue(library) as catalogue:
        embed_by_pixels(catalogue)
        tiers = find_tiers(catalogue)
        assert isinstance(tiers.model, Model) and tiers.thresholds.measured.startswith("not measured")
        (similar,) = tiers.similar
        assert {p.path.name for p in (similar.keeper, *similar.others)} == {"IMG_1.jpg", "IMG_1b.jpg"}
        assert {p.path.name for g in tiers.copies for p in g.others} >= {"small coffee.jpg"}
        assert similar.members[0].similarity >= tiers.thresholds.burst
        Feedback(library / ".photodup").add("keep_both", [similar.keeper.md5, similar.others[0].md5])
        assert find_tiers(catalogue).similar == ()


def test_evidence_is_remembered_and_a_damaged_memory_costs_only_time(library, monkeypatch):
    with Catalogue(library) as catalogue:
        first = find_tiers(catalogue)
        monkeypatch.setattr(pixels, "verify_copy", lambda a, b: pytest.fail("was verified before"))
        again = find_tiers(catalogue)
        assert [g.members for g in again.copies] == [g.members for g in first.copies]
        monkeypatch.undo()
        for file in (library / ".photodup").glob("evidence.sqlite*"):
            file.write_bytes(b"not a database" * 500)
        assert [g.keeper for g in find_tiers(catalogue).copies] == [g.keeper for g in first.copies]
        with sqlite3.connect(library / ".photodup" / "evidence.sqlite") as db:  # sound, but cut short within
            db.execute("UPDATE pair SET a = substr(a, 2)")
        db.close()
        assert [g.keeper for g in find_tiers(catalogue).copies] == [g.keeper for g in first.copies]


def test_a_photo_that_vanished_is_a_problem_not_a_crash(library):
    (library / "Shared" / "small coffee.jpg").unlink()
    with Catalogue(library) as catalogue:
        tiers = find_tiers(catalogue)
    assert len(tiers.problems) == 1 and "small coffee.jpg" in tiers.problems[0]
    assert len(tiers.copies) == 2


def test_what_is_not_as_it_was_scanned_is_not_compared(library, tmp_path):
    """Nothing that a file shows today may speak for another file with its former bytes."""
    small, elsewhere = library / "Shared" / "small coffee.jpg", tmp_path / "elsewhere.jpg"
    elsewhere.write_bytes(small.read_bytes())
    os.utime(small)
    with Catalogue(library) as catalogue:
        assert len(find_tiers(catalogue).copies) == 3, "only its time is another"
        forget_evidence(library)
        save(photo("coffee").resize((240, 160)), small)
        changed = find_tiers(catalogue)
        small.unlink()
        small.symlink_to(elsewhere)
        linked = find_tiers(catalogue)
    assert changed.problems == ("Shared/small coffee.jpg was skipped: changed since the scan: scan again",)
    assert linked.problems == ("Shared/small coffee.jpg was skipped: Too many levels of symbolic links",)
    assert len(changed.copies) == len(linked.copies) == 2


def test_where_evidence_cannot_be_written_the_groups_are_there_and_a_sentence(library):
    with Catalogue(library) as catalogue:
        first = find_tiers(catalogue)
        forget_evidence(library)
        (library / ".photodup" / "evidence.sqlite").mkdir()  # root may write anywhere, but not a folder
        again = find_tiers(catalogue)
    assert [g.keeper for g in again.copies] == [g.keeper for g in first.copies]
    assert len(again.problems) == 1 and "evidence.sqlite cannot be written" in again.problems[0]


def test_a_full_disk_in_the_middle_loses_no_group(library, monkeypatch):
    with Catalogue(library) as catalogue:
        first = find_tiers(catalogue)
        forget_evidence(library)
        opened = evidence.EvidenceStore._opened

        def small(self):
            db = opened(self)
            db.execute("PRAGMA max_page_count = 4")
            with pytest.raises(sqlite3.OperationalError, match="full"):
                while True:
                    db.execute("INSERT INTO pair SELECT randomblob(16), randomblob(16), 0")
            return db

        monkeypatch.setattr(evidence.EvidenceStore, "_opened", small)
        monkeypatch.setattr(pixels, "_BLOCK", 1)
        again = find_tiers(catalogue)
    assert [g.keeper for g in again.copies] == [g.keeper for g in first.copies]
    assert any("disk is full" in problem for problem in again.problems)


def test_what_was_proven_once_stays_whatever_comes_between(library, monkeypatch):
    """In a library that grew, a copy's hash may lie beyond the radius: it was verified, and is still a copy."""
    with Catalogue(library) as catalogue:
        first = find_tiers(catalogue)
        (library / ".photodup" / "neighbours.sqlite").unlink()
        monkeypatch.setattr("photodup.photos.search.candidates.search_radius", lambda n, per_photo: 0)
        again = find_tiers(catalogue)
        assert "within 0 bits" in again.search
        assert [g.members for g in again.copies] == [g.members for g in first.copies]
        forget_evidence(library)
        forgotten = find_tiers(catalogue)
    assert len(forgotten.copies) < len(first.copies), "or the test proves nothing"


def test_evidence_comes_back_as_it_went_in(tmp_path):
    names = ["a" * 32, "b" * 32, "c" * 32]
    with evidence.EvidenceStore(tmp_path / "evidence.sqlite") as store:
        store.add([(names[1], names[0], 0.75), (names[1], names[2], 0.0)])
    with evidence.EvidenceStore(tmp_path / "evidence.sqlite") as store:
        assert store.read({names[0]: 7, names[1]: 3}) == {pair_code(7, 3): 0.75}
        known = store.read({name: row for row, name in zip((7, 3, 4), names, strict=True)})
        assert known == {pair_code(7, 3): 0.75, pair_code(3, 4): 0.0}


@pytest.mark.long
def test_eighteen_copies_of_one_picture_are_one_group(tmp_path):
    """Each is compared with its nearest few; what is a copy of a copy is then compared with the keeper."""
    picture = photo("coffee")
    for i in range(18):
        size = (picture.width - 2 * i, picture.height - 2 * i)
        save(picture.resize(size), tmp_path / f"{i:02}.jpg")
    save(photo("astronaut"), tmp_path / "another.jpg")
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        (group,) = find_tiers(catalogue).copies
        assert group.keeper.path.name == "00.jpg" and len(group.members) == 17
        assert find_tiers(catalogue).copies == (group,), "and again from what is remembered"
        # Some vanish, nothing is remembered: the rest is one group still, and the search ends.
        forget_evidence(tmp_path)
        for i in range(5, 18, 5):
            (tmp_path / f"{i:02}.jpg").unlink()
        tiers = find_tiers(catalogue)
    assert [len(group.members) for group in tiers.copies] == [14] and len(tiers.problems) == 3


@pytest.mark.parametrize("same_bytes", [True, False])
def test_a_jpeg_with_its_raw_is_kept(tmp_path, same_bytes):
    """A JPEG takes its RAW along when it leaves: by the other rules the copy with the shorter path would stay."""
    paths = [tmp_path / name for name in ("card/05/trip/IMG_1.JPG", "sent.jpg")]
    paths[0].parent.mkdir(parents=True)
    picture = photo("coffee").resize((900, 600))
    for path in paths:
        picture.save(path, "JPEG", quality=90 if same_bytes or path is paths[0] else 97)
    assert keeper(tmp_path) == ("sent.jpg", None if same_bytes else "reproduces")
    (tmp_path / "card/05/trip/img_1.cr2").write_bytes(b"what the sensor saw")
    if same_bytes:
        assert keeper(tmp_path) == ("card/05/trip/IMG_1.JPG", "format")
    else:
        assert not only_group(tmp_path).may_go, "the coarser of two savings does not stand for the finer"


def keeper(library: Path) -> tuple[str, str | None]:
    group = only_group(library)
    if group.choice.rule == "format":
        assert group.choice.reason == "best format: JPEG with its RAW"
    return str(group.keeper.path), group.choice.rule


# ---- files as cameras write them


def format_of(image: Image.Image, name: str, **options) -> str:
    return read_facts(encode(image, name, **options)).format


def test_a_camera_jpeg_with_a_second_picture_is_no_worse_than_its_copy():
    """Phones put a depth map or a preview behind the first picture; what re-encodes the photo drops it."""
    image = SOURCES[0].open().resize((320, 214))
    camera = format_of(image, "MPO", save_all=True, append_images=[image.resize((80, 53))])
    web = format_of(image, "WEBP")
    assert (camera, web) == ("MPO", "WEBP")
    original = replace(BASE, format=camera, exif_fields=40)
    for worse in ("JPEG", web):
        assert rules_of().choose([other(format=worse), original]).keeper.id == 1
