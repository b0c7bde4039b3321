"""The routes of the review page. The decisions are in `session.py`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from photodup.core.errors import PhotodupError
from photodup.core.names import printable
from photodup.embedding.backends import parse_backend
from photodup.photos.demo.encoder import NAME as SMALL_ENCODER
from photodup.photos.embed.choose import AUTO, EncoderRequest, known_backends, probe_servers
from photodup.photos.library.hard_links import bytes_freed
from photodup.photos.library.settings import LEAST_THRESHOLD, RULES, check_folders, check_inside
from photodup.photos.review import pictures
from photodup.photos.review.reviewed_folder import OPENING, ReviewTask
from photodup.photos.review.session import DONE, MARKED, TODO, Item
from photodup.photos.review.site import CurrentSite, Number, Numbers, Text, Texts

router = APIRouter()

PAGE_SIZE = 24
TRASH_PAGE_SIZE = 200
_LOOKED_AT = 12  # photos of each group that are checked for changes
# Orders of the groups: key, and whether the largest comes first. By default the surest copies come first.
_ORDERS: dict[str, tuple[Callable[[Item], int | str], bool]] = {
    "size": (lambda item: item.bytes_to_free, True),
    "date": (lambda item: item.group.keeper.taken_at or "", True),
    "oldest": (lambda item: item.group.keeper.taken_at or "9999", False),
    "folder": (lambda item: str(item.group.keeper.path), False),
}
_LEAST_MB = (1, 10, 100, 1000)  # megabytes that a group frees: choices of the filter
_MOST_FOLDERS, _MOST_DIGITS = 200, 20
_LOCAL = (("local-pytorch-fp32", ""), ("local-onnx-fp32", ""))


def _one_page(listed: Sequence, number: int, size: int) -> tuple[Sequence, dict[str, int]]:
    """Return the entries of a page (from 1, or the nearest), its number and the number of pages."""
    n_pages = max(1, -(-len(listed) // size))
    number = min(max(number, 1), n_pages)
    return listed[(number - 1) * size : number * size], {"number": number, "n_pages": n_pages}


class Selection(BaseModel):
    """Which groups the overview shows, in which order, and the number of the page.

    `folder` and `year` select groups with a photo of that folder or year, `least` those that free at least so many MB.
    """

    tier: str = "copies"
    status_filter: str = Field("", alias="status")
    order: str = ""
    folder: str = ""
    year: str = ""
    least: str = ""
    number: int = 1


@router.get("/")
def overview(site: CurrentSite, chosen: Annotated[Selection, Query()]) -> Response:
    """Show the groups of a tier, page by page."""
    session, folder, year = site.session, chosen.folder, chosen.year
    tier = chosen.tier if chosen.tier in ("copies", "similar") else None
    listed = session.select(tier, chosen.status_filter or None)
    parents = {parent for item in listed for photo in item.photos for parent in photo.path.parents[:-1]}
    years = {photo.taken_at[:4] for item in listed for photo in item.photos if photo.taken_at}
    if folder:
        listed = [i for i in listed if any(folder in map(printable, p.path.parents) for p in i.photos)]
    if year:
        listed = [item for item in listed if any((p.taken_at or "").startswith(year) for p in item.photos)]
    if chosen.least in map(str, _LEAST_MB):
        listed = [item for item in listed if item.bytes_to_free >= int(chosen.least) * 1_000_000]
    if chosen.order in _ORDERS:
        key, is_reversed = _ORDERS[chosen.order]
        listed = sorted(listed, key=key, reverse=is_reversed)
    items, page = _one_page(listed, chosen.number, PAGE_SIZE)
    return site.page(
        "overview.html",
        items=items,
        following=listed[page["number"] * PAGE_SIZE :][:PAGE_SIZE],
        n_shown=len(listed),
        years=sorted(years, reverse=True),
        sizes=_LEAST_MB,
        folders=sorted(map(printable, parents))[:_MOST_FOLDERS],
        small_encoder=SMALL_ENCODER,
        **chosen.model_dump() | page,
        n_suggested=sum(bool(item.suggested) for item in session.select("copies", TODO)),
        changed=pictures.problems(session.root, [p for item in items for p in item.still_there[:_LOOKED_AT]]),
    )


@router.get("/group/{key}")
def group_page(site: CurrentSite, key: str, photo: int = 0) -> Response:
    """Show one group: its keeper beside one of the others."""
    session = site.session
    item = session.item(key)
    members = item.members
    if not members:
        return site.go(f"/#{key}")
    if item.status == DONE:
        place = "trash" if session.trash.moves_files else "album"
        sentence = f"Photos of this group were removed. Undo brings them back, and so does the {place}."
        return site.message("This group is done", sentence)
    member = next((member for member in members if member.photo.id == photo), members[0])
    chosen = member.photo
    before, after = session.neighbours(key)
    fetched_ahead = [later.photo for later in members[members.index(member) + 1 :][:1]]
    following = session.next_todo(key)
    if following and following != key:
        fetched_ahead += session.item(following).photos[:2]
    return site.page(
        "group.html",
        item=item,
        chosen=chosen,
        member=member,
        rows=pictures.side_by_side(item.group.keeper, chosen),
        offer=session.offer(key, chosen.id),
        before=before,
        after=after,
        ahead=fetched_ahead,
        problems=pictures.problems(session.root, item.photos),
        place=list(session.items).index(key) + 1,
    )


@router.get("/confirm")
def confirm_page(site: CurrentSite, number: int = 1) -> Response:
    """Show everything that is marked, before any of it moves."""
    session = site.session
    marked = session.select(status=MARKED)
    items, page = _one_page(marked, number, PAGE_SIZE)
    leaving = {photo.id: photo for item in marked for photo in item.leaving}
    written = session.transfers()
    frees = bytes_freed(session.root, leaving.values())
    return site.page(
        "confirm.html",
        links=pictures.links_to(session.root, leaving.values(), site.folder.only),
        n_sidecars=len({file for removal in session.removals() for file in removal.sidecars}),
        linked={number for number, n_bytes in frees.items() if not n_bytes},
        freed=sum(frees.values()),
        transfers=written,
        items=items,
        plan=session.plan(written),
        leaving=leaving.keys(),
        changed=pictures.problems(session.root, [p for item in items for p in item.photos]),
        **page,
    )


@router.get("/trash")
def trash(site: CurrentSite, number: int = 1) -> Response:
    """Show the trash, newest first."""
    contents = site.session.list_trash()
    operations, page = _one_page(contents.listing, number, TRASH_PAGE_SIZE)
    return site.page("trash.html", contents=contents, operations=operations, **page)


@router.get("/empty-trash")
def before_emptying(site: CurrentSite) -> Response:
    """Show what emptying the trash would delete for good."""
    session = site.session
    return site.page("empty_trash.html", listing=session.list_trash().listing, plan=session.trash_plan)


@router.get("/settings")
def settings(site: CurrentSite) -> Response:
    """Show this library's stored settings, which servers answer, and which one this run uses."""
    stored, request = site.session.settings, site.folder.encoder
    chosen = (request.backend or ("" if request.url else AUTO), request.url or "")
    states = probe_servers(known_backends())
    listed = {(state.name, state.url) for state in states} | {(AUTO, ""), *_LOCAL}
    return site.page(
        "settings.html",
        settings=stored,
        states=states,
        local=_LOCAL,
        chosen=chosen,
        is_other=chosen not in listed,
        rules={rule: RULES[rule] for rule in (*stored.keep, *RULES)},
    )


