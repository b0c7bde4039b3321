"""A thin HTTP/1.1 client connection: one socket, one request at a time, as little Python as possible.

Load generators must not measure themselves. The well-known clients cost several times what a blocking socket
and the C parser of `httptools` cost, and would offer about half the load (`python -m benchmarks --only load_generator`
compares this one with the least that a client can do). Connecting is explicit, which the connection policies of a
measurement need. Not thread-safe: each worker has its own.
"""

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httptools

from photodup.core.addresses import http_address
from photodup.core.errors import PhotodupError
from photodup.embedding.wire.http import Answer

RECEIVE_BYTES = 1 << 16
MOST_ANSWER_BYTES = 1 << 28
MOST_METADATA_BYTES = 1 << 22  # of what a server tells of itself: a description, a metrics page
_MOST_HEADER_BYTES = 1 << 18  # of all interim answers, too
STALE_S = 1.0  # idle time before a connection is checked: servers close it only after some seconds


class HttpError(PhotodupError):
    """An answer with a status other than 2xx, too long, too late, or not HTTP; `status` is 0 where it had none."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


class HttpConnection:
    """One TCP connection to one server.

    Args:
        url: `http://host:port`; a path in it is put before every request's path, a query behind it.
        timeout_s: per send or receive, kept by the kernel (SO_RCVTIMEO), which costs no extra system call; an answer
            that is incomplete this long after its first bytes fails when more bytes come.
        tls: for an `https://` address.
        reopen: where the server has closed the connection while it was idle, connect anew before sending;
            that is part of the request, and `n_idle_closes` counts it. Otherwise it is a failed request.
        most_bytes: of an answer, `MOST_ANSWER_BYTES` by default.
        secrets: texts to remove from the server's error messages.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 60.0,
        tls: ssl.SSLContext | None = None,
        reopen: bool = False,
        most_bytes: int | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        http_address(url)
        parts = urlsplit(url)
        if parts.scheme != ("https" if tls else "http"):
            raise PhotodupError(
                f"{parts.scheme}://{parts.hostname} is to be asked with{'' if tls else 'out'} TLS: "
                f"write http{'s' if tls else ''}://host:port."
            )
        self._address = (parts.hostname or "", parts.port or (443 if tls else 80))
        self._tls, self._timeout_s, self._reopen = tls, timeout_s, reopen
        self._most_bytes, self._secrets = most_bytes or MOST_ANSWER_BYTES, secrets
        self._used, self.n_idle_closes = 0.0, 0
        self._host = parts.netloc.rpartition("@")[2]
        if not self._host.isascii():
            self._host = self._host.encode("idna").decode()
        self._prefix, self._query = parts.path.rstrip("/"), parts.query
        self._timeval = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        self.socket: socket.socket | None = None
        self._buffer = bytearray(RECEIVE_BYTES)

    def head(self, method: str, path: str, length: int, headers: Mapping[str, str] | None = None) -> bytes:
        """Return the bytes before the body; made once per payload, outside the timed span.

        A header is sent once: the last of a name counts, and a Host that is given takes the place of the address.
        """
        query = f"{'&' if '?' in path else '?'}{self._query}" if self._query else ""
        fields = {"host": ("Host", self._host)}
        fields |= {name.lower(): (name, text) for name, text in (headers or {}).items()}
        fields["content-length"] = ("Content-Length", str(length))
        lines = [f"{method} {self._prefix}{path}{query} HTTP/1.1"]
        lines += [f"{name}: {text}" for name, text in fields.values()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def connect(self) -> None:
        """Open the connection now, to the first address of the name that accepts; nothing when it is open already."""
        if self.socket is not None:
            return
        where = "{}:{}".format(*self._address)
        with contextlib.ExitStack() as unfinished:
            try:
                connection = unfinished.enter_context(
                    socket.create_connection(self._address, self._timeout_s)
                )
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls:  # TLS cannot live with the kernel's own time limits
                    connection = self._tls.wrap_socket(connection, server_hostname=self._address[0])
                else:
                    connection.settimeout(None)
                    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                        connection.setsockopt(socket.SOL_SOCKET, option, self._timeval)
            except ssl.SSLCertVerificationError as error:
                raise HttpError(
                    f"The certificate of {where} is not trusted ({error.verify_message}): name its authority "
                    "(--ca), or do without the check (--insecure)."
                ) from None
            except ssl.SSLError as error:
                raise HttpError(f"{where} does not speak TLS as asked ({error.reason or error}).") from None
            except TimeoutError:
                raise TimeoutError(f"{where} did not accept the connection in time") from None
            except OSError as error:  # of the same kind
                raise type(error)(error.errno, f"{error.strerror or error}, connecting to {where}") from None
            unfinished.pop_all()
        self.socket = connection

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def request(self, head: bytes, body: bytes = b"") -> Answer:
        """Send one request and return headers (lower-case names) and body of the answer.

        The connection is opened when needed and closed after an error, so that the next request starts clean.

        Raises:
            HttpError: status other than 2xx, no HTTP, more than `most_bytes`, or not whole in time.
            OSError: the connection failed; TimeoutError when the server sent nothing for too long.
        """
        is_idle = self._reopen and self.socket and time.monotonic() - self._used > STALE_S
        # Readable without a request: the server closed it.
        if is_idle and _ready(self.socket, select.POLLIN, 0):
            self.close()
            self.n_idle_closes += 1
        answer = _Answer(self._most_bytes, self._timeout_s, is_head=head.startswith(b"HEAD "))
        try:
            self.connect()
            assert self.socket is not None
            is_sent = self._send(self.socket, head, body, answer)
            while not answer.complete:
                answer.feed(memoryview(self._buffer)[: self.socket.recv_into(self._buffer)])
        except BlockingIOError:
            self.close()
            raise TimeoutError("the server did not answer in time") from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.close()
            if answer.status == 101:
                raise HttpError("The server answered 101: it goes on in another protocol.", 101) from None
            raise HttpError(f"The server's answer is not HTTP: {error}.") from None
        except (OSError, HttpError):
            self.close()
            raise
        finally:
            answer.parser = None  # breaks a reference cycle, which only the garbage collector would free
        if not (is_sent and answer.keep_alive):
            self.close()
        if self._reopen:
            self._used = time.monotonic()
        if not 200 <= answer.status < 300:
            message = bytes(answer.body[:1000]).decode("utf-8", "replace")
            for secret in self._secrets:
                message = message.replace(secret, "…")
            message = message[:200].strip()
            raise HttpError(
                f"The server answered {answer.status}: {' '.join(message.split())}", answer.status
            )
        return answer.headers, bytes(answer.body)

    def _send(self, connection: socket.socket, head: bytes, body: bytes, answer: "_Answer") -> bool:
        """Send until the server refuses: it may answer 413 to the head and read no more; return whether all was sent.

        Head and body leave in one system call where they fit into the kernel's buffer.
        """
        try:
            if self._tls:
                connection.sendall(head + body)
                return True
            sent = connection.sendmsg((head, body), (), socket.MSG_DONTWAIT)
            if sent == len(head) + len(body):
                return True
            remaining = (
                memoryview(body)[sent - len(head) :] if sent > len(head) else memoryview(head[sent:] + body)
            )
            while remaining and not (answer.complete or answer.status >= 400):
                events = _ready(connection, select.POLLIN | select.POLLOUT, self._timeout_s)
                if events & ~select.POLLOUT:
                    answer.feed(memoryview(self._buffer)[: connection.recv_into(self._buffer)])
                elif events:
                    remaining = remaining[connection.send(remaining, socket.MSG_DONTWAIT) :]
                else:
                    raise BlockingIOError
            return not remaining
        except ConnectionError:  # the next read returns the server's reason, or the end
            return False


def _ready(connection: Any, events: int, seconds: float) -> int:
    """Wait until one of these events; return those that are there, 0 if none is in time."""
    poll = select.poll()
    poll.register(connection, events)
    return sum(event for _, event in poll.poll(seconds * 1000))


class _Answer:
    """Reads one answer: interim ones (100, 103) are passed over, and a body may end with the connection (HTTP/1.0)."""

    def __init__(self, most_bytes: int, timeout_s: float, *, is_head: bool) -> None:
        self.parser: Any = httptools.HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.status, self.keep_alive, self.complete = 0, True, False
        self._is_head, self._most_bytes, self._timeout_s = is_head, most_bytes, timeout_s
        self._total, self._until = 0, 0.0

    def feed(self, received: memoryview) -> None:
        """Parse received bytes; none mean the end of the connection.

        Raises:
            HttpError: it is too long, or too late.
            ConnectionResetError: the connection ended within the answer.
        """
        if not received:
            is_open = "content-length" not in self.headers and "chunked" not in self.headers.get(
                "transfer-encoding", ""
            )
            if not (self.status and is_open):
                raise ConnectionResetError("the server closed the connection before it had answered")
            self.complete, self.keep_alive = True, False
            return
        self.parser.feed_data(received)
        if self.complete:  # mostly at once, and then no clock is read
            return
        self._total, now = self._total + len(received), time.monotonic()
        self._until = self._until or now + self._timeout_s
        limit_bytes = self._most_bytes if self.status else _MOST_HEADER_BYTES
        if self._total > limit_bytes:
            raise HttpError(f"The server's answer is longer than {limit_bytes:,} bytes.", self.status)
        if now > self._until:
            raise HttpError(f"The server's answer was not whole within {self._timeout_s:g} s.", self.status)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # not a trailer
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.keep_alive = self.parser.should_keep_alive()  # only here; once complete it says no
        self.complete = self._is_head and self.status >= 200

    def on_body(self, data: bytes) -> None:
        self.body += data
        self.keep_alive &= not self._is_head  # HEAD has no body: these bytes are no answer

    def on_message_complete(self) -> None:
        if self.status >= 200 or self.status == 101:
            self.complete = True
        else:
            self.headers, self.status = {}, 0
