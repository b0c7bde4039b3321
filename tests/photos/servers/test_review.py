"""The review over real HTTP: decide, remove, undo, restart; nothing is mocked."""

import errno
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image, ImageCms
from support.command import photodup, run_program
from support.review_library import (
    HOSTILE,
    add_third_copy,
    client_of,
    exif,
    group_of,
    listed,
    photo,
    remove_all,
    save,
    write,
)

from photodup.core.errors import PhotodupError
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.feedback import Feedback
from photodup.photos.library.scan import scan
from photodup.photos.review import pictures
from photodup.photos.review import session as sessions
from photodup.photos.review.pictures import SIZES, photo_picture
from photodup.photos.review.serve import ReviewServer
from photodup.photos.review.session import DONE, MARKED, SKIPPED, TODO, ReviewSession
from photodup.photos.trash.files import TRASH_FOLDER
from photodup.photos.trash.quarantine import Trash


@pytest.fixture
def session(library):
    return ReviewSession(library)


def files(folder: Path) -> set[str]:
    found = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return {str(p) for p in found if not p.parts[0].startswith(".")}


def test_groups_are_what_was_planted(session):
    names = {frozenset(str(p.path) for p in item.photos) for item in session.items.values()}
    assert names == {
        frozenset({"2020/IMG_1.jpg", "Shared/small coffee.jpg"}),
        frozenset({"2020/IMG_2.jpg", f"Edited/{HOSTILE}"}),
        frozenset({"2021/IMG_3.jpg", "Backup/IMG_3.jpg"}),
    }
    assert {str(i.group.keeper.path) for i in session.items.values()} >= {"2020/IMG_1.jpg", "2020/IMG_2.jpg"}
    assert session.tiers.model is None and "embedding" not in session.tiers.search


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
    assert len(listed(library)) == 4
    said = session.undo()
    assert "files are back in their folders: " in said
    assert "small coffee.jpg" in said and "small coffee.jpg.xmp" in said
    assert files(library) == before
    assert all(item.status == MARKED for item in session.items.values())
    assert len(listed(library)) == 7
    session.undo()
    assert all(item.status == TODO for item in session.items.values())
    with pytest.raises(PhotodupError, match="nothing to undo"):
        session.undo()


def test_an_undo_that_is_killed_is_finished_by_the_next_page(tmp_path):
    assert int(run_program("trash_kills", "undo", tmp_path)) > 20


@pytest.mark.parametrize("way", ["undo", "the trash's page"])
def test_what_can_come_back_does_and_the_rest_is_said(session, library, way):
    """One file was deleted from the trash by hand: the others are back, and so says every page."""
    remove_all(session)
    coffee = next(o for o in session.trash.contents().listing if "small coffee" in o.files[0].home)
    for file in coffee.files:
        (library / TRASH_FOLDER / file.trash).unlink()
    with pytest.raises(PhotodupError, match=r"small coffee\.jpg was deleted from the trash by hand"):
        session.undo() if way == "undo" else session.restore([o.id for o in session.trash.contents().listing])
    assert len(listed(library)) == 6, "what is back is in the catalogue again"
    back = MARKED if way == "undo" else TODO
    others = [i for i in session.items.values() if all(p.path.name != "small coffee.jpg" for p in i.photos)]
    assert len(others) == 2 and all(item.status == back for item in others)
    if way == "undo":
        session.undo()  # and the decisions before can be taken back too
        assert all(item.status == TODO for item in session.items.values())


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


def test_what_is_kept_both_ways_is_not_asked_again_after_rename_rescan_and_restart(session, library):
    item = group_of(session, "IMG_1.jpg")
    session.set_apart(item.key, item.members[0].photo.id)
    (library / "Shared" / "small coffee.jpg").rename(library / "renamed.jpg")
    scan(library, progress=False)
    again = ReviewSession(library)
    assert len(again.items) == 2
    assert len(again.feedback.dismissed_pairs()) == 1
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
    other = item.members[0].photo
    session.accept(item.key, [other.id])
    session.apply()
    assert "2020/IMG_1.jpg" not in files(library)
    assert Feedback(library / ".photodup").keepers() == {other.md5}
    session.undo()
    assert Feedback(library / ".photodup").keepers() == set()


