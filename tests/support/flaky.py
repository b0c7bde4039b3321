"""The same server under another port, over a way that fails as a test asks."""

import socket
import threading
import time
from contextlib import contextmanager

from support.http_server import accepting


@contextmanager
def in_front_of(target: str, failures: int = 0, how: str = "", at: tuple = ("127.0.0.1", 0)):
    """Serve another server's answers at another address, which is the `url` of what is yielded."""
    flaky = Flaky(target, failures, how)
    with accepting(flaky.serve, at) as flaky.url:
        yield flaky


class Flaky:
    """A real TCP server in front of another: the first `failures` requests for embeddings go wrong."""

    def __init__(self, target: str, failures: int, how: str) -> None:
        self.target = target.removeprefix("http://").split(":")
        self.left, self.how, self.seen, self.url = failures, how, 0, ""

    def serve(self, connection: socket.socket) -> None:
        data = connection.recv(1 << 20)
        if data.startswith(b"POST"):
            self.seen += 1
            if self.left > 0:
                self.left -= 1
                if self.how == "silent":
                    time.sleep(15)
                elif self.how == "503":
                    time.sleep(0.1)
                    connection.sendall(b"HTTP/1.1 503 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
        with socket.create_connection((self.target[0], int(self.target[1]))) as onward:
            onward.sendall(data)
            threading.Thread(target=self._pump, args=(onward, connection), daemon=True).start()
            self._pump(connection, onward)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what passes is not held back
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
