"""The web application of the review page, and its server (`photodup review`)."""

import os
import secrets
import socket
import sys
import threading
import webbrowser
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from photodup.core.addresses import cannot_listen
from photodup.core.errors import PhotodupError
from photodup.core.http_protocol import ImpatientProtocol
from photodup.core.names import count
from photodup.core.settings import variable
from photodup.photos.review.pages import router
from photodup.photos.review.pictures import PictureRefused
from photodup.photos.review.reviewed_folder import OPENING, ReviewedFolder, ReviewTask
from photodup.photos.review.session import ReviewSession
from photodup.photos.review.site import Guard, NotNow, Site, site_of

HOST = "127.0.0.1"
# Longest wait after Ctrl-C for photos that are being moved; the next opening of the trash recovers an interrupted move.
_FINISH_S = 60.0
_STOP_S = 1.5  # and for work that may stop at any moment


class ReviewServer:
    """The page in a thread of this process; a context manager. Notebooks show `url` in a frame.

    Args:
        folder: a folder of photographs; must be scanned, unless it is opened on the page.
        port: on 127.0.0.1; 0 takes a free one.
        in_frame: let pages of this machine (a notebook) show it in a frame.
        opened_on_page: answer at once and open the folder in the background; the page shows progress, and offers to
            scan a new folder. Otherwise the constructor opens it.

    Raises:
        PhotodupError: the port is taken, or the folder cannot be opened.
    """

    def __init__(
        self,
        folder: Path | ReviewedFolder,
        *,
        port: int = 0,
        in_frame: bool = False,
        opened_on_page: bool = False,
    ) -> None:
        self.folder = folder if isinstance(folder, ReviewedFolder) else ReviewedFolder(folder)
        if opened_on_page:
            self.folder.check()
        else:
            self.folder.open()
        try:
            self._socket = socket.create_server((HOST, port))
        except OSError as error:
            raise PhotodupError(cannot_listen(error, HOST, port, "the review page")) from None
        self.port = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(24)
        self.url = f"http://{HOST}:{self.port}/{token}/"
        app = _review_app(Site(self.folder, f"/{token}"), Guard(token, self.port, in_frame))
        config = uvicorn.Config(
            app, http=ImpatientProtocol, log_level="warning", access_log=False, server_header=False
        )
        self._server = uvicorn.Server(config)
        run = partial(self._server.run, sockets=[self._socket])
        self._thread = threading.Thread(target=run, name="review", daemon=True)

    @property
    def session(self) -> ReviewSession:
        """The session; there is one unless the folder is opened on the page."""
        return cast(ReviewSession, self.folder.session)

    def start(self) -> "ReviewServer":
        """Start and wait until it answers."""
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise PhotodupError(f"The review page could not start on port {self.port}.")
            threading.Event().wait(0.02)
        if self.folder.session is None and self.folder.was_scanned:
            self.folder.work.begin(ReviewTask(OPENING, self.folder.show_groups))
        return self

    def stop(self) -> None:
        """Stop it and wait, also for photos that are being moved; a second call does nothing."""
        if self._server.should_exit:
            return
        self.folder.work.stop(_FINISH_S, _STOP_S)
        self._server.should_exit = True
        self._thread.join(10)

    def wait(self) -> None:
        """Print what is open once all groups are there, and wait until it is stopped, such as by Ctrl-C."""
        is_open = False
        try:
            while self._thread.is_alive():
                session = self.folder.session
                if not is_open and session and session.tiers.is_complete and not self.folder.work.running:
                    is_open = True
                    for sentence in session.problems:
                        print(sentence)
                    print(f"Review {count(len(session.items), 'group')} at {self.url}", flush=True)
                self._thread.join(0.5 if is_open else 0.05)
        except KeyboardInterrupt:
            self.stop()

    __enter__ = start

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def serve_review(folder: ReviewedFolder, *, port: int, browser: bool) -> None:
    """Serve until Ctrl-C.

    Args:
        folder: scanned or not.
        port: 0 takes a free one.
        browser: open the page in a browser, if there is a screen.
    """
    with ReviewServer(folder, port=port, opened_on_page=True) as server:
        print(f"The page: {server.url}\nStop with Ctrl-C.", flush=True)
        if browser and _has_browser():
            webbrowser.open(server.url)
        server.wait()
    if (task := server.folder.work.running) and task.can_stop:
        # Python would wait for its threads: a batch of photographs, a loading model, a silent server.
        doing = task.title[0].lower() + task.title[1:]
        print(f"Stopped while busy ({doing}): what was done before is kept.", flush=True)
        os._exit(0)


def _has_browser() -> bool:
    """Return whether there is a screen; without one a text browser could take over the terminal."""
    has_screen = sys.platform in ("darwin", "win32") or any(map(variable, ("DISPLAY", "WAYLAND_DISPLAY")))
    return has_screen and not any(map(variable, ("CI", "SSH_CONNECTION")))


def _review_app(site: Site, guard: Guard) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.site = site
    app.middleware("http")(guard)
    app.include_router(router, prefix=site.base)
    app.mount(f"{site.base}/static", StaticFiles(directory=Path(__file__).parent / "static"))
    app.add_exception_handler(PhotodupError, _not_done)
    app.add_exception_handler(NotNow, _not_now)
    app.add_exception_handler(HTTPException, _no_such_page)
    app.add_exception_handler(RequestValidationError, _no_such_page)
    return app


async def _not_done(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, PictureRefused) else 409
    return site_of(request).message("Not done", str(error), status)


async def _not_now(request: Request, error: Exception) -> Response:
    site = site_of(request)
    if request.method in ("GET", "HEAD") or site.folder.session is None:
        return site.go("/work")
    return site.message("Not now", "The groups are being changed, so this was not done: try it again.", 409)


async def _no_such_page(request: Request, error: Exception) -> Response:
    message = "The address or form names nothing that is here: go back to the groups."
    return site_of(request).message("Not found", message, getattr(error, "status_code", 422))
