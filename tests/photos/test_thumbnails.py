"""Thumbnails rule out most pairs of unlike photos, no copy, and nothing is decoded for them."""

import itertools
from collections import Counter
from functools import partial

import numpy as np
import pytest
from PIL import Image, ImageOps
from support.review_library import listed, make_library, photo, save

from benchmarks.photo_quality.edits import REFERENCE, named
from photodup.embedding import imaging
from photodup.photos.compare import pictures, pixels
from photodup.photos.compare.evidence import EvidenceStore
from photodup.photos.compare.features import features
from photodup.photos.compare.thumbnails import Thumbnail, may_be_one
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.hashing import square_greys
from photodup.photos.search.pair_codes import pair_codes

NAMES = ("astronaut", "coffee", "chelsea", "rocket")


def thumbnail(image: Image.Image) -> Thumbnail:
    return Thumbnail.of(square_greys(image).tobytes(), image.size)


@pytest.mark.parametrize("name", NAMES)
def test_no_copy_is_ruled_out_in_either_order(name):
    original = photo(name)
    copies = [edit(original) for edit in named(REFERENCE)]
    copies += [original.rotate(angle, expand=True) for angle in (90, 180, 270)]
    copies.append(ImageOps.mirror(original.rotate(90, expand=True)))
    for copy in copies:
        assert may_be_one(thumbnail(original), thumbnail(copy)) and may_be_one(
            thumbnail(copy), thumbnail(original)
        )


def test_most_strangers_are_ruled_out():
    thumbnails = [thumbnail(edit(photo(name))) for name in NAMES for edit in named(REFERENCE)]
    number = len(REFERENCE)
    pairs = itertools.combinations(range(len(thumbnails)), 2)
    strangers = [(i, j) for i, j in pairs if i // number != j // number]
    assert sum(may_be_one(thumbnails[i], thumbnails[j]) for i, j in strangers) < len(strangers) / 20


def test_without_detail_nothing_is_ruled_out():
    fog = photo("rocket").point(lambda grey: 120 + grey // 80)
    assert may_be_one(thumbnail(fog), thumbnail(photo("coffee")))


def compare_all(library, evidence_at) -> dict[int, float]:
    """Compare every photo of a library with every other."""
    with Catalogue(library) as catalogue, EvidenceStore(evidence_at) as store:
        photos = list({listed.md5: listed for listed in catalogue.photos()}.values())
        codes = pair_codes(*np.array(list(itertools.combinations(range(len(photos)), 2))).T)
        compared = pixels.Pixels(partial(pixels.read_scanned, library), photos, store)
        scores = compared.verify_pairs(codes)
    assert not compared.problems and len(scores) == len(codes)
    return scores


def test_only_what_may_be_one_picture_is_decoded(tmp_path, monkeypatch):
    library = make_library(tmp_path / "library", is_compared=False)
    sizes = []
    monkeypatch.setattr(pictures, "features", lambda image: sizes.append(image.size) or features(image))
    scores = compare_all(library, tmp_path / "evidence.sqlite")
    n_photos = round((2 * len(scores)) ** 0.5) + 1
    assert 0 < len(sizes) < n_photos and max(scores.values()) > 0.95
    for unreadable in (library / "2020").glob("*.jpg"):
        unreadable.write_bytes(b"")  # what is ruled out is no problem; what is not is
    with pytest.raises(AssertionError):
        compare_all(library, tmp_path / "again.sqlite")


def test_pairs_are_kept_by_blocks(tmp_path, monkeypatch):
    library, kept, add = make_library(tmp_path / "library", is_compared=False), [], EvidenceStore.add
    monkeypatch.setattr(
        EvidenceStore, "add", lambda store, pairs: kept.append(len(pairs)) or add(store, pairs)
    )
    monkeypatch.setattr(pixels, "_BLOCK", 4)
    scores = compare_all(library, tmp_path / "evidence.sqlite")
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


def test_a_file_that_changed_since_the_scan_is_not_compared(tmp_path):
    library = make_library(tmp_path / "library", is_compared=False)
    small = listed(library)["Shared/small coffee.jpg"]
    with Catalogue(library) as catalogue:
        save(photo("rocket").rotate(90, expand=True), library / small.path)
        tiers = find_tiers(catalogue)
    assert small.path not in {member.photo.path for group in tiers.copies for member in group.members}
    assert any("changed since the scan" in problem for problem in tiers.problems)
