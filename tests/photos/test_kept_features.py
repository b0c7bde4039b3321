"""The strongest features, kept between runs: the same verdicts, and no photograph is looked at again for nothing."""

import itertools
import os
from collections import Counter
from functools import partial

import numpy as np
import pytest
from support.review_library import forget_evidence, listed, make_library, photo, save

from benchmarks.photo_quality.edits import REFERENCE, named
from photodup.embedding import imaging
from photodup.photos.compare import kept_features, pictures, pixels
from photodup.photos.compare.evidence import EvidenceStore, pair_codes
from photodup.photos.compare.features import Features, features
from photodup.photos.compare.kept_features import FeatureStore, Strongest
from photodup.photos.compare.verify import Verification, verify_copy
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.photos.state.own_folder import OwnFolder

NAMES = ("astronaut", "coffee", "chelsea", "rocket")


@pytest.fixture(scope="module")
def known() -> dict[str, Features]:
    """Four photographs, each with ten edits of it."""
    found = {}
    for name in NAMES:
        found[name] = features(photo(name))
        for edit in named(REFERENCE):
            found[f"{name} {edit.name}"] = features(edit(photo(name)))
    return found


def test_what_is_ruled_out_is_what_verify_finds_nothing_in(known):
    """Of every pair: never is a copy ruled out, and what is ruled out has no evidence at all."""
    kept = {name: Strongest.of(found) for name, found in known.items()}
    out, copies = 0, 0
    for number, (first, second) in enumerate(itertools.combinations(known, 2)):
        if first.split()[0] != second.split()[0] and number % 8:
            continue  # most pairs of different photographs are alike; some of them will do
        said = verify_copy(known[first], known[second])
        if not kept[first].may_be(kept[second]):
            out += 1
            assert said == Verification(), (first, second)
        copies += said.is_copy()
    assert out > 20 and copies > 100


def test_it_comes_back_as_it_went_in(tmp_path, known):
    OwnFolder(tmp_path / "own").prepare()
    one, name = Strongest.of(known["coffee"]), "a" * 32
    with FeatureStore(tmp_path / "own" / "features.sqlite") as store:
        store.add({name: one})
    with FeatureStore(tmp_path / "own" / "features.sqlite") as store:
        again = store.read([name, "b" * 32])[name]
    assert again.n == one.n == len(known["coffee"].points)
    for side in (again.features.points, again.features.descriptors):
        assert len(side) == 400
    np.testing.assert_array_equal(again.features.points, one.features.points)
    np.testing.assert_array_equal(again.features.descriptors, one.features.descriptors)
    mirrored = known["coffee"].mirrored().strongest(400)
    np.testing.assert_allclose(again.features.mirrored().points, mirrored.points, atol=1 / 16)
    found, wanted = again.features.mirrored().descriptors.astype(int), mirrored.descriptors.astype(int)
    np.testing.assert_allclose(found, wanted, atol=8)
    assert len(one.packed()) < 20_000, "about 18 kB, where pixels and all features are 300"


@pytest.mark.parametrize("damage", ["substr(packed, 1, 60)", "x''", "x'6e6f7468696e67'", "zeroblob(99)"])
def test_what_is_damaged_is_looked_at_again(tmp_path, known, damage):
    OwnFolder(tmp_path / "own").prepare()
    with FeatureStore(tmp_path / "own" / "features.sqlite") as store:
        store.add({"a" * 32: Strongest.of(known["coffee"])})
        store._db.execute(f"UPDATE feature SET packed = {damage}")
        assert set(store.read(["a" * 32])) == set()


def groups(catalogue) -> list:
    return [
        (g.keeper.path, [(m.photo.path, m.differences) for m in g.members])
        for g in find_tiers(catalogue).copies
    ]


def compare_all(library, evidence_at, kept) -> dict[int, float]:
    """Compare every photo of a library with every other, and remember nothing but features."""
    with Catalogue(library) as catalogue, EvidenceStore(evidence_at) as store:
        photos = list({found.md5: found for found in catalogue.photos()}.values())
        codes = pair_codes(*np.array(list(itertools.combinations(range(len(photos)), 2))).T)
        seen = pixels.Pixels(partial(pixels.read_scanned, library), photos, store, kept)
        scores = seen.verify_pairs(codes)
    assert not seen.problems and len(scores) == len(codes)
    return scores


