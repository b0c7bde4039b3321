"""What all addresses of the review page share: the session, the templates, and how a request is read."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool

from photodup.errors import PhotodupError
from photodup.names import escaped, printable
from photodup.photos.background.work import Task
from photodup.photos.review import facts
from photodup.photos.review.items import MARKED, TODO
from photodup.photos.review.reviewed_folder import ReviewedFolder
from photodup.photos.review.security import MAX_BODY_BYTES
from photodup.photos.review.session import ReviewSession

# What is done within this time is answered with its result; what takes longer, with its progress.
_QUICK_S = 2.0


class NotNow(Exception):
    """Nothing is open yet, or the groups are being changed: there is a page that says how far that is."""


@dataclass(frozen=True)
class Site:
    """The review page of one folder.

    Attributes:
        folder: what is reviewed, and the long work on it.
        base: what every address begins with: a slash and the token.
        is_demo: say on every page that the photographs are the demonstration's.
    """

    folder: ReviewedFolder
    base: str
    is_demo: bool = False

    @property
    def session(self) -> ReviewSession:
        """The library under review.

        Raises:
            NotNow: it is not open, or its groups are being changed.
        """
        task = self.folder.work.running
        if self.folder.session is None or (task and task.is_exclusive):
            raise NotNow
        return self.folder.session

    async def run(self, task: Task) -> Response:
        """Begin long work; answer with what it led to if that is soon, else with its progress.

        Raises:
            PhotodupError: other work is running, or this one failed.
        """
        self.folder.work.begin(task)
        await run_in_threadpool(task.ended.wait, _QUICK_S)
        return self.result(task) if task.ended.is_set() else self.go("/work")

    def result(self, task: Task) -> Response:
        """Return the page that an ended task led to.

        Raises:
            PhotodupError: it failed.
        """
        if task.finished is None:
            raise PhotodupError(task.error or "This could not be done.")
        if task.finished.path:
            return self.go(task.finished.path)
        return self.message(task.finished.title, task.finished.sentence)

    @cached_property
    def _templates(self) -> Environment:
        environment = Environment(
            loader=PackageLoader("photodup.photos.review"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = {"size": facts.size, "path": printable, "text": escaped, "percent": facts.percent}
        environment.filters |= filters
        return environment

    def page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page made of a template, its values, and what every page shows."""
        session, running = self.folder.session, self.folder.work.running
        common = {
            "base": self.base,
            "work_page": f"{self.base}/work",
            "is_demo": self.is_demo,
            "library": printable(self.folder.root),
            "task": running,
            "is_open": session is not None and not (running and running.is_exclusive),
            "in_album": session is not None and not session.trash.moves_files,
        }
        if session is not None:
            common |= self._counts(session)
        text = self._templates.get_template(template).render(**common | values)
        # Names that are not UTF-8 reach sentences as lone surrogates, which no answer can carry.
        return HTMLResponse(re.sub("[\ud800-\udfff]", "\ufffd", text), status)

    def _counts(self, session: ReviewSession) -> dict[str, Any]:
        items = session.items.values()
        return {
            "n_groups": len(session.items),
            "n_decided": sum(item.status != TODO for item in items),
            "n_marked": sum(len(item.remove) for item in items if item.status == MARKED),
            "marked_bytes": sum(item.marked_bytes for item in items),
            "bytes_removed": session.bytes_removed,
            "can_undo": session.can_undo,
            "tiers": session.tiers,
        }

    def message(self, title: str, sentence: str, status: int = 200) -> HTMLResponse:
        """Return a page that says one thing."""
        return self.page("message.html", title=title, message=sentence, status=status)

    def go(self, path: str) -> RedirectResponse:
        """Send the browser to another address of this page."""
        return RedirectResponse(f"{self.base}{path}", 303)


def site_of(request: Request) -> Site:
    """Return the site that a request came to."""
    return request.app.state.site


CurrentSite = Annotated[Site, Depends(site_of)]


async def form_of(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form.

    Raises:
        PhotodupError: it is too large.
    """
    body = await request.body()
    if len(body) > MAX_BODY_BYTES:
        raise PhotodupError("The request is too large.")
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=10_000)
    except ValueError:
        raise PhotodupError("The form has too many fields.") from None


def number_of(text: str) -> int:
    """Return the number that names a photo.

    Raises:
        PhotodupError: it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise PhotodupError("A photo is named by its number.") from None
