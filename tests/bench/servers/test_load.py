"""The load generator measures what was planted: known delays, stalls, errors, cold starts, dying servers."""

import contextlib
import http.client
import itertools
import threading
import time
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dummy import Dummy, known_embedding
from support.http_server import accepting
from support.service import until

from benchmarks import null_server
from benchmarks.load_generator import only_sent
from photodup.bench.backends.adapters import check_embeddings
from photodup.bench.backends.http_connection import HttpConnection, HttpError
from photodup.bench.load import plan
from photodup.bench.load.plan import WindowPlan
from photodup.bench.load.summary import little_ratio
from photodup.bench.load.window import Load, measure
from photodup.core.errors import PhotodupError
from photodup.embedding.wire.http import Multipart

PHOTOS = [bytes([number]) * 15_000 for number in range(12)]
REFERENCE = np.stack([known_embedding(photo) for photo in PHOTOS])
SHORT = WindowPlan(0.5, ramp_s=0.1)


def test_a_closed_loop_holds_its_load_and_obeys_littles_law(figure):
    point = measure(Dummy(delay_ms=10), PHOTOS, Load("closed_loop", concurrency=8, batch=2), SHORT)
    requests_per_s = point["throughput_images_per_s"] / 2
    figure(requests_per_s * point["latency_ms_mean"] / 1000 == pytest.approx(8, rel=0.15), point)
    figure(point["little_ratio"] == pytest.approx(1, rel=0.15), point)
    figure(point["client_cpu_cores"] < 1, point)  # the dummy sleeps
    figure(point["latency_ms_p50"] < 80, point)  # all eight at once, where one after the other takes 80
    assert 0 < point["client_cpu_share"] <= point["client_cpu_cores"]
    assert point["client_bound"] == (point["client_cpu_cores"] > 1 / 3)
    assert point["latency_ms_p50"] >= 10
    assert point["payload_bytes"] == 30_000
    assert point["n_requests"] == len(point["raw"]["latency_ms"]) > 0


@pytest.mark.figures
def test_the_edges_of_a_short_window_do_not_bias_the_rate():
    """32 in flight, 160 a second: to drop the requests that cross an edge would lose a fifth in one second."""
    delays = np.random.default_rng(0).uniform(100, 300, 10_000)
    system = Dummy(delay_of=lambda number: delays[number])
    point = measure(system, PHOTOS, Load("closed_loop", concurrency=32), WindowPlan(1))
    assert point["little_ratio"] == pytest.approx(1, abs=0.12)


def test_stages_add_up_to_the_latency(figure):
    class Slow(Dummy):
        def prepare(self, photos):
            time.sleep(0.004)
            return super().prepare(photos)

    photo = measure(Slow(delay_ms=2), PHOTOS, Load("single_stream"), SHORT)
    prepared = measure(Slow(delay_ms=2), PHOTOS, Load("single_stream", span="prepared"), SHORT)
    stages = sum(photo[f"{name}_ms_mean"] for name in ("prepare", "request", "decode"))
    assert photo["prepare_ms_mean"] >= 4
    assert photo["latency_ms_p50"] >= 6
    figure(photo["latency_ms_mean"] == pytest.approx(stages, rel=0.1), photo)
    figure(prepared["prepare_ms_mean"] < photo["prepare_ms_mean"] / 2, (photo, prepared))
    figure(prepared["latency_ms_p50"] < photo["latency_ms_p50"], (photo, prepared))


def test_wrong_embeddings_are_refused_and_the_cosine_of_right_ones_is_told():
    with pytest.raises(PhotodupError, match="a dummy embeds otherwise"):
        check_embeddings(Dummy(), PHOTOS, REFERENCE[::-1], 0.999, name="a dummy")
    with pytest.raises(PhotodupError, match="of shape"):
        check_embeddings(Dummy(), PHOTOS, REFERENCE[:, :9], 0.999, name="a dummy")
    assert check_embeddings(Dummy(), PHOTOS, REFERENCE, 0.999, name="a dummy") == pytest.approx(1)


