"""Files with the same bytes that are both kept stay so, whatever they are called later."""

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


@pytest.mark.parametrize("n_copies", [2, 3])
def test_files_with_the_same_bytes_that_are_kept_are_not_asked_about_again_after_a_rename(library, n_copies):
    if n_copies == 3:
        add_third_copy(library)
    session = ReviewSession(library)
    item = group_of(session, "IMG_3.jpg")
    session.set_apart(item.key, item.members[0][0].id)
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
    session.set_apart(item.key, item.members[0][0].id)
    assert "2 groups of copies" in (after := printed()) and "IMG_3.jpg" not in after
    with open(session.own.feedback, "a") as labels:
        labels.write("damaged\n")
    assert f"Line 2 of {session.own.feedback}" in printed()
