"""What only a photo that leaves says is written beside the one that stays: offered, confirmed, undone, in no photo."""

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.command import photodup, run_command
from support.review_library import client_of, described_by_xmp, exif, group_of, photo, write, xmp
from support.trash_kills import at_home, make_library, note, present, removal

from photodup.core.errors import PhotodupError
from photodup.photos.library.carried import NAMESPACES, merge_into, properties_of
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.inventory import unpack
from photodup.photos.library.scan import scan
from photodup.photos.library.sidecars import xmp_of
from photodup.photos.review.serve import ReviewServer
from photodup.photos.review.session import MARKED, SKIPPED, TODO, ReviewSession
from photodup.photos.trash.entries import TrashError
from photodup.photos.trash.files import md5_of
from photodup.photos.trash.quarantine import Trash

SAID = {
    "date": "2022-05-17T18:10:00.25+02:00", "rating": "4", "label": "Green", "title": "Low <tide> & sea",
    "caption": "two\nlines", "keywords": ["Animals|Dog", "sea"], "author": ["Ann", "Bo"], "copyright": "Ann",
    "city": "Lindau", "state": "Bavaria", "country": "Germany", "location": "Harbour",
}  # fmt: skip
PLACE = "-48.201389 11.501389"


def flat(said: dict) -> dict:
    return {name: value for some in properties_of(said).values() for name, value in some.items()}


# ---- the sidecar ---------------------------------------------------------------------------------------------


def test_a_new_sidecar_says_all_of_it_in_the_standard_properties():
    data = merge_into(None, flat(SAID | {"place": PLACE}))
    assert data and described_by_xmp(data) == SAID | {"place": PLACE}
    tree = ElementTree.fromstring(data)
    found = {element.tag.removeprefix("{").replace("}", " ") for element in tree.iter()}
    for name in ("exif:DateTimeOriginal", "photoshop:DateCreated", "exif:GPSLatitude", "exif:GPSLongitude", "xmp:Rating",
                 "xmp:Label", "dc:title", "dc:description", "dc:subject", "lr:hierarchicalSubject"):  # fmt: skip
        prefix, local = name.split(":")
        assert f"{NAMESPACES[prefix]} {local}" in found, name


TAGS = "<dc:subject><rdf:Bag><rdf:li>sea</rdf:li></rdf:Bag></dc:subject><!-- mine -->"
EDITS = '<crs:Exposure xmlns:crs="http://ns.adobe.com/camera-raw-settings/1.0/">+1.2</crs:Exposure>'


@pytest.mark.parametrize("old", [
    xmp('xmp:Rating="5"', TAGS + EDITS),
    xmp("", TAGS.replace("Bag", "Seq")).replace("rdf:", "r:").replace("xmlns:rdf", "xmlns:r"),
    xmp('rdf:about="uuid:1"', "").replace("\n", "\r\n"),
    "\ufeff" + xmp("", EDITS),
])  # fmt: skip
def test_what_stands_in_a_sidecar_stays_byte_for_byte(old):
    new = merge_into(old.encode(), {"dc:subject": ["tide", "\u00e9"], "dc:title": "Low tide"})
    assert new is not None
    left = old.encode()
    for byte in new:  # all of it is there, in its order
        left = left[byte == left[0] :] if left else left
    before = described_by_xmp(old.encode())
    words = sorted({*before.get("keywords", ()), "tide", "\u00e9"})
    assert not left and described_by_xmp(new) == before | {"title": "Low tide", "keywords": words}
    assert new.count(b"subject>") == 2, "one list, as XMP has it"


