"""Shared by all routes of the review page: the guard, the session, templates, forms."""

import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from photodup.core.errors import PhotodupError
from photodup.core.names import escaped, printable
from photodup.photos.library.catalogue import Photo
from photodup.photos.library.metadata import in_words
from photodup.photos.review.pictures import PictureRefused, whole_percent
from photodup.photos.review.reviewed_folder import Finished, ReviewedFolder, ReviewTask
from photodup.photos.review.session import MARKED, TODO, ReviewSession

# Work that ends within this time is answered with its result; longer work with its progress.
_QUICK_S = 2.0
MAX_BODY_BYTES = 1_000_000


class NotNow(Exception):
    """Nothing is open yet, or the groups are being changed; the work page shows progress."""


@dataclass(frozen=True)
class Site:
    """The review page of one folder.

    Attributes:
        folder: the reviewed folder, and the long work on it.
        base: beginning of every address: a slash and the token.
    """

    folder: ReviewedFolder
    base: str

    @property
    def is_open(self) -> bool:
        """Return whether there are groups, and no running task is about to change them."""
        task = self.folder.work.running
        return self.folder.session is not None and not (task and task.is_exclusive)

    @property
    def session(self) -> ReviewSession:
        """The library under review.

        Raises:
            NotNow: it is not open, or its groups are being changed.
        """
        if self.folder.session is None or not self.is_open:
            raise NotNow
        return self.folder.session

    def photo(self, photo_id: int) -> tuple[Path, Photo]:
        """Return the library's folder and a photo of its groups, also while these are being changed.

        Raises:
            PictureRefused: there is no such photo.
        """
        session = self.folder.session
        if session is None or photo_id not in session.photos:
            raise PictureRefused("There is no such photo in these groups.")
        return session.root, session.photos[photo_id]

    def run(self, task: ReviewTask) -> Response:
        """Begin long work; answer with its result if it ends soon, else with its progress.

        Raises:
            PhotodupError: other work is running, or this one failed.
        """
        self.folder.work.begin(task)
        task.ended.wait(_QUICK_S)
        return self.result(task) if task.ended.is_set() else self.go("/work")

    def change(self, doing: str, work: Callable[[], object], path: str = "", *, title: str = "") -> Response:
        """Run work that cannot be stopped; then show `path`, or with a `title` the text that `work` returned. See `run`."""

        def run_and_report(task: ReviewTask) -> Finished:
            outcome = work()
            return Finished(path, title, str(outcome) if title else "")

        return self.run(ReviewTask(doing, run_and_report, can_stop=False))

    def result(self, task: ReviewTask) -> Response:
        """Return the result page of an ended task.

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
        environment.filters |= {
            "path": printable,
            "text": escaped,
            "percent": whole_percent,
            "kinds": in_words,
        }
        return environment

    def page(self, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
        """Render a template with its values and those of every page."""
        session, running, only = self.folder.session, self.folder.work.running, self.folder.only
        common = {
            "base": self.base,
            "reviewed": self.folder,
            "session": session,
            "library": printable(self.folder.root) + ": " * bool(only) + ", ".join(map(printable, only)),
            "task": running,
            "is_open": self.is_open,
            "in_album": session is not None and not session.trash.moves_files,
        }
        if session is not None:
            items = session.items.values()
            common |= {
                "n_groups": len(items),
                "n_decided": sum(item.status != TODO for item in items),
                "n_marked": sum(len(item.remove) for item in items if item.status == MARKED),
                "marked_bytes": sum(item.marked_bytes for item in items),
                "tiers": session.tiers,
            }
        text = self._templates.get_template(template).render(**common | values)
        # Names that are not UTF-8 reach sentences as lone surrogates, which no answer can carry.
        return HTMLResponse(re.sub("[\ud800-\udfff]", "\ufffd", text), status)

    def message(self, title: str, sentence: str, status: int = 200) -> HTMLResponse:
        """Return a page with one sentence."""
        return self.page("message.html", title=title, message=sentence, status=status)

    def go(self, path: str) -> RedirectResponse:
        """Send the browser to another address of this page."""
        return RedirectResponse(f"{self.base}{path}", 303)


def site_of(request: Request) -> Site:
    """Return the site that a request came to."""
    return request.app.state.site


CurrentSite = Annotated[Site, Depends(site_of)]
# Fields of a form; `Guard` bounds its size.
Text = Annotated[str, Form()]
Texts = Annotated[list[str], Form(default_factory=list)]
Number = Annotated[int, Form()]
Numbers = Annotated[list[int], Form(default_factory=list)]


class Guard:
    """Refuses requests that do not come from this session's own page; gives every answer its headers.

    The Host header keeps out names that were made to point here (DNS rebinding), the token keeps out other
    programs and pages, and Origin keeps out forms on other sites even if they know the token.

    Args:
        token: the first part of every address.
        port: where the page listens.
        in_frame: pages of this machine may show it in a frame.
    """

    def __init__(self, token: str, port: int, in_frame: bool) -> None:
        self._token, self._port = token, port
        self._hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
        self._origins = frozenset(f"http://{host}" for host in self._hosts)
        ancestors = "http://127.0.0.1:* http://localhost:*" if in_frame else "'none'"
        self._headers = {
            "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; "
            "connect-src 'self'; "
            f"form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",  # with no-referrer a browser sends no usable Origin
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
        }

    async def __call__(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Answer or refuse a request (FastAPI middleware)."""
        try:
            refused = self._refusal(request)
        except ValueError:  # a Content-Length that is no number
            refused = 400, "The request cannot be understood."
        if refused:
            response = Response(refused[1], refused[0], media_type="text/plain")
        else:
            response = await call_next(request)
        for name, value in self._headers.items():
            response.headers.setdefault(name, value)
        return response

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        """Return the status and the sentence of a refusal; None if the request is accepted."""
        if request.headers.get("host", "").lower() not in self._hosts:
            return 421, f"This page answers only as 127.0.0.1:{self._port} or localhost:{self._port}."
        token = request.scope["path"].removeprefix("/").split("/")[0]
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return 403, "The address lacks this session's token: use the one that `photodup review` printed."
        return None if request.method in ("GET", "HEAD") else self._refusal_of_change(request)

    def _refusal_of_change(self, request: Request) -> tuple[int, str] | None:
        if request.headers.get("origin", "").lower() not in self._origins:
            return 403, "The request comes from another page and was refused."
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "The request comes from another site and was refused."
        if int(request.headers.get("content-length") or MAX_BODY_BYTES + 1) > MAX_BODY_BYTES:
            return 413, "The request is too large."
        return None
