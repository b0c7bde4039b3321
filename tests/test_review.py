"""The review over real HTTP: decide, remove, undo, restart; nothing is mocked."""

import errno
import os
import re
from pathlib import Path

import httpx
import pytest
from review_library import HOSTILE, make_library

from photodup.errors import PhotodupError
from photodup.photos.feedback import Feedback
from photodup.photos.library import Catalogue, scan
from photodup.photos.review.items import DONE, MARKED, SKIPPED, TODO
from photodup.photos.review.pictures import exif
from photodup.photos.review.serve import ReviewServer
from photodup.photos.review.session import ReviewSession
from photodup.photos.trash import TRASH_FOLDER, Trash


@pytest.fixture
def library(tmp_path):
    return make_library(tmp_path / "library")


@pytest.fixture
def session(library):
    return ReviewSession(library)


def files(folder: Path) -> set[str]:
    found = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return {str(p) for p in found if not p.parts[0].startswith(".")}


def group_of(session, name):
    return next(i for i in session.items.values() if any(p.path.name == name for p in i.photos))


def test_groups_are_what_was_planted(session):
    names = {frozenset(str(p.path) for p in item.photos) for item in session.items.values()}
    assert names == {
        frozenset({"2020/IMG_1.jpg", "Shared/small coffee.jpg"}),
        frozenset({"2020/IMG_2.jpg", f"Edited/{HOSTILE}"}),
        frozenset({"2021/IMG_3.jpg", "Backup/IMG_3.jpg"}),
    }
    assert {str(item.group.keeper.path) for item in session.items.values()} >= {
        "2020/IMG_1.jpg",
        "2020/IMG_2.jpg",
    }
    assert session.tiers.model is None and session.tiers.search == "by hash only"


def test_accept_remove_undo(session, library):
    before = files(library)
    assert session.accept_all() == 3
    assert files(library) == before, "marking moves nothing"
    outcome = session.apply()
    assert (outcome.n_removed, outcome.refused) == (3, ())
    gone = before - files(library)
    assert gone >= {"Shared/small coffee.jpg", "Shared/small coffee.jpg.xmp"}, "the sidecar goes along"
    assert "2020/IMG_1.xmp" in files(library), "and the kept photo's stays"
    assert all(item.status == DONE for item in session.items.values())
    assert len(session.feedback.labelled_pairs()) == 2, "two accepted copies; equal bytes say nothing"
    with Catalogue(library) as catalogue:
        assert len(catalogue.photos()) == 4
    session.undo()
    assert files(library) == before
    assert all(item.status == MARKED for item in session.items.values())
    assert session.feedback.labelled_pairs() == {}
    with Catalogue(library) as catalogue:
        assert len(catalogue.photos()) == 7
    session.undo()
    assert all(item.status == TODO for item in session.items.values())
    with pytest.raises(PhotodupError, match="nothing to undo"):
        session.undo()


def test_a_group_never_loses_its_last_photo(session):
    key = next(iter(session.items))
    with pytest.raises(PhotodupError, match="at least one"):
        session.accept(key, [])
    with pytest.raises(PhotodupError, match="at least one"):
        session.accept(key, [999_999])


def test_a_changed_file_is_refused_and_said(session, library):
    session.accept_all()
    (library / "Shared" / "small coffee.jpg").write_bytes(b"edited meanwhile")
    outcome = session.apply()
    assert outcome.n_removed == 2
    assert len(outcome.refused) == 1 and "changed since the scan" in outcome.refused[0]
    assert (library / "Shared" / "small coffee.jpg").read_bytes() == b"edited meanwhile"
    assert group_of(session, "small coffee.jpg").status == MARKED, "it stays to be decided"