@pytest.mark.parametrize(("old", "new"), [
    (xmp('xmp:Rating="0"'), {"xmp:Rating": "5"}),
    (xmp("", "<dc:title/>"), {"dc:title": "Low tide"}),
    (xmp("", TAGS.replace("<rdf:Bag><rdf:li>sea</rdf:li></rdf:Bag>", "<rdf:Bag/>")), {"dc:subject": ["tide"]}),
    (xmp("", "<dc:subject>sea</dc:subject>"), {"dc:subject": ["tide"]}),
    ("<x:xmpmeta/>", {"dc:title": "a"}), ("", {"dc:title": "a"}), (xmp()[:-20], {"dc:title": "a"}),
    ('<!DOCTYPE a [<!ENTITY b "b">]>' + xmp(), {"dc:title": "a"}),
    (xmp() + " " * 4_000_000, {"dc:title": "a"}),
])  # fmt: skip
def test_what_says_otherwise_or_cannot_be_read_is_left(old, new):
    assert merge_into(old.encode(), new) is None
    assert merge_into(xmp().encode("utf-16"), {"dc:title": "\u00e9"}) is None


@given(st.text(max_size=40), st.lists(st.text(max_size=20), max_size=4))
def test_any_text_is_text(title, words):
    data = merge_into(xmp("", TAGS).encode(), {"dc:title": title, "dc:subject": words})
    if data:  # else an empty one, or one that XML would change
        said = described_by_xmp(data)
        assert {"title", "keywords"} >= said.keys() and "sea" in said["keywords"]
    plain = merge_into(None, {"dc:title": "]]>&<x/>\"'" + title, "dc:subject": ["<rdf:li>"]})
    assert plain is None or b"&lt;rdf:li&gt;" in plain


def test_what_is_not_known_whole_is_not_written():
    assert properties_of({"caption": "a" * 2000, "title": "a" * 1999, "rating": "9", "date": "2022-05"}) == {
        "title": {"dc:title": "a" * 1999}
    }
    assert properties_of({"keywords": list(map(str, range(1000))), "people": ["Ann"], "camera": "A"}) == {}
    assert described_by_xmp(merge_into(None, {"dc:description": "one\r\ntwo\0"}) or b"") == {
        "caption": "one\ntwo"
    }


def test_where_a_photo_was_taken(tmp_path):
    for name, data in {"n.jpg": exif(), "s.jpg": exif().replace(b"N\0\0\0", b"S\0\0\0", 1)}.items():
        write(Image.new("RGB", (8, 8)), tmp_path / name, data=data)
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        places = [unpack(photo.inventory).kinds["place"] for photo in catalogue.photos()]
    assert places == ["48.201389 11.501389", PLACE]
    for text in ("48,12.083333S", "48,12,5S", "-48.201389"):
        position = f'exif:GPSLatitude="{text}" exif:GPSLongitude="11,30.083333E"'
        packet = xmp(f'{position} xmlns:exif="http://ns.adobe.com/exif/1.0/"').encode()
        assert described_by_xmp(packet)["place"] == PLACE
    assert (
        described_by_xmp(xmp('exif:GPSLatitude="1,2N" xmlns:exif="http://ns.adobe.com/exif/1.0/"').encode())
        == {}
    )


def test_a_sidecar_of_several_photos_is_none_of_one(tmp_path):
    for name in ("a.jpg", "b.jpg", "b.png", "c.jpg", "a.xmp", "b.xmp", "c.jpg.xmp", "c.xmp"):
        (tmp_path / name).touch()
    names = [xmp_of(tmp_path / f"{letter}.jpg").name for letter in "abc"]
    assert names == ["a.xmp", "b.jpg.xmp", "c.jpg.xmp"]


# ---- the trash -----------------------------------------------------------------------------------------------

WORK = {"keep.jpg": 30, "keep.jpg.xmp": 8, "copy.jpg": 20, "k2.jpg": 31, "c2.jpg": 21}


def remove(folder: Path, md5: dict[str, str], names=("copy.jpg", "c2.jpg"), **options):
    keepers = {"copy.jpg": "keep.jpg", "c2.jpg": "k2.jpg"}
    notes = [note(folder, md5, f"{keepers[name]}.xmp", name, **options) for name in names]
    return Trash(folder).remove([removal(folder, md5, name, keepers[name], ()) for name in names], notes)


