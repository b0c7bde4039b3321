"""The process behind one emulated link: two TUN devices and a delay line between them.

`link.Link` starts it as `python -m photodup.bench.link.relay FD CONFIG`. It owns every
kernel object of the link (both TUN devices, the client's anonymous network namespace), so all of them vanish
with it: at `Link`'s exit, when the control socket closes, or when its parent is gone.

Kernel TCP runs at both ends. A packet is read from one TUN device, waits behind the earlier ones at the line
rate, is dropped if the queue is full or at random (loss), and is written to the other device half a round
trip later. The host side is addressed as 127.0.0.1 (stateless translation below), so servers that listen on
loopback only can be reached.

To keep up at high rates the kernel hands over TCP super-packets (segmentation offload), never longer than
`SUPERPACKET_MS` of line time, so that they do not blur the round trips. Loss and tail drop act on single
segments all the same.
"""

import contextlib
import ctypes
import errno
import fcntl
import itertools
import json
import math
import os
import random
import select
import socket
import struct
import sys
import time
from collections import deque
from typing import Any

from photodup.bench.link.packets import HEAD, MTU, VNET, rewrite_address, segments_of, split

SUPERPACKET_MS = 0.25
LATE_BINS, LATE_BIN_MS = 2000, 0.05
HEARTBEAT_S = 0.002  # waking this often shows when this process was kept from running
DEVICE = "pdup"
LOOPBACK = socket.inet_aton("127.0.0.1")
CLONE_NEWNET = 0x40000000
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02


class DelayLine:
    """One direction of the link: a queue in front of a wire of `rate_mbit_s`, `delay_s` long."""

    def __init__(self, source: int, sink: int, config: dict, address_at: int, address: bytes, seed: int):
        self.source, self.sink = source, sink
        self.delay_s = config["rtt_ms"] / 2000
        self.s_per_byte = 8e-6 / config["rate_mbit_s"]
        self.queue_s = config["queue_bytes"] * self.s_per_byte
        self.loss = config["loss"]
        self.address_at, self.address = address_at, address
        self.rng = random.Random(seed)
        self.in_flight: deque[tuple[float, bytearray, bytes, float]] = deque()
        self.free_at = 0.0
        self.reset()

    def reset(self) -> None:
        self.bytes = self.segments = self.lost = self.overflowed = 0
        self.late = [0] * LATE_BINS  # a histogram: sorting samples would itself make packets late

    def accept(self, frame: bytes, now: float, waited_s: float = 0.0) -> None:
        """Queue a frame read at `now`, up to `waited_s` too late; as a whole where all segments survive."""
        if frame[VNET.size] >> 4 != 4:  # IPv6 chatter of the kernel
            return
        count, size, _ = segments_of(frame)
        self.free_at = max(self.free_at, now)
        fits = self.free_at - now + size * self.s_per_byte <= self.queue_s
        if fits and (not self.loss or all(self.rng.random() >= self.loss for _ in range(count))):
            self._send(frame, size, count, waited_s)
        elif count == 1:
            self.lost, self.overflowed = self.lost + fits, self.overflowed + (not fits)
        elif not fits:  # some of the segments may fit
            for part in split(frame):
                self.accept(part, now, waited_s)
        else:  # at least one segment of this super-packet was lost: draw again, on condition of that
            survives = [True] * count
            while all(survives):
                survives = [self.rng.random() >= self.loss for _ in range(count)]
            self.lost += count - sum(survives)
            for part, keep in zip(split(frame), survives, strict=True):
                if keep:
                    self._send(part, len(part) - VNET.size, 1, waited_s)

    def _send(self, frame: bytes, size: int, count: int, waited_s: float) -> None:
        self.free_at += size * self.s_per_byte
        head = bytearray(frame[:HEAD])
        rewrite_address(head, self.address_at, self.address)
        self.in_flight.append((self.free_at + self.delay_s, head, frame[HEAD:], waited_s))
        self.bytes, self.segments = self.bytes + size, self.segments + count

    def deliver(self, now: float) -> None:
        while self.in_flight and self.in_flight[0][0] <= now:
            due, head, body, waited_s = self.in_flight.popleft()
            with contextlib.suppress(OSError):  # a device going down at the end
                os.writev(self.sink, (head, body))
            late = int((now - due + waited_s) * 1000 / LATE_BIN_MS)
            self.late[min(late, LATE_BINS - 1)] += 1

    def report(self) -> dict:
        rank = sum(self.late) * 0.99
        late_bin = next(i for i, n_packets in enumerate(itertools.accumulate(self.late)) if n_packets >= rank)
        return {
            "bytes": self.bytes,
            "segments": self.segments,
            "lost": self.lost,
            "overflowed": self.overflowed,
            "late_ms_p99": late_bin * LATE_BIN_MS,
        }


