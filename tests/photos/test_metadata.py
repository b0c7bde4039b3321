"""What files say of themselves, and what their names say: nothing that the one to keep lacks goes."""

import json
import zlib
from base64 import b85encode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from support.review_library import BASE, described_by_xmp, exif, listed, only_group, photo, write, xmp

from photodup.photos.groups.keepers import KeepRules
from photodup.photos.groups.names import place
from photodup.photos.groups.results import Group
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue, Photo
from photodup.photos.library.inventory import Inventory, unpack
from photodup.photos.library.metadata import exposure, lost_in_words, read_exposure
from photodup.photos.library.scan import scan
from photodup.photos.library.sidecars import Sidecars
from photodup.photos.search.pair_codes import pair_codes
from photodup.photos.search.shots import Shots


def going(group: Group) -> set[str]:
    return {photo.path.name for photo in group.may_go}


@pytest.fixture(scope="module")
def original() -> Image.Image:
    return photo("coffee").resize((480, 320), Image.Resampling.LANCZOS)


# ---- metadata ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("large", "small", "beside", "lost"), [
    (b"", exif(), "", "has date, place and camera, which the one to keep lacks"),
    (exif(), exif(camera=False, rating=4), "", "has a rating of 4; the one to keep has date, place and camera"),
    (b"", b"", "small.CR2", "has its RAW beside it"),
    (exif(), exif(), "", ""),  # what the better one has, too, holds nothing back
], ids=["date and place", "both sides", "RAW", "nothing"])  # fmt: skip
def test_the_better_picture_replaces_none_with_what_it_lacks(tmp_path, original, large, small, beside, lost):
    write(original, tmp_path / "large.jpg", data=large)
    write(original.resize((240, 160)), tmp_path / "small.jpg", data=small)
    if beside:
        (tmp_path / beside).write_bytes(b"what the sensor saw")
    group = only_group(tmp_path)
    assert (group.keeper.path.name, going(group)) == ("large.jpg", set() if lost else {"small.jpg"})
    assert lost in group.members[0].difference


def test_another_place_is_lost():
    places = {name: {"place": place} for name, place in {
        "here": "48.083333 11.117000", "rounded": "48.0834 11.117", "there": "48.084 11.117", "nowhere": "a b",
    }.items()}  # fmt: skip
    assert not lost_in_words(places["here"], places["rounded"])
    assert lost_in_words(places["here"], places["there"]) == "has another place than the one to keep"
    assert lost_in_words(places["here"], places["nowhere"])


def test_xmp_is_read_as_attributes_elements_and_lists():
    tags = "<dc:subject><rdf:Bag><rdf:li>sea</rdf:li><rdf:li>Ann</rdf:li></rdf:Bag></dc:subject>"
    title = '<dc:title><rdf:Alt><rdf:li xml:lang="x-default">Low tide</rdf:li></rdf:Alt></dc:title>'
    assert described_by_xmp(xmp('xmp:Rating="5"', tags + title).encode()) == {
        "rating": "5", "keywords": ["Ann", "sea"], "title": "Low tide"
    }  # fmt: skip
    assert described_by_xmp(xmp("", "<xmp:Rating>3</xmp:Rating>").encode()) == {"rating": "3"}
    assert described_by_xmp(xmp('xmp:Rating="0"').encode()) == {}, "not rated"


@pytest.mark.parametrize("packet", [
    b"", b"\xff\xfe\x00", b"<a", b"<a>" * 200_000,
    b'<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><a Rating="5">&c;</a>',
])  # fmt: skip
def test_what_is_no_xmp_says_nothing(packet):
    assert described_by_xmp(packet) == {}


def test_xmp_and_xp_tags_within_files_count(tmp_path, original):
    packet = xmp('xmp:Rating="4"').encode()
    for suffix in ("jpg", "png", "webp"):
        write(original, tmp_path / suffix / f"a.{suffix}", **({"xmp": packet} if suffix != "png" else {}))
    tagged = Image.Exif()
    tagged[0x9C9E] = "sea;Ann\0".encode("utf-16-le")
    tagged[0x010E] = "OLYMPUS DIGITAL CAMERA"
    original.save(tmp_path / "tagged.jpg", exif=tagged)
    scan(tmp_path, progress=False)
    said = {photo.path.name: unpack(photo.inventory).kinds for photo in listed(tmp_path).values()}
    assert said["a.jpg"] == said["a.webp"] == {"rating": "4"}
    assert said["tagged.jpg"] == {"keywords": ["Ann", "sea"]}, "what every camera says is no caption"


