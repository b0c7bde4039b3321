"""On the page: another keeper by one key, the trash emptied after a look at it, plain words, what undo brought back."""

import re
from io import BytesIO

import httpx
import pytest
from PIL import Image
from support.review_library import client_of, group_of, remove_all, save

from photodup.core.errors import PhotodupError
from photodup.photos.library.scan import scan
from photodup.photos.review.serve import ReviewServer
from photodup.photos.review.session import Item, ReviewSession
from photodup.photos.trash.quarantine import Trash


@pytest.fixture
def server(library):
    coffee = Image.open(library / "2020" / "IMG_1.jpg")
    save(coffee.crop((40, 20, 560, 380)), library / "Edited" / "cropped coffee.jpg")
    scan(library, progress=False)
    with ReviewServer(library) as running:
        yield running


def coffee_group(session):
    return group_of(session, "IMG_1.jpg")


def post(server, path: str, **fields) -> httpx.Response:
    with client_of(server, follow_redirects=True) as client:
        return client.post(path, data=fields)


def test_another_photo_is_kept_instead_and_the_others_are_judged_by_it(server):
    session = server.session
    item = coffee_group(session)
    assert item.group.keeper.path.name == "IMG_1.jpg" and len(item.suggested) == 2
    small = next(p for p in item.photos if p.path.name == "small coffee.jpg")
    page = post(server, f"group/{item.key}", action="keep_instead", photo=str(small.id))
    assert page.status_code == 200 and "you chose to keep it before" in page.text.lower()
    item = coffee_group(session)
    assert item.group.keeper.path.name == "small coffee.jpg"
    assert item.suggested == frozenset(), "both others hold more, and stay unless marked by hand"
    assert all(item.group.difference(p) for p in item.group.others)
    assert session.accept_all() == 2 and coffee_group(session).status == "todo"
    session.undo()
    # Choosing again takes the first choice back.
    first = next(p for p in item.photos if p.path.name == "IMG_1.jpg")
    session.keep_instead(item.key, first.id)
    assert coffee_group(session).group.keeper.path.name == "IMG_1.jpg"
    assert session.feedback.keepers() == {first.md5}
    session.undo()
    assert session.feedback.keepers() == {small.md5}, "as before the last decision"
    assert coffee_group(session).group.keeper.path.name == "small coffee.jpg"
    session.undo()
    assert session.feedback.keepers() == set()
    assert coffee_group(session).group.keeper.path.name == "IMG_1.jpg"
    assert len(coffee_group(session).suggested) == 2, "undoing the choice brings the suggestion back"


def test_keeping_both_keeps_the_photo_that_was_marked_in_favour_of_others(server):
    session = server.session
    item = coffee_group(session)
    keeper, *others = (item.group.keeper, *item.group.others)
    session.accept(item.key, [photo.id for photo in others])
    assert item.remove == {keeper.id}
    session.set_apart(item.key, others[0].id)
    assert (item.status, item.remove) == ("skipped", frozenset()), "both stay"
    session.undo()
    session.accept(item.key, [others[0].id])  # all the others go
    session.set_apart(item.key, others[0].id)
    assert item.remove == {photo.id for photo in others[1:]}
    post(server, "confirm")
    assert session.apply().n_removed == len(others) - 1
    assert (session.root / keeper.path).exists() and (session.root / others[0].path).exists()


def test_a_journal_that_marks_every_photo_of_a_group_marks_none(server):
    session = server.session
    item = coffee_group(session)
    session.accept(item.key, [item.group.keeper.id])
    item.remove = frozenset(photo.id for photo in item.photos)
    session._decisions.write([item])
    again = coffee_group(ReviewSession(session.root))
    assert (again.status, again.remove) == ("todo", frozenset())


def test_what_cannot_be_undone_now_can_be_undone_later(server, monkeypatch):
    """While another photodup holds the trash nothing is taken back, and nothing is forgotten."""
    session = server.session
    item = coffee_group(session)
    session.skip(item.key)
    session.accept_all()
    n = session.apply().n_removed
    with monkeypatch.context() as patched:
        patched.setattr(session.trash, "restore", _fail)
        for _ in range(2):
            with pytest.raises(PhotodupError, match="in the way"):
                session.undo()
    assert session.undo().startswith(f"{n} file")


def test_a_removal_whose_labels_cannot_be_written_can_be_undone(server, monkeypatch):
    session = server.session
    item = coffee_group(session)
    keeper, other = item.group.keeper, item.group.others[0]
    session.accept(item.key, [other.id])
    monkeypatch.setattr(session.feedback, "add_keepers", _fail)
    done = session.apply()
    assert done.n_removed and "in the way" in done.refused[-1] and not (session.root / keeper.path).exists()
    session.undo()
    assert (session.root / keeper.path).exists()


