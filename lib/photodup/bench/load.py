"""The load generator: one point at a time, measured until it may be believed or given up with a reason.

Closed loops (`single_stream`, `closed_loop`, `offline`) send the next request when the last was answered. The
open loop (`server`) sends at Poisson times whatever the server does, and counts latency from the time a
request was due, so a stall is felt by every request that should have been sent during it.
"""

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from photodup.bench import stats
from photodup.bench.adapters import Adapter, cosine_to_reference
from photodup.bench.workers import READINGS, Window, clock, describe_error, run_blocking, run_in_loop
from photodup.errors import PhotodupError

SCENARIOS = ("single_stream", "closed_loop", "server", "offline")
SPANS = ("photo", "prepared")
Probe = Callable[[], AbstractContextManager[Mapping[str, Any]]]
Watched = tuple[float, Mapping[str, Any]]  # length of the window in seconds, what the probe counted
LATE_S = 0.001  # late is beyond this (a sleeping thread is woken some 0.1 ms after its time)
LATE_SHARE = 0.05  # … and beyond this share of the median latency
MAX_LATE_SHARE = 0.01  # perf_analyzer warns beyond this share


@dataclass(frozen=True)
class Load:
    """What is asked of a server.

    Attributes:
        scenario: one of `SCENARIOS`.
        batch: images per request.
        concurrency: requests in flight, 1 unless given. In the open loop the most that may be, 64 unless
            given; beyond it requests wait in the client, and that wait counts.
        offered_per_s: open loop only: mean arrivals per second, in requests.
        connection: `new` (connecting is inside the span), `warm`, or `idle:SECONDS` before each request.
        span: `photo` times encoded photograph in hand → embedding in hand. `prepared` leaves the client's
            preparation out, for loads this client could not prepare fast enough; never compare the two.
    """

    scenario: str
    batch: int = 1
    concurrency: int | None = None
    offered_per_s: float | None = None
    connection: str = "warm"
    span: str = "photo"

    def __post_init__(self) -> None:
        if self.concurrency is None:
            object.__setattr__(self, "concurrency", 64 if self.scenario == "server" else 1)
        problem = None
        if self.scenario not in SCENARIOS:
            problem = f"scenario {self.scenario!r} is not one of {', '.join(SCENARIOS)}"
        elif self.batch < 1 or self.concurrency < 1:
            problem = "batch and concurrency start at 1"
        elif self.scenario == "single_stream" and self.concurrency != 1:
            problem = "single_stream has one request in flight; use closed_loop"
        elif (self.scenario == "server") != (self.offered_per_s is not None and self.offered_per_s > 0):
            problem = "offered_per_s belongs to the server scenario, and it needs one above 0"
        elif self.span not in SPANS:
            problem = f"span {self.span!r} is not one of {', '.join(SPANS)}"
        elif self.idle_s and self.scenario == "server":
            problem = "an open loop has its own pauses; idle connections belong to closed loops"
        if problem:
            raise PhotodupError(f"This load makes no sense: {problem}.")

    @property
    def idle_s(self) -> float:
        kind, _, seconds = self.connection.partition(":")
        try:
            if (kind in ("new", "warm") and not seconds) or (kind == "idle" and float(seconds) > 0):
                return float(seconds or 0)
        except ValueError:
            pass
        raise PhotodupError(f"connection {self.connection!r} is none of new, warm, idle:SECONDS.")


@dataclass(frozen=True)
class Stopping:
    """When a point is done: both minima met and stable, or the time is up (then it says what is missing).

    Attributes:
        warmup_requests: per worker, on the connection that will be measured; not counted.
        ramp_s: closed loops with several in flight run this long before the window opens, so that the batch
            sizes a server forms under load are warm too.
        seed: of payload order and arrivals, which have generators of their own.
    """

    min_duration_s: float = 5.0
    min_requests: int = 64
    max_duration_s: float = 60.0
    warmup_requests: int = 3
    ramp_s: float = 0.5
    seed: int = 0