def test_a_damaged_catalogue_is_one_sentence_and_costs_no_decision(session, library):
    item = group_of(session, "IMG_1.jpg")
    session.set_apart(item.key, item.members[0].photo.id)
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
        ((size,),) = catalogue.connection.execute("PRAGMA page_size").fetchall()
    whole = path.read_bytes()
    n_found = 0
    for page in range(1, len(whole) // size):
        path.write_bytes(whole[: page * size] + b"\xff" * size + whole[(page + 1) * size :])
        for leftover in ("-wal", "-shm"):
            path.with_name(path.name + leftover).unlink(missing_ok=True)
        report = scan(library, progress=False)
        n_found += report.set_aside is not None
        with Catalogue(library) as catalogue:
            assert len(catalogue.photos()) == 7
            catalogue.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert n_found == len(whole) // size - 1 > 5
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
    one = next(iter(session.items.values())).group
    keepers = (replace(one.keeper, id=10**5 + i, md5=f"{i:032x}") for i in range(10_000))
    many = tuple(replace(one, choice=replace(one.choice, keeper=keeper)) for keeper in keepers)
    tiers = replace(session.tiers, copies=many)
    monkeypatch.setattr(sessions, "find_tiers", lambda catalogue, seconds: tiers)
    large = ReviewSession(library)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor))
    assert large.accept_all() == 10_000
    assert len(synced) <= 3, "ten thousand decisions are one write"
    large.undo()
    assert len(synced) <= 6, "and so is taking them back"
    assert {item.status for item in large.items.values()} == {TODO}
    assert large.accept_all() == 10_000
    with ReviewServer(library) as running:
        text = httpx.get(running.url + "?number=200", timeout=60).text
        assert "Page 200 of 417" in text and text.count('class="card') == 24


def test_two_reviewers_at_once(session, library):
    second = ReviewSession(library)
    session.accept_all()
    second.accept_all()
    assert session.apply().n_removed == 3
    outcome = second.apply()
    assert outcome.n_removed == 0 and all("no longer there" in s for s in outcome.refused)
    assert len(Trash(library).contents().listing) == 3, "nothing is removed twice, nothing is lost"


def test_restore_takes_the_file_back_into_the_groups(session, library):
    remove_all(session)
    operation = next(o for o in session.trash.contents().listing if "coffee" in o.files[0].home)
    session.restore([operation.id])
    assert group_of(session, "small coffee.jpg").group.tier == "copies"
    assert group_of(session, "small coffee.jpg").status == TODO, "what came back can be decided again"
    Trash(library).restore(session.trash.contents().listing)  # by the command, while no page runs
    scan(library, progress=False)
    assert {item.status for item in ReviewSession(library).items.values()} == {TODO}


def test_a_removal_sent_twice_is_one_removal_and_one_undo(session, library):
    before = files(library)
    remove_all(session)
    with pytest.raises(PhotodupError, match="Nothing is marked"):
        session.apply()
    assert session.last.n_removed == 3, "the page still says what happened"
    session.undo()
    assert files(library) == before
    assert session.accept_all() == 0, "all are marked again"
    session.undo()
    assert {item.status for item in session.items.values()} == {TODO}


def test_a_decision_sent_twice_is_undone_once(session):
    key = next(iter(session.items))
    keep = [session.items[key].group.keeper.id]
    for decide, status in ((lambda: session.skip(key), SKIPPED), (lambda: session.accept(key, keep), MARKED)):
        decide()
        decide()
        assert session.items[key].status == status
        session.undo()
        assert session.items[key].status == TODO and not session.history


def test_keeping_all_marks_nothing(session):
    key = next(iter(session.items))
    session.accept(key, [photo.id for photo in session.items[key].photos])
    assert session.items[key].status == SKIPPED
    with pytest.raises(PhotodupError, match="Nothing is marked"):
        session.apply()
    session.accept(key, [session.items[key].group.keeper.id])
    other = session.items[key].members[0].photo
    session.set_apart(key, other.id)
    assert session.items[key].status == "apart" and session.select(status=MARKED) == []


def test_of_three_copies_two_that_were_kept_are_not_suggested_again(library):
    add_third_copy(library)
    session = ReviewSession(library)
    item = group_of(session, "IMG_3.jpg")
    session.accept(item.key, [photo.id for photo in item.photos[1:]])  # not the one that was suggested
    session.apply()
    again = ReviewSession(library)
    assert group_of(again, "IMG_3.jpg").status == SKIPPED
    again.accept_all()
    assert not any(removal.path.name == "IMG_3.jpg" for removal in again.removals())


