"""A wide-area link on one machine: chosen round-trip time, rate and loss, with the kernel's own TCP at both ends.

    with Link(LinkSpec(rtt_ms=25, rate_mbit_s=210)) as link:
        with link.client_namespace():               # this thread's new sockets are now at the far end
            httpx.get(link.url("http://127.0.0.1:8002/health"))

The client side is a network namespace of its own; the server side is the host, whose loopback the client sees
as `link.address`. How packets travel is described in `relay`. Rates count IP bytes (a full segment is
1500 of them and carries 1448 of payload). Loss is drawn per segment, in both directions, from `seed`.

A socket belongs to the namespace that its *thread* was in when it was made. Threads and processes started inside
`client_namespace()` are in it, those of an older pool are not. gRPC keeps process-wide threads from its first use on:
once a process has used gRPC outside, its channels connect from outside. `run_client_process` is safe for all.
"""

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from photodup.bench import Columns
from photodup.bench.link.relay import CLONE_NEWNET
from photodup.core.errors import PhotodupError

HANDSHAKES = 10
PAUSE_S = 0.02
TOLERANCE_MS = 1.0
RETRY_S = 8.0


class RoundTrip(NamedTuple):
    """The round trip of a link by its handshakes, ms.

    Attributes:
        floor_ms: the shortest handshake: the link's round trip, which models of it should use.
        median_ms: the median handshake, delays by other work of the machine included.
    """

    floor_ms: float
    median_ms: float


def measure_round_trip(handshake: Callable[[], object], requested_ms: float) -> RoundTrip:
    """Time at least `HANDSHAKES`, `PAUSE_S` apart; go on for up to `RETRY_S` while the floor is too high.

    A busy machine delays single handshakes; more of them find the floor. A floor that stays above `requested_ms` is no
    error: the link is that slow.
    """
    samples: list[float] = []
    deadline = time.monotonic() + RETRY_S
    while len(samples) < HANDSHAKES or (
        min(samples) > requested_ms + TOLERANCE_MS and time.monotonic() < deadline
    ):
        if samples:
            time.sleep(PAUSE_S)
        samples.append(time_ms(handshake))
    return RoundTrip(min(samples), median(samples))