def test_not_a_duplicate_survives_rename_rescan_and_restart(session, library):
    item = group_of(session, "IMG_1.jpg")
    session.set_apart(item.key, item.members[0][0].id, "not_duplicate")
    (library / "Shared" / "small coffee.jpg").rename(library / "renamed.jpg")
    scan(library, progress=False)
    again = ReviewSession(library)
    assert len(again.items) == 2
    assert list(again.feedback.labelled_pairs().values()) == [False]


def test_keep_both_is_not_asked_again_and_says_nothing_about_thresholds(session, library):
    item = group_of(session, "IMG_1.jpg")
    session.set_apart(item.key, item.members[0][0].id, "keep_both")
    again = ReviewSession(library)
    assert len(again.items) == 2 and again.feedback.labelled_pairs() == {}
    session.undo()
    assert len(ReviewSession(library).items) == 3


def test_decisions_survive_a_restart(session, library):
    first, second, _ = session.items
    session.accept(first, [session.items[first].photos[-1].id])
    session.skip(second)
    again = ReviewSession(library)
    assert [item.status for item in again.items.values()] == [MARKED, SKIPPED, TODO]
    assert again.items[first].remove == session.items[first].remove


def test_choosing_another_keeper_is_remembered(session, library):
    item = group_of(session, "IMG_1.jpg")
    other = item.members[0][0]
    session.accept(item.key, [other.id])
    session.apply()
    assert "2020/IMG_1.jpg" not in files(library)
    assert Feedback(library / ".photodup").keepers() == {other.md5}


def test_a_damaged_catalogue_is_one_sentence_and_costs_no_decision(session, library):
    item = group_of(session, "IMG_1.jpg")
    session.set_apart(item.key, item.members[0][0].id, "not_duplicate")
    for file in (library / ".photodup").glob("catalogue.sqlite*"):
        file.write_bytes(b"damaged" * 1000)
    with pytest.raises(PhotodupError, match=r"damaged.*photodup scan"):
        ReviewSession(library)
    report = scan(library, progress=False)
    assert report.set_aside.read_bytes().startswith(b"damaged") and "begun anew" in str(report)
    assert len(ReviewSession(library).items) == 2, "the label outlived the catalogue"
    assert scan(library, progress=False).set_aside is None


def test_damage_deep_inside_a_catalogue_is_found_by_the_next_scan(session, library):
    """Page by page: a header that is whole says nothing about the rest."""
    session.skip(next(iter(session.items)))
    path = library / ".photodup" / "catalogue.sqlite"
    with Catalogue(library) as catalogue:
        catalogue.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes()
    n_found = 0
    for page in range(1, len(whole) // 4096):
        path.write_bytes(whole[: page * 4096] + b"\xff" * 4096 + whole[(page + 1) * 4096 :])
        for leftover in ("-wal", "-shm"):
            path.with_name(path.name + leftover).unlink(missing_ok=True)
        report = scan(library, progress=False)
        n_found += report.set_aside is not None
        with Catalogue(library) as catalogue:
            assert len(catalogue.photos()) == 7
            catalogue.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert n_found == len(whole) // 4096 - 1
    assert [item.status for item in ReviewSession(library).items.values()].count(SKIPPED) == 1


@pytest.mark.parametrize("action", ["skip", "accept", "accept_all", "undo"])
def test_a_decision_that_cannot_be_written_is_not_taken(session, monkeypatch, action):
    key = next(iter(session.items))
    session.skip(key)
    before = [(item.status, item.remove) for item in session.items.values()]

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    arguments = {"skip": [list(session.items)[1]], "accept": [key, [session.items[key].photos[0].id]]}
    with pytest.raises(PhotodupError, match="free some space"):
        getattr(session, action)(*arguments.get(action, []))
    monkeypatch.undo()
    assert [(item.status, item.remove) for item in session.items.values()] == before
    session.undo()
    assert {item.status for item in session.items.values()} == {TODO}


def test_ten_thousand_groups_stay_fluid(session, library, monkeypatch):
    """Marking all writes once, and a page shows a page: no step grows with the square of the groups."""
    from dataclasses import replace

    group = next(iter(session.items.values())).group
    many = tuple(
        replace(
            group, choice=replace(group.choice, keeper=replace(group.keeper, id=100_000 + i, md5=f"{i:032x}"))
        )
        for i in range(10_000)
    )
    large = ReviewSession(library, find=lambda catalogue: replace(session.tiers, copies=many))
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor))
    assert large.accept_all() == 10_000
    assert len(synced) <= 3, "ten thousand decisions are one write"
    large.undo()
    assert len(synced) <= 6, "and so is taking them back"
    assert {item.status for item in large.items.values()} == {TODO}
    assert large.accept_all() == 10_000
    monkeypatch.undo()
    with ReviewServer(library, find=lambda catalogue: replace(session.tiers, copies=many)) as running:
        text = httpx.get(running.url + "?number=200", timeout=20).text
        assert "Page 200 of 417" in text and text.count('class="card') == 24


