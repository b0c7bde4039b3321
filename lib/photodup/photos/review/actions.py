"""What a reviewer does on the page: decide about a group, undo, remove, restore. Nothing here decides itself."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from photodup.errors import PhotodupError
from photodup.photos.background.work import Finished, Task
from photodup.photos.review.facts import size
from photodup.photos.review.removal import back_in_folders
from photodup.photos.review.site import CurrentSite, form_of, number_of

router = APIRouter()


@router.post("/group/{key}")
async def decide(site: CurrentSite, key: str, request: Request) -> Response:
    """Accept a group, skip it, or tell one photo apart; then show the next undecided group."""
    session = site.session
    fields = await form_of(request)
    action = fields.get("action", [""])[0]
    chosen = number_of(fields.get("photo", ["0"])[0])
    if action == "accept":
        keep = [number_of(value) for value in fields.get("keep", [])]
        await run_in_threadpool(session.accept, key, keep)
    elif action == "keep_instead":
        following = await run_in_threadpool(session.keep_instead, key, chosen)
        return site.go(f"/group/{following}")
    elif action == "skip":
        await run_in_threadpool(session.skip, key)
    elif action in ("not_duplicate", "keep_both"):
        await run_in_threadpool(session.set_apart, key, chosen, action)
        if session.item(key).members:
            return site.go(f"/group/{key}")
    else:
        raise PhotodupError("There is no such action.")
    todo = session.next_todo(key)
    return site.go(f"/group/{todo}" if todo else "/confirm")


@router.post("/undo")
async def undo(site: CurrentSite) -> Response:
    """Take back the last decision or removal."""
    session = site.session

    def bring_back(task: Task) -> Finished:
        return Finished(title="Undone", sentence=session.undo())

    if session.undo_moves_files:
        return await site.run(Task("Putting files back", bring_back, can_stop=False))
    message = await run_in_threadpool(session.undo)
    return site.go(f"/group/{session.undone}") if session.undone else site.message("Undone", message)


@router.post("/accept-all")
async def accept_all(site: CurrentSite) -> Response:
    """Mark every suggested copy that is not decided yet."""
    await run_in_threadpool(site.session.accept_all)
    return site.go("/confirm")


@router.post("/remove")
async def remove(site: CurrentSite, request: Request) -> Response:
    """Move what is marked into the trash, if it is still the list that was shown."""
    session, plan = site.session, (await form_of(request)).get("plan", [""])[0]

    def move(task: Task) -> Finished:
        session.apply(plan)
        return Finished("/trash")

    return await site.run(Task("Removing photos", move, can_stop=False))


@router.post("/restore")
async def restore(site: CurrentSite, request: Request) -> Response:
    """Bring removals back from the trash."""
    fields = await form_of(request)
    ids = fields.get("shown" if fields.get("which") == ["shown"] else "operation", [])
    if not ids:
        raise PhotodupError("Choose what to restore first.")
    session, unsigned = site.session, fields.get("unsigned") == ["yes"]

    def bring_back(task: Task) -> Finished:
        restored = session.restore(ids, unsigned=unsigned)
        said = back_in_folders([path.relative_to(session.root) for path in restored])
        return Finished(title="Restored", sentence=said)

    return await site.run(Task("Putting files back", bring_back, can_stop=False))


@router.post("/empty-trash")
async def empty_trash(site: CurrentSite, request: Request) -> Response:
    """Delete for good what lies in the trash, if it is still what was shown."""
    session, plan = site.session, (await form_of(request)).get("plan", [""])[0]

    def delete(task: Task) -> Finished:
        n, freed = session.empty_trash(plan)
        photos = "1 photo is" if n == 1 else f"{n} photos are"
        said = f"{photos} deleted for good, {size(freed)} freed."
        return Finished(title="The trash is empty", sentence=said)

    return await site.run(Task("Emptying the trash", delete, can_stop=False))
