"""A thin HTTP/1.1 client connection: one socket, one request at a time, as little Python as possible.

Load generators must not measure themselves. The well-known clients cost several times what a blocking socket
and the C parser of `httptools` cost, and would offer about half the load (`python -m benchmarks --only load_generator`
compares this one with the least that a client can do). Connecting is explicit, which the connection policies of a
measurement need. Not thread-safe: each worker has its own.
"""

import select
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httptools

from photodup.embedding.wire.http import Answer
from photodup.errors import PhotodupError

RECEIVE_BYTES = 1 << 16
MOST_ANSWER_BYTES = 1 << 28
STALE_S = 1.0  # servers close connections that were idle for some seconds; before that nobody has to ask


Prepared = tuple[bytes, bytes]  # head and body


class HttpError(PhotodupError):
    """The server answered with a status other than 2xx, without end, or not in HTTP: then `status` is 0."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


class HttpConnection:
    """One TCP connection to one server.

    Args:
        url: `http://host:port`; a path in it is put before every request's path.
        timeout_s: per send or receive, kept by the kernel (SO_RCVTIMEO), which costs no extra system call; an answer
            that is not whole so long after its first bytes ends with the next ones.
        tls: for an `https://` address.
        reopen: where the server has closed the connection while it was idle, connect anew before sending;
            that is part of the request, and `n_idle_closes` counts it. Otherwise it is a failed request.
    """

    def __init__(
        self, url: str, *, timeout_s: float = 60.0, tls: ssl.SSLContext | None = None, reopen: bool = False
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme != ("https" if tls else "http") or not parts.hostname:
            raise PhotodupError(f"{url!r} is not a server address: write http://host:port.")
        self._address = (parts.hostname, parts.port or (443 if tls else 80))
        self._tls, self._timeout_s, self._reopen = tls, timeout_s, reopen
        self._used, self.n_idle_closes = 0.0, 0
        self._host_header = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self._timeval = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        self.socket: socket.socket | None = None
        self._buffer = bytearray(RECEIVE_BYTES)

    def head(self, method: str, path: str, length: int, headers: Mapping[str, str] | None = None) -> bytes:
        """Return the bytes before the body; made once per payload, outside the timed span."""
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._host_header}"]
        lines += [f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def connect(self) -> None:
        """Open the connection now; nothing when it is open already."""
        if self.socket is not None:
            return
        where = "{}:{}".format(*self._address)
        try:
            family = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)[0]
        except socket.gaierror as error:
            raise socket.gaierror(error.errno, f"{error.strerror}, looking for {where}") from None
        connection = socket.socket(family[0], socket.SOCK_STREAM)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, self._timeval)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, self._timeval)
            connection.connect(family[4])
            if self._tls:  # TLS cannot live with the kernel's own time limits
                for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, 0))
                connection.settimeout(self._timeout_s)
                connection = self._tls.wrap_socket(connection, server_hostname=self._address[0])
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise HttpError(
                f"The certificate of {where} is not trusted ({error.verify_message}): name its authority, "
                "or do without the check."
            ) from None
        except ssl.SSLError as error:
            connection.close()
            raise HttpError(f"{where} does not speak TLS as asked ({error.reason or error}).") from None
        except BlockingIOError:
            connection.close()
            raise TimeoutError(f"{where} did not accept the connection in time") from None
        except OSError as error:
            connection.close()
            if error.errno is None:
                raise
            # of the same kind
            raise OSError(error.errno, f"{error.strerror}, connecting to {where}") from None
        self.socket = connection

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def request(self, head: bytes, body: bytes = b"") -> Answer:
        """Send one request and return headers (lower-case names) and body of the answer.

        The connection is opened when needed and closed after an error, so that the next request starts clean.

        Raises:
            HttpError: status other than 2xx, no HTTP, more than `MOST_ANSWER_BYTES`, or not whole in time.
            OSError: the connection failed; TimeoutError when the server sent nothing for too long.
        """
        if self._reopen and self.socket is not None and time.monotonic() - self._used > STALE_S:
            waiting = select.poll()
            waiting.register(self.socket, select.POLLIN)
            if waiting.poll(0):  # nothing was asked, so this is the end of the connection
                self.close()
                self.n_idle_closes += 1
        try:
            self.connect()
            assert self.socket is not None
            self._send(self.socket, head, body)
            answer = self._receive(self.socket)
        except BlockingIOError:
            self.close()
            raise TimeoutError("the server did not answer in time") from None
        except httptools.HttpParserError as error:
            self.close()
            raise HttpError(f"The server's answer is not HTTP: {error}.") from None
        except (OSError, HttpError):
            self.close()
            raise
        if not answer.keep_alive:
            self.close()
        if self._reopen:
            self._used = time.monotonic()
        if not 200 <= answer.status < 300:
            said = bytes(answer.body[:200]).decode("utf-8", "replace").strip()
            raise HttpError(f"The server answered {answer.status}: {' '.join(said.split())}", answer.status)
        return answer.headers, bytes(answer.body)

    def _send(self, connection: socket.socket, head: bytes, body: bytes) -> None:
        """Head and body leave in one system call, hence in as few segments as possible."""
        if self._tls:
            connection.sendall(head + body)
            return
        sent = connection.sendmsg((head, body)) if body else connection.send(head)
        if sent < len(head):
            connection.sendall(head[sent:])
            sent = len(head)
        if sent - len(head) < len(body):
            connection.sendall(memoryview(body)[sent - len(head) :])

    def _receive(self, connection: socket.socket) -> "_Answer":
        answer, total, until = _Answer(), 0, 0.0
        view = memoryview(self._buffer)
        while True:
            received = connection.recv_into(self._buffer)
            if not received:
                raise ConnectionResetError("the server closed the connection before it had answered")
            answer.parser.feed_data(view[:received])
            if answer.complete:  # mostly at once, and then no clock is read
                break
            total, now = total + received, time.monotonic()
            until = until or now + self._timeout_s
            if total > MOST_ANSWER_BYTES:
                raise HttpError(
                    f"The server's answer is longer than {MOST_ANSWER_BYTES:,} bytes.", answer.status
                )
            if now > until:
                raise HttpError(
                    f"The server's answer was not whole within {self._timeout_s:g} s.", answer.status
                )
        answer.finish()
        return answer


class _Answer:
    def __init__(self) -> None:
        self.parser: Any = httptools.HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.status, self.keep_alive, self.complete = 0, True, False

    def finish(self) -> None:
        """Parser and answer hold each other; without this each request would wait for a collector."""
        self.parser = None

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.keep_alive = self.parser.should_keep_alive()  # only here; once complete it says no

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True
