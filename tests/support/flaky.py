"""The same server under another port, over a way that fails as a test asks."""

import socket
import threading
import time


class Flaky:
    """A real TCP server in front of another: the first `failures` requests for embeddings go wrong."""

    def __init__(self, target: str, failures: int = 0, how: str = "") -> None:
        self.target = target.removeprefix("http://").split(":")
        self.left, self.how, self.seen = failures, how, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            data = connection.recv(1 << 20)
            if data.startswith(b"POST"):
                self.seen += 1
                if self.left > 0:
                    self.left -= 1
                    if self.how == "silent":
                        time.sleep(15)
                    elif self.how == "503":
                        time.sleep(0.1)
                        connection.sendall(
                            b"HTTP/1.1 503 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                        )
                    return
            with socket.create_connection((self.target[0], int(self.target[1]))) as onward:
                onward.sendall(data)
                threading.Thread(target=self._pump, args=(onward, connection), daemon=True).start()
                self._pump(connection, onward)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
