"""A file beside photos leaves with the one that it belongs to; one of several photos stays."""

import json
import re
from pathlib import Path

import httpx
import pytest
from PIL import Image
from support.review_library import make_library as make_review_library
from support.review_library import remove_all, xmp
from support.trash_kills import make_library, present, removal

from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.photos.library.sidecars import Sidecars, files_moving_with
from photodup.photos.review.carrying import plan_transfer
from photodup.photos.review.serve import ReviewServer
from photodup.photos.state.journal import Journal
from photodup.photos.trash.quarantine import Trash


def test_a_sidecar_of_two_photos_stays_and_that_of_one_leaves_and_comes_back_with_it(tmp_path):
    md5 = make_library(tmp_path, {"keep.jpg": 10, "A.jpg": 20, "A.png": 30, "A.xmp": 5, "A.png.xmp": 6})
    photos = [tmp_path / "A.jpg", tmp_path / "A.png"]
    along = files_moving_with(photos)
    removals = [removal(tmp_path, md5, p.name, sidecars=along[p]) for p in photos]
    operations, refused = Trash(tmp_path).remove(removals)
    assert [[moved.home for moved in o.files] for o in operations] == [["A.jpg"], ["A.png", "A.png.xmp"]]
    assert set(present(tmp_path)) == {"keep.jpg", "A.xmp"} and not refused
    Trash(tmp_path).restore(operations)
    assert present(tmp_path) == md5


def test_the_list_before_a_removal_names_hard_links_which_free_nothing(tmp_path):
    library = make_review_library(tmp_path / "library")
    with ReviewServer(library) as server:
        server.session.accept_all()

        def page() -> str:
            return httpx.get(server.url + "confirm", timeout=30).text

        assert "hard link" not in page()
        item = next(item for item in server.session.items.values() if item.remove)
        going = next(one for one in item.photos if one.id in item.remove)
        before = re.search(r"That frees <strong>([^<]+)", page())[1]
        (tmp_path / "outside.jpg").hardlink_to(library / going.path)
        text = page()
        assert text.count("a hard link: frees nothing") == 1 and "1 of them frees nothing" in text
        assert re.search(r"That frees <strong>([^<]+)", text)[1] != before


def test_the_trash_page_reads_the_journal_once(tmp_path, monkeypatch):
    library = make_review_library(tmp_path / "library")
    with ReviewServer(library) as server:
        remove_all(server.session)
        read, journal = [], server.session.trash._journal
        monkeypatch.setattr(journal, "read", lambda: (read.append(1), Journal.read(journal))[1])
        assert "3 photos in the trash" in httpx.get(f"{server.url}trash").text
    assert len(read) == 1


CAMERA_RAW = (
    "xmlns:crs='http://ns.adobe.com/camera-raw-settings/1.0/' crs:Exposure2012='+{}' crs:HasSettings='{}'"
)
EDITED, EDITED_MORE, AS_SHOT = (
    xmp(CAMERA_RAW.format(*settings)).encode() for settings in ((1, True), (2, True), (0, False))
)
MONTH = xmp("photoshop:DateCreated='1952-06'").encode()
STARRED = b"[IMG_1.jpg]\r\nstar=yes\r\n"
WRITTEN_LATER = EDITED.replace(b"crs:Exp", b"xmp:MetadataDate='2026-01-02' crs:Exp") + b"\n"


GOOGLE = b'{"photoTakenTime": {}, "imageViews": "1", "description": "%s"}'
FAVOURITE = b'{"photoTakenTime": {}, "favorited": true}'