@pytest.mark.parametrize("n_copies", [2, 3])
def test_files_with_the_same_bytes_that_are_kept_are_not_asked_about_again_after_a_rename(library, n_copies):
    if n_copies == 3:
        add_third_copy(library)
    session = ReviewSession(library)
    item = group_of(session, "IMG_3.jpg")
    session.set_apart(item.key, item.members[0].photo.id)
    assert (item.status, item.members) == ("apart", []), "the others are the same content"
    (library / "Backup" / "IMG_3.jpg").rename(library / "Backup" / "mine.jpg")
    (library / "2021").rename(library / "Z")
    scan(library, progress=False)
    again = ReviewSession(library)
    assert len(again.items) == len(session.items) - 1
    again.accept_all()
    assert not any(removal.md5 == item.group.keeper.md5 for removal in again.removals())
    session.undo()
    assert [i.status for i in ReviewSession(library).items.values()].count(TODO) == 1


@pytest.mark.parametrize("where", ["in the library", "elsewhere"])
def test_the_command_leaves_out_what_the_page_was_told(library, tmp_path, where):
    file = None if where == "in the library" else tmp_path / "elsewhere"
    scan(library, file, progress=False)
    session = ReviewSession(library, file)

    def printed(*options: str) -> str:
        return photodup("group", library, *(["--catalogue", file] if file else []), *options).stdout

    before = printed()
    assert "3 groups of copies" in before and before.count("IMG_3.jpg") == 2
    record = json.loads(printed("--json"))
    members = {member["path"]: member for group in record["groups"] for member in group["members"]}
    assert members.keys() == {str(p.path) for i in session.items.values() for p in i.photos[1:]}
    assert all(member["suggested"] and not member["differs"] for member in members.values())
    assert all(group["keep"]["reason"] for group in record["groups"]) and record["n_photos"] == 7
    item = group_of(session, "IMG_3.jpg")
    session.set_apart(item.key, item.members[0].photo.id)
    assert "2 groups of copies" in (after := printed()) and "IMG_3.jpg" not in after
    with open(session.own.feedback, "a") as labels:
        labels.write("damaged\n")
    assert f"Line 2 of {session.own.feedback}" in printed()


def test_an_old_page_cannot_decide_a_group_that_was_removed(session):
    key = next(iter(session.items))
    item = session.items[key]
    session.accept(key, [item.group.keeper.id])
    session.apply()
    for again in (
        lambda: session.accept(key, [item.group.keeper.id]),
        lambda: session.skip(key),
        lambda: session.set_apart(key, item.members[0].photo.id),
    ):
        with pytest.raises(PhotodupError, match="removed already"):
            again()
    assert item.status == DONE
    session.undo()
    assert item.status == MARKED


def test_what_is_set_apart_would_free_nothing(session):
    key = next(iter(session.items))
    before = session.bytes_left
    gone = session.items[key].members[0].photo
    session.items[key].apart = frozenset([gone.id])
    assert session.bytes_left == before - gone.size_bytes


def test_the_arrows_pass_groups_that_cannot_be_compared(session):
    first, second, third = session.items
    session.set_apart(second, session.items[second].members[0].photo.id)
    assert session.neighbours(first) == (None, third) and session.neighbours(third) == (first, None)
    session.accept(third, [session.items[third].group.keeper.id])
    session.apply()
    assert session.neighbours(first) == (None, None)


# ---- the pages ------------------------------------------------------------------------------------------


@pytest.fixture
def server(library):
    with ReviewServer(library) as running:
        yield running


def test_every_page_answers_and_escapes(server):
    with httpx.Client(base_url=server.url) as client:
        key = group_of(server.session, HOSTILE).key
        for path in (
            "", "?tier=similar", "?tier=copies&status=todo&number=7", f"group/{key}", "confirm", "trash",
            "settings",
        ):  # fmt: skip
            answer = client.get(path)
            assert answer.status_code == 200, path
            assert "<img src=x" not in answer.text and "<b>Camera" not in answer.text, path
        assert "&lt;img src=x" in client.get(f"group/{key}").text
        assert client.get("group/nowhere").status_code == 409
        assert "no longer there" in client.get("group/nowhere").text