def measure(
    adapter: Adapter,
    photos: Sequence[bytes],
    load: Load,
    stopping: Stopping | None = None,
    *,
    reference: np.ndarray | None = None,
    min_cosine: float = 0.999,
    probe: Probe | None = None,
    link: str = "loopback",
) -> dict[str, Any]:
    """Measure one point.

    Args:
        adapter: the backend under test; opened here, closed here.
        photos: encoded photographs, different ones; requests draw from them in a fixed seeded order.
        reference: float32 [len(photos), 512], what they should embed to. Checked before anything is timed.
        min_cosine: a lower cosine fails the point. Lossy wires need their own bound.
        probe: makes a context manager around the measured window whose mapping is filled on leaving it
            (see `counters.probe`); its plain values become columns.

    Returns:
        The columns of a point with intervals, windows, stages (`prepare_ms_mean`, `request_ms_mean`,
        `decode_ms_mean` and `_p50`), late sends, and `raw` (latencies and completion times). When the server
        could not be measured: `status: "failed"`, `error`, and what is known. Never raises for a server.
    """
    stopping = stopping or Stopping()
    point = {**adapter.describe(), "link": link, **_columns(load), "seed": stopping.seed}
    if not photos:
        raise PhotodupError("A load needs photographs: give at least one.")
    if load.connection == "new" and not adapter.can_reconnect:
        raise PhotodupError(f"{adapter.backend} shares one connection: it cannot be measured with new ones.")
    connections: list[Any] = []
    try:
        if reference is not None:
            point["cosine_min"] = cosine_to_reference(adapter, photos, reference)
            if not point["cosine_min"] >= min_cosine:  # also true for NaN
                return _failed(
                    point,
                    f"wrong embeddings: cosine {point['cosine_min']:.4f}, at least {min_cosine} is needed",
                )
        window = _window(adapter, photos, load, stopping)
        first = window.requests[0] if window.prepared_ahead else adapter.prepare(window.requests[0])
        point["payload_bytes"] = adapter.payload_bytes(first)
        run = _in_event_loop if adapter.is_async else _in_threads
        ended, counted = run(window, load, stopping, connections, probe or (lambda: nullcontext({})))
        point |= counted
    except Exception as error:
        return _failed(point, describe_error(error))
    finally:
        for connection in connections:
            connection.close()
        adapter.close()
    return _result(point, window, load, stopping, ended)


def run_interleaved(
    points: Mapping[str, Callable[[], Any]], *, blocks: int = 1, seed: int = 0
) -> dict[str, list[Any]]:
    """Run the points of a comparison in random order within each block, so that drift hits all alike.

    Args:
        points: name → a function that measures it; it is called once per block.

    Returns:
        name → its results, one per block, in block order.
    """
    order, results = random.Random(seed), {name: [] for name in points}
    for _ in range(blocks):
        for name in order.sample(list(points), len(points)):
            results[name].append(points[name]())
    return results


def arrivals_s(rate_per_s: float, horizon_s: float, seed: int = 0) -> np.ndarray:
    """Return Poisson arrival times (seconds, ascending, from 0) that cover `horizon_s`."""
    generator = np.random.default_rng([seed, 1])
    expected = rate_per_s * horizon_s
    gaps = generator.exponential(1 / rate_per_s, int(expected + 6 * np.sqrt(expected) + 10))
    times = np.cumsum(gaps)
    return times[times < horizon_s]