@router.get("/work")
def work(site: CurrentSite) -> Response:
    """Show the progress or the result of the work, or how to begin if the folder is not open."""
    folder, task = site.folder, site.folder.work.last
    if task and not task.ended.is_set():
        return site.page("work.html", task=task)
    if folder.session is not None:
        return site.result(task) if task else site.go("/")
    return site.page("begin.html", last=task, was_scanned=folder.was_scanned)


@router.get("/work/state")
def state(site: CurrentSite) -> Response:
    """Return the progress as JSON, for the waiting page."""
    if (task := site.folder.work.running) is None:
        return JSONResponse({"is_running": False})
    fields = {
        name: getattr(task, name) for name in ("title", "doing", "done", "total", "can_stop", "is_stopping")
    }
    return JSONResponse({"is_running": True, "is_open": site.is_open, "left": task.time_left} | fields)


@router.get("/photo/{photo_id}/{size}.jpg")
def image(
    site: CurrentSite, photo_id: int, size: Literal["small", "screen", "large"], request: Request
) -> Response:
    """Return a photo as a JPEG of one of `pictures.SIZES`."""
    root, photo = site.photo(photo_id)
    pictures.open_photo(root, photo).close()
    return _picture(request, f"{photo.md5}-{size}", partial(pictures.photo_picture, root, photo, size))


