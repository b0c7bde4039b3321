"""What a reviewer does on the page: decide, undo, remove, restore, set, start long work. Nothing here decides itself."""

from dataclasses import replace

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from photodup.errors import PhotodupError
from photodup.photos.groups.keepers import DEFAULT_RULES
from photodup.photos.library.settings import AUTO, LEAST_THRESHOLD, inside
from photodup.photos.review.facts import size
from photodup.photos.review.reviewed_folder import Finished, ReviewTask
from photodup.photos.review.session import back_in_folders
from photodup.photos.review.site import CurrentSite, PostedForm, field, number_of

router = APIRouter()


@router.post("/group/{key}")
async def decide(site: CurrentSite, key: str, form: PostedForm) -> Response:
    """Accept a group, skip it, or tell one photo apart; then show the next undecided group."""
    session = site.session
    action = field(form, "action")
    chosen = number_of(field(form, "photo", "0"))
    if action == "accept":
        keep = [number_of(value) for value in form.get("keep", [])]
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

    def bring_back(task: ReviewTask) -> Finished:
        return Finished(title="Undone", sentence=session.undo())

    if session.undo_moves_files:
        return await site.run(ReviewTask("Putting files back", bring_back, can_stop=False))
    message = await run_in_threadpool(session.undo)
    return site.go(f"/group/{session.undone}") if session.undone else site.message("Undone", message)


@router.post("/accept-all")
async def accept_all(site: CurrentSite) -> Response:
    """Mark every suggested copy that is not decided yet."""
    await run_in_threadpool(site.session.accept_all)
    return site.go("/confirm")


@router.post("/remove")
async def remove(site: CurrentSite, form: PostedForm) -> Response:
    """Move what is marked into the trash, if it is still the list that was shown."""
    session, plan = site.session, field(form, "plan")

    def move(task: ReviewTask) -> Finished:
        session.apply(plan)
        return Finished("/trash")

    return await site.run(ReviewTask("Removing photos", move, can_stop=False))


@router.post("/restore")
async def restore(site: CurrentSite, form: PostedForm) -> Response:
    """Bring removals back from the trash."""
    ids = form.get("shown" if form.get("which") == ["shown"] else "operation", [])
    if not ids:
        raise PhotodupError("Choose what to restore first.")
    session, unsigned = site.session, form.get("unsigned") == ["yes"]

    def bring_back(task: ReviewTask) -> Finished:
        restored = session.restore(ids, unsigned=unsigned)
        said = back_in_folders([path.relative_to(session.root) for path in restored])
        return Finished(title="Restored", sentence=said)

    return await site.run(ReviewTask("Putting files back", bring_back, can_stop=False))


@router.post("/empty-trash")
async def empty_trash(site: CurrentSite, form: PostedForm) -> Response:
    """Delete for good what lies in the trash, if it is still what was shown."""
    session, plan = site.session, field(form, "plan")

    def delete(task: ReviewTask) -> Finished:
        n, freed = session.empty_trash(plan)
        photos = "1 photo is" if n == 1 else f"{n} photos are"
        said = f"{photos} deleted for good, {size(freed)} freed."
        return Finished(title="The trash is empty", sentence=said)

    return await site.run(ReviewTask("Emptying the trash", delete, can_stop=False))


@router.post("/settings/backend")
async def set_backend(site: CurrentSite, form: PostedForm) -> Response:
    """Store which server embeds; choosing its address here is what makes it this user's."""
    chosen = field(form, "backend", AUTO)
    if chosen == "other":
        chosen = f"{field(form, 'name').strip()} {field(form, 'url').strip()}"
    name, _, url = chosen.partition(" ")
    changed = replace(site.session.settings, backend=name or AUTO, url=url or None, ignored=None)
    await run_in_threadpool(site.session.change, changed)
    return site.go("/settings")


@router.post("/settings/keep")
async def set_keep_rules(site: CurrentSite, form: PostedForm) -> Response:
    """Store the order of the keep rules, and the folders by priority."""
    places = {rule: number_of(field(form, rule, "0") or "0") for rule in DEFAULT_RULES}
    order = sorted((rule for rule in DEFAULT_RULES if places[rule] > 0), key=lambda rule: places[rule])
    folders = inside(field(form, "folders").splitlines())
    session = site.session
    changed = replace(session.settings, keep=tuple(order), folders=folders)

    def change(task: ReviewTask) -> Finished:
        session.change(changed)
        return Finished("/settings")

    return await site.run(ReviewTask("Choosing the photos to keep", change, can_stop=False))


@router.post("/work/stop")
async def stop(site: CurrentSite) -> Response:
    """Stop the work after the photo at hand."""
    if task := site.folder.work.running:
        task.stop()
    return site.go("/work")


@router.post("/open")
async def open_folder(site: CurrentSite) -> Response:
    """Open the folder with what is in its catalogue."""
    return site.go("/") if site.folder.session else await site.run(site.folder.opening())


@router.post("/scan")
async def scan(site: CurrentSite) -> Response:
    """Look for photos in the folder: new ones, changed ones, and those that are gone."""
    return await site.run(site.folder.scanning())


@router.post("/similar")
async def similar(site: CurrentSite, form: PostedForm) -> Response:
    """Look at what the photos show, so that similar scenes are found."""
    return await site.run(site.folder.finding_scenes(field(form, "encoder")))


@router.post("/threshold")
async def threshold(site: CurrentSite, form: PostedForm) -> Response:
    """Show similar scenes from another threshold on, in percent; the model's own if it is left out."""
    text = "" if "usual" in form else field(form, "percent").strip()
    try:
        chosen = float(text) / 100 if text else None
    except ValueError:
        chosen = -1.0
    if chosen is not None and not LEAST_THRESHOLD <= chosen <= 1:
        raise PhotodupError("Say how alike scenes must be with a number from 1 to 100.")
    return await site.run(site.folder.showing_from(chosen))
