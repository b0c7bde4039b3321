"""Keep rules on files as cameras write them."""

import os
from dataclasses import replace
from pathlib import Path

from PIL import Image
from support.images import read_facts

from photodup.demo.photographs import SOURCES
from photodup.embedding.imaging import encoded
from photodup.photos.compare.merit import Merit, Relation
from photodup.photos.groups.keepers import KeepRules
from photodup.photos.library.catalogue import Photo

BASE = Photo(1, Path("a.jpg"), "0" * 32, 1000, 0, "JPEG", 100, 100, None, "2020-01-02T00:00:00", "Cam", 5)


def format_of(image: Image.Image, name: str, **options) -> str:
    return read_facts(encoded(image, name, **options)).format


def test_a_camera_jpeg_with_a_second_picture_is_no_worse_than_its_copy():
    """Phones put a depth map or a preview behind the first picture; what re-encodes the photo drops it."""
    image = SOURCES[0].open().resize((320, 214))
    camera = format_of(image, "MPO", save_all=True, append_images=[image.resize((80, 53))])
    web = format_of(image, "WEBP")
    assert (camera, web) == ("MPO", "WEBP")
    original = replace(BASE, format=camera, exif_fields=40)
    for worse in ("JPEG", web):
        copy = replace(BASE, id=2, path=Path("b.jpg"), md5="1" * 32, format=worse)
        assert KeepRules().choose([copy, original]).keeper.id == 1


def test_one_moment_is_not_older_because_nobody_wrote_its_offset():
    there = replace(BASE, taken_at="2020-01-02T00:00:00+02:00")
    dropped = replace(BASE, id=2, path=Path("longer/b.jpg"), md5="1" * 32)
    choice = KeepRules(["oldest"]).choose([there, dropped])
    assert (choice.keeper.id, choice.rule) == (1, None)


def test_the_reason_can_be_shown_whatever_the_folders_name():
    """A name that is not UTF-8 must not break the page or the terminal that shows it."""
    folder = os.fsdecode(b"caf\xe9")
    best = replace(BASE, id=2, path=Path(folder, "b.jpg"), md5="1" * 32)
    choice = KeepRules(["folder"], folders=[folder]).choose([BASE, best])
    assert (choice.keeper.id, choice.reason) == (2, "preferred folder: caf\ufffd")


def test_a_keeper_that_has_something_added_replaces_none_that_lacks_it():
    other = replace(BASE, id=2, path=Path("b.jpg"), md5="1" * 32)
    merits = {BASE.md5: Merit(added=("a border", "empty corners")), other.md5: Merit(added=("a border",))}
    assert KeepRules().doubts(BASE, other, [BASE, other], merits, Relation()) == [
        "the one to keep has empty corners"
    ]
    assert not KeepRules().doubts(other, BASE, [BASE, other], merits, Relation())
