"""The emulated link keeps its promises, refuses what it cannot hold, and leaves nothing behind.

Needs Linux with CAP_NET_ADMIN; elsewhere it is skipped with the link's own sentence.
"""

import ctypes
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.command import run_python
from support.http_server import Handler, serving
from support.link import needs_link
from support.service import until

from photodup.bench.link import emulate as link_module
from photodup.bench.link import tcp
from photodup.bench.link.calibration import calibrate
from photodup.bench.link.emulate import Link, LinkError, LinkSpec
from photodup.bench.link.payload_latency import measure_parallel, measure_payloads
from photodup.bench.link.relay import DEVICE
from photodup.core.errors import PhotodupError

pytestmark = needs_link


@pytest.fixture(scope="module", autouse=True)
def host_of_our_own():
    """Put the servers' side into a fresh namespace too: other links on this machine are none of our business."""
    from pyroute2 import IPRoute

    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    assert libc.unshare(link_module.CLONE_NEWNET) == 0
    with IPRoute() as ip:
        ip.link("set", index=1, state="up")  # lo
    yield
    assert libc.setns(here, link_module.CLONE_NEWNET) == 0
    os.close(here)


def devices():
    """Return the host ends of all emulated links here."""
    return sorted(name for _, name in socket.if_nameindex() if name.startswith(DEVICE))


@pytest.mark.figures
@pytest.mark.parametrize(("rtt_ms", "rate_mbit_s"), [(1, 10), (5, 1000), (25, 210), (60, 50)])
def test_rtt_within_1_ms_and_rate_within_5_percent(rtt_ms, rate_mbit_s):
    found = calibrate(rtt_ms, rate_mbit_s, seconds=0.3)
    assert found.measured_rtt_ms == pytest.approx(rtt_ms, abs=1)
    assert found.measured_rate_mbit_s == pytest.approx(rate_mbit_s, rel=0.05)


def test_the_link_is_never_faster_than_it_says():
    found = calibrate(25, 210, seconds=0.3)
    assert found.measured_rtt_ms >= 25, found


def test_self_test_sees_a_wrong_rtt(monkeypatch):
    real = link_module.asdict
    monkeypatch.setattr(link_module, "asdict", lambda spec: real(spec) | {"rtt_ms": spec.rtt_ms + 3})
    monkeypatch.setattr(link_module, "RETRY_S", 0.5)
    with Link(LinkSpec(rtt_ms=10, rate_mbit_s=50)) as slower:  # a link that is slower is that slower link
        assert 12.5 < slower.round_trip.floor_ms <= slower.round_trip.median_ms
    monkeypatch.setattr(link_module, "asdict", lambda spec: real(spec) | {"rtt_ms": 1})
    with (
        pytest.raises(LinkError, match=r"not 40: it does not delay"),
        Link(LinkSpec(rtt_ms=40, rate_mbit_s=50)),
    ):
        pass
    until(lambda: devices() == [])


def test_a_late_relay_takes_the_label_away(figure):
    with (
        Link(LinkSpec(rtt_ms=4, rate_mbit_s=50)) as link,
        tcp.ByteSink() as sink,
        link.connect(sink.port) as client,
    ):
        link.report(reset=True)
        tcp.send_to_sink(client, b"x" * 200_000)
        why_not = link.invalid_reason()
        figure(not why_not, why_not)
        os.kill(link._relay.pid, signal.SIGSTOP)
        threading.Timer(0.1, os.kill, (link._relay.pid, signal.SIGCONT)).start()
        tcp.send_to_sink(client, b"x" * 20_000)
        assert "ms late" in link.invalid_reason()
        link._relay.kill()
        with pytest.raises(LinkError, match="relay of the emulated link died"):
            link.report()


@pytest.mark.parametrize(
    ("congestion", "initcwnd"), [("cubic", 10), ("cubic", 32), ("reno", 10)], ids=lambda v: str(v)
)
def test_congestion_control_and_initial_window_hold_at_both_ends(congestion, initcwnd):
    with (
        Link(LinkSpec(rtt_ms=2, rate_mbit_s=100, congestion=congestion, initcwnd=initcwnd)) as link,
        socket.create_server(("127.0.0.1", 0)) as listener,
        link.connect(listener.getsockname()[1]) as client,
        listener.accept()[0] as server,
    ):
        for end in (client, server):
            name = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert name.partition(b"\0")[0].decode() == congestion
            assert tcp.tcp_info(end)["snd_cwnd"] == initcwnd
        assert server.getpeername()[0] == link.client_address