def test_undo_restores_the_sidecar_and_removes_the_new_one(tmp_path):
    md5 = make_library(tmp_path, WORK)
    status = (tmp_path / "keep.jpg.xmp").stat()
    done, refused = remove(tmp_path, md5)
    assert (len(done), refused) == (4, [])
    assert (
        (tmp_path / "keep.jpg.xmp").read_bytes()
        == (tmp_path / "k2.jpg.xmp").read_bytes()
        == b"what they said"
    )
    assert all(present(tmp_path)[name] == md5[name] for name in ("keep.jpg", "k2.jpg"))
    later, _ = remove(tmp_path, present(tmp_path), (), data=b"")
    assert later == []
    Trash(tmp_path).restore(done)
    assert present(tmp_path) == md5
    assert (tmp_path / "keep.jpg.xmp").stat().st_mtime_ns == status.st_mtime_ns


def test_a_sidecar_that_was_written_twice_comes_back_the_way_it_went(tmp_path):
    md5 = make_library(tmp_path, WORK)
    both = [removal(tmp_path, md5, name, "keep.jpg", ()) for name in ("copy.jpg", "c2.jpg")]
    Trash(tmp_path).remove(both[:1], [note(tmp_path, md5, "keep.jpg.xmp", "copy.jpg")])
    again = note(tmp_path, present(tmp_path), "keep.jpg.xmp", "c2.jpg", data=b"and more")
    Trash(tmp_path).remove(both[1:], [again])
    with pytest.raises(TrashError, match=r"keep\.jpg\.xmp was changed since photodup wrote it: it stays"):
        Trash(tmp_path).restore([o for o in Trash(tmp_path).contents().listing if o.written][1:])
    Trash(tmp_path).restore(Trash(tmp_path).contents().listing)
    assert present(tmp_path) == md5


def test_what_the_owner_wrote_since_stays(tmp_path):
    """Before the removal: the photo stays too. After it: undo brings the photo, and leaves the sidecar."""
    md5 = make_library(tmp_path, WORK)
    (tmp_path / "keep.jpg.xmp").write_bytes(b"mine")
    (tmp_path / "k2.jpg.xmp").write_bytes(b"mine")
    done, refused = remove(tmp_path, md5)
    assert done == [] and len(refused) == 2 and "has changed since the list was shown" in refused[0][1]
    assert {md5_of(tmp_path / f"{n}.jpg.xmp") for n in ("keep", "k2")} == {md5_of(tmp_path / "k2.jpg.xmp")}
    (tmp_path / "k2.jpg.xmp").unlink()
    done, _ = remove(tmp_path, md5, ("c2.jpg",))
    (tmp_path / "k2.jpg.xmp").write_bytes(b"mine")
    with pytest.raises(TrashError, match="it stays as it is"):
        Trash(tmp_path).restore(done)
    assert (tmp_path / "k2.jpg.xmp").read_bytes() == b"mine" and (tmp_path / "c2.jpg").exists()


def test_no_photo_is_written_and_no_note_is_left_for_a_photo_that_stays(tmp_path):
    md5 = make_library(tmp_path, WORK)
    written = note(tmp_path, md5, "keep.jpg", "copy.jpg")
    done, refused = Trash(tmp_path).remove([removal(tmp_path, md5, "copy.jpg", sidecars=())], [written])
    assert done == [] and "is no XMP sidecar" in refused[0][1]
    (tmp_path / "k2.jpg.xmp").symlink_to(tmp_path / "keep.jpg")
    assert remove(tmp_path, md5, ("c2.jpg",))[0] == []
    (tmp_path / "k2.jpg.xmp").unlink()
    (tmp_path / "copy.jpg").write_bytes(b"changed")
    assert remove(tmp_path, md5, ("copy.jpg",))[0] == [], "its sidecar is as it was"
    assert present(tmp_path) == md5 | {"copy.jpg": md5_of(tmp_path / "copy.jpg")}


