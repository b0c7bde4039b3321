"""Folders from which nothing goes, that are not compared with themselves, and several at once."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from support.command import one_sentence, photodup, run_command
from support.review_library import add_third_copy, client_of, group_of, photo, save
from support.trash_kills import at_home

from photodup.core.errors import PhotodupError
from photodup.photos.library.scan import scan
from photodup.photos.library.settings import LibrarySettings, load_settings, save_settings
from photodup.photos.library.several import as_one_library
from photodup.photos.review.reviewed_folder import ReviewedFolder
from photodup.photos.review.serve import ReviewServer
from photodup.photos.review.session import ReviewSession
from photodup.photos.trash.quarantine import Trash


def suggested(session, name: str) -> list[str]:
    item = group_of(session, name)
    return sorted(str(photo.path) for photo in item.photos if photo.id in item.suggested)


def done(server, client, path: str, **fields: str | list[str]) -> int:
    """Post what groups anew, and wait for that; return the status."""
    answer = client.post(path, data=fields)
    assert not server.folder.work.last or server.folder.work.last.ended.wait(60)
    return answer.status_code


def test_what_is_protected_is_kept_is_not_suggested_and_does_not_go(library):
    protected = ["Shared", str(library / "Backup")]
    with ReviewServer(ReviewedFolder(library, protect=protected)) as server, client_of(server) as client:
        session = server.session
        coffee, rocket = group_of(session, "IMG_1.jpg"), group_of(session, "IMG_3.jpg")
        assert rocket.group.keeper.path.parent.name == "Backup", rocket.group.choice.reason
        assert suggested(session, "IMG_3.jpg") == ["2021/IMG_3.jpg"] and suggested(session, "IMG_1.jpg") == []
        small = next(p for p in coffee.photos if p.path.parent.name == "Shared")
        assert session.accept_all() == 2 and coffee.status == "todo"
        # The page offers no choice there, and a form that makes one all the same is refused.
        page = client.get(f"group/{coffee.key}").text
        assert page.count("disabled data-bytes") == 1
        assert page.count(f'type="hidden" name="keep" value="{small.id}"') == 1
        keep = [str(p.id) for p in coffee.photos if p != small]
        refused = client.post(f"group/{coffee.key}", data={"action": "accept", "keep": keep})
        assert refused.status_code == 409 and "Shared is protected" in refused.text
        assert coffee.status == "todo" and small.path.name not in client.get("confirm").text
        assert "Protected, so nothing goes from there" in client.get("confirm").text
        session.apply()
        assert (library / small.path).exists() and (library / "Backup" / "IMG_3.jpg").exists()
        assert not (library / "2021" / "IMG_3.jpg").exists()
        session.undo()
        assert (library / "2021" / "IMG_3.jpg").exists()
    # The next start remembers, until the settings say otherwise.
    with ReviewServer(library) as server, client_of(server) as client:
        assert suggested(server.session, "IMG_1.jpg") == []
        assert done(server, client, "settings/keep", protected="Backup", rule="resolution", place="1") == 303
        assert suggested(server.session, "IMG_1.jpg") == ["Shared/small coffee.jpg"]


def test_what_was_marked_before_its_folder_was_protected_does_not_go(library):
    session = ReviewSession(library)
    session.accept_all()
    save_settings(session.own.path, replace(session.settings, protected=("Shared",)))  # by another window
    with one_sentence(r"small coffee\.jpg stays, and nothing was done: Shared is protected"):
        session.apply()
    assert (library / "Shared" / "small coffee.jpg").exists() and (library / "Backup" / "IMG_3.jpg").exists()
    again = ReviewSession(library)
    coffee = group_of(again, "IMG_1.jpg")
    assert (coffee.status, coffee.remove) == ("skipped", frozenset())
    assert again.apply().n_removed == 2 and (library / "Shared" / "small coffee.jpg").exists()


def test_while_a_protected_folder_is_not_there_nothing_is_removed(library):
    session = ReviewSession(library)
    session.change(replace(session.settings, protected=("Shared",)))
    (library / "Shared").rename(library / "Given")
    scan(library, progress=False)
    session = ReviewSession(library)
    assert any("Shared is protected and no longer there" in said for said in session.problems)
    assert session.accept_all() == 3, "what it is called now nobody said"
    with pytest.raises(PhotodupError, match="Shared is protected and no longer there, so nothing is removed"):
        session.apply()
    (library / "Shared").symlink_to("Given")
    assert any("Shared is protected and no longer there" in said for said in session.problems), (
        "a link protects nothing"
    )
    session.change(replace(session.settings, protected=("Given",)))
    assert session.apply().n_removed == 2 and (library / "Given" / "small coffee.jpg").exists()


@pytest.mark.parametrize("name", ["shared", "Nothing", "2020/IMG_1.jpg", "../library/Shared", "/etc", "Link"])
def test_a_folder_that_would_protect_nothing_is_refused(library, name):
    (library / "Link").symlink_to("Shared")
    with pytest.raises(PhotodupError, match=r"There is no folder|outside the library"):
        ReviewServer(ReviewedFolder(library, protect=[name]))
    assert load_settings(library / ".photodup").protected == ()


def test_a_folder_that_was_never_scanned_is_protected_from_the_first_look_on(tmp_path):
    save(photo("rocket"), tmp_path / "A" / "a.jpg")
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "B").mkdir(exist_ok=True)
        (tmp_path / "B" / name).write_bytes((tmp_path / "A" / "a.jpg").read_bytes())
    with (
        ReviewServer(ReviewedFolder(tmp_path, protect=["B"]), opened_on_page=True) as server,
        client_of(server) as client,
    ):
        done(server, client, "scan")
        assert suggested(server.session, "b.jpg") == ["A/a.jpg"]


def test_a_folder_is_not_compared_with_itself(library):
    add_third_copy(library)
    save(photo("coffee").resize((450, 300)), library / "Shared" / "middle coffee.jpg")
    (library / "2021" / "again.jpg").write_bytes((library / "2021" / "IMG_3.jpg").read_bytes())
    scan(library, progress=False)
    before = ReviewSession(library)
    assert len(group_of(before, "IMG_1.jpg").photos) == 3 and len(group_of(before, "IMG_3.jpg").photos) == 4
    with ReviewServer(ReviewedFolder(library, not_within=["Shared", "2021", "Edited"])) as server:
        session = server.session
        # Both small ones are compared with the large one elsewhere, and not with each other.
        assert len(suggested(session, "IMG_1.jpg")) == 2
        assert session.tiers.n_verified == before.tiers.n_verified - 1
        rocket = group_of(session, "IMG_3.jpg")
        assert len(rocket.photos) == (3 if rocket.group.keeper.path.parent.name == "2021" else 4)
    with ReviewServer(ReviewedFolder(library, not_within=["."])) as server:
        assert server.session.items == {}


def several(folder: Path, *names: str) -> Path:
    """One photo in each of some folders, smaller from one to the next."""
    image = photo("coffee").resize((360, 240))
    for number, name in enumerate(names):
        save(image.resize((360 - 90 * number, 240 - 60 * number)), folder / name / "1.jpg")
        with Image.open(folder / names[0] / "1.jpg") as file:  # as people make copies: of a file
            image = file.convert("RGB")
    return folder


def test_several_folders_are_scanned_and_grouped_as_one_library_and_no_other(tmp_path):
    names = [several(tmp_path / "P", "A", "B", "C", "D") / name for name in "ABCD"]
    done = photodup("scan", *names[:3])
    assert "3 photographs found, 3 read" in done.stdout
    assert f"`photodup trash list {tmp_path}/P`" in done.stderr
    assert {p.name for p in (tmp_path / "P").iterdir()} == {*"ABCD", ".photodup"}
    done = photodup(
        "group", names[0], names[3]
    )  # D is new: it is scanned, and is no part of the others' groups below
    assert (
        "2 photographs found, 1 read" in done.stderr and "A/1.jpg" in done.stdout and "D/1.jpg" in done.stdout
    )
    assert not any(f"{name}/1.jpg" in done.stdout for name in "BC")

    def grouped(*folders: Path) -> tuple[str, set[str]]:
        ((group,),) = [json.loads(photodup("group", *folders, "--json").stdout)["groups"]]
        return group["keep"]["path"], {one["path"] for one in group["members"] if one["suggested"]}

    assert grouped(*names[:3]) == ("A/1.jpg", {"B/1.jpg", "C/1.jpg"})
    # What is known of the others stays known, and is no part of it.
    run_command("scan", tmp_path / "P")
    shutil.rmtree(names[3])
    assert "0 no longer there" in photodup("scan", *names[1:3]).stdout
    assert grouped(*names[1:3]) == ("B/1.jpg", {"C/1.jpg"})
    assert "1 no longer there" in photodup("scan", tmp_path / "P").stdout


def test_several_folders_are_reviewed_with_some_protected(tmp_path, monkeypatch):
    library = several(tmp_path / "P", "A", "B", "C", "D")
    save(photo("coffee").resize((240, 160)), library / "C" / "2.jpg")
    save(photo("rocket").resize((240, 160)), library / "A" / "Own" / "a.jpg")
    save(photo("rocket").resize((360, 240)), library / "B" / "b.jpg")
    scan(library / "A", progress=False)
    save_settings(library / "A" / ".photodup", LibrarySettings(protected=("Own",)))
    monkeypatch.chdir(library)
    folders = as_one_library([Path(name) for name in "ABC"])
    assert folders.untouched == ("A/Own",) and "A is a library of its own too" in folders.notes[-1]
    options = {"only": folders.only, "never_from": folders.untouched}
    options |= {"protect": folders.in_full(["B"]), "not_within": folders.in_full([str(library / "C")])}
    before = at_home(library)
    with (
        ReviewServer(ReviewedFolder(folders.root, **options), opened_on_page=True) as server,
        client_of(server) as client,
    ):
        assert "has not looked at each of these folders yet" in client.get("work").text
        done(server, client, "scan")
        session = server.session
        assert suggested(session, "1.jpg") == ["C/1.jpg", "C/2.jpg"] and suggested(session, "b.jpg") == []
        page = client.get("").text
        assert f"{library}: A, B, C" in page and "A/Own</bdi> (for this run)" in page and "D/" not in page
        session.accept_all()
        assert session.apply().n_removed == 2
        gone = {operation.home: before[operation.home] for operation in Trash(library).contents().listing}
        assert gone.keys() == {"C/1.jpg", "C/2.jpg"} and at_home(library) | gone == before
        session.undo()
        # A folder that vanishes takes nothing with it, although a lesser copy is there.
        (library / "A").rename(tmp_path / "A")
        done(server, client, "scan")
        with one_sentence("A/Own is protected and no longer there, so nothing is removed"):
            session.apply()
        (tmp_path / "A").rename(library / "A")
        (library / "A" / "1.jpg").rename(tmp_path / "1.jpg")
        assert ["no copy to keep is there" in said for said in session.apply().refused] == [True, True]
        (tmp_path / "1.jpg").rename(library / "A" / "1.jpg")
        assert at_home(library) == before
        assert session.settings.protected == ("B",), "remembered"


@pytest.mark.parametrize("other", ["A", "Link", "A/in", "Gone", "/dev/shm"])
def test_folders_that_cannot_be_reviewed_together_are_one_sentence(tmp_path, other):
    several(tmp_path, "A", "A/in", "B")
    (tmp_path / "Link").symlink_to("A")
    before = at_home(tmp_path)
    why = {"Gone": "is not a folder", "/dev/shm": "lies on another file system than"}
    if other in why and os.path.isdir(other) and os.stat(other).st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second volume")
    for command in ("scan", "group", "review"):
        said = photodup(command, tmp_path / "A", tmp_path / "B", tmp_path / other)
        assert said.returncode == 2 and said.stderr.count("\n") == 1
        assert why.get(other, "are one folder or one in the other") in said.stderr
    assert at_home(tmp_path) == before