@pytest.mark.parametrize(
    ("beside", "kept", "differs"),
    [
        ({}, "A", ""),
        ({"B/IMG_1.aae": b"x"}, "B", ""),
        ({"B/IMG_1.jpg.json": b"x"}, "B", ""),
        ({"B/IMG_1.jpg.json": GOOGLE % b""}, "A", ""),
        ({"A/IMG_1.jpg.json": GOOGLE % b"x" + b" ", "B/IMG_1.jpg.json": GOOGLE % b"x"}, "A", ""),
        ({"A/IMG_1.jpg.json": b"x", "B/IMG_1.jpg.json": FAVOURITE}, "A", "has its .json file beside it"),
        ({"A/IMG_1.jpg.json": FAVOURITE, "B/IMG_1.jpg.json": FAVOURITE + b" "}, "A", ""),
        ({f"{one}/IMG_1.jpg.json": GOOGLE % b"<3 %d" % ord(one) for one in "AB"}, "A", "has its .json file beside it"),
        ({"B/IMG_1.jpg.supplemental-metadata.json": FAVOURITE}, "B", ""),
        ({"B/IMG_1.jpg.suppl.json": FAVOURITE}, "B", ""),
        ({f"{one}.json": GOOGLE % b"x" for one in ("A/IMG_1.jpg", "B/IMG_1.jpg.supplemental-metadata")}, "A", ""),
        ({"A/IMG_1.mov": b"film", "B/IMG_1.MP4": b"film"}, "A", ""),
        ({"A/IMG_1.aae": b"x", "B/IMG_1.aae": b"x"}, "A", ""),
        ({"A/IMG_1.aae": b"x", "B/IMG_1.aae": b"y"}, "A", "has its .aae file beside it"),
        ({"A/IMG_1.mov": b"film", "B/IMG_1.mov": b"mail"}, "A", "has a film beside it (Live Photo)"),
        ({"A/IMG_1.nef": b"whole", "B/IMG_1.nef": b"part"}, "A", "has its RAW beside it"),
        ({"A/IMG_1.xmp": b"<x/>", "B/IMG_1.xmp": EDITED}, "B", ""),
        ({"A/IMG_1.xmp": EDITED, "B/IMG_1.jpg.xmp": WRITTEN_LATER}, "A", ""),
        ({"A/IMG_1.xmp": EDITED, "B/IMG_1.xmp": EDITED_MORE}, "A", "has an edit in its .xmp file"),
        ({"B/IMG_1.xmp": AS_SHOT}, "A", ""),
        ({"A/IMG_1.xmp": b"no XML", "B/IMG_1.xmp": b"none either"}, "A", "has an edit in its .xmp file"),
        ({"A/IMG_1.json": b'{"b": 1, "a": 2}', "B/IMG_1.json": b'{"a": 2, "b": 1, "exportTime": 5}'}, "A", ""),
        ({"A/IMG_1.json": b'{"a": 2}', "B/IMG_1.json": b'{"a": 3}'}, "A", "has its .json file beside it"),
        ({"B/NKSC_PARAM/IMG_1.jpg.nksc": b"x"}, "B", ""),
        ({"A/IMG_1.xmp": EDITED, "B/IMG_1.xmp": b"<x/>"}, "A", ""),
        ({"B/IMG_1.xmp": MONTH, "A/IMG_1.xmp": EDITED}, "A", "has an edit in its .xmp file"),
        ({"B/IMG_1.jpg.json": b'{"title": "At the sea"}', "A/IMG_1.jpg.json": b"x"}, "A", "has its .json file beside it"),
        ({"B/.picasa.ini": STARRED}, "A", "has its .ini file beside it"),
        ({"A/Picasa.ini": STARRED, "B/.picasa.ini": STARRED + b"backuphash=7"}, "A", ""),
        ({"B/descript.ion": b'IMG_1.jpg At the sea'}, "A", "has its .ion file beside it"),
    ],
)  # fmt: skip
def test_what_lies_beside_a_copy_has_an_equal_beside_the_photo_to_keep(tmp_path, beside, kept, differs):
    """Two files of the same bytes, in A and in B: what goes along with one must be there for the other."""
    for folder in "AB":
        (tmp_path / folder).mkdir()
        Image.linear_gradient("L").save(tmp_path / folder / "IMG_1.jpg")
    for name, data in beside.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        (group,) = find_tiers(catalogue).copies
    (other,) = group.others
    assert (group.keeper.path.parts[0], group.difference(other)) == (kept, differs)
    assert group.held_back == (), "no sidecar could hold it"
    if kept == "B":
        assert "beside it" in group.choice.reason and "IMG_1." in group.choice.reason


def test_the_json_of_googles_export_is_of_the_photo_it_is_named_after(tmp_path):
    named = {
        "a.jpg.json": "a.jpg", "a.jpg.supplemental-metadata.json": "a.jpg", "a.jpg.suppl.json": "a.jpg",
        "a.jpg(1).json": "a(1).jpg", "a.jpg.supplemental-metadata(1).json": "a(1).jpg", "a.jpg.sup(12).json": "a(12).jpg",
    }  # fmt: skip
    for name, photo in named.items():
        folder = tmp_path / name
        folder.mkdir()
        for one in ("a.jpg", "a(1).jpg", "a(12).jpg", name):
            (folder / one).write_bytes(b"x")
        for one in ("a.jpg", "a(1).jpg", "a(12).jpg"):
            along = files_moving_with([folder / one])[folder / one]
            assert along == ([folder / name] if one == photo else []), (name, one)


LONG = "Ein Wochenende an der Küste mit allen Kindern"  # 45 characters