@router.get("/difference/{keeper_id}/{photo_id}.jpg")
def difference_image(site: CurrentSite, keeper_id: int, photo_id: int) -> Response:
    """Return a JPEG that shows where two photos differ; Content-Description says how much."""
    (root, keeper), (_, photo) = site.photo(keeper_id), site.photo(photo_id)
    drawn, description = pictures.difference_picture(root, keeper, photo)
    return Response(drawn, media_type="image/jpeg", headers={"Content-Description": description})


def _picture(request: Request, tag: str, make: Callable[[], bytes]) -> Response:
    """Answer with a JPEG, or 304 if it was sent. The browser asks each time: no photo that changed is shown."""
    headers = {"Cache-Control": "private, no-cache", "ETag": f'"{tag}"'}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(None, 304, headers)
    return Response(make(), 200, headers, "image/jpeg")


@router.get("/removed/{name}/small.jpg")
def removed_image(site: CurrentSite, name: str, request: Request) -> Response:
    """Return a small JPEG of a photo in the trash that this user's photodup removed."""
    session = site.session
    operation = session.in_trash.get(name)
    if operation is None or not operation.files:
        raise pictures.PictureRefused("There is no such photo in the trash.")
    moved = operation.files[0]
    return _picture(request, f"{moved.md5}-removed", partial(pictures.trash_picture, session.root, moved))


@router.post("/group/{key}")
def decide_group(
    site: CurrentSite, key: str, keep: Numbers, action: Text = "", photo: Number = 0
) -> Response:
    """Accept a group, skip it, or tell one photo apart; then show the next undecided group."""
    session = site.session
    if action == "accept":
        session.accept(key, keep)
    elif action == "keep_instead":
        return site.go(f"/group/{session.keep_instead(key, photo)}")
    elif action == "carry":
        session.carry(key, photo)
    elif action == "skip":
        session.skip(key)
    elif action == "keep_both":
        session.set_apart(key, photo)
        if session.item(key).members:
            return site.go(f"/group/{key}")
    else:
        raise PhotodupError("There is no such action.")
    todo = session.next_todo(key)
    return site.go(f"/group/{todo}" if todo else "/confirm")


@router.post("/undo")
def undo(site: CurrentSite) -> Response:
    """Take back the last decision or removal."""
    session = site.session
    if session.history and session.history[-1].operations:  # files come back
        return site.change("Putting files back", session.undo, title="Undone")
    message = session.undo()
    return site.go(f"/group/{session.undone}") if session.undone else site.message("Undone", message)


@router.post("/accept-all")
def accept_all(site: CurrentSite) -> Response:
    """Mark every suggested copy that is not decided yet."""
    site.session.accept_all()
    return site.go("/confirm")


@router.post("/carry-all")
def carry_all(site: CurrentSite) -> Response:
    """Mark copies held back only for metadata, if all of it can be written beside the keeper."""
    if not site.session.carry_all():
        message = "Not all of their data can be written beside the photos that stay: each group lists what would be lost."
        return site.message("Nothing was marked", message)
    return site.go("/confirm")


@router.post("/list")
def change_list(site: CurrentSite, change: Text = "", number: Number = 1) -> Response:
    """Change what happens to one photo of the list (`change` is action, group and photo), and show the list again."""
    match change.split():
        case [action, key, photo] if photo.isdecimal() and len(photo) < _MOST_DIGITS:
            site.session.change_mark(key, int(photo), action)
            return site.go(f"/confirm?number={number}#{key}")
    raise PhotodupError("There is no such change.")


