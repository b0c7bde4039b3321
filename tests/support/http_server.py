"""Small servers for the tests: real TCP, in a thread of this process."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


class Server(ThreadingHTTPServer):
    """A client that leaves is no event."""

    def handle_error(self, *_: object) -> None: ...


@contextmanager
def serving(handler, at: tuple = ("127.0.0.1", 0), certificate: tuple = (), **facts) -> Iterator[Server]:
    """Serve for the length of a block, over TLS with a certificate; a handler finds the facts in `self.server`."""
    with Server(at, handler) as server:
        url = "http{}://{}:{}".format("s" * bool(certificate), *server.server_address)
        vars(server).update(facts, url=url)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextmanager
def accepting(serve: Callable[[socket.socket], None], at: tuple = ("127.0.0.1", 0)) -> Iterator[str]:
    """Give each connection to `serve` in a thread of its own, for the length of a block; yields the URL."""

    def each(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            serve(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=each, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(at) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield "http://{}:{}".format(*listener.getsockname())
        listener.shutdown(socket.SHUT_RDWR)
