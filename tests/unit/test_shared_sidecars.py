"""A sidecar that belongs to two photos leaves with the last of them, or stays, and the owner is told."""

import json
import re
import shutil

import httpx
import pytest
from PIL import Image
from support.machines import Killed
from support.review_library import make_library as make_review_library
from support.review_library import remove_all, xmp
from support.trash_kills import make_library, present, removal

from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.photos.library.sidecars import Sidecars, belonging_to, moving_together
from photodup.photos.review.carrying import carried
from photodup.photos.review.serve import ReviewServer
from photodup.photos.review.session import ReviewSession
from photodup.photos.state.journal import Journal
from photodup.photos.trash.entries import TrashError
from photodup.photos.trash.files import TRASH_FOLDER, md5_of
from photodup.photos.trash.quarantine import Trash


def test_a_shared_sidecar_leaves_with_the_last_photo_that_it_belongs_to(tmp_path):
    """Whichever of the two is refused, the first or the last."""
    md5 = make_library(tmp_path, {"keep.jpg": 10, "A.jpg": 20, "A.png": 30, "A.xmp": 5})
    photos = [tmp_path / "A.jpg", tmp_path / "A.png"]
    together = moving_together(photos)
    for changed, goes in (("A.png", ["A.jpg"]), ("A.jpg", ["A.png"]), ("", ["A.jpg", "A.png"])):
        if changed:
            (tmp_path / changed).write_bytes(b"changed since the scan")
        removals = [removal(tmp_path, md5, p.name, sidecars=together[p]) for p in photos]
        done, refused = Trash(tmp_path).remove(removals)
        assert ([o.files[0].home for o in done], len(refused)) == (goes, bool(changed))
        left = {"keep.jpg", changed, "A.xmp"} if changed else {"keep.jpg"}
        assert set(present(tmp_path)) == left, "the one that is still there needs it"
        Trash(tmp_path).restore(done)
        md5 = present(tmp_path)
    assert set(md5) == {"keep.jpg", "A.jpg", "A.png", "A.xmp"}


def test_a_sidecar_of_two_photos_stays_with_the_one_that_was_left_alone_and_the_page_says_so(tmp_path):
    library = make_review_library(tmp_path / "library")
    coffee = Image.open(library / "Shared" / "small coffee.jpg")
    coffee.save(library / "Shared" / "small coffee.png")
    shutil.move(library / "Shared" / "small coffee.jpg.xmp", library / "Shared" / "small coffee.xmp")
    scan(library, progress=False)
    session = ReviewSession(library)
    session.accept_all()
    assert session.n_sidecars == 1, "it is counted once"
    (library / "Shared" / "small coffee.png").write_bytes(b"edited meanwhile")
    outcome = session.apply()
    assert not (library / "Shared" / "small coffee.jpg").exists()
    assert (library / "Shared" / "small coffee.xmp").exists()
    said = [sentence for sentence in outcome.refused if "small coffee.xmp stays" in sentence]
    assert len(said) == 1 and "also belongs to small coffee.png, which was left alone" in said[0]


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


def stop_at(step: int):
    seen = iter(range(10_000))

    def on_step(name: str) -> None:
        if next(seen) == step:
            raise Killed

    return on_step


def remove_two_with_one_sidecar(folder) -> list:
    """Remove A.jpg and A.png, which share A.xmp; return their operations, the first without it."""
    md5 = make_library(folder, {"keep.jpg": 10, "A.jpg": 20, "A.png": 30, "A.xmp": 5})
    photos = [folder / "A.jpg", folder / "A.png"]
    together = moving_together(photos)
    done, refused = Trash(folder).remove([removal(folder, md5, p.name, sidecars=together[p]) for p in photos])
    homes = [[moved.home for moved in operation.files] for operation in done]
    assert (homes, refused) == ([["A.jpg"], ["A.png", "A.xmp"]], [])
    return done


