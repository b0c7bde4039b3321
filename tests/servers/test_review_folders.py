"""Folders from which nothing goes, folders that are not compared with themselves, and the rules of one run."""

import os
from dataclasses import replace

import pytest
from support.review_library import add_third_copy, client_of, exif, group_of, photo, save, write

from photodup.errors import PhotodupError
from photodup.photos.groups.judging import Judged
from photodup.photos.groups.keepers import Choice
from photodup.photos.library.scan import scan
from photodup.photos.library.settings import load_settings, save_settings
from photodup.photos.review.serve import ReviewServer
from photodup.photos.review.session import ReviewSession


def suggested(session, name: str) -> list[str]:
    item = group_of(session, name)
    return sorted(str(photo.path) for photo in item.photos if photo.id in item.suggested)


def done(server, client, path: str, **fields: str) -> int:
    """Post what groups anew, and wait for that; return the status."""
    answer = client.post(path, data=fields)
    assert not server.folder.work.last or server.folder.work.last.ended.wait(60)
    return answer.status_code


def test_what_is_protected_is_kept_is_not_suggested_and_does_not_go(library):
    with (
        ReviewServer(library, protect=["Shared", str(library / "Backup")]) as server,
        client_of(server) as client,
    ):
        session = server.session
        coffee, rocket = group_of(session, "IMG_1.jpg"), group_of(session, "IMG_3.jpg")
        assert rocket.group.keeper.path.parent.name == "Backup", rocket.group.choice.reason
        assert suggested(session, "IMG_3.jpg") == ["2021/IMG_3.jpg"] and suggested(session, "IMG_1.jpg") == []
        small = next(p for p in coffee.photos if p.path.parent.name == "Shared")
        assert session.accept_all() == 2 and coffee.status == "todo"
        # The page offers no choice there, and a form that makes one all the same is refused.
        page = client.get(f"group/{coffee.key}").text
        assert (
            page.count("disabled data-bytes")
            == page.count(f'type="hidden" name="keep" value="{small.id}"')
            == 1
        )
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
        assert done(server, client, "settings/keep", protected="Backup", content="1") == 303
        assert suggested(server.session, "IMG_1.jpg") == ["Shared/small coffee.jpg"]


def test_what_was_marked_before_its_folder_was_protected_does_not_go(library):
    session = ReviewSession(library)
    session.accept_all()
    save_settings(session.own.path, replace(session.settings, protected=("Shared",)))  # by another window
    with pytest.raises(
        PhotodupError, match=r"small coffee\.jpg stays, and nothing was done: Shared is protected"
    ):
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
    session.change(replace(session.settings, protected=("Given",)))
    assert session.apply().n_removed == 2 and (library / "Given" / "small coffee.jpg").exists()


@pytest.mark.parametrize("name", ["shared", "Nothing", "2020/IMG_1.jpg", "../library/Shared", "/etc", "Link"])
def test_a_folder_that_would_protect_nothing_is_refused(library, name):
    (library / "Link").symlink_to("Shared")
    with pytest.raises(PhotodupError, match=r"There is no folder|outside the library"):
        ReviewServer(library, protect=[name])
    assert load_settings(library / ".photodup").protected == ()


def test_a_folder_that_was_never_scanned_is_protected_from_the_first_look_on(tmp_path):
    save(photo("rocket"), tmp_path / "A" / "a.jpg")
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "B").mkdir(exist_ok=True)
        (tmp_path / "B" / name).write_bytes((tmp_path / "A" / "a.jpg").read_bytes())
    with ReviewServer(tmp_path, opened_on_page=True, protect=["B"]) as server, client_of(server) as client:
        done(server, client, "scan")
        assert suggested(server.session, "b.jpg") == ["A/a.jpg"]


def test_a_folder_is_not_compared_with_itself(library):
    add_third_copy(library)
    save(photo("coffee").resize((450, 300)), library / "Shared" / "middle coffee.jpg")
    (library / "2021" / "again.jpg").write_bytes((library / "2021" / "IMG_3.jpg").read_bytes())
    scan(library, progress=False)
    before = ReviewSession(library)
    assert len(group_of(before, "IMG_1.jpg").photos) == 3 and len(group_of(before, "IMG_3.jpg").photos) == 4
    with ReviewServer(library, not_within=["Shared", "2021", "Edited"]) as server:
        session = server.session
        # Both small ones are compared with the large one elsewhere, and not with each other.
        assert len(suggested(session, "IMG_1.jpg")) == 2
        assert session.tiers.n_verified == before.tiers.n_verified - 1
        rocket = group_of(session, "IMG_3.jpg")
        assert len(rocket.photos) == (3 if rocket.group.keeper.path.parent.name == "2021" else 4)
    with ReviewServer(library, not_within=["."]) as server:
        assert server.session.items == {}


def test_rules_of_a_run_choose_between_equal_photos_alone(library):
    astronaut = photo("astronaut")
    write(astronaut, library / "a.jpg", data=exif(WhiteBalance=1))
    write(astronaut, library / "b.jpg", data=exif())
    write(astronaut.resize((200, 200)), library / "c.jpg", data=exif())
    for number, name in enumerate(("c.jpg", "b.jpg", "a.jpg", "Backup/IMG_3.jpg", "2021/IMG_3.jpg")):
        os.utime(library / name, (1e9 + number, 1e9 + number))
    scan(library, progress=False)
    with ReviewServer(library) as server, client_of(server) as client:

        def kept() -> list[str]:
            found = [group_of(server.session, name) for name in ("a.jpg", "IMG_3.jpg")]
            return [str(item.group.keeper.path) for item in found]

        assert kept() == ["a.jpg", "2021/IMG_3.jpg"]
        done(server, client, "wishes", oldest_file="yes")
        assert kept() == ["b.jpg", "Backup/IMG_3.jpg"], "the thumbnail is older, and never kept for that"
        assert suggested(server.session, "a.jpg") == ["a.jpg", "c.jpg"]
        assert 'name="oldest_file" value="yes" checked' in client.get("").text
        done(server, client, "wishes", oldest_file="yes", never_from="2021")
        assert kept() == ["b.jpg", "2021/IMG_3.jpg"]
        assert done(server, client, "wishes", never_from="elsewhere") == 409
        done(server, client, "wishes")
        assert kept() == ["a.jpg", "2021/IMG_3.jpg"]
    assert load_settings(library / ".photodup").protected == (), "for this run only"


def test_a_wish_changes_nothing_unless_either_may_go_for_the_other():
    def judged(keeper: int, **differs: str) -> Judged:
        return Judged(keeper, Choice(None, None, ""), {int(row[1:]): said for row, said in differs.items()})

    usual = judged(0, r1="", r2="a caption")
    assert usual.unless_equal(judged(1, r0="finer detail", r2="")) is usual
    assert usual.unless_equal(judged(2, r0="", r1="")) is usual
    assert usual.unless_equal(usual) is usual
    by_wish = usual.unless_equal(judged(1, r0="", r2=""))
    assert by_wish.keeper == 1 and by_wish.differs == {0: "", 2: "a caption"}, "what was held back stays so"