@pytest.mark.parametrize("change", [{"sig": ""}, {"home": "keep.jpg"}, {"home": "../x.xmp"}])
def test_no_line_of_anothers_and_none_about_a_photo_deletes_what_was_written(tmp_path, change):
    from photodup.photos.state.own_key import own_key
    from photodup.photos.trash.entries import sign

    md5 = make_library(tmp_path, WORK)
    remove(tmp_path, md5, ("c2.jpg",))
    journal = tmp_path / ".photodup-trash" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for number, line in enumerate(lines):
        if line["written"]:
            if "home" in change:
                line["written"] |= {"md5": md5["keep.jpg"], "size": 30} | change
            line.pop("sig")
            lines[number] = line if "sig" in change else sign(own_key(), line)
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trash = Trash(tmp_path)
    trash.restore([*trash.contents().listing, *trash.contents().unsigned], confirmed=True)
    assert md5_of(tmp_path / "keep.jpg") == md5["keep.jpg"] and (tmp_path / "k2.jpg.xmp").exists()
    assert bool(trash.contents().problems) == ("home" in change)


# ---- the review ----------------------------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path):
    """The larger copies are bare; the small ones say: one a date by its sidecar, one a camera, one another rating."""
    for number, name in enumerate(("coffee", "chelsea", "rocket")):
        image = photo(name).resize((480, 320))
        write(image, tmp_path / f"{name}.jpg")
        write(image.resize((240, 160)), tmp_path / f"small {name}.jpg", data=exif() if number == 1 else b"")
    (tmp_path / "small coffee.jpg.xmp").write_text(xmp('xmp:Rating="4"', TAGS))
    (tmp_path / "small rocket.jpg.xmp").write_text(xmp('xmp:Rating="4"', TAGS))
    (tmp_path / "rocket.xmp").write_text(xmp('xmp:Rating="2"'))
    scan(tmp_path, progress=False)
    return tmp_path


def test_the_offer_is_seen_before_anything_is_written_and_undone_with_the_rest(library):
    session, before = ReviewSession(library), at_home(library)
    coffee, cat, rocket = (group_of(session, f"{name}.jpg") for name in ("coffee", "chelsea", "rocket"))
    assert session.accept_all() == 0 and session.n_held_back == 3, "what they say holds all three back"
    assert session.carry_all() == 1, "the camera and the other rating cannot be written: those two stay"
    assert [item.status for item in (coffee, cat, rocket)] == [MARKED, TODO, TODO]
    (told,) = session.transfers()[coffee.key].entries
    assert (told.written, told.conflicting, told.lost) == ({"rating": "4", "keywords": "sea"}, {}, {})
    assert at_home(library) == before
    plan = session.plan(session.transfers())
    (library / "coffee.jpg.xmp").write_text(xmp('xmp:Rating="1"'))
    with pytest.raises(PhotodupError, match="look at the list again"):
        session.apply(plan)
    (library / "coffee.jpg.xmp").unlink()
    outcome = session.apply(plan)
    assert (outcome.n_removed, outcome.n_written, outcome.refused) == (1, 1, ())
    assert described_by_xmp((library / "coffee.jpg.xmp").read_bytes()) == {"rating": "4", "keywords": ["sea"]}
    assert not (library / "small coffee.jpg").exists()
    assert md5_of(library / "coffee.jpg") == before["coffee.jpg"]
    session.undo()
    assert at_home(library) == before