def killed_anywhere(tmp_path, act, *, at_least: int):
    """Do it to the two removals, killed one step later each time until it goes through; yield the trash that recovers."""
    for step in range(1000):
        (folder := tmp_path / str(step)).mkdir()
        first, second = remove_two_with_one_sidecar(folder)
        try:
            act(Trash(folder, stop_at(step)), first, second)
            break
        except Killed:
            yield folder, Trash(folder), first
    assert step > at_least, "it was killed at several steps, and then went through"


def test_a_shared_sidecar_comes_back_with_the_first_photo_that_is_restored(tmp_path):
    first, second = remove_two_with_one_sidecar(tmp_path)
    restored = Trash(tmp_path).restore([first])
    assert restored == [tmp_path / "A.jpg", tmp_path / "A.xmp"]
    (there,) = Trash(tmp_path).contents().listing
    assert (there.id, [moved.home for moved in there.files]) == (second.id, ["A.png"])
    (tmp_path / "A.xmp").write_bytes(b"edited since")
    assert Trash(tmp_path).restore([second]) == [tmp_path / "A.png"], "without a word about the sidecar"
    assert set(present(tmp_path)) == {"keep.jpg", "A.jpg", "A.png", "A.xmp"}
    assert (tmp_path / "A.xmp").read_bytes() == b"edited since"
    assert list((tmp_path / TRASH_FOLDER / "items").iterdir()) == []


def test_a_restore_with_a_shared_sidecar_that_is_killed_anywhere_loses_nothing(tmp_path):
    for folder, trash, _ in killed_anywhere(tmp_path, lambda t, first, _: t.restore([first]), at_least=7):
        found = {name: md5_of(folder / name) for name in present(folder)}
        found |= {m.home: md5_of(trash.root / m.trash) for o in trash.contents().listing for m in o.files}
        in_trash = [m.home for o in trash.contents().listing for m in o.files]
        assert set(found) == {"keep.jpg", "A.jpg", "A.png", "A.xmp"}
        assert not set(in_trash) & set(present(folder)), "each file is in one place"
        trash.restore(trash.contents().listing)
        assert set(present(folder)) == set(found) and trash.contents().listing == []


def test_a_line_of_somebody_else_cannot_take_a_sidecar_from_my_removal(tmp_path):
    first, _second = remove_two_with_one_sidecar(tmp_path)
    journal = tmp_path / TRASH_FOLDER / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    sidecar, *_ = [file for line in lines for file in line.get("files", []) if file["home"] == "A.xmp"]
    forged = next(line for line in lines if line["op"] == first.id) | {"op": "20200101-000000-00000000"}
    forged |= {
        "state": "restored",
        "files": [forged["files"][0] | {"trash": "items/20200101-000000-00000000/x"}],
    }
    forged["files"].append(sidecar)
    with open(journal, "a") as file:
        file.write(json.dumps(forged) + "\n")
    trash = Trash(tmp_path)
    assert len(trash.contents().problems) == 1
    assert [[m.home for m in o.files] for o in trash.contents().listing] == [["A.png", "A.xmp"], ["A.jpg"]]


def test_the_trash_page_reads_the_journal_once(tmp_path, monkeypatch):
    library = make_review_library(tmp_path / "library")
    with ReviewServer(library) as server:
        remove_all(server.session)
        read, journal = [], server.session.trash._journal
        monkeypatch.setattr(journal, "read", lambda: (read.append(1), Journal.read(journal))[1])
        assert "3 photos in the trash" in httpx.get(f"{server.url}trash").text
    assert len(read) == 1


@pytest.mark.parametrize(("steps", "freed", "left"), [
    ("restore 0, purge 1", [30], {"A.jpg", "A.xmp"}),  # it came back with the first
    ("purge 1, restore 0", [30], {"A.jpg", "A.xmp"}),  # the other one needs it
    ("purge 01", [55], set()),
    ("purge 1, purge 0", [30, 25], set()),
])  # fmt: skip
def test_a_sidecar_is_purged_with_the_last_photo_that_needs_it(tmp_path, steps, freed, left):
    both, found = remove_two_with_one_sidecar(tmp_path), []
    for what, which in map(str.split, steps.split(", ")):
        chosen = [both[int(i)] for i in which]
        said = getattr(Trash(tmp_path), what)(chosen)
        found += [said] if what == "purge" else []
    assert (found, set(present(tmp_path))) == (freed, {"keep.jpg"} | left)
    assert Trash(tmp_path).contents().listing == []
    assert list((tmp_path / TRASH_FOLDER / "items").iterdir()) == []