def test_a_decision_over_http(server, library):
    with client_of(server) as client:
        item = group_of(server.session, "IMG_1.jpg")
        data = {"action": "accept", "photo": "0", "keep": [str(item.group.keeper.id)]}
        answer = client.post(f"group/{item.key}", data=data)
        assert answer.status_code == 303 and "/group/" in answer.headers["location"]
        plan = re.search(r'name="plan" value="(\w+)"', client.get("confirm").text)[1]
        assert client.post("remove", data={"plan": plan}).status_code == 303
        assert not (library / "Shared" / "small coffee.jpg").exists()
        assert "1 moved" in client.get("trash").text
        assert "back in their folders" in client.post("undo").text
        text = client.get("trash").text
        assert "The trash is empty" in text and "moved" not in text, "there is nothing to bring back any more"
        assert (library / "Shared" / "small coffee.jpg").exists()
        assert client.post(f"group/{item.key}", data={"action": "explode"}).status_code == 409
        assert client.post(f"group/{item.key}", data={"action": "accept", "keep": "x"}).status_code == 422


def test_only_the_list_that_was_shown_is_removed(server, library):
    """Another window, or another person at this machine, marks more after the list was shown."""
    before = files(library)
    with client_of(server) as client:
        first, *_ = server.session.items
        server.session.accept(first, [server.session.items[first].group.keeper.id])
        plan = re.search(r'name="plan" value="(\w+)"', client.get("confirm").text)[1]
        server.session.accept_all()
        answer = client.post("remove", data={"plan": plan})
        assert answer.status_code == 409 and "look at the list again" in answer.text
        assert client.post("remove").status_code == 409, "nor without having seen a list"
        assert files(library) == before
        server.session.undo()
        assert client.post("remove", data={"plan": plan}).status_code == 303
        assert len(before - files(library)) in (1, 2), "one photo, with its sidecar"


def test_a_keeper_that_another_group_removes_is_shown_so_and_its_copies_stay(library, monkeypatch):
    tiers = ReviewSession(library).tiers
    copies = next(group for group in tiers.copies if group.keeper.path.name == "IMG_1.jpg")
    lone = listed(library)["lone.jpg"]
    choice = replace(copies.choice, keeper=lone)
    scene = replace(
        copies, tier="similar", choice=choice, members=(replace(copies.members[0], photo=copies.keeper),)
    )
    both = replace(tiers, similar=(scene,))
    monkeypatch.setattr(sessions, "find_tiers", lambda catalogue, seconds: both)
    with ReviewServer(library) as server:
        session = server.session
        session.accept_all()
        session.accept(next(item.key for item in session.select("similar")), [lone.id])
        text = httpx.get(server.url + "confirm", timeout=30).text
        assert text.count("marked in another group") == 1
        assert not re.search(r'keep</span> <span class="name"><bdi>2020/IMG_1.jpg', text)
        outcome = session.apply()
    assert outcome.n_removed == 3 and len(outcome.refused) == 1
    assert "Shared/small coffee.jpg" in files(library), "its only copy to keep has gone"