def test_a_conflict_keeps_the_keepers_word_and_says_so(library):
    session, before = ReviewSession(library), at_home(library)
    rocket, cat = (group_of(session, f"{name}.jpg") for name in ("rocket", "chelsea"))
    session.carry(rocket.key, rocket.members[0].photo.id)
    session.carry(cat.key, cat.members[0].photo.id)
    told = session.transfers()
    assert told[rocket.key].entries[0].conflicting == {"rating": ("2", "4")}
    assert told[rocket.key].sidecar == "rocket.xmp"
    assert told[cat.key].entries[0].lost.keys() == {"camera"}
    assert set(told[cat.key].entries[0].written) == {"date", "place"}
    session.apply()
    assert described_by_xmp((library / "rocket.xmp").read_bytes()) == {"rating": "2", "keywords": ["sea"]}
    assert (library / "rocket.xmp").read_text().count("<rdf:Description ") == 2
    session.undo()
    assert at_home(library) == before


def test_one_photo_of_the_list_is_unmarked_or_removed_without_writing(library):
    session = ReviewSession(library)
    session.carry_all()
    coffee = group_of(session, "coffee.jpg")
    small = coffee.members[0].photo
    session.change_mark(coffee.key, small.id, "bare")
    assert session.transfers() == {} and coffee.remove == {small.id}
    assert group_of(ReviewSession(library), "coffee.jpg").bare == {small.id}, "remembered"
    session.change_mark(coffee.key, small.id, "write")
    assert session.transfers()
    session.change_mark(coffee.key, small.id, "keep")
    assert (coffee.status, coffee.remove) == (SKIPPED, frozenset())
    session.undo()
    assert (coffee.status, coffee.remove) == (MARKED, {small.id})
    for wrong in ((coffee.key, 10**6, "keep"), (coffee.key, small.id, "odd")):
        with pytest.raises(PhotodupError, match="Choose a photo that is marked"):
            session.change_mark(*wrong)


def test_a_photo_that_came_back_is_not_removed_without_writing_again(library):
    session = ReviewSession(library)
    session.carry_all()
    coffee = group_of(session, "coffee.jpg")
    session.change_mark(coffee.key, coffee.members[0].photo.id, "bare")
    session.apply()
    session.restore([operation.id for operation in session.trash.contents().listing])
    session.carry_all()
    assert coffee.key in session.transfers()


def test_marking_all_that_can_be_written_leaves_what_goes_without_writing(library):
    write(photo("coffee").resize((480, 320)).resize((180, 120)), library / "tiny coffee.jpg")
    (library / "tiny coffee.jpg.xmp").write_text(xmp('xmp:Rating="4"'))
    scan(library, progress=False)
    session = ReviewSession(library)
    coffee = group_of(session, "coffee.jpg")
    small, tiny = sorted((member.photo for member in coffee.members), key=lambda member: member.path)
    session.carry(coffee.key, small.id)
    session.change_mark(coffee.key, small.id, "bare")
    assert session.carry_all() == 1 and coffee.remove == {small.id, tiny.id}
    assert coffee.bare == {small.id}
    (entry,) = session.transfers()[coffee.key].entries
    assert entry.leaving == tiny