def time_ms(call: Callable[[], object]) -> float:
    """Return how long a call takes, ms."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000


T = TypeVar("T")
MAX_RATE_MBIT_S = 1000
MAX_LATE_MS = 1.0
MODULE = "photodup.bench.link.relay"


class LinkError(PhotodupError):
    """The link cannot be made here, or did not hold what was asked of it."""


@dataclass(frozen=True)
class LinkSpec:
    """The properties of a link.

    Attributes:
        loss: share of segments dropped at random, in each direction.
        initcwnd: initial congestion window, segments.
        queue_ms: capacity of the queue before the link, as time on the line; None: one RTT, at least 20 ms.

    Raises:
        LinkError: a value out of range.
    """

    rtt_ms: float = 25.0
    rate_mbit_s: float = 210.0
    loss: float = 0.0
    congestion: str = "cubic"
    initcwnd: int = 10
    queue_ms: float | None = None
    slow_start_after_idle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not (
            0 <= self.rtt_ms <= 2000 and self.rate_mbit_s > 0 and 0 <= self.loss < 1 and self.initcwnd > 0
        ):
            raise LinkError(f"{self} is no link: rtt_ms 0–2000, rate_mbit_s > 0, 0 ≤ loss < 1, initcwnd > 0.")

    @property
    def queue_bytes(self) -> int:
        queue_ms = self.queue_ms if self.queue_ms is not None else max(self.rtt_ms, 20.0)
        return max(65_536, int(queue_ms * self.rate_mbit_s * 125))

    @property
    def label(self) -> str:
        """For the `link` column, e.g. `25ms-210mbit-cubic-iw10`."""
        loss = f"-loss{self.loss:g}" if self.loss else ""
        return f"{self.rtt_ms:g}ms-{self.rate_mbit_s:g}mbit{loss}-{self.congestion}-iw{self.initcwnd}"


# Rates without a published figure are ours: a link that is not the bottleneck for one photo.
PRESETS = {
    "datacentre": LinkSpec(rtt_ms=0.5, rate_mbit_s=10_000),
    "metro": LinkSpec(rtt_ms=5, rate_mbit_s=500),
    "us-east": LinkSpec(rtt_ms=25, rate_mbit_s=210),
    "home-uplink": LinkSpec(rtt_ms=25, rate_mbit_s=20),
}


def _setns(fd: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Link:
    """An emulated link, alive inside its `with` block.

    Args:
        spec: of the link, or the name of one of `PRESETS`.
        servers_far: servers run in the namespace, at `client_address`, and the host is the client. Addresses are then not
            translated.

    Raises:
        LinkError: unknown preset, a rate that cannot be held, no right to make network devices, or a
            self-test whose round trip is too short by more than 1 ms. A longer one is kept in `round_trip`.
    """

    def __init__(self, spec: LinkSpec | str, *, servers_far: bool = False) -> None:
        if isinstance(spec, str) and spec not in PRESETS:
            raise LinkError(f"No link preset {spec!r}: choose from {', '.join(PRESETS)}.")
        self.spec = PRESETS[spec] if isinstance(spec, str) else spec
        self.servers_far = servers_far
        self.round_trip: RoundTrip

    def __enter__(self) -> Self:
        if sys.platform != "linux":
            raise LinkError(
                "The emulated link needs Linux network namespaces; open the committed records instead."
            )
        if self.spec.rate_mbit_s > MAX_RATE_MBIT_S:
            raise LinkError(
                f"The emulated link holds up to {MAX_RATE_MBIT_S} Mbit/s, not {self.spec.rate_mbit_s:g}: "
                "ask for less, or measure without a link."
            )
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(30)
        config = asdict(self.spec) | {"queue_bytes": self.spec.queue_bytes}
        config |= {"parent": os.getpid(), "servers_far": self.servers_far}
        self._relay = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), json.dumps(config)],
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the notebook, not for the relay
        )
        theirs.close()
        self._namespace = -1
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 65_536, 1)
            reply = json.loads(data or b'{"error": "the relay process died"}')
            if fds:
                self._namespace = fds[0]
            if "error" in reply:
                raise LinkError(_explain(reply))
            self.address: str = reply["address"]
            self.client_address: str = reply["client_address"]
            self._self_test()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        if self._namespace >= 0:
            os.close(self._namespace)
            self._namespace = -1
        try:
            self._relay.wait(5)
        except subprocess.TimeoutExpired:
            self._relay.kill()
            self._relay.wait()

    @contextlib.contextmanager
    def client_namespace(self) -> Iterator[str]:
        """Put the calling thread at the client's end for the block; yields the address of the servers."""
        own_namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _setns(self._namespace)
            yield self.address
        finally:
            _setns(own_namespace)
            os.close(own_namespace)

    def run_client_process(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Run an importable `function` in a fresh process at the client's end: what gRPC clients need."""
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        with self.client_namespace(), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(function, *args, **kwargs).result()

    def measure_far(self, measure: Callable[[], T], *, in_own_process: bool) -> T:
        """Run `measure` at the client's end and return its result; `invalid_reason` then covers this measurement.

        Args:
            in_own_process: for gRPC, whose threads stay in the namespace of their first use.
        """
        self.report(reset=True)
        if in_own_process:
            return self.run_client_process(measure)
        with self.client_namespace():
            return measure()

    def connect(self, port: int, timeout_s: float = 30.0) -> socket.socket:
        """Return a TCP connection through the link to the host's `port`; any thread may use it."""
        with self.client_namespace():
            connection = socket.socket()
        connection.settimeout(timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connection.connect((self.address, port))
        except BaseException:
            connection.close()
            raise
        return connection

    def url(self, url: str) -> str:
        """Return a loopback URL as the client sees it: 127.0.0.1:8002/x becomes 198.18.0.1:8002/x."""
        parts = urlsplit(url if "//" in url else f"//{url}")
        host = f"{self.address}:{parts.port}" if parts.port else self.address
        moved = urlunsplit(parts._replace(netloc=host))
        return moved if "//" in url else moved.removeprefix("//")

    def report(self, reset: bool = False) -> dict[str, dict[str, float]]:
        """Return what each direction carried since the last reset: IP bytes, segments, losses, lateness."""
        with self._lock:
            try:
                self._control.sendall(b"reset\n" if reset else b"stats\n")
                data = b""
                while not data.endswith(b"\n"):
                    if not (part := self._control.recv(65_536)):
                        raise ConnectionError
                    data += part
            except OSError:
                raise LinkError(
                    "The relay of the emulated link died; what it carried last is not valid."
                ) from None
        up, down = json.loads(data)
        return {"up": up, "down": down}

    def invalid_reason(self) -> str:
        """Return why points since the last `report(reset=True)` must not carry this link's label, or ""."""
        late_ms = max(direction["late_ms_p99"] for direction in self.report().values())
        if late_ms > MAX_LATE_MS:
            return (
                f"the emulated link was {late_ms:.1f} ms late (99th percentile; {MAX_LATE_MS:g} ms allowed)"
            )
        return ""

    def _self_test(self) -> None:
        """Time TCP handshakes with a listener at the host's end."""
        host = self.address if self.servers_far else "127.0.0.1"
        try:
            with socket.create_server((host, 0), backlog=4096) as listener:  # nobody accepts them
                port = listener.getsockname()[1]
                self.round_trip = measure_round_trip(lambda: self.connect(port, 5).close(), self.spec.rtt_ms)
        except OSError as error:
            raise LinkError(
                f"Nothing answers through the emulated link ({error}): a firewall may drop 198.18.0.0/15 "
                "on this host."
            ) from None
        if self.round_trip.floor_ms < self.spec.rtt_ms - TOLERANCE_MS:
            raise LinkError(
                f"The emulated link's round trip is {self.round_trip.floor_ms:.1f} ms, not "
                f"{self.spec.rtt_ms:g}: it does not delay what it carries."
            )


def _explain(reply: dict) -> str:
    if reply.get("errno") in (1, 13):
        return (
            "The emulated link needs root or CAP_NET_ADMIN to make network devices: run as root, "
            "or open the committed records, which need no right at all."
        )
    if reply.get("errno") == 2:
        return f"The emulated link needs /dev/net/tun: load it with `modprobe tun` ({reply['error']})."
    return f"The emulated link could not be set up: {reply['error']}."


@dataclass(frozen=True)
class NetworkPath:
    """The network path from client to server, recorded with every point.

    Attributes:
        link: its name, for people: `loopback`, `network`, or an emulated link's.
        rtt_ms: round trip; 0 on loopback, None where nobody could measure it.
        rate_mbit_s, loss, initcwnd, congestion, slow_start_after_idle: of an emulated link (see `LinkSpec`);
            None where nothing is emulated: then they are the system's and the network's.
    """

    link: str = "loopback"
    rtt_ms: float | None = 0.0
    rate_mbit_s: float | None = None
    loss: float | None = None
    initcwnd: int | None = None
    congestion: str | None = None
    slow_start_after_idle: bool | None = None

    def columns(self) -> Columns:
        """Return the columns of a point, by the names of the attributes."""
        return asdict(self)


LOOPBACK = NetworkPath()


def emulated_path(link: str | LinkSpec) -> NetworkPath:
    """Return the path over an emulated link: one of `PRESETS` by its name, or any spec under its label.

    Raises:
        KeyError: no such preset; `Link` reports that as a `LinkError`.
    """
    name, spec = (link, PRESETS[link]) if isinstance(link, str) else (link.label, link)
    return NetworkPath(name, **{field.name: getattr(spec, field.name) for field in fields(NetworkPath)[1:]})