@pytest.mark.parametrize("named", ["IMG_1.xmp", "IMG_1.jpg.xmp"])
@pytest.mark.parametrize("same_bytes", [True, False])
def test_the_file_with_a_rated_sidecar_is_never_suggested(tmp_path, original, named, same_bytes):
    """By every other rule the bare copy would be kept: its path comes first, or it has more pixels."""
    write(original if same_bytes else original.resize((360, 240)), tmp_path / "z" / "Archive" / "IMG_1.jpg")
    write(original, tmp_path / "a.jpg")
    (tmp_path / "z" / "Archive" / named).write_text(xmp('xmp:Rating="5"'))
    group = only_group(tmp_path)
    assert "IMG_1.jpg" not in going(group)
    if same_bytes:
        assert (group.keeper.path.name, going(group)) == ("IMG_1.jpg", {"a.jpg"})
        assert group.choice.reason == "has a rating of 5, which the other lacks"
    else:
        assert "has a rating of 5, which the one to keep lacks" in group.members[0].difference


def test_copies_that_were_rated_otherwise_both_stay(tmp_path, original):
    for folder, stars in (("a", 5), ("b", 2)):
        write(original, tmp_path / folder / "IMG_1.jpg")
        (tmp_path / folder / "IMG_1.xmp").write_text(xmp(f'xmp:Rating="{stars}"'))
    group = only_group(tmp_path)
    assert going(group) == set() and "another rating" in group.members[0].difference


def test_dates_of_another_length_are_one_date():
    long, short = {"date": "2022-05-17T18:10:00.25+02:00"}, {"date": "20220517"}
    assert lost_in_words(long, short) == lost_in_words(short, {"date": "2022-05-17T18:10:00"}) == ""
    assert lost_in_words(long, {"date": "2021-05-17T18:10:00"}) == "has another date than the one to keep"


# ---- two exposures -------------------------------------------------------------------------------------------


def shot(number: int, **changes) -> Photo:
    said = {k: changes.pop(k) for k in ("time", "bias", "sensitivity", "sequence", "drive") if k in changes}
    changes.setdefault("path", Path(f"{number}.jpg"))
    return replace(BASE, id=number, md5=f"{number:032}", exposure=json.dumps(said), **changes)


@pytest.mark.parametrize(("first", "second", "are_two"), [
    ({"bias": 0.0}, {"bias": -2.0}, True),
    ({"bias": 0.0}, {}, False),
    ({"time": 0.008}, {"time": 1 / 126}, False),
    ({"time": 0.008}, {"time": 0.004}, True),
    ({"sensitivity": 100}, {"sensitivity": 400}, True),
    ({"sequence": 1}, {"sequence": 2}, True),
    ({"drive": 0}, {"drive": 2}, True),
    ({"drive": 2}, {"drive": 2}, False),
    ({"taken_at": "2020-01-02T00:00:00.0"}, {"taken_at": "2020-01-02T00:00:00.10"}, True),
    ({"taken_at": "2020-01-02T00:00:00.12"}, {"taken_at": "2020-01-02T00:00:00.123"}, False),
    ({"taken_at": "2020-01-02T00:00:00.12"}, {"taken_at": "2020-01-02T00:00:00"}, False),
    ({"taken_at": "2020-01-02T12:00:00+02:00"}, {"taken_at": "2020-01-02T10:00:00+00:00"}, False),
    ({"taken_at": "2020-01-02T12:00:00"}, {"taken_at": "2020-01-02T12:00:01"}, True),
    ({}, {}, False),  # an edit keeps the time
    ({}, {"taken_at": None}, False),
    ({}, {"taken_at": "2020-01-02T00:00:01", "camera": None}, False),
    ({"path": Path("DSC_0012.JPG")}, {"path": Path("x/DSC_0013.JPG")}, True),
    ({"path": Path("DSC_0012.JPG")}, {"path": Path("DSC_0012 (1).JPG")}, False),
    ({"path": Path("DSC_0012.JPG"), "camera": None}, {"path": Path("DSC_0013.JPG"), "camera": None}, False),
    ({"bias": 0.0, "camera": "A"}, {"bias": 1.0, "camera": "B"}, False),
])  # fmt: skip
def test_what_tells_two_exposures_of_one_camera(first, second, are_two):
    photos = [shot(1, **first), shot(2, **second)]
    codes = pair_codes(np.array([0]), np.array([1]))
    assert bool(Shots(photos).are_two(codes)[0]) is are_two
    assert bool(Shots(photos[::-1]).are_two(codes)[0]) is are_two


def test_a_bracket_is_read_from_files_and_never_suggested(tmp_path, original):
    darker = ImageEnhance.Brightness(original).enhance(0.7)
    write(original, tmp_path / "IMG_1_0.JPG", data=exif(SubsecTimeOriginal="0", ExposureBiasValue=0.0))
    write(darker, tmp_path / "IMG_1_1.JPG", data=exif(SubsecTimeOriginal="0", ExposureBiasValue=-2.0))
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        photos = catalogue.photos()
        assert [json.loads(photo.exposure)["bias"] for photo in photos] == [0.0, -2.0]
        assert photos[0].taken_at == "2022-05-17T18:10:00.0"
        assert find_tiers(catalogue).copies == ()


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize(("maker", "tags"), [
    (b"FUJIFILM\x0c\0\0\0", (0x1101, 0x1103)), (b"Panasonic\0\0\0", (0x2B, 0x2A)), (b"SONY DSC \0\0\0", (0xB04A, 0xB049)),
])  # fmt: skip
def test_number_and_drive_mode_are_read_from_makers_notes(maker, tags, order):
    def note(number: int) -> bytes:
        fields = [(tags[0], 3, 1, number), (tags[1], 4, 1, 2), (tags[0] + 5, 2, 9, 70)]
        sizes = (2, 2, 4)
        entries = [
            b"".join(value.to_bytes(size, order) for value, size in zip(one, sizes, strict=False))
            + one[3].to_bytes(4 if one[1] == 4 else 2, order).ljust(4, b"\0")
            for one in fields
        ]
        return maker + len(fields).to_bytes(2, order) + b"".join(entries)

    assert read_exposure(exposure({0x927C: note(3)})) == {"sequence": 3, "drive": 2}
    assert read_exposure(exposure({0x927C: note(0)})) == {"drive": 2}, "0 is no sequence"
    for damaged in (maker, maker + b"\xff\xff", note(3)[:20], b"Another maker", "text", None):
        assert exposure({0x927C: damaged}) is None