def test_far_partners_are_not_looked_at_again(tmp_path, monkeypatch):
    library = make_library(tmp_path / "library", is_compared=False)
    looked = []
    monkeypatch.setattr(pictures, "features", lambda image: looked.append(image.size) or features(image))
    place = OwnFolder(library / ".photodup").features
    with FeatureStore(place) as kept:
        first = compare_all(library, tmp_path / "1.sqlite", kept)
    n = len(looked)
    looked.clear()
    with FeatureStore(place) as kept:
        again = compare_all(library, tmp_path / "2.sqlite", kept)
    assert 0 < len(looked) < n, "those that may be one picture, and no others"
    assert again == first
    for unreadable in (library / "2020").glob("*.jpg"):
        unreadable.write_bytes(b"")  # what is ruled out without it is no problem; what is not is
    with FeatureStore(place) as kept, pytest.raises(AssertionError):
        compare_all(library, tmp_path / "3.sqlite", kept)


def test_pairs_are_kept_by_blocks(tmp_path, monkeypatch):
    library, kept, add = make_library(tmp_path / "library", is_compared=False), [], EvidenceStore.add
    monkeypatch.setattr(
        EvidenceStore, "add", lambda store, pairs: kept.append(len(pairs)) or add(store, pairs)
    )
    monkeypatch.setattr(pixels, "_BLOCK", 4)
    with FeatureStore(OwnFolder(library / ".photodup").features) as features_kept:
        scores = compare_all(library, tmp_path / "evidence.sqlite", features_kept)
    assert sum(kept) == len(scores) and max(kept) == 4


def test_a_photo_is_decoded_for_its_hash_and_once_more_for_its_features_and_its_family(tmp_path, monkeypatch):
    library, decoded = make_library(tmp_path / "library", is_compared=False), Counter()
    decode = imaging.decode

    def counting(source, **options):
        decoded[source] += 1
        return decode(source, **options)

    monkeypatch.setattr(imaging, "decode", counting)
    with Catalogue(library) as catalogue:
        assert sum(len(group.members) for group in find_tiers(catalogue).copies) == 3
    assert set(decoded.values()) == {1}


def kept_in(library) -> set[str]:
    with FeatureStore(OwnFolder(library / ".photodup").features) as store, Catalogue(library) as catalogue:
        everything = [row[0] for row in catalogue.query("SELECT md5 FROM content")]
        return set(store.read(everything))


def test_what_vanished_is_dropped(tmp_path):
    library = make_library(tmp_path / "library", is_compared=False)
    with Catalogue(library) as catalogue:
        find_tiers(catalogue)
    before = kept_in(library)
    (library / "Shared" / "small coffee.jpg").unlink()
    scan(library, progress=False)
    with Catalogue(library) as catalogue:
        find_tiers(catalogue)
    there = {found.md5 for found in listed(library).values()}
    assert kept_in(library) == before & there and len(before - there) == 1


def test_a_file_that_changed_since_the_scan_is_not_kept_as_what_it_was(tmp_path):
    library = make_library(tmp_path / "library", is_compared=False)
    small = listed(library)["Shared/small coffee.jpg"]
    with Catalogue(library) as catalogue:
        save(photo("rocket").rotate(90, expand=True), library / small.path)
        find_tiers(catalogue)
    assert small.md5 not in kept_in(library) and kept_in(library)


def test_it_stays_within_its_bound_and_the_oldest_go(tmp_path, monkeypatch, known):
    OwnFolder(tmp_path / "own").prepare()
    strongest = Strongest.of(known["coffee"])
    md5s = [f"{i:032x}" for i in range(60)]
    monkeypatch.setattr(kept_features, "MAX_PHOTOS", 20)
    with FeatureStore(tmp_path / "own" / "features.sqlite") as store:
        for md5 in md5s:
            store.add({md5: strongest})
        left = sorted(store.read(md5s))
        assert left == md5s[-20:]
        store.keep_only(left[:3])
        assert sorted(store.read(md5s)) == left[:3]
    assert os.path.getsize(tmp_path / "own" / "features.sqlite") < 160_000, "and the file is smaller"


@pytest.mark.parametrize("fault", ["no database", "cut short within", "a folder"])
def test_damage_costs_time_and_no_group(tmp_path, fault):
    import sqlite3
    from contextlib import closing

    library = make_library(tmp_path / "library", is_compared=False)
    with Catalogue(library) as catalogue:
        first = groups(catalogue)
        forget_evidence(library)
        path = library / ".photodup" / "features.sqlite"
        if fault == "no database":
            path.write_bytes(b"not a database" * 500)
        elif fault == "cut short within":
            with closing(sqlite3.connect(path)) as db, db:
                db.execute("UPDATE feature SET packed = substr(packed, 1, 40)")
        else:
            for file in path.parent.glob("features.sqlite*"):
                file.unlink()
            path.mkdir()
        tiers = find_tiers(catalogue)
        assert [
            (g.keeper.path, [(m.photo.path, m.differences) for m in g.members]) for g in tiers.copies
        ] == first
    if fault == "a folder":
        (said,) = tiers.problems
        assert "features.sqlite cannot be written" in said and "\n" not in said
    else:
        assert not tiers.problems and kept_in(library)
