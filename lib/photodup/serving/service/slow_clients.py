"""Clients that send too slowly: of their headers and of their bodies, so that they hold neither memory nor sockets."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# From the connection, or the first byte of a further request, to the end of the headers.
HEADER_SECONDS = 10.0

# The rate is looked at over windows of this length: a pause of a second or two on a bad line costs nothing.
_WINDOW_S = 5.0


class TooSlowBody(Exception):
    """A body that does not arrive fast enough; the argument is a clause."""


async def paced(request: Request, *, max_s: float, min_bytes_per_s: float) -> AsyncIterator[bytes]:
    """Yield the chunks of a body.

    Raises:
        TooSlowBody: it is not complete after `max_s`, or some five seconds brought fewer than `min_bytes_per_s`.
        starlette.requests.ClientDisconnect: the client left.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + max_s
    window_s = _WINDOW_S if min_bytes_per_s else max_s
    window_began, window_bytes = loop.time(), 0
    chunks = request.stream()
    while True:
        try:
            async with asyncio.timeout_at(min(end, window_began + window_s)):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            if loop.time() >= end:
                raise TooSlowBody(f"is not complete after {max_s:g} seconds") from None
            raise TooSlowBody(f"arrives at less than {min_bytes_per_s:,.0f} bytes a second") from None
        yield chunk
        window_bytes += len(chunk)
        if window_bytes >= min_bytes_per_s * window_s:
            window_began, window_bytes = loop.time(), 0


class ImpatientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP, but a connection whose headers do not arrive is closed."""

    _late: asyncio.TimerHandle | None = None

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
        super().on_headers_complete()

    def _arm(self) -> None:
        self._disarm()
        self._late = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _disarm(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None
