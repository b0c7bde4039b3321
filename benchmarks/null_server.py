"""A real HTTP server that does nothing, with planted delays: what the load generator and comparisons are checked against.

    python -m benchmarks.null_server --delay-ms 5 --stall-after-s 2 --stall-s 1.4
    python -m benchmarks.null_server --upstream http://127.0.0.1:8000 --slower 0.05

Prints its port on the first line. POST anything; the answer is a fixed JSON body, or with `--upstream` that of another
server, after a wait of so large a share of the time that it took.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import httptools

SPIN_S = 0.0002  # of the end of a relay's wait: a sleep ends later than it was asked to
BODY = b'{"embeddings": [[' + b", ".join([b"0.044194173"] * 512) + b"]]}"


class NullProtocol(asyncio.Protocol):
    """Answers each request after a delay; the stall blocks everybody, as a garbage collector would."""

    def __init__(self, options: argparse.Namespace, state: dict) -> None:
        self.options, self.state = options, state
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.answer = head % (options.status, len(BODY)) + BODY

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # uvloop's are no asyncio.Transport
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        options, state = self.options, self.state
        state["requests"] += 1
        now = time.monotonic()
        state.setdefault("first", now)
        if options.die_after and state["requests"] > options.die_after:
            os._exit(1)
        if options.stall_s and not state.get("stalled") and now - state["first"] > options.stall_after_s:
            state["stalled"] = True
            time.sleep(options.stall_s)
        if options.delay_ms:
            asyncio.get_running_loop().call_later(options.delay_ms / 1000, self._write)
        else:
            self._write()

    def _write(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self.answer)


async def serve(options: argparse.Namespace) -> None:
    state = {"requests": 0}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullProtocol(options, state), "127.0.0.1", options.port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def relay(options: argparse.Namespace) -> None:
    """Pass requests on to another server and its answers back, later; one thread for each connection."""
    with socket.create_server(("127.0.0.1", options.port)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            threading.Thread(target=_pass_on, args=(listening.accept()[0], options), daemon=True).start()


def _pass_on(client: socket.socket, options: argparse.Namespace) -> None:
    upstream = urlsplit(options.upstream)
    with client, socket.create_connection((upstream.hostname, upstream.port)) as server:
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        requests, answers = client.makefile("rb"), server.makefile("rb")
        while request := _message(requests):
            begun = time.perf_counter()
            server.sendall(request)
            answer = _message(answers)
            until = begun + (1 + options.slower) * (time.perf_counter() - begun) if options.slower else 0.0
            time.sleep(max(until - time.perf_counter() - SPIN_S, 0))
            while time.perf_counter() < until:
                pass
            client.sendall(answer)


def _message(stream: BinaryIO) -> bytes:
    """Read one HTTP message with a Content-Length, whole; empty at the end of the stream."""
    head, length = [], 0
    while (line := stream.readline()) not in (b"", b"\r\n"):
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
        head.append(line)
    return b"".join(head) + line + stream.read(length) if line else b""


@contextlib.contextmanager
def running(**options: float | str) -> Iterator[str]:
    """Run the server in its own process (so that it shares no interpreter lock); gives its URL.

    Args:
        options: the command line's options, `delay_ms=5`.
    """
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    process = subprocess.Popen([sys.executable, "-P", __file__, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--stall-after-s", type=float, default=1.0, help="after the first request")
    parser.add_argument("--stall-s", type=float, default=0.0)
    parser.add_argument("--die-after", type=int, default=0, help="exit at this many requests")
    parser.add_argument("--status", type=int, default=200)
    parser.add_argument("--upstream", help="URL of a server whose answers are passed on")
    parser.add_argument("--slower", type=float, default=0.0, help="wait this share of the upstream's time")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        if options.upstream:
            relay(options)
        elif options.delay_ms:  # uvloop rounds timers to whole milliseconds
            asyncio.run(serve(options))
        else:
            import uvloop

            uvloop.run(serve(options))


if __name__ == "__main__":
    main()