def test_an_answer_for_another_batch_size_is_an_error():
    class Short(Dummy):
        def decode(self, answer):
            return super().decode(answer)[:-1]

    point = measure(Short(), PHOTOS, Load("offline", batch=4), SHORT)
    assert point["status"] == "failed" and "4 embeddings were asked for" in point["error"]


class Mistaken(Dummy):
    """Its client code holds a mistake that shows at the eighth request."""

    def __init__(self, error):
        super().__init__(1)
        self.error = error

    def request(self, prepared):
        if self.n_requests >= 8:
            raise self.error
        return super().request(prepared)


@pytest.mark.parametrize("error", [TypeError("mine"), AttributeError("mine"), NameError("mine")])
def test_a_mistake_of_ours_is_raised_and_no_failed_point(error):
    with pytest.raises(type(error), match="mine"):
        measure(Mistaken(error), PHOTOS, Load("closed_loop", concurrency=4), SHORT)


def test_an_answer_that_cannot_be_read_is_the_servers_fault():
    class Garbled(Dummy):
        def decode(self, answer):
            return Multipart().decode(({}, b'{"rows": []}'))

    point = measure(Garbled(), PHOTOS, Load("single_stream"), SHORT)
    assert point["status"] == "failed" and "has no 'embeddings' but rows" in point["error"]


def test_the_payload_is_the_mean_over_the_requests_and_not_the_first(tmp_path):
    """Fourteen photographs of 1,000 bytes, the first request's among them, and two of 9,000."""
    sizes = [1000] * 14 + [9000] * 2
    photos = [bytes([i]) * n for i, n in enumerate(sizes)]
    for span in ("photo", "prepared"):
        point = measure(Dummy(), photos, Load("single_stream", span=span), WindowPlan(0.2, 320))
        assert point["payload_bytes"] == pytest.approx(2000, rel=0.02)


def test_an_open_loop_says_at_which_rate_requests_really_came(figure):
    load = Load("server", offered_per_s=40)
    point = measure(Dummy(1), PHOTOS, load, WindowPlan(1))
    drawn = plan.arrivals_s(40, 1.0)
    assert point["offered_per_s"] == 40
    figure(point["arrived_per_s"] == pytest.approx(np.searchsorted(drawn, 1.0) / 1.0, rel=0.05), point)
    assert "arrived_per_s" not in measure(Dummy(1), PHOTOS, Load("single_stream"), SHORT)


def test_a_cold_first_request_is_noticed(figure):
    """The second batch size would be built inside the window: warm-up is three requests, the fourth stalls."""
    system = Dummy(delay_of=lambda number: 300 if number == 3 else 2)
    point = measure(system, PHOTOS, Load("single_stream"), SHORT)
    assert "not warm: one of the first requests took" in point["notes"]
    assert float(point["notes"].split("the median is ")[1].split()[0]) % 1, "a median of 0.05 ms is not 0"
    warm = measure(Dummy(2), PHOTOS, Load("single_stream"), SHORT)
    figure("not warm" not in warm["notes"], warm)