def _fail(*arguments, **options):
    raise PhotodupError("Something is in the way.")


def test_the_trash_is_emptied_after_a_look_and_no_other_list(server):
    session = server.session
    remove_all(session)
    shown = httpx.get(f"{server.url}empty-trash").text
    plan = re.search(r'name="plan" value="(\w+)"', shown)[1]
    assert "small coffee.jpg" in shown and "No undo brings these files back" in shown
    Trash(session.root).restore(Trash(session.root).contents().listing[:1])  # in another window
    refused = post(server, "empty-trash", plan=plan)
    assert refused.status_code == 409 and "nothing was deleted" in refused.text
    assert Trash(session.root).contents().listing
    n = len(Trash(session.root).contents().listing)
    done = post(server, "empty-trash", plan=session.trash_plan)
    assert f"{n} photos are deleted for good" in done.text
    assert Trash(session.root).contents().listing == []
    assert not session.history or not session.history[-1].operations
    assert post(server, "empty-trash", plan="").status_code == 409


def test_the_page_speaks_plainly_and_gives_a_reason_for_each(server):
    session = server.session
    item = coffee_group(session)
    for member in item.group.others:
        text = httpx.get(f"{server.url}group/{item.key}?photo={member.id}").text
        visible = re.sub(r"(?s)<details.*?</details>", "", text)
        assert "cosine" not in visible and "points" not in visible and "100%" not in visible
        assert item.group.choice.reason in text and "the left one reproduces it, so it may go" in text
    overview = re.sub(r"(?s)<details.*?</details>", "", httpx.get(server.url).text)
    assert "alike" not in overview.split('<ol class="grid"')[1] and "can go" in overview
    assert item.group.choice.reason == "reproduces every other picture"


def test_groups_are_listed_by_size_date_or_folder_and_of_a_folder_year_or_size(server, monkeypatch):
    items = {item.key: item for item in server.session.select("copies")}

    def listed(**query: str) -> list[str]:
        text = httpx.get(server.url, params=query).text
        return re.findall(r'<li class="card \w+" id="(\w+)"', text)

    assert listed() == list(items) and listed(order="odd") == list(items)
    by_size = [items[key].bytes_to_free for key in listed(order="size")]
    assert len(by_size) == 3 and by_size == sorted(by_size, reverse=True)
    dates = [items[key].group.keeper.taken_at for key in listed(order="date")]
    assert dates == sorted(dates, reverse=True)
    assert listed(order="oldest") == sorted(items, key=lambda key: items[key].group.keeper.taken_at)
    assert [items[key] for key in listed(folder="Shared")] == [coffee_group(server.session)]
    assert set(listed(folder="2020", order="folder")) < set(items)
    assert {items[key].group.keeper.path.name for key in listed(year="2021")} == {"IMG_3.jpg"}
    assert len(listed(year="2020")) == 2 and listed(year="1999") == [] and len(listed(least="many")) == 3
    assert listed(least="1") == [] and "of what you chose above" in httpx.get(f"{server.url}?least=1").text
    sizes = dict(zip(items, (999_999, 1_000_000, 20_000_000), strict=True))
    monkeypatch.setattr(Item, "bytes_to_free", property(lambda item: sizes[item.key]))
    assert listed(least="1", order="size") == list(items)[:0:-1] and listed(least="10") == list(items)[2:]
    assert "folder=&amp;year=2020&amp;least=1" in httpx.get(f"{server.url}?year=2020&least=1").text, "kept"


def test_where_two_differ_is_a_picture_or_a_sentence(server):
    session = server.session
    item = coffee_group(session)
    keeper, part = item.group.keeper, next(p for p in item.photos if p.path.name == "cropped coffee.jpg")
    strange = group_of(session, "IMG_2.jpg").group.keeper

    def asked(first: int, second: int) -> httpx.Response:
        return httpx.get(f"{server.url}difference/{first}/{second}.jpg", timeout=60)

    assert 'id="difference"' in httpx.get(f"{server.url}group/{item.key}").text
    drawn = asked(keeper.id, part.id)
    assert drawn.status_code == 200 and drawn.headers["cache-control"] == "no-store"
    with Image.open(BytesIO(drawn.content)) as picture:
        assert picture.width / picture.height == pytest.approx(keeper.width / keeper.height, abs=0.02)
    assert drawn.headers["content-description"].endswith(
        " of what both show differs by more than 8 greys of 255."
    )
    assert asked(keeper.id, keeper.id).headers["content-description"] == "No pixel differs at this size."
    refused = asked(keeper.id, strange.id)
    assert refused.status_code == 404 and "cannot be laid over each other" in refused.text
    assert "There is no such photo" in asked(keeper.id, 10**6).text
    (session.root / part.path).unlink()
    assert "is no longer there: scan again" in asked(keeper.id, part.id).text
