"""Long work on the page: how far it is, stopping it, and starting it (scan, similar scenes, another threshold)."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from photodup.errors import PhotodupError
from photodup.photos.background.work import Task
from photodup.photos.library.settings import LEAST_THRESHOLD
from photodup.photos.review.site import CurrentSite, form_of

router = APIRouter()


@router.get("/work")
def work(site: CurrentSite) -> Response:
    """How far the work is; when it has ended, what it led to; before the folder is open, how to begin."""
    task, folder = site.folder.work.last, site.folder
    if folder.work.running:
        return site.page("work.html", **_state(task))
    if folder.session is not None:
        return site.result(task) if task else site.go("/")
    said = ""
    if task:
        said = task.error or (task.finished.sentence if task.finished else "")
    return site.page("begin.html", said=said, was_scanned=folder.was_scanned)


@router.get("/work/state")
def state(site: CurrentSite) -> Response:
    """The same as data, for the page that waits."""
    return JSONResponse(_state(site.folder.work.running))


def _state(task: Task | None) -> dict[str, Any]:
    if task is None:
        return {"is_running": False}
    return {
        "is_running": True,
        "is_exclusive": task.is_exclusive,
        "title": task.title,
        "doing": task.doing,
        "done": task.done,
        "total": task.total,
        "left": "stopping after this photo" if task.is_stopping else task.time_left,
        "can_stop": task.can_stop,
        "is_stopping": task.is_stopping,
    }


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
async def similar(site: CurrentSite, request: Request) -> Response:
    """Look at what the photos show, so that similar scenes are found."""
    name = (await form_of(request)).get("encoder", [""])[0]
    return await site.run(site.folder.finding_scenes(name))


@router.post("/threshold")
async def threshold(site: CurrentSite, request: Request) -> Response:
    """Show similar scenes from another threshold on, in percent; the model's own if it is left out."""
    fields = await form_of(request)
    text = "" if "usual" in fields else fields.get("percent", [""])[0].strip()
    try:
        chosen = float(text) / 100 if text else None
    except ValueError:
        chosen = -1.0
    if chosen is not None and not LEAST_THRESHOLD <= chosen <= 1:
        raise PhotodupError("Say how alike scenes must be with a number from 1 to 100.")
    return await site.run(site.folder.showing_from(chosen))
