"""Small HTTP servers for the tests: real TCP, in a thread of this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Says nothing on the terminal, and answers in one call."""

    protocol_version = "HTTP/1.1"

    def reply(self, body: bytes, status: int = 200, kind: str = "text/html") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(handler, **facts: object) -> Iterator[ThreadingHTTPServer]:
    """Serve for the length of a block; a handler finds the facts in `self.server`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        vars(server).update(facts)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