def test_whatever_is_asked_the_answer_is_a_page_in_words(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for path in ("nowhere", "?number=many", "confirm?number=", "group/", "photo/one/small.jpg"):
            answer = client.get(path)
            assert answer.status_code in (404, 422), path
            assert "go back to the groups" in answer.text and "All groups" in answer.text, path
        origin = {"Origin": f"http://127.0.0.1:{server.port}"}
        answer = client.post(
            f"group/{next(iter(server.session.items))}", headers=origin, data={"photo": "one"}
        )
        assert answer.status_code == 422 and "go back to the groups" in answer.text
        assert "Choose what to restore" in client.post("restore", headers=origin).text


def test_a_name_that_is_no_utf8_can_be_refused_in_words(library, monkeypatch):
    odd = Path(os.fsdecode(os.fsencode(library) + b"/caf\xe9.jpg"))
    (library / "Backup" / "IMG_3.jpg").rename(odd)
    scan(library, progress=False)
    with ReviewServer(library) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        item = group_of(server.session, odd.name)
        photo = next(p for p in item.photos if p.path.name == odd.name)
        server.session.accept(item.key, [p.id for p in item.photos if p is not photo])
        odd.write_bytes(b"edited meanwhile")
        answer = client.get(f"photo/{photo.id}/small.jpg")
        assert answer.status_code == 404 and "caf\N{REPLACEMENT CHARACTER}.jpg has changed" in answer.text
        assert client.get(f"group/{item.key}").status_code == 200
        assert server.session.apply().n_removed == 0
        answer = client.get("trash")
        assert answer.status_code == 200 and "changed since the scan" in answer.text
        tiers = replace(server.session.tiers, problems=(f"{odd}: cannot be decoded",))
    monkeypatch.setattr(sessions, "find_tiers", lambda catalogue, seconds: tiers)
    with ReviewServer(library) as server:
        answer = httpx.get(server.url)
        assert answer.status_code == 200 and ".jpg: cannot be decoded" in answer.text


def test_the_trash_is_paged_and_a_page_of_it_restored_at_once(server, library, monkeypatch):
    from photodup.photos.review import pages

    monkeypatch.setattr(pages, "TRASH_PAGE_SIZE", 2)
    remove_all(server.session)
    with client_of(server) as client:
        text = client.get("trash?number=1").text
        assert "3 photos in the trash" in text and "Page 1 of 2" in text and "all on this page" in text
        shown = re.findall(r'name="listed" value="([^"]+)"', text)
        assert len(shown) == 2
        client.post("restore", data={"listed": shown, "scope": "page"})
        assert len(server.session.trash.contents().listing) == 1
        (last,) = server.session.trash.contents().listing
        client.post("restore", data={"listed": [last.id], "operation": []})
        assert len(server.session.trash.contents().listing) == 1, "shown alone is not chosen"


def test_pages_of_a_library_without_duplicates_say_so(tmp_path):
    save(photo("coffee"), tmp_path / "one" / "coffee.jpg")
    scan(tmp_path / "one", progress=False)
    (tmp_path / "none").mkdir()
    scan(tmp_path / "none", progress=False)
    for folder, said in (("one", "All 1 photos are different"), ("none", "no photos in this folder")):
        with ReviewServer(tmp_path / folder) as server:
            text = httpx.get(server.url).text
            assert "No duplicates found" in text and said in text, folder
            assert "decided" not in text.split("<main")[1]
            similar = httpx.get(server.url + "?tier=similar").text
            assert ("Find similar scenes" if folder == "one" else "Nothing here") in similar
            assert "Nothing is marked" in httpx.get(server.url + "confirm").text


def test_a_removed_group_asks_for_no_picture_that_is_gone(server):
    with client_of(server) as client:
        assert "Removing every copy suggested below" in client.get("").text
        remove_all(server.session)
        text = client.get("").text
        assert "Every suggested copy is decided" in text and "in the trash" in text
        assert "<button disabled>Mark all" in text
        shown = re.findall(r"photo/(\d+)/small\.jpg", text)
        assert len(shown) == 3 and {client.get(f"photo/{i}/small.jpg").status_code for i in shown} == {200}
        key = next(iter(server.session.items))
        assert "This group is done" in client.get(f"group/{key}").text


def test_undoing_one_decision_leads_back_to_its_group(server):
    with client_of(server) as client:
        for key in list(server.session.items)[:2]:
            client.post(f"group/{key}", data={"action": "skip"})
        answer = client.post("undo")
        assert answer.status_code == 303 and answer.headers["location"].endswith(f"/group/{key}")
        server.session.accept_all()
        assert "Undone" in client.post("undo").text, "several groups have no one page to go to"


def test_pictures_are_scaled(server):
    photo = server.session.items[next(iter(server.session.items))].group.keeper
    for size, longest in (("small", 360), ("screen", 1600)):
        answer = httpx.get(f"{server.url}photo/{photo.id}/{size}.jpg")
        assert answer.headers["content-type"] == "image/jpeg"
        assert max(Image.open(BytesIO(answer.content)).size) == min(longest, max(photo.width, photo.height))


def test_a_browser_asks_again_and_is_sent_a_picture_once(server, library):
    photo = group_of(server.session, "small coffee.jpg").members[0].photo
    address = f"{server.url}photo/{photo.id}/small.jpg"
    first = httpx.get(address)
    known = {"If-None-Match": first.headers["etag"]}
    assert "no-cache" in first.headers["cache-control"] and len(first.content) > 1000
    again = httpx.get(address, headers=known)
    assert again.status_code == 304 and again.content == b""
    assert httpx.get(address.replace("small.jpg", "screen.jpg"), headers=known).status_code == 200
    (library / photo.path).unlink()
    assert httpx.get(address, headers=known).status_code == 404, "what the browser still has is not shown"


@pytest.fixture
def large(tmp_path):
    """A library of one JPEG of 2600 × 1800 pixels in Display P3's stead: its profile is what is looked for."""
    folder = tmp_path / "large"
    folder.mkdir()
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    noise = np.random.default_rng(0).integers(0, 255, (1800, 2600, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "large.jpg", quality=90, icc_profile=profile)
    scan(folder, progress=False)
    return folder, listed(folder)["large.jpg"], profile


def test_zoomed_in_a_jpeg_is_shown_as_it_is_and_smaller_ones_keep_its_colours(large):
    folder, photo, profile = large
    assert photo_picture(folder, photo, "large") == (folder / "large.jpg").read_bytes()
    for size in ("small", "screen"):
        made = Image.open(BytesIO(photo_picture(folder, photo, size)))
        assert made.info["icc_profile"] == profile and max(made.size) == SIZES[size]


def test_many_at_once_are_made_two_at_a_time(large, monkeypatch):
    folder, photo, _ = large
    running, most = [], []
    decode = pictures.imaging.decode

    def watched(*arguments, **options):
        running.append(1)
        most.append(len(running))
        try:
            return decode(*arguments, **options)
        finally:
            running.pop()

    monkeypatch.setattr(pictures.imaging, "decode", watched)
    with ThreadPoolExecutor(12) as pool:
        pictures_made = set(pool.map(lambda _: photo_picture(folder, photo, "screen"), range(24)))
    assert len(pictures_made) == 1, "all the same bytes"
    assert max(most) == 2


def test_details_say_what_was_photographed_and_not_how_a_tiff_is_laid_out(library):
    from photodup.photos.review.pictures import _words, side_by_side

    with_date = listed(library)["2020/IMG_1.jpg"]
    Image.open(library / with_date.path).convert("RGB").save(library / "2020" / "scan.tif")
    scan(library, progress=False)
    tiff = listed(library)["2020/scan.tif"]
    names = {row.name for row in side_by_side(with_date, tiff) if row.is_detail}
    assert not names & {"Bits per sample", "Image width", "Strip offsets", "Compression"}
    assert {row.name: row.right for row in side_by_side(with_date, tiff)}["Metadata"] == "0 fields"
    write(photo("coffee"), library / "lens.jpg", data=exif(LensModel="A <b>lens</b>", ISOSpeedRatings=100))
    scan(library, progress=False)
    rows = {row.name: (row.left, row.right) for row in side_by_side(listed(library)["lens.jpg"], with_date)}
    assert rows["Lens model"] == ("A <b>lens</b>", "–") and rows["ISO speed ratings"] == ("100", "–")
    assert _words("FocalLengthIn35mmFilm") == "Focal length in 35mm film"
    assert _words("ISOSpeedRatings") == "ISO speed ratings" and _words("Artist") == "Artist"


def test_a_page_that_cannot_start_gives_its_port_back(server, library, tmp_path):
    (tmp_path / "never scanned").mkdir()
    with pytest.raises(PhotodupError, match=f"Port {server.port} for the review page is in use"):
        ReviewServer(library, port=server.port)
    server.stop()
    with pytest.raises(PhotodupError, match="photodup scan") as caught:
        ReviewServer(tmp_path / "never scanned", port=server.port)
    with ReviewServer(library, port=server.port) as again:
        assert httpx.get(again.url).status_code == 200
    del caught


def test_the_trash_commands(library, capsys):
    from photodup.cli.trash import list_trash, purge_trash, restore_trash

    session = ReviewSession(library)
    remove_all(session)
    names = [operation.id for operation in session.trash.contents().listing]
    list_trash(library)
    assert "3 removals" in capsys.readouterr().out
    restore_trash(library, names[:1])
    with pytest.raises(PhotodupError, match="Not in the trash"):
        restore_trash(library, names[:1])
    with pytest.raises(PhotodupError, match="add --yes"):
        purge_trash(library, (), yes=False)
    assert len(Trash(library).contents().listing) == 2
    purge_trash(library, (), yes=True)
    assert Trash(library).contents().listing == []
    assert not list((library / TRASH_FOLDER / "items").rglob("*"))