def test_two_reviewers_at_once(session, library):
    second = ReviewSession(library)
    session.accept_all()
    second.accept_all()
    assert session.apply().n_removed == 3
    outcome = second.apply()
    assert outcome.n_removed == 0 and all("no longer there" in s for s in outcome.refused)
    assert len(Trash(library).listing()) == 3, "nothing is removed twice, nothing is lost"


def test_restore_takes_the_file_back_into_the_groups(session):
    session.accept_all()
    session.apply()
    operation = next(o for o in session.trash.listing() if "coffee" in o.files[0].home)
    session.restore([operation.id])
    assert group_of(session, "small coffee.jpg").group.tier == "copies"


# ---- the pages ------------------------------------------------------------------------------------------


@pytest.fixture
def server(library):
    with ReviewServer(library) as running:
        yield running


def test_every_page_answers_and_escapes(server):
    with httpx.Client(base_url=server.url) as client:
        key = group_of(server.session, HOSTILE).key
        for path in (
            "",
            "?tier=similar",
            "?tier=copies&status=todo&number=7",
            f"group/{key}",
            "confirm",
            "trash",
            "settings",
        ):
            answer = client.get(path)
            assert answer.status_code == 200, path
            assert "<img src=x" not in answer.text and "<b>Camera" not in answer.text, path
        assert "&lt;img src=x" in client.get(f"group/{key}").text
        assert client.get("group/nowhere").status_code == 409
        assert "no longer there" in client.get("group/nowhere").text


def test_a_decision_over_http(server, library):
    origin = {"Origin": f"http://127.0.0.1:{server.port}"}
    with httpx.Client(base_url=server.url, headers=origin) as client:
        item = group_of(server.session, "IMG_1.jpg")
        data = {"action": "accept", "photo": "0", "keep": [str(item.group.keeper.id)]}
        answer = client.post(f"group/{item.key}", data=data)
        assert answer.status_code == 303 and "/group/" in answer.headers["location"]
        assert client.post("remove").status_code == 303
        assert not (library / "Shared" / "small coffee.jpg").exists()
        assert "1 moved" in client.get("trash").text
        assert "back in their folders" in client.post("undo").text
        assert (library / "Shared" / "small coffee.jpg").exists()
        assert client.post(f"group/{item.key}", data={"action": "explode"}).status_code == 409
        assert client.post(f"group/{item.key}", data={"action": "accept", "keep": "x"}).status_code == 409


def test_a_removed_group_asks_for_no_picture_that_is_gone(server):
    origin = {"Origin": f"http://127.0.0.1:{server.port}"}
    with httpx.Client(base_url=server.url, headers=origin, timeout=60) as client:
        assert "Removing every copy suggested below" in client.get("").text
        server.session.accept_all()
        server.session.apply()
        text = client.get("").text
        assert "Every suggested copy is decided" in text and "in the trash" in text
        assert "<button disabled>Mark all" in text
        shown = re.findall(r"photo/(\d+)/small\.jpg", text)
        assert len(shown) == 3 and {client.get(f"photo/{i}/small.jpg").status_code for i in shown} == {200}
        key = next(iter(server.session.items))
        assert "This group is done" in client.get(f"group/{key}").text


