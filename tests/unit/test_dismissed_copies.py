"""Byte-identical copies that were dismissed stay so, whatever they are called later."""

import json
from pathlib import Path

import pytest
from support.review_library import add_third_copy, group_of, make_library

from photodup.cli.photos import print_groups
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.photos.review.session import TODO, ReviewSession


@pytest.fixture
def library(tmp_path) -> Path:
    return make_library(tmp_path / "library")


def rename_copy(library: Path) -> None:
    (library / "Backup" / "IMG_3.jpg").rename(library / "Backup" / "mine.jpg")


def rename_keeper(library: Path) -> None:
    (library / "2021" / "IMG_3.jpg").rename(library / "2021" / "mine.jpg")


def rename_both(library: Path) -> None:
    rename_copy(library)
    rename_keeper(library)


def move_folders(library: Path) -> None:
    (library / "Backup").rename(library / "A backup")
    (library / "2021").rename(library / "Z")


@pytest.mark.parametrize("change", [rename_copy, rename_keeper, rename_both, move_folders])
def test_byte_identical_copies_told_apart_are_not_asked_about_again_after_a_rename(library, change):
    session = ReviewSession(library)
    item = group_of(session, "IMG_3.jpg")
    session.set_apart(item.key, item.members[0][0].id, "keep_both")
    change(library)
    scan(library, progress=False)
    again = ReviewSession(library)
    (same,) = [i for i in again.items.values() if i.group.keeper.md5 == item.group.keeper.md5]
    assert (same.status, same.members) == ("apart", [])
    again.accept_all()
    assert not any(removal.md5 == item.group.keeper.md5 for removal in again.removals())


@pytest.mark.parametrize("renamed", ["the one told apart", "the other copy", "both", "none"])
def test_of_three_copies_the_one_told_apart_is_known_by_its_new_name(library, renamed):
    add_third_copy(library)
    session = ReviewSession(library)
    item = group_of(session, "IMG_3.jpg")
    one, other = (library / photo.path for photo, _ in item.members)
    session.set_apart(item.key, item.members[0][0].id, "not_duplicate")
    if renamed in ("the one told apart", "both"):
        one = one.rename(library / "Elsewhere.jpg" if renamed != "both" else library / one.name)
    if renamed in ("the other copy", "both"):
        other = other.rename(library / "Other.jpg")
    scan(library, progress=False)
    again = ReviewSession(library)
    (same,) = [i for i in again.items.values() if i.group.keeper.md5 == item.group.keeper.md5]
    # Two are asked about as before. A new name may make another copy the keeper; never is the one removed for it.
    assert len(same.members) == 1 and library / same.members[0][0].path != one
    if renamed in ("the other copy", "none"):
        assert one not in [library / photo.path for photo in same.photos]
    # The one told apart is deleted by hand: that says nothing about the other, which is asked about.
    one.unlink()
    if renamed == "none":
        scan(library, progress=False)
        (same,) = [
            i for i in ReviewSession(library).items.values() if i.group.keeper.md5 == item.group.keeper.md5
        ]
        assert [library / photo.path for photo, _ in same.members] == [other] and same.status == TODO


def test_undo_takes_back_that_copies_were_told_apart(library):
    session = ReviewSession(library)
    item = group_of(session, "IMG_3.jpg")
    session.set_apart(item.key, item.members[0][0].id, "keep_both")
    session.undo()
    rename_copy(library)
    scan(library, progress=False)
    assert all(item.status == TODO for item in ReviewSession(library).items.values())


@pytest.mark.parametrize("where", ["in the library", "elsewhere"])
def test_the_command_leaves_out_what_the_page_was_told(library, tmp_path, where, capsys):
    file = None if where == "in the library" else tmp_path / "elsewhere.sqlite"
    scan(library, file, progress=False)
    session = ReviewSession(library, file)

    def printed(**options) -> str:
        with Catalogue(library, file) as catalogue:
            print_groups(catalogue, **options)
        return capsys.readouterr().out

    before = printed()
    assert "3 groups of copies" in before and before.count("IMG_3.jpg") == 2
    record = json.loads(printed(as_json=True))
    members = {member["path"]: member for group in record["groups"] for member in group["members"]}
    assert members.keys() == {str(p.path) for i in session.items.values() for p, _ in i.members}
    assert all(member["suggested"] and not member["differs"] for member in members.values())
    assert all(group["keep"]["reason"] for group in record["groups"]) and record["n_photos"] == 7
    item = group_of(session, "IMG_3.jpg")
    session.set_apart(item.key, item.members[0][0].id, "keep_both")
    assert "2 groups of copies" in (after := printed()) and "IMG_3.jpg" not in after
    with open(session.own.feedback, "a") as labels:
        labels.write("damaged\n")
    assert f"Line 2 of {session.own.feedback}" in printed()