def test_the_page_offers_shows_and_changes_it(library):
    with ReviewServer(library) as server, client_of(server) as client:
        keys = {name: group_of(server.session, f"{name}.jpg").key for name in ("coffee", "chelsea", "rocket")}
        shown = {name: client.get(f"group/{key}").text for name, key in keys.items()}
        assert "<q>4</q>" in shown["coffee"] and "Write it and remove this one" in shown["coffee"]
        assert "goes with the file: camera" in shown["chelsea"]
        assert "Keep this one instead” keeps" in shown["chelsea"]
        assert "<q>2</q> stays, <q>4</q> goes" in shown["rocket"]
        assert "3 more copies are held back only for what they say" in client.get("confirm").text
        assert client.post("carry-all").status_code == 303
        (small,) = (member.photo.id for member in server.session.items[keys["coffee"]].members)
        listed = client.get("confirm").text
        assert "Written into <bdi>coffee.jpg.xmp</bdi>: rating <q>4</q>, keywords <q>sea</q>." in listed
        assert "2 more copies" in listed and f'value="keep {keys["coffee"]} {small}"' in listed
        client.post("list", data={"change": f"bare {keys['coffee']} {small}", "number": "1"})
        assert "Written into" not in (listed := client.get("confirm").text) and "Write what it says" in listed
        client.post("list", data={"change": f"write {keys['coffee']} {small}", "number": "1"})
        client.post(f"group/{keys['rocket']}", data={"action": "carry", "photo": str(small + 10**6)})
        assert client.post("carry-all").status_code == 200, "nothing more can be written whole"
        plan = re.search(r'name="plan" value="(\w+)"', client.get("confirm").text)[1]
        client.post("remove", data={"plan": plan})
        trash = client.get("trash").text
        assert "1 moved" in trash and "1 sidecar written" in trash and "new: restoring deletes it" in trash
        assert "Delete 1 photo for good?" in client.get("empty-trash").text
        listed = run_command("trash", "list", library)
        assert "coffee.jpg.xmp  (written from small coffee.jpg)" in listed
        client.post("undo")
        assert not (library / "coffee.jpg.xmp").exists() and (library / "small coffee.jpg").exists()


def test_a_hard_link_and_a_link_are_named(library):
    from photodup.photos.library.hard_links import bytes_freed
    from photodup.photos.review.pictures import links_to

    session = ReviewSession(library)
    session.carry_all()
    small = group_of(session, "coffee.jpg").members[0].photo
    os.link(library / "small coffee.jpg", library / "other name")
    (library / "album").mkdir()
    (library / "album" / "best.jpg").symlink_to("../small coffee.jpg")
    assert bytes_freed(library, [small]) == {small.id: 0}
    assert links_to(library, [small]) == {small.id: ["album/best.jpg"]}
    (library / "other").mkdir()
    assert links_to(library, [small], ["other"]) == {}, "looked for only where photos are reviewed"
    assert links_to(library, [small], ["other", "album"]) == links_to(library, [small])


def test_hard_links_free_nothing_on_the_page_and_for_the_command(tmp_path):
    coffee, chelsea = photo("coffee"), photo("chelsea")
    for name, image, size in (
        ("a", coffee, (600, 400)),
        ("b", coffee, (300, 200)),
        ("c", chelsea, (451, 300)),
    ):
        write(image.resize(size), tmp_path / f"{name}.jpg")
    os.link(tmp_path / "b.jpg", tmp_path / "b2.jpg")  # both leave: together they free one file
    os.link(tmp_path / "c.jpg", tmp_path / "c2.jpg")  # one stays
    scan(tmp_path, progress=False)
    session = ReviewSession(tmp_path)
    size = (tmp_path / "b.jpg").stat().st_size
    assert session.bytes_left == size and group_of(session, "c.jpg").bytes_to_free == 0
    session.accept_all()
    assert sum(item.marked_bytes for item in session.items.values()) == size
    groups = json.loads(photodup("group", tmp_path, "--json").stdout)["groups"]
    assert f"({size / 1e6:.1f} MB to free)" in run_command("group", tmp_path)
    members = {one["path"]: one for group in groups for one in group["members"]}
    assert [one["suggested"] for one in members.values()] == [True] * 3
    assert sorted(one["frees"] for one in members.values()) == [0, 0, size]
    assert {group["keep"]["path"]: group["keep"]["rule"] for group in groups} == {
        "a.jpg": "reproduces",
        "c.jpg": None,
    }
    os.link(tmp_path / "b.jpg", tmp_path / "elsewhere")
    session.refresh()
    assert sum(item.marked_bytes for item in session.items.values()) == 0, (
        "a name that is no photo counts, too"
    )


@pytest.mark.parametrize("new", [{"dc:title": "\0\1"}, {"dc:subject": ["\2"]}, {"xmp:Label": " "}], ids=str)
def test_a_text_of_which_xml_can_hold_nothing_is_not_called_written(new):
    assert merge_into(None, new) is None