def open_tun(name: str, superpackets: bool) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
        fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | (TUN_F_TSO4 if superpackets else 0))
    except OSError:
        os.close(fd)
        raise
    return fd


def sysctl(name: str, value: str) -> None:
    with open(f"/proc/sys/net/{name}", "w") as file:
        file.write(value)


def set_up(name: str, address: str, peer: str, config: dict, segments: int) -> None:
    """Give the device of this thread's namespace its address and route."""
    from pyroute2 import IPRoute

    if os.path.exists("/proc/sys/net/ipv6"):
        sysctl(f"ipv6/conf/{name}/disable_ipv6", "1")
    with IPRoute() as ip:
        index = ip.link_lookup(ifname=name)[0]
        # A long device queue: packets may be dropped by the modelled queue alone.
        ip.link("set", index=index, mtu=MTU, txqlen=50_000, gso_max_segs=segments, state="up")
        ip.addr("add", index=index, address=address, prefixlen=32)
        metrics = {"initcwnd": config["initcwnd"], "cc_algo": config["congestion"]}
        ip.route("add", dst=f"{peer}/32", oif=index, prefsrc=address, metrics=metrics)
        if name != DEVICE:
            return
        ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")


def build(config: dict) -> tuple[int, int, str, str]:
    """Make both ends; return (host TUN, client TUN, host address, client address)."""
    segments = max(1, int(config["rate_mbit_s"] * 1e3 * SUPERPACKET_MS / 8 / MTU))
    for number in range(64):  # the first free name, which also reserves its four addresses
        try:
            host = open_tun(f"{DEVICE}{number}", segments > 1)
            break
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    else:
        raise OSError(errno.EBUSY, "all 64 emulated links are in use")
    # RFC 2544: reserved for benchmarks.
    host_address, client_address = f"198.18.{number}.1", f"198.18.{number}.2"
    device = f"{DEVICE}{number}"
    sysctl(f"ipv4/conf/{device}/route_localnet", "1")
    set_up(device, host_address, client_address, config, segments)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    client = open_tun(DEVICE, segments > 1)
    set_up(DEVICE, client_address, host_address, config, segments)
    sysctl("ipv4/tcp_slow_start_after_idle", str(int(config["slow_start_after_idle"])))
    sysctl("ipv4/tcp_no_metrics_save", "1")  # else a connection inherits what an earlier one learned
    return host, client, host_address, client_address


def run(control: socket.socket, lines: tuple[DelayLine, DelayLine], parent: int) -> None:
    """Shuttle packets until the parent closes the control socket or is gone."""
    by_source = {line.source: line for line in lines}
    wait_on: list[Any] = [*by_source, control]
    clock = time.monotonic
    while True:
        due = min((line.in_flight[0][0] for line in lines if line.in_flight), default=math.inf)
        slept_at = clock()
        pause_s = min(max(due - slept_at, 0.0), HEARTBEAT_S)
        ready, _, _ = select.select(wait_on, [], [], pause_s)
        waited_s = max(0.0, clock() - slept_at - pause_s)
        if not ready and os.getppid() != parent:
            return
        for source in ready:
            if source is control:
                message = control.recv(64)
                if not message:
                    return
                control.sendall(json.dumps([line.report() for line in lines]).encode() + b"\n")
                if message == b"reset\n":
                    for line in lines:
                        line.reset()
                continue
            line = by_source[source]
            for _ in range(32):
                try:
                    frame = os.read(source, 65_600)
                except BlockingIOError:
                    break
                line.accept(frame, clock(), waited_s)
                line.deliver(clock())
        now = clock()
        for line in lines:
            line.deliver(now)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    config = json.loads(sys.argv[2])
    try:
        host, client, host_address, client_address = build(config)
    except Exception as error:  # told to the parent, which words it
        reply = {"error": f"{type(error).__name__}: {error}", "errno": getattr(error, "errno", None)}
        control.sendall(json.dumps(reply).encode() + b"\n")
        return
    with contextlib.suppress(OSError):  # better timing on a busy machine, not a condition
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    target = socket.inet_aton(host_address) if config["servers_far"] else LOOPBACK
    lines = (
        DelayLine(client, host, config, 16, target, config["seed"]),
        DelayLine(host, client, config, 12, socket.inet_aton(host_address), config["seed"] + 1),
    )
    reply = {"address": host_address, "client_address": client_address}
    namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
    socket.send_fds(control, [json.dumps(reply).encode() + b"\n"], [namespace])
    os.close(namespace)
    run(control, lines, config["parent"])


if __name__ == "__main__":
    main()