def received_digest(link: Link, payload: bytes) -> str:
    digest = hashlib.sha256()

    def receive(listener):
        with listener.accept()[0] as connection:
            while part := connection.recv(1 << 20):
                digest.update(part)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = threading.Thread(target=receive, args=(listener,))
        reader.start()
        with link.connect(listener.getsockname()[1]) as client:
            client.sendall(payload)
        reader.join()
    return digest.hexdigest()


def test_loss_is_per_segment_and_nothing_else_is_damaged():
    payload = os.urandom(6_000_000)
    with Link(LinkSpec(rtt_ms=1, rate_mbit_s=500, loss=0.02, seed=3)) as link:
        assert link._relay.poll() is None
        assert received_digest(link, payload) == hashlib.sha256(payload).hexdigest()
        up = link.report()["up"]
    share = up["lost"] / (up["segments"] + up["lost"])
    assert up["segments"] > 4000
    assert 0.01 < share < 0.03  # five standard deviations either way


def test_a_full_queue_drops_and_tcp_repairs_it():
    payload = os.urandom(4_000_000)
    with Link(LinkSpec(rtt_ms=10, rate_mbit_s=200, queue_ms=0.1, initcwnd=200)) as link:
        assert received_digest(link, payload) == hashlib.sha256(payload).hexdigest()
        assert link.report()["up"]["overflowed"] > 0
        assert link.report()["up"]["lost"] == 0


# --- the client's end -----------------------------------------------------------------------------------


class Hello(Handler):
    def do_GET(self):
        self.reply(self.client_address[0].encode())


def fetch(url):
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


def call_grpc(target):
    import grpc

    with grpc.insecure_channel(target) as channel:
        return channel.unary_unary("/test/WhoAmI")(b"", timeout=60).decode()