def test_a_sidecar_of_photos_that_left_one_after_the_other_is_still_the_first_ones(tmp_path):
    md5 = make_library(tmp_path, {"keep.jpg": 10, "A.jpg": 20, "A.png": 30, "A.xmp": 5})
    removed = []
    for name in ("A.jpg", "A.png"):  # the sidecar stays with the second, and leaves with it
        together = moving_together([tmp_path / name])[tmp_path / name]
        done, _ = Trash(tmp_path).remove([removal(tmp_path, md5, name, sidecars=together)])
        removed += done
    assert [len(operation.files) for operation in removed] == [1, 2]
    Trash(tmp_path).purge([removed[1]])
    Trash(tmp_path).restore([removed[0]])
    assert set(present(tmp_path)) == {"keep.jpg", "A.jpg", "A.xmp"}


def test_a_photo_that_cannot_be_purged_keeps_its_sidecar(tmp_path):
    first, second = remove_two_with_one_sidecar(tmp_path)
    trash = Trash(tmp_path)
    (trash.root / first.files[0].trash).write_bytes(b"somebody put another file there")
    with pytest.raises(TrashError, match="not the file that was removed"):
        trash.purge([first, second])
    assert (trash.root / second.files[1].trash).exists()


def test_a_purge_that_is_killed_anywhere_leaves_the_sidecar_to_the_photo_that_stays(tmp_path):
    for folder, trash, first in killed_anywhere(tmp_path, lambda t, _, second: t.purge([second]), at_least=4):
        homes = sorted(moved.home for operation in trash.contents().listing for moved in operation.files)
        assert homes in (["A.jpg", "A.png", "A.xmp"], ["A.jpg", "A.xmp"])
        trash.restore([operation for operation in trash.contents().listing if operation.id == first.id])
        assert {"A.jpg", "A.xmp"} <= set(present(folder))


CAMERA_RAW = (
    "xmlns:crs='http://ns.adobe.com/camera-raw-settings/1.0/' crs:Exposure2012='+{}' crs:HasSettings='{}'"
)
EDITED, EDITED_MORE, AS_SHOT = (
    xmp(CAMERA_RAW.format(*settings)).encode() for settings in ((1, True), (2, True), (0, False))
)
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
            along = moving_together([folder / one])[folder / one]
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
    owners = [name for name in (photo, *others) if name and belonging_to(tmp_path / name)]
    assert owners == [photo] * bool(photo)


@pytest.mark.parametrize("beside", [
    "NKSC_PARAM/IMG_1.jpg.nksc", "CaptureOne/Settings131/IMG_1.jpg.cos", "SILKYPIX_DS/IMG_1.JPG.9.spd",
    "IMG_1.vrd", "IMG_1.fff", "IMG_1_HEVC.MOV", "IMG_1.jpg_original", "IMG_1",
])  # fmt: skip
def test_what_programs_write_belongs_to_its_photo(tmp_path, beside):
    make_library(
        tmp_path, {"IMG_1.jpg": 20, "IMG_10.jpg": 30, "CaptureOne/Cache/Proxies/IMG_1.jpg.cop": 4, beside: 5}
    )
    assert [belonging_to(tmp_path / name) for name in ("IMG_1.jpg", "IMG_10.jpg")] == [
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
        assert Sidecars(tmp_path).described(catalogue.photos()[0]) == {"keywords": ["Album|To the sea"]}


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
    assert beside.described(of_year) == {}
    assert beside.described(of_trip) == {
        "caption": "At the sea", "place": "-33.500000 151.250000", "people": ["Anna"], "keywords": ["Album|To the sea"],
    }  # fmt: skip
    told = carried(tmp_path, of_year, [of_trip], beside.described)
    assert told.entries[0].lost_in_words == "people", "whose names no sidecar is given"
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
        assert Sidecars(tmp_path).described(catalogue.photos()[0]) == {}
