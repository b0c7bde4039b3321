"""Refuse bodies that arrive too slowly, so that they do not occupy memory and sockets."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request

# Window over which the rate is measured, so that a pause of a second or two does not count.
_WINDOW_S = 5.0


class TooSlowBody(Exception):
    """A body arrives too slowly; the argument is a clause."""


async def paced(request: Request, *, max_s: float, min_bytes_per_s: float) -> AsyncIterator[bytes]:
    """Yield the chunks of a body.

    Raises:
        TooSlowBody: it is not complete after `max_s`, or came at less than `min_bytes_per_s` for five seconds.
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