def request_order(photos: Sequence[bytes], batch: int, seed: int = 0) -> list[tuple[bytes, ...]]:
    """Return the fixed set of requests of a run: every photograph is used, none twice in a row."""
    count = max(8, min(64, 256 // batch))
    shuffled = random.Random(seed).sample(list(photos), len(photos))
    count = max(count, -(-len(photos) // batch) if batch * count < len(photos) <= 256 else count)
    return [tuple(shuffled[(i * batch + j) % len(shuffled)] for j in range(batch)) for i in range(count)]


def _columns(load: Load) -> dict[str, Any]:
    names = ("connection", "scenario", "batch", "concurrency", "offered_per_s", "span")
    return {name: getattr(load, name) for name in names}


def _failed(point: dict[str, Any], error: str) -> dict[str, Any]:
    return {**point, "status": "failed", "error": error, "valid": False, "invalid_because": error}


def _window(adapter: Adapter, photos: Sequence[bytes], load: Load, stopping: Stopping) -> Window:
    requests: list[Any] = request_order(photos, load.batch, stopping.seed)
    ahead = load.span == "prepared"
    schedule = None
    if load.scenario == "server":
        schedule = arrivals_s(load.offered_per_s, stopping.max_duration_s, stopping.seed)
    return Window(
        adapter=adapter,
        requests=[adapter.prepare(request) for request in requests] if ahead else requests,
        prepared_ahead=ahead,
        new_connection=load.connection == "new",
        idle_s=load.idle_s,
        batch=load.batch,
        schedule_s=schedule,
    )


def _in_threads(window: Window, load: Load, stopping: Stopping, connections: list, probe: Probe) -> Watched:
    """Threads, not processes: waiting threads hold no lock, and 16 of them offer a null server more
    requests per second than any model answers (`engine_bench`)."""
    for _ in range(load.concurrency):
        connection = window.adapter.open()
        connections.append(connection)
        for index in range(stopping.warmup_requests):
            request = window.requests[index % len(window.requests)]
            prepared = request if window.prepared_ahead else window.adapter.prepare(request)
            window.check(connection.decode(connection.request(prepared)))
        if window.new_connection:
            connection.close()
    window.samples = [[] for _ in connections]
    barrier = threading.Barrier(len(connections) + 1)
    workers = [
        threading.Thread(target=run_blocking, args=(window, connection, samples, barrier), daemon=True)
        for connection, samples in zip(connections, window.samples, strict=True)
    ]
    for worker in workers:
        worker.start()
    with _short_collections():
        window.started = clock()
        barrier.wait()
        return _watch(window, load, stopping, workers, probe)


@contextmanager
def _short_collections() -> Iterator[None]:
    """Set everything that exists aside: a full collection would be booked on whichever request it hits."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _in_event_loop(
    window: Window, load: Load, stopping: Stopping, connections: list, probe: Probe
) -> Watched:
    """One event loop in a thread of its own; this thread watches, as for blocking workers."""

    async def body() -> None:
        opened = []
        try:
            for _ in range(load.concurrency):
                connection = window.adapter.open()
                opened.append(connection)
                for index in range(stopping.warmup_requests):
                    request = window.requests[index % len(window.requests)]
                    prepared = request if window.prepared_ahead else window.adapter.prepare(request)
                    window.check(connection.decode(await connection.request(prepared)))
            window.samples = [[] for _ in opened]
            window.started = clock()
            begun.set()
            pairs = zip(opened, window.samples, strict=True)
            await asyncio.gather(*(run_in_loop(window, c, samples) for c, samples in pairs))
        except Exception as error:
            problems.append(error)
        finally:
            begun.set()
            for connection in opened:
                await connection.aclose()

    begun, problems = threading.Event(), []
    worker = threading.Thread(target=lambda: asyncio.run(body()), daemon=True)
    worker.start()
    begun.wait()
    with _short_collections():
        watched = _watch(window, load, stopping, [worker], probe)
    if problems:
        raise problems[0]
    return watched


def _watch(
    window: Window, load: Load, stopping: Stopping, workers: Sequence[threading.Thread], probe: Probe
) -> Watched:
    """Open the window, wait until the stopping rule is met, close it, let the workers finish."""
    open_loop = load.scenario == "server"
    if load.concurrency > 1 and not open_loop:
        time.sleep(stopping.ramp_s)
        window.started = clock()
        window.errors.clear()
    with probe() as counted:
        look_again, hopeless = stopping.min_duration_s, False
        while any(worker.is_alive() for worker in workers):
            time.sleep(0.02)
            elapsed, n = clock() - window.started, window.answered()
            hopeless = len(window.errors) > max(10, 0.01 * n)
            enough = elapsed >= max(stopping.min_duration_s, look_again) and n >= stopping.min_requests
            if enough and not open_loop:
                enough = stats.stability(stats.windows(*_answered(window), load.concurrency))[0]
                look_again = elapsed * 1.1
            if enough or hopeless or elapsed >= stopping.max_duration_s:
                break
        window.stop_at = clock()
    window.give_up_at = window.stop_at + (0 if hopeless else max(1.0, stopping.max_duration_s / 4))
    for worker in workers:
        worker.join()
    return window.stop_at - window.started, counted


def _rows(window: Window) -> np.ndarray:
    """Return the requests begun in the window, in order of completion, seconds since it was opened."""
    rows = [row for samples in window.samples for row in samples.copy()]
    times = np.array(rows).reshape(-1, len(READINGS)) - window.started
    times = times[times[:, 0] >= 0]
    return times[np.argsort(times[:, -1], kind="stable")]


def _answered(window: Window) -> tuple[np.ndarray, np.ndarray]:
    rows = _rows(window)
    return rows[:, -1], (rows[:, -1] - rows[:, 0]) * 1000


def _result(
    point: dict[str, Any], window: Window, load: Load, stopping: Stopping, ended: float
) -> dict[str, Any]:
    rows = _rows(window)
    done = rows[:, -1]
    scheduled = None
    if load.scenario == "server":
        ended_schedule = min(ended, stopping.max_duration_s)
        scheduled = float(np.searchsorted(window.schedule_s, ended_schedule)) / ended_schedule
        ended = max(ended_schedule, float(done[-1])) if len(done) else ended_schedule
    elif load.concurrency == 1 and len(done):
        ended = float(done[-1])  # the last request was waited for; nothing else was in flight
    rows = rows[done <= ended]  # what was in flight when the window closed is in nobody's count
    due, picked, begun, prepared, answered, done = rows.T
    latency_ms = (done - due) * 1000
    point |= stats.summarize(
        done,
        latency_ms,
        batch=load.batch,
        concurrency=load.concurrency,
        duration_s=ended,
        n_errors=len(window.errors),
        min_requests=stopping.min_requests,
        min_duration_s=stopping.min_duration_s * 0.99,
        scheduled_per_s=scheduled,
        seed=stopping.seed,
    )
    if len(done):
        point |= _stages(begun, prepared, answered, done)
        _check_warm(point, due, latency_ms, load.concurrency)
    if load.scenario == "server":
        _lateness(point, due, picked, begun)
    if len(window.errors) > stats.MAX_ERROR_SHARE * (len(done) + len(window.errors)):
        share = f"{len(window.errors)} of {len(done) + len(window.errors)} requests failed"
        return _failed(point, f"{share}: {window.common_error()}")
    if not len(done):
        return _failed(point, f"no request was answered within {ended:.1f} s")
    return {**point, "raw": {"latency_ms": latency_ms, "finished_s": done}}


def _stages(begun: np.ndarray, prepared: np.ndarray, answered: np.ndarray, done: np.ndarray) -> dict:
    stages = {"prepare": prepared - begun, "request": answered - prepared, "decode": done - answered}
    columns = {f"{name}_ms_mean": float(part.mean() * 1000) for name, part in stages.items()}
    return columns | {f"{name}_ms_p50": float(np.median(part) * 1000) for name, part in stages.items()}


def _check_warm(point: dict[str, Any], due: np.ndarray, latency_ms: np.ndarray, concurrency: int) -> None:
    """A first request that is the slowest of all by far means something was still being built."""
    first = np.argsort(due, kind="stable")[: max(3, concurrency)]
    rest = np.delete(latency_ms, first)
    point["first_requests_ms_max"] = float(latency_ms[first].max())
    if rest.size >= 10 and latency_ms[first].max() > max(5 * np.median(rest), rest.max()):
        _invalidate(
            point,
            f"not warm: one of the first requests took {latency_ms[first].max():.0f} ms, "
            f"the median is {np.median(rest):.0f} ms",
        )


def _lateness(point: dict[str, Any], due: np.ndarray, picked: np.ndarray, begun: np.ndarray) -> None:
    """Late sends are in the latency already; here is how many there were, and whether it was our fault."""
    limit_s = max(LATE_S, LATE_SHARE * (point["latency_ms_p50"] or 0) / 1000)
    late = begun - due > limit_s
    ours = begun - np.maximum(due, picked) > limit_s  # a worker was free and still overslept
    point |= {"n_late": int(late.sum()), "n_late_generator": int(ours.sum())}
    point["late_ms_max"] = float((begun - due).max() * 1000) if len(due) else 0.0
    if ours.sum() > MAX_LATE_SHARE * len(due):
        share = ours.sum() / len(due)
        _invalidate(
            point, f"the generator sent {share:.0%} of the requests over {limit_s * 1000:.0f} ms late"
        )


def _invalidate(point: dict[str, Any], reason: str) -> None:
    point["valid"] = False
    point["invalid_because"] = "; ".join(filter(None, [point["invalid_because"], reason]))