@pytest.mark.parametrize(("json_name", "photo", "others"), [
    (f"{LONG} (12).JPG"[:46] + ".json", f"{LONG} (12).JPG", ()),
    (f"{LONG}.jpe.json", f"{LONG}.jpeg", (f"{LONG} 2.jpeg",)),  # cut within the suffix
    (f"{LONG} 1.json", f"{LONG} 12.jpg", (f"{LONG} 12(1).jpg", f"{LONG}.jpg")),  # the photo's name is cut, too
    (f"{LONG} 1(1).json", f"{LONG} 12(1).jpg", (f"{LONG} 12.jpg", f"{LONG}.jpg")),
    (f"{LONG}.JPG.s.json".replace("ü", "u\u0308"), f"{LONG}.jpg", (f"{LONG} 2.jpg",)),
    (f"{LONG[:20]}.json", "", (f"{LONG}.jpg",)),  # a short name is not cut
    (f"Another {LONG}.json", "", (f"{LONG}.jpg",)),
])  # fmt: skip
def test_google_cuts_long_names(tmp_path, json_name, photo, others):
    for name in filter(None, (json_name, photo, *others)):
        (tmp_path / name).touch()
    owners = [name for name in (photo, *others) if name and Sidecars(tmp_path).files_of(Path(name))]
    assert owners == [photo] * bool(photo)


@pytest.mark.parametrize("beside", [
    "NKSC_PARAM/IMG_1.jpg.nksc", "CaptureOne/Settings131/IMG_1.jpg.cos", "SILKYPIX_DS/IMG_1.JPG.9.spd",
    "IMG_1.vrd", "IMG_1.fff", "IMG_1_HEVC.MOV", "IMG_1.jpg_original", "IMG_1",
])  # fmt: skip
def test_what_programs_write_belongs_to_its_photo(tmp_path, beside):
    make_library(
        tmp_path, {"IMG_1.jpg": 20, "IMG_10.jpg": 30, "CaptureOne/Cache/Proxies/IMG_1.jpg.cop": 4, beside: 5}
    )
    assert [Sidecars(tmp_path).files_of(Path(name)) for name in ("IMG_1.jpg", "IMG_10.jpg")] == [
        [tmp_path / beside],
        [],
    ]
    md5 = present(tmp_path)
    Trash(tmp_path).remove([removal(tmp_path, md5, "IMG_1.jpg", "IMG_10.jpg", [beside])])
    assert beside not in present(tmp_path)
    Trash(tmp_path).restore(Trash(tmp_path).contents().listing)
    assert present(tmp_path) == md5


@pytest.mark.parametrize("name", ["metadata.json", "metadatos.json", "元数据.json", "metadata(1).json"])
def test_an_album_is_told_by_what_its_file_says_in_any_language(tmp_path, name):
    Image.linear_gradient("L").save(tmp_path / "IMG_1.jpg")
    for file, said in {
        name: {"title": "To the sea", "description": "", "access": "protected", "date": {"timestamp": "1"}},
        "print.json": {"title": "Poster", "photoTakenTime": {}},
        "settings.json": {"title": "Editor", "theme": "dark"},
    }.items():
        (tmp_path / file).write_text(json.dumps(said))
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        assert Sidecars(tmp_path).describe(catalogue.photos()[0]) == {"keywords": ["Album|To the sea"]}


def test_what_google_and_its_albums_say_of_a_copy_is_offered_and_the_years_are_no_albums(tmp_path):
    said = {"photoTakenTime": {"timestamp": "1"}, "description": "At the sea", "people": [{"name": "Anna"}]}
    said["geoData"] = {"latitude": -33.5, "longitude": 151.25}
    for folder, title in {"Photos from 2020": "Photos from 2020", "Trip": "To the sea"}.items():
        (tmp_path / folder).mkdir()
        Image.linear_gradient("L").save(tmp_path / folder / "IMG_1.jpg")
        (tmp_path / folder / "metadata.json").write_text(json.dumps({"title": title}))
    (tmp_path / "Trip" / "IMG_1.jpg.json").write_text(json.dumps(said))
    beside = Sidecars(tmp_path)
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        of_year, of_trip = sorted(catalogue.photos(), key=lambda photo: str(photo.path))
    assert beside.describe(of_year) == {}
    assert beside.describe(of_trip) == {
        "caption": "At the sea", "place": "-33.500000 151.250000", "people": ["Anna"], "keywords": ["Album|To the sea"],
    }  # fmt: skip
    told = plan_transfer(beside, of_year, [of_trip])
    assert told.entries[0].lost.keys() == {"people"}, "whose names no sidecar is given"
    text = told.note.data.decode()
    assert (
        "At the sea" in text
        and "Album|To the sea" in text
        and "33,30.000000S" in text
        and "151,15.000000E" in text
    )


@pytest.mark.parametrize("said", [
    b"[]", b"{", b"\xff", b"[" * 100_000, b'{"photoTakenTime": 1, "people": {"name": 1}, "geoData": [], "description": 7}',
    b'{"photoTakenTime": 1, "people": [1, {"name": 2}], "geoData": {"latitude": "x", "longitude": true}}', b'{"title": 5}',
])  # fmt: skip
def test_json_that_google_did_not_write_says_nothing(tmp_path, said):
    Image.linear_gradient("L").save(tmp_path / "IMG_1.jpg")
    for name in ("IMG_1.jpg.json", "metadata.json"):
        (tmp_path / name).write_bytes(said)
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        assert Sidecars(tmp_path).describe(catalogue.photos()[0]) == {}