def test_undoing_one_decision_leads_back_to_its_group(server):
    origin = {"Origin": f"http://127.0.0.1:{server.port}"}
    with httpx.Client(base_url=server.url, headers=origin, timeout=60) as client:
        for key in list(server.session.items)[:2]:
            client.post(f"group/{key}", data={"action": "skip"})
        answer = client.post("undo")
        assert answer.status_code == 303 and answer.headers["location"].endswith(f"/group/{key}")
        server.session.accept_all()
        assert "Undone" in client.post("undo").text, "several groups have no one page to go to"


def test_pictures_are_scaled_and_cached(server, library):
    photo = server.session.items[next(iter(server.session.items))].group.keeper
    for size, longest in (("small", 360), ("screen", 1600)):
        answer = httpx.get(f"{server.url}photo/{photo.id}/{size}.jpg")
        assert answer.headers["content-type"] == "image/jpeg"
        assert len(list((library / ".photodup" / "thumbnails").rglob(f"*-{size}.jpg"))) == 1
        from io import BytesIO

        from PIL import Image

        assert max(Image.open(BytesIO(answer.content)).size) == min(longest, max(photo.width, photo.height))


def test_exif_is_read_and_broken_exif_is_nothing(library):
    with Catalogue(library) as catalogue:
        photos = {str(p.path): p for p in catalogue.photos()}
    assert exif(library, photos["2020/IMG_1.jpg"])["DateTimeOriginal"] == "2020:05:16 09:00:00"
    os.utime(library / "2020" / "IMG_1.jpg", (1, 1))
    assert exif(library, photos["2020/IMG_1.jpg"]) == {}, "a changed file is not read"


def test_details_say_what_was_photographed_and_not_how_a_tiff_is_laid_out(library):
    from photodup.photos.review.facts import _words, compare

    with Catalogue(library) as catalogue:
        before = {str(p.path): p for p in catalogue.photos()}
        with_date = before["2020/IMG_1.jpg"]
    from PIL import Image

    Image.open(library / with_date.path).convert("RGB").save(library / "2020" / "scan.tif")
    scan(library, progress=False)
    with Catalogue(library) as catalogue:
        tiff = next(p for p in catalogue.photos() if p.path.name == "scan.tif")
    names = {row.name for row in compare(library, with_date, tiff) if row.is_detail}
    assert not names & {"Bits per sample", "Image width", "Strip offsets", "Compression"}
    assert {row.name: row.right for row in compare(library, with_date, tiff)}["Metadata"] == "0 fields"
    assert _words("FocalLengthIn35mmFilm") == "Focal length in 35mm film"
    assert _words("ISOSpeedRatings") == "ISO speed ratings" and _words("Artist") == "Artist"


def test_a_port_in_use_is_one_sentence(server, library):
    with pytest.raises(PhotodupError, match=f"Port {server.port} for the review page is in use"):
        ReviewServer(library, port=server.port)


def test_the_trash_commands(library, capsys):
    from photodup.photos.trash_commands import list_trash, purge_trash, restore_trash

    session = ReviewSession(library)
    session.accept_all()
    session.apply()
    names = [operation.id for operation in session.trash.listing()]
    list_trash(library)
    assert "3 removals" in capsys.readouterr().out
    restore_trash(library, names[:1])
    with pytest.raises(PhotodupError, match="Not in the trash"):
        restore_trash(library, names[:1])
    with pytest.raises(PhotodupError, match="add --yes"):
        purge_trash(library, (), yes=False)
    assert len(Trash(library).listing()) == 2
    purge_trash(library, (), yes=True)
    assert Trash(library).listing() == []
    assert not list((library / TRASH_FOLDER / "items").rglob("*"))