def test_grpc_clients_work_in_a_process_of_their_own():
    grpc = pytest.importorskip("grpc")

    class WhoAmI(grpc.GenericRpcHandler):
        def service(self, _):
            return grpc.unary_unary_rpc_method_handler(lambda _, context: context.peer().encode())

    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((WhoAmI(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Link(LinkSpec(rtt_ms=2, rate_mbit_s=100)) as link:
            assert link.client_address in link.run_client_process(call_grpc, f"{link.address}:{port}")
    finally:
        server.stop(0).wait()


def test_every_way_to_the_clients_end_reaches_a_loopback_server():
    with serving(Hello) as server, Link(LinkSpec(rtt_ms=2, rate_mbit_s=100)) as link:
        url = link.url(f"http://127.0.0.1:{server.server_port}/hello?x=1")
        assert url == f"http://{link.address}:{server.server_port}/hello?x=1"
        assert link.url("127.0.0.1:8004") == f"{link.address}:8004"

        def get():
            return fetch(url)

        with link.client_namespace():
            assert get() == link.client_address
            code = f"import urllib.request as r; print(r.urlopen({url!r}).read().decode())"
            child = run_python(code, check=True)
            assert child.stdout.strip() == link.client_address
        assert link.run_client_process(fetch, url) == link.client_address
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/") as answer:
            assert answer.read() == b"127.0.0.1"  # this thread came back


def test_slow_start_after_idle_belongs_to_the_link_and_not_to_the_host():
    name = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
    with open(name) as file:
        host = file.read()
    link = Link(LinkSpec(rtt_ms=1, rate_mbit_s=50, slow_start_after_idle=False))
    with link, link.client_namespace(), open(name) as file:
        assert file.read() == "0\n"
    with open(name) as file:
        assert file.read() == host


def test_tcp_info_tells_what_a_request_did(figure):
    link = Link(LinkSpec(rtt_ms=10, rate_mbit_s=200, loss=0.02))
    with link, tcp.ByteSink() as sink, link.connect(sink.port) as client:
        before = tcp.tcp_info(client)
        took_ms = tcp.send_to_sink(client, b"x" * 602_112)
        info = tcp.request_info(before, after := tcp.tcp_info(client))
    assert took_ms > 10
    assert after["snd_mss"] == tcp.MSS_BYTES
    assert info["tcp_retransmits"] > 0
    assert info["tcp_min_rtt_ms"] >= 10
    figure(info["tcp_min_rtt_ms"] < 30 and info["tcp_busy_ms"] <= took_ms + 10, info)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, pytest.raises(PhotodupError, match="TCP"):
        tcp.tcp_info(udp)


# --- refusals -------------------------------------------------------------------------------------------


def test_unknown_congestion_control_is_refused():
    with (
        pytest.raises(LinkError, match="could not be set up"),
        Link(LinkSpec(congestion="warp", rate_mbit_s=50)),
    ):
        pass
    until(lambda: devices() == [])


def test_without_the_right_one_clear_sentence():
    def give_up_net_admin():
        assert ctypes.CDLL(None).prctl(24, 12, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_NET_ADMIN

    code = """
from photodup.bench.link.emulate import Link, LinkError, LinkSpec
try:
    Link(LinkSpec(rtt_ms=1, rate_mbit_s=10)).__enter__()
except LinkError as error:
    print(error)
"""
    child = run_python(code, preexec_fn=give_up_net_admin)
    assert child.stdout.startswith("The emulated link needs root or CAP_NET_ADMIN"), child.stderr
    assert child.stderr == ""


# --- nothing is left behind -----------------------------------------------------------------------------


def test_nothing_is_left_after_exit_and_after_an_exception():
    with Link(LinkSpec(rtt_ms=1, rate_mbit_s=50)):
        assert len(devices()) == 1
    assert devices() == []
    with pytest.raises(ZeroDivisionError), Link(LinkSpec(rtt_ms=1, rate_mbit_s=50)):
        _ = 1 / 0
    assert devices() == []


HOLDER = """
import os, sys, time
from photodup.bench.link.emulate import Link, LinkSpec
with Link(LinkSpec(rtt_ms=1, rate_mbit_s=50)) as link:
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(60)  # a worker that outlives its parent and holds the control socket
    print(link._relay.pid, flush=True)
    time.sleep(60)
"""


def start_holder(*arguments):
    command = [sys.executable, "-c", HOLDER, *arguments]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with holder.stdout:
        return holder, int(holder.stdout.readline())


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_nothing_is_left_when_the_owner_is_killed(how):
    holder, _ = start_holder(how)
    try:
        assert len(devices()) == 1
        holder.kill()
        holder.wait()
        until(lambda: devices() == [])
    finally:
        os.killpg(holder.pid, signal.SIGKILL) if how == "fork" else None


def test_two_links_side_by_side(figure):
    with Link(LinkSpec(rtt_ms=2, rate_mbit_s=50)) as near, Link(LinkSpec(rtt_ms=12, rate_mbit_s=50)) as far:
        assert near.address != far.address
        assert far.round_trip.floor_ms >= 12 and near.round_trip.floor_ms >= 2
        figure(near.round_trip.floor_ms < 5, near.round_trip)


def test_ladder_rows_tell_connections_apart(figure):
    spec = LinkSpec(rtt_ms=20, rate_mbit_s=500)
    rows = measure_payloads(spec, [2_000, 150_528], n=3, n_large=1, idle_s=0.6)["rows"]
    found = {(row["payload_bytes"], row["connection"]): row for row in rows}
    # The least of the samples: whatever disturbs one only adds to it.
    least_ms = {key: min(row["samples_ms"]) for key, row in found.items()}
    assert set(found) == {(n, c) for n in (2_000, 150_528) for c in ("new", "warm", "idle")}
    assert least_ms[2_000, "new"] >= 40  # a handshake and the request: no busy machine shortens two rounds
    assert least_ms[150_528, "new"] >= 80  # and slow start after it
    figure(least_ms[2_000, "new"] - least_ms[2_000, "warm"] > 12, least_ms)  # one round of 20 ms
    figure(least_ms[150_528, "new"] - least_ms[150_528, "warm"] > 50, least_ms)  # and three more
    figure(all(row["valid"] for row in rows), rows)
    assert found[150_528, "warm"]["tcp_cwnd_before"] >= 104
    assert found[150_528, "idle"]["idle_ms"] >= 600
    assert all(row["n_requests"] + row["n_dropped"] >= 1 and row["link"] == spec.label for row in rows)


@pytest.mark.figures
def test_a_small_send_buffer_and_parallel_connections_show():
    spec = LinkSpec(rtt_ms=20, rate_mbit_s=500)
    free, bounded = (
        measure_payloads(spec, [602_112], n=3, connections=["warm"], sndbuf_bytes=size)["rows"][0]
        for size in (None, 32_768)
    )
    assert min(bounded["samples_ms"]) > 2 * min(free["samples_ms"])
    one, four = (measure_parallel(spec, 10_000, requests=8, connections=n, repeats=3) for n in (1, 4))
    assert four["latency_ms_p50"] < one["latency_ms_p50"]  # eight requests take eight rounds or two
