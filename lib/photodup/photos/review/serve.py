"""Starting the review page: `photodup review`."""

import socket
import threading
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn

from photodup.errors import PhotodupError
from photodup.paths import build_dir
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
            self._socket.listen(128)
        except OSError as error:
            self._socket.close()
            raise PhotodupError(
                f"Port {port} for the review page is in use ({error.strerror}): choose another with --port."
            ) from None
        self.port = self._socket.getsockname()[1]
        try:
            self.session = ReviewSession(root, catalogue, find)
        except BaseException:
            self._socket.close()
            raise
        ancestors = "http://127.0.0.1:* http://localhost:*" if in_frame else "'none'"
        app = create_app(
            self.session,
            port=self.port,
            frame_ancestors=ancestors,
            is_demo=is_demo,
            endpoints=endpoints or {},
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
    root: Path | None,
    *,
    port: int | None,
    demo: bool,
    catalogue: Path | None,
    browser: bool,
    endpoints: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Serve until Ctrl-C; with `demo`, on a copy of the demonstration library that is made if needed.

    Args:
        root, port, catalogue, endpoints: as in `ReviewServer`.
        demo: on the demonstration library, port 8001.
        browser: open it there.
        **options: of `tiers_by_settings`: `keep`, `folders`, `digest`.
    """
    if demo:
        root, catalogue = demo_library(), None
    elif root is None:
        raise PhotodupError("Name the folder that was scanned: photodup review DIR (or --demo).")

    def find(opened: Catalogue) -> Tiers:
        return tiers_by_settings(opened, progress=with_bar, **options)

    wanted = port if port is not None else (DEMO_PORT if demo else DEFAULT_PORT)
    with ReviewServer(
        root, port=wanted, catalogue=catalogue, is_demo=demo, find=find, endpoints=endpoints
    ) as server:
        if server.session.note:
            print(server.session.note)
        print(f"Review {len(server.session.items)} groups at {server.url}\nStop with Ctrl-C.", flush=True)
        for sentence in server.session.problems:
            print(sentence, flush=True)
        if browser:
            webbrowser.open(server.url)
        server.wait()


def demo_library() -> Path:
    """Return a demonstration library of its own for the page, scanned and, where that works, embedded.

    The encoder is the one MODEL_PRETRAINED names, else the EfficientNet-Lite0 stand-in; where neither is
    at hand copies are found by hash and pixels alone.
    """
    import os

    from photodup.demo.encoder import export_stand_in
    from photodup.demo.photographs import build_demo
    from photodup.embedding.client.client import connect
    from photodup.photos.library.scan import embed_library, scan

    root = build_dir() / "review-demo"
    if not (root / "ground_truth.json").is_file():
        build_demo(root)
    scan(root)
    try:
        named = os.environ.get("MODEL_PRETRAINED", "random:")
        weights = export_stand_in() if named.startswith("random:") else named
        with Catalogue(root) as catalogue, connect(mode="local", pretrained=weights) as embedder:
            embed_library(catalogue, embedder)
    except PhotodupError as error:
        print(f"Without embeddings ({error}): copies are found by hash and pixels.")
    return root
