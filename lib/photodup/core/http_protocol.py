"""uvicorn's HTTP with limits on the time and size of headers, for every server of this project."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# From the connection, or the first byte of a further request, to the end of the headers.
HEADER_SECONDS = 10.0
MOST_HEADER_BYTES = 1 << 16  # also of trailers, and of the bytes between pieces of a body

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class ImpatientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP, but a connection whose headers do not arrive, or do not end, is closed."""

    _late: asyncio.TimerHandle | None = None
    _beside_bodies = 0  # bytes since the last of a body

    def data_received(self, data: bytes) -> None:
        self._beside_bodies += len(data)
        super().data_received(data)
        if self._beside_bodies > MOST_HEADER_BYTES and not self.transport.is_closing():
            if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        self._beside_bodies = 0
        super().on_body(body)

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc) -> None:
        self._disarm()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._arm()

    def on_headers_complete(self) -> None:
        self._disarm()
        self._beside_bodies = 0
        if sum(len(name) + len(text) for name, text in self.headers) > MOST_HEADER_BYTES:
            raise ValueError("too many bytes of headers")  # answered with 400
        super().on_headers_complete()

    def _arm(self) -> None:
        self._disarm()
        self._late = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _disarm(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None
