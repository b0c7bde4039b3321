"""Starting the review page: `photodup review`."""

import socket
import threading
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn

from photodup.addresses import cannot_listen
from photodup.errors import PhotodupError
from photodup.photos.commands.group_command import tiers_by_settings, with_bar
from photodup.photos.groups.results import Tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.review.app import create_app
from photodup.photos.review.session import ReviewSession

HOST = "127.0.0.1"
DEFAULT_PORT, DEMO_PORT = 8000, 8001


class ReviewServer:
    """The page in a thread of this process; a context manager. Notebooks show `url` in a frame.

    Args:
        root: a scanned folder.
        port: where to listen, on 127.0.0.1 only; 0 takes a free one.
        catalogue: its catalogue, if elsewhere.
        in_frame: let pages of this machine (a notebook) show it in a frame.
        is_demo: say that these are the demonstration's photographs.
        find: makes the groups; default by the library's settings.
        endpoints: more embedding servers for the settings page, by backend.
    """

    def __init__(
        self,
        root: Path,
        *,
        port: int = 0,
        catalogue: Path | None = None,
        in_frame: bool = False,
        is_demo: bool = False,
        find: Callable[[Catalogue], Tiers] = tiers_by_settings,
        endpoints: Mapping[str, str] | None = None,
    ) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port))
        except OSError as error:
            self._socket.close()
            raise PhotodupError(cannot_listen(error, HOST, port, "the review page")) from None
        self.port = self._socket.getsockname()[1]
        try:
            self.session = ReviewSession(root, catalogue, find)
            self._socket.listen(128)  # not before: a browser would wait without a word
        except BaseException:
            self._socket.close()
            raise
        ancestors = "http://127.0.0.1:* http://localhost:*" if in_frame else "'none'"
        app = create_app(
            self.session,
            port=self.port,
            frame_ancestors=ancestors,
            is_demo=is_demo,
            endpoints=endpoints,
        )
        self.url = f"http://{HOST}:{self.port}/{app.state.token}/"
        config = uvicorn.Config(
            app, HOST, self.port, log_level="warning", access_log=False, server_header=False
        )
        self._server = uvicorn.Server(config)
        run = {"target": self._server.run, "kwargs": {"sockets": [self._socket]}}
        self._thread = threading.Thread(**run, name="review", daemon=True)

    def start(self) -> "ReviewServer":
        """Start and wait until it answers."""
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise PhotodupError(f"The review page could not start on port {self.port}.")
            threading.Event().wait(0.02)
        return self

    def stop(self) -> None:
        """Stop and wait for it."""
        self._server.should_exit = True
        self._thread.join(10)

    def wait(self) -> None:
        """Wait until it is stopped, by Ctrl-C for example."""
        try:
            while self._thread.is_alive():
                self._thread.join(0.5)
        except KeyboardInterrupt:
            self.stop()

    __enter__ = start

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def review(
    root: Path,
    *,
    port: int | None,
    catalogue: Path | None,
    browser: bool,
    is_demo: bool = False,
    endpoints: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Serve until Ctrl-C.

    Args:
        root: a scanned folder.
        port: where to listen; default 8000, 8001 for the demonstration; 0 takes a free one.
        catalogue: its catalogue, if elsewhere.
        browser: open the page there.
        is_demo: say that these are the demonstration's photographs.
        endpoints: more embedding servers for the settings page, by backend.
        **options: of `tiers_by_settings`: `keep`, `folders`, `digest`.
    """

    def find(opened: Catalogue) -> Tiers:
        return tiers_by_settings(opened, progress=with_bar, **options)

    wanted = port if port is not None else (DEMO_PORT if is_demo else DEFAULT_PORT)
    with ReviewServer(
        root, port=wanted, catalogue=catalogue, is_demo=is_demo, find=find, endpoints=endpoints
    ) as server:
        if server.session.note:
            print(server.session.note)
        print(f"Review {len(server.session.items)} groups at {server.url}\nStop with Ctrl-C.", flush=True)
        for sentence in server.session.problems:
            print(sentence, flush=True)
        if browser:
            webbrowser.open(server.url)
        server.wait()