def test_rare_errors_are_counted_and_frequent_ones_fail_the_point():
    def some(every):
        def delay(number):
            if number % every == every - 1:
                raise ConnectionResetError("planted")
            return 0.2

        return delay

    few = measure(
        Dummy(delay_of=some(500)), PHOTOS, Load("single_stream"), WindowPlan(0.3, 600, longest_s=60)
    )
    many = measure(Dummy(delay_of=some(50)), PHOTOS, Load("single_stream"), SHORT)
    assert few.get("status") != "failed" and few["n_errors"] >= 1
    assert many["status"] == "failed" and "ConnectionResetError: planted" in many["error"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("n", [1, 2])
def test_a_server_that_dies_fails_the_point_at_once_and_by_name(n):
    asked = Load("closed_loop", concurrency=4), WindowPlan(900)
    with null_server.running(die_after=300) as url:
        point = measure(only_sent(url), PHOTOS, *asked, processes=n)
    assert point["status"] == "failed" and "Refused" in point["error"]


def test_processes_share_what_is_in_flight_and_their_answers_come_together():
    """More processes than requests in flight are not started."""
    with null_server.running(delay_ms=5) as url:
        point = measure(only_sent(url), PHOTOS, Load("closed_loop", concurrency=3), SHORT, processes=2)
        one = measure(only_sent(url), PHOTOS, Load("single_stream"), SHORT, processes=2)
    assert point["n_requests"] == len(point["raw"]["latency_ms"]) > 0 == point["n_errors"] == one["n_errors"]
    assert 0.9 < point["little_ratio"] < 1.1 and point["raw"]["latency_ms"].min() >= 5


def test_a_generator_that_is_most_of_what_is_measured_is_noticed(figure):
    with null_server.running() as url:
        point = measure(only_sent(url), PHOTOS, Load("closed_loop", concurrency=16), SHORT)
    figure(point["client_bound"], point)  # on a busy machine it gets less than a third of a core
    assert not measure(Dummy(200), PHOTOS, Load("single_stream"), SHORT)["client_bound"]


def test_an_unreachable_server_and_a_refusal_are_failed_points():
    nobody = measure(only_sent("http://127.0.0.1:9"), PHOTOS, Load("single_stream"), SHORT)
    with null_server.running(status=503) as url:
        refused = measure(only_sent(url), PHOTOS, Load("single_stream"), SHORT)
    assert nobody["status"] == refused["status"] == "failed"
    assert "refused" in nobody["error"] and "answered 503" in refused["error"]


def test_a_window_goes_on_until_enough_came_but_not_for_ever(figure):
    """Of a server that takes 100 ms the first two would be all; of one that takes 1 s nobody waits for ten."""
    slow = measure(Dummy(delay_ms=100), PHOTOS, Load("single_stream"), WindowPlan(0.2, 6))
    assert slow["n_requests"] >= 6
    slower = measure(
        Dummy(delay_ms=1000), PHOTOS, Load("single_stream"), WindowPlan(0.2, 10, warmup_requests=0)
    )
    assert slower["duration_s"] > 1.9 and slower["n_requests"] < 10
    figure(slower["duration_s"] < 4, slower)
    short = WindowPlan(0.1, 1, ramp_s=0.0, longest_s=0.1)
    slowest = measure(Dummy(delay_ms=500), PHOTOS, Load("closed_loop", concurrency=2), short)
    assert slowest["n_requests"] >= 1, "a short window waits for an answer"
    rare = measure(Dummy(1), PHOTOS, Load("server", offered_per_s=10), WindowPlan(0.2, 10, seed=1))
    assert rare["n_requests"] > 3, "an open loop waits for as many as are expected"


@pytest.mark.parametrize("in_flight", [3, 4])
def test_a_rate_is_that_of_whole_waves(in_flight):
    """A server that answers all in flight together, a burst each 0.2 s: a second holds five bursts, or six."""
    barrier = threading.Barrier(in_flight)

    def together(number: int) -> float:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(1.0 if number >= 3 else 0.0)
        return 200

    load = Load("closed_loop", concurrency=in_flight)
    for seconds in (0.5, 0.55):
        barrier.reset()
        point = measure(Dummy(delay_of=together), PHOTOS, load, WindowPlan(seconds, warmup_requests=0))
        assert point["throughput_images_per_s"] == pytest.approx(in_flight / 0.2, rel=0.05)


def test_littles_law_exposes_a_load_that_was_not_held():
    assert little_ratio(32, 43.2, 741) == pytest.approx(1.0, abs=0.01)
    assert little_ratio(32, 43.2, 416) < 0.6  # the published median in place of the mean

    class Pausing(Dummy):
        def payload_bytes(self, request):
            time.sleep(0.001)  # of the generator, after each answer
            return super().payload_bytes(request)

    window = measure(
        Pausing(delay_ms=5), PHOTOS * 30, Load("closed_loop", concurrency=4), WindowPlan(0.3, ramp_s=0)
    )
    assert (
        window["little_ratio"] < 0.97 and "the load did not hold: rate × mean latency is " in window["notes"]
    )
    assert "load did not hold" not in measure(Dummy(5), PHOTOS, Load("single_stream"), SHORT)["notes"]


def test_a_known_delay_is_measured_to_half_a_millisecond(figure):
    """Against what a bare client sees just before and after: a server may sleep for longer than it is told."""
    with null_server.running(delay_ms=5) as url:
        bare_ms = bare_latency_ms(url)
        point = measure(only_sent(url), PHOTOS, Load("single_stream"), SHORT)
        bare_ms += bare_latency_ms(url)
    assert point["latency_ms_p50"] >= 5
    figure(abs(point["latency_ms_p50"] - np.median(bare_ms)) < 0.5, (point["latency_ms_p50"], bare_ms))


def bare_latency_ms(url: str, n: int = 64) -> list[float]:
    """Return how long single requests take that a client of the standard library sends, one after the other."""
    connection, times_ms = http.client.HTTPConnection(urlsplit(url).netloc), []
    for _ in range(n):
        begun = time.perf_counter()
        connection.request("POST", "/embed-image", PHOTOS[0])
        connection.getresponse().read()
        times_ms.append(1000 * (time.perf_counter() - begun))
    connection.close()
    return times_ms


def test_a_stall_shows_in_the_open_loop_and_hides_in_the_closed_one(figure):
    """Coordinated omission: while the server stands still, a closed loop sends nothing to be slow."""
    p99 = {}
    for scenario, options in (("closed_loop", {}), ("server", {"offered_per_s": 200})):
        with null_server.running(delay_ms=2, stall_s=1.4, stall_after_s=1) as url:
            p99[scenario] = measure(only_sent(url), PHOTOS, Load(scenario, **options), WindowPlan(4, 662))
    closed, opened = p99["closed_loop"], p99["server"]
    assert closed["raw"]["latency_ms"].max() > 1300, "the stall was not planted"
    assert opened["latency_ms_p99"] > 1000
    figure((closed["latency_ms_p99"] or np.inf) < 700, closed)  # half of the stall


def test_an_overloaded_open_loop_says_so():
    # One at a time, 10 ms each: 100 a second can be answered, 200 are offered.
    load = Load("server", offered_per_s=200, concurrency=1)
    point = measure(Dummy(delay_ms=10), PHOTOS, load, WindowPlan(1.5))
    assert "the server was overloaded: " in point["notes"]
    assert point["raw"]["latency_ms"].max() > 100, "the wait for a free worker is part of it"


@pytest.mark.figures
def test_an_open_loop_below_capacity_is_not_overloaded():
    point = measure(Dummy(delay_ms=20), PHOTOS, Load("server", offered_per_s=100), WindowPlan(1.5))
    assert "overloaded" not in point["notes"]
    assert point["throughput_images_per_s"] == pytest.approx(100, rel=0.5)


def test_a_new_connection_for_each_request_is_what_it_says():
    opened = []

    class Counting(HttpConnection):
        def connect(self):
            opened.append(self.socket is None)
            super().connect()

    with null_server.running() as url:
        counting = replace(only_sent(url), connection=lambda: Counting(url))
        warm = measure(counting, PHOTOS, Load("single_stream"), SHORT)
        assert sum(opened) == 1
        opened.clear()
        new = measure(counting, PHOTOS, Load("single_stream", connection="new"), SHORT)
        assert sum(opened) >= new["n_requests"] > 0
    assert warm["n_requests"] > 0


def test_workers_never_share_a_connection():
    seen, lock = {}, threading.Lock()

    class Watched(Dummy):
        def open(self):
            outer = self

            class Own(Dummy):
                def request(self, prepared):
                    with lock:
                        seen.setdefault(id(self), set()).add(threading.get_ident())
                    return outer.request(prepared)

            own = Own()
            kept.append(own)
            return own

    kept = []
    measure(Watched(1), PHOTOS, Load("closed_loop", concurrency=4), WindowPlan(0.3, 20, warmup_requests=0))
    assert len(seen) == 4 and all(len(threads) == 1 for threads in seen.values())


@pytest.mark.parametrize(("options", "said"), [
    ({"scenario": "closedloop"}, "is not one of"),
    ({"scenario": "single_stream", "concurrency": 4}, "use closed_loop"),
    ({"scenario": "server"}, "needs one above 0"),
    ({"scenario": "closed_loop", "offered_per_s": 5}, "belongs to the server scenario"),
    ({"scenario": "offline", "batch": 0}, "start at 1"),
    ({"scenario": "offline", "connection": "cold"}, "is not one of warm, new"),
    ({"scenario": "offline", "span": "all"}, "span"),
])  # fmt: skip
def test_a_load_that_makes_no_sense_is_refused(options, said):
    with pytest.raises(PhotodupError, match=said):
        Load(**options)


@given(st.integers(1, 40), st.sampled_from([1, 4, 8, 32]), st.integers(0, 5))
def test_requests_use_every_photograph_in_a_fixed_order(n, batch, seed):
    photos = [bytes([number]) for number in range(n)]
    requests = plan.draw_requests(photos, batch, seed)
    assert requests == plan.draw_requests(photos, batch, seed)
    assert all(len(request) == batch for request in requests)
    assert {photo for request in requests for photo in request} == set(photos)
    flat = [photo for request in requests for photo in request]
    assert n == 1 or all(a != b for a, b in itertools.pairwise(flat))


def test_arrivals_are_a_poisson_process():
    from scipy import stats as distributions

    times = plan.arrivals_s(200, 50, seed=3)
    gaps = np.diff(times)
    assert distributions.kstest(gaps, "expon", args=(0, 1 / 200)).pvalue > 0.01
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03
    assert times[-1] < 50 and len(times) == pytest.approx(10_000, rel=0.05)
    assert distributions.kstest(np.full(1000, 1 / 200), "expon", args=(0, 1 / 200)).pvalue < 1e-6


def test_the_connection_times_out_and_recovers():
    def answer() -> bytes:
        with contextlib.suppress(TimeoutError):
            return connection.request(head)[1]
        return b""

    with null_server.running(stall_s=3.0, stall_after_s=0.0) as url:
        connection = HttpConnection(url, timeout_s=1)
        head = connection.head("POST", "/", 0)
        connection.request(head)
        time.sleep(0.01)
        with pytest.raises(TimeoutError, match="did not answer in time"):
            connection.request(head)
        assert connection.socket is None
        until(lambda: answer() == null_server.BODY)
        connection.close()


def test_large_bodies_arrive_whole_and_non_http_is_named():
    import hashlib

    with null_server.running() as url:
        connection = HttpConnection(url)
        body = hashlib.shake_128(b"x").digest(20_000_000)
        headers, _ = connection.request(connection.head("POST", "/", len(body)), body)
        assert headers["content-type"] == "application/json"
        first = connection.socket
        connection.request(connection.head("POST", "/", 0))
        assert connection.socket is first, "the connection was not kept"
        connection.close()
    sound = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
    says = iter([sound, b"SSH-2.0-nope\r\n\r\n"])

    def answer(peer):
        peer.recv(1000)
        peer.sendall(next(says))

    with accepting(answer) as url:
        connection = HttpConnection(url)
        assert connection.request(connection.head("POST", "/", 0))[1] == b"ok" and connection.socket is None
        with pytest.raises(HttpError, match="not HTTP"):
            connection.request(connection.head("POST", "/", 0))


def test_a_point_goes_into_a_run_and_comes_back_as_a_row(tmp_path):
    from photodup.bench.record.store import RunStore, figures_of_run

    asked = Load("single_stream")
    config = {**asked.columns(), "backend": "dummy"}
    with RunStore(tmp_path / "run") as run:
        for _ in range(2):
            kept = {"config": config, "kind": "figure"}
            point = run.measure_or_load("p", lambda: measure(Dummy(1), PHOTOS, asked, SHORT), **kept)
        raw = run.raw("p", config=config)
        run.measure_or_load(
            "gone",
            lambda: measure(only_sent("http://127.0.0.1:9"), PHOTOS, asked, SHORT),
            config={**config, "backend": "fastapi-pytorch-fp32-http-jpeg"},
            kind="figure",
        )
    rows = figures_of_run(tmp_path / "run").set_index("key")
    assert rows.loc["p", "latency_ms_p50"] == point["latency_ms_p50"]
    assert len(raw["latency_ms"]) == point["n_requests"]
    assert rows.loc["gone", "status"] == "failed" and np.isnan(rows.loc["gone", "latency_ms_p50"])