@router.post("/remove")
def remove_marked(site: CurrentSite, plan: Text = "") -> Response:
    """Move the marked photos into the trash if they are still those that were shown."""
    return site.change("Removing photos", partial(site.session.apply, plan), "/trash")


@router.post("/restore")
def restore(
    site: CurrentSite, listed: Texts, operation: Texts, scope: Text = "", unsigned: Text = ""
) -> Response:
    """Bring removals back from the trash: the chosen ones, or all of the page."""
    ids = listed if scope == "page" else operation
    if not ids:
        raise PhotodupError("Choose what to restore first.")
    bring_back = partial(site.session.restore, ids, unsigned=unsigned == "yes")
    return site.change("Putting files back", bring_back, title="Restored")


@router.post("/empty-trash")
def empty_trash(site: CurrentSite, plan: Text = "") -> Response:
    """Delete the trash for good if it still holds what was shown."""
    empty = partial(site.session.empty_trash, plan)
    return site.change("Emptying the trash", empty, title="The trash is empty")


@router.post("/settings/backend")
def set_backend(site: CurrentSite, backend: Text = AUTO, name: Text = "", url: Text = "") -> Response:
    """Find similar scenes by this backend until photodup stops; a server must answer."""
    if backend != "other":
        name, _, url = backend.partition(" ")
    name, url = name.strip() or AUTO, url.strip()
    if name != AUTO and not parse_backend(name).is_local:
        (state,) = probe_servers([(name, url)])
        if not state.answers:
            raise PhotodupError(state.problem)
    chosen = None if name == AUTO else name  # None: the environment comes before `auto`
    site.folder.encoder = EncoderRequest(chosen, url or None)
    return site.go("/settings")


@router.post("/settings/keep")
def set_keep_rules(
    site: CurrentSite,
    rule: Texts,
    place: Numbers,
    folders: Text = "",
    protected: Text = "",
    not_within: Text = "",
) -> Response:
    """Store the order of the keep rules, the folders by priority, and the folders without suggestions or comparisons.

    The rules are ordered by their places; 0 leaves one out.
    """
    session = site.session
    ordered = sorted(zip(place, rule, strict=False), key=itemgetter(0))
    changed = replace(
        session.settings,
        keep=tuple(name for number, name in ordered if number > 0),
        folders=check_inside(folders.splitlines()),
        protected=check_folders(session.root, protected.splitlines()),
        not_within=check_folders(session.root, not_within.splitlines()),
    )
    return site.change("Choosing the photos to keep", partial(session.change, changed), "/settings")


@router.post("/work/stop")
def stop(site: CurrentSite) -> Response:
    """Stop the work after the photo at hand."""
    if task := site.folder.work.running:
        task.stop()
    return site.go("/work")


@router.post("/open")
def open_folder(site: CurrentSite) -> Response:
    """Open the folder with what is in its catalogue."""
    if site.folder.session:
        return site.go("/")
    return site.run(ReviewTask(OPENING, site.folder.show_groups))


@router.post("/scan")
def scan_folder(site: CurrentSite) -> Response:
    """Look for photos in the folder: new ones, changed ones, and those that are gone."""
    return site.run(ReviewTask("Looking for photos", site.folder.look_for_photos, is_exclusive=False))


@router.post("/similar")
def similar(site: CurrentSite, encoder: Annotated[Literal["", "small"], Form()] = "") -> Response:
    """Embed the photos and find similar scenes."""
    find = partial(site.folder.find_scenes, by_small_encoder=encoder == "small")
    return site.run(ReviewTask("Finding similar scenes", find, is_exclusive=False))


@router.post("/threshold")
def threshold(
    site: CurrentSite, percent: Annotated[float | None, Form()] = None, usual: Text = ""
) -> Response:
    """Group similar scenes by another threshold, in percent; by the model's own without one, or with `usual`."""
    chosen = None if usual or percent is None else percent / 100
    if chosen is not None and not LEAST_THRESHOLD <= chosen <= 1:
        raise PhotodupError("Say how alike scenes must be with a number from 1 to 100.")
    return site.change("Finding similar scenes", partial(site.session.show_from, chosen), "/?tier=similar")