def test_an_edit_with_the_exposure_of_its_source_is_no_second_exposure(tmp_path, original):
    data = exif(SubsecTimeOriginal="25", ExposureBiasValue=-0.3, ExposureTime=0.008)
    write(original, tmp_path / "IMG_1.JPG", data=data)
    write(original.resize((240, 160)), tmp_path / "small.jpg", data=data)
    assert going(only_group(tmp_path)) == {"small.jpg"}


# ---- what settles equal files --------------------------------------------------------------------------------


@pytest.mark.parametrize(("better", "worse", "why"), [
    ("Camera/2024/IMG_1124.JPG", "Kopie von IMG_1124.jpg", "its name is not that of a copy"),
    ("some/where/IMG_1.jpg", "IMG_1 (2).jpg", "its name is not that of a copy"),
    ("a/b/c/IMG_1.jpg", "Copy of IMG_1.jpg", "its name is not that of a copy"),
    *((name, copy, "its name is not that of a copy") for name, copy in (
        ("a/b/IMG_1.jpg", "IMG_1 2.jpg"), ("a/b/IMG_1.jpg", "IMG_1 (Anna's conflicted copy 2019-07-12).jpg"),
        ("a/b/IMG_1.jpg", "IMG_1-DESKTOP-AB12CD3.jpg"), ("a/b/IMG_1.jpg", "IMG_1.sync-conflict-20190712-1-AB.jpg"),
        ("a/b/IMG_1.jpg", "IMG_1 (in Konflikt stehende Kopie von Anna 2019-07-12).jpg"),
    )),
    *((camera, copy, "in a camera's or a dated folder, or not in one of copies") for camera, copy in (
        ("phone/DCIM/100APPLE/IMG_1.jpg", "Downloads/IMG_1.jpg"), ("a/2019-07-12 Anna/IMG_1.jpg", "Backup/IMG_1.jpg"),
        ("a/b/c/IMG_1.jpg", "Backup 2/IMG_1.jpg"), ("a/2019/IMG_1.jpg", "b/IMG_1.jpg"),
    )),
    ("a/b/Erna 1952.jpg", "a/IMG_0012.jpg", "its name has words"),
    ("IMG_1.jpg", "b/IMG_1.jpg", "the shortest path"),
])  # fmt: skip
def test_what_settles_files_that_are_equal(better, worse, why):
    photos = [shot(1, path=Path(better)), shot(2, path=Path(worse))]
    assert place(photos[0]) < place(photos[1])
    for order in (photos, photos[::-1]):
        choice = KeepRules(Sidecars(Path("no such library")), ["resolution"]).choose(order)
        assert (str(choice.keeper.path), choice.reason) == (better, f"equal by every rule: {why}")


@pytest.mark.parametrize(
    "text", ["{", "[1]", "[" * 100_000, None, *(
        b85encode(zlib.compress(json.dumps(fields).encode())).decode() for fields in (
            {"kinds": {"keywords": "x", "rating": "x", "date": [1]}}, {"kinds": 5}, {"values": {"a": 5}}, {"parts": [1]},
            {"parts": {"a": 5}}, {"bits": "8"}, {"colours": "x"}, {"colours": "00" * 10**7},
            {"values": [5]}, {"values": {"a": [[]]}}, [],
        ))],
)  # fmt: skip
def test_what_somebody_put_into_a_catalogue_says_nothing(text):
    assert unpack(text) == Inventory() and read_exposure(text) == {}
    assert (
        KeepRules(Sidecars(Path("no such library")))
        .choose([shot(1, inventory=text), shot(2, inventory=text)])
        .keeper.id
        == 1
    )


def test_a_hostile_file_says_nothing_and_is_read(tmp_path, original):
    xmp = b'<!DOCTYPE a [<!ENTITY b "b">]><a>&b;</a>'
    original.save(tmp_path / "a.jpg", "JPEG", xmp=xmp, exif=exif(rating=9))
    scan(tmp_path, progress=False)
    assert unpack(listed(tmp_path)["a.jpg"].inventory).kinds["rating"] == "9"
