"""The load generator: one window at a time.

Closed loops (`single_stream`, `closed_loop`, `offline`) send the next request when the last was answered. The
open loop (`server`) sends at Poisson times whatever the server does, and counts latency from the time a
request was due, so a stall is felt by every request that should have been sent during it.
"""

import contextlib
import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pickle import PicklingError
from typing import Any

from photodup.bench import Columns
from photodup.bench.backends.adapters import Adapter
from photodup.bench.link.emulate import LOOPBACK, NetworkPath
from photodup.bench.load import summary
from photodup.bench.load.plan import RAMP_TIMES, RAMP_WAVES, Arrivals, WindowPlan, arrivals_s, draw_requests
from photodup.bench.load.workers import Observer, Window, clock, describe_error, run_worker
from photodup.bench.stats.metrics import Load
from photodup.core.errors import PhotodupError, is_expected
from photodup.core.files import available_cores

CLIENT_BOUND = 1 / 3  # of a core for each process
FIRST_ANSWER_S = 10.0  # a closed loop's window waits at least so long for an answer, however short it is
Meter = Callable[[], AbstractContextManager[Mapping[str, Any]]]
Watched = tuple[float, Mapping[str, Any]]  # length of the window in seconds, what the meter counted


def measure(
    adapter: Adapter,
    photos: Sequence[bytes],
    load: Load,
    plan: WindowPlan | None = None,
    *,
    meter: Meter | None = None,
    network: NetworkPath = LOOPBACK,
    arrivals: Arrivals = arrivals_s,
    observer: Observer | None = None,
    processes: int = 1,
) -> Columns:
    """Measure one window.

    Args:
        adapter: the backend under test; opened here, closed here.
        photos: encoded photographs, different ones; requests draw from them in a fixed seeded order.
        meter: makes a context manager around the measured window whose mapping is filled on leaving it
            (see `counters.meter`); its plain values become columns.
        network: how requests reach the server; its facts become columns.
        arrivals: open loop: other times than Poisson's.
        observer: watches while it is measured, may end it, and gets the single requests.
        processes: a closed loop's requests in flight are shared among at most so many processes.

    Returns:
        The columns of the window: latencies (`latency_ms_mean`, `_p50` and the others of `METRICS`; None where a
        percentile has too few answers), `throughput_images_per_s`, `n_requests`, `n_errors`, `duration_s`, stages
        (`prepare_ms_mean`, `request_ms_mean`, `decode_ms_mean`), `client_cpu_cores` (cores that the
        generator kept busy) and `client_cpu_share` (their share of the cores it may use), `client_bound` (more than a third
        of a core busy per process), `payload_bytes` (the mean over the window's requests), `little_ratio` of closed loops,
        `arrived_per_s` (the rate as drawn) and `n_late_generator` (requests sent late) of open ones, `notes` (what a reader
        must know, in clauses), and `raw` (latencies and completion times). When nothing could be measured:
        `status: "failed"`, `error`, and what is known; a server's failure is never raised.

    Raises:
        PhotodupError: a load that the adapter or several processes cannot carry.
    """
    plan = plan or WindowPlan()
    point = {**adapter.describe(), **network.columns(), **load.columns(), "seed": plan.seed}
    if load.connection == "new" and not adapter.can_reconnect:
        raise PhotodupError(f"{adapter.backend} shares one connection: it cannot be measured with new ones.")
    processes = min(processes, load.concurrency)
    connections: list[Any] = []
    window = Window(adapter, load, draw_requests(photos, load.batch, plan.seed), observer=observer)
    if load.offered_per_s:
        window.schedule_s = arrivals(load.offered_per_s, plan.length_s(load), plan.seed)
    try:
        _prepare_ahead(window)
        run = partial(_in_processes, processes, photos) if processes > 1 else _in_threads
        ended, counted = run(window, plan, connections, meter or (lambda: nullcontext({})))
        point |= counted
        if observer:
            observer.keep(
                summary.rows_of(window), [(at - window.started_at, text) for at, text in window.errors]
            )
        if window.fatal_error:
            raise window.fatal_error
    except Exception as error:
        if not is_expected(error):
            raise
        return summary.failed_columns(point, describe_error(error))
    finally:
        for connection in connections:
            connection.close()
        adapter.close()
    # A Python process uses at most one core.
    point["client_bound"] = point["client_cpu_cores"] > CLIENT_BOUND * processes
    return summary.summarize(point, window, plan, ended)


def _prepare_ahead(window: Window) -> None:
    if window.is_prepared:
        window.requests = [window.adapter.prepare(request) for request in window.requests]


def _in_threads(window: Window, plan: WindowPlan, connections: list, meter: Meter) -> Watched:
    """Measure with threads of this process: while they wait they hold no lock, and 16 of them send more requests per second
    than any model on a CPU answers (`benchmarks/load_generator.py`)."""

    def warm(connection: Any, requests: Sequence[Any]) -> None:
        for request in requests:
            try:
                window.decode(connection, connection.request(request))
            except Exception as error:
                if window.observer is None or not is_expected(error):
                    raise
                connection.close()  # a server that is overloaded refuses now and then
        if window.load.connection == "new":
            connection.close()

    connections += [window.adapter.open() for _ in range(window.load.concurrency)]
    requests = [window.requests[i % len(window.requests)] for i in range(plan.warmup_requests)]
    if not window.is_prepared:
        requests = [window.adapter.prepare(request) for request in requests]
    warm(connections[0], requests)
    # the others at once: larger batches form, and warm too
    with ThreadPoolExecutor(len(connections)) as pool:
        list(pool.map(lambda connection: warm(connection, requests[:1]), connections[1:]))
    barrier = threading.Barrier(len(connections) + 1)
    workers = _threads(run_worker, window, connections, barrier)
    with short_collections():
        window.started_at = clock()
        barrier.wait()
        return _watch(window, plan, workers, meter)


def _threads(
    work: Callable[..., None], window: Window, ends: Sequence[Any], shared: Any
) -> list[threading.Thread]:
    """Start a worker for each connection, or for each process, with a list of its own for its answers."""
    window.samples = [[] for _ in ends]
    workers = [
        threading.Thread(target=work, args=(window, end, samples, shared), daemon=True)
        for end, samples in zip(ends, window.samples, strict=True)
    ]
    for worker in workers:
        worker.start()
    return workers


def _in_processes(
    n: int, photos: Sequence[bytes], window: Window, plan: WindowPlan, connections: list, meter: Meter
) -> Watched:
    """Share the requests in flight among n processes, each with threads of its own; their answers come together here.

    Each process prepares its requests itself, since a prepared request may not be picklable.
    """
    context = get_context("spawn")
    endless = replace(plan, seconds=1e9, longest_s=1e9, ramp_s=0.0)  # the parent ends them
    for number in range(n):
        in_flight = len(range(number, window.load.concurrency, n))
        load = replace(window.load, scenario="closed_loop", concurrency=in_flight)
        first = number * len(window.requests) // n
        parent_end, child_end = context.Pipe()
        connections.append(parent_end)
        share = (child_end, window.adapter, photos, load, endless, first)
        try:
            context.Process(target=_run_share, args=share, daemon=True).start()
        except (TypeError, AttributeError, PicklingError) as error:
            raise PhotodupError(
                f"This load needs one process, it cannot be sent to others: {error}."
            ) from None
        child_end.close()
    for pipe in connections:
        pipe.poll(None)  # until it works, or has ended
    cores: list[float] = []
    workers = _threads(_receive_reports, window, connections, cores)
    window.started_at = clock()
    with short_collections():
        length_s, counted = _watch(window, plan, workers, meter)
    busy = counted["client_cpu_cores"] + sum(cores)
    return length_s, {**counted, "client_cpu_cores": busy, "client_cpu_share": busy / available_cores()}


def _receive_reports(window: Window, pipe: Any, samples: list, cores: list[float]) -> None:
    """Receive what one process reports until it has ended; each report is answered with whether it is to end."""
    ended = None
    while ended is None:
        try:
            rows, errors, fatal_error, ended = pipe.recv()
            pipe.send(window.stop_at is not None)
        except (EOFError, OSError):
            window.fatal_error = PhotodupError("A process of the load generator ended: start it again.")
            return
        # A late report brings answers from before the window opened: they are no reason to close it.
        samples += [row for row in rows if row[-1] >= window.started_at]
        window.errors += errors
        window.fatal_error = window.fatal_error or fatal_error
    cores.append(ended)


class _Reports(Observer):
    """Sends answered and failed requests to the parent process, which decides when the window ends."""

    def __init__(self, pipe: Any) -> None:
        super().__init__()
        self._pipe = pipe

    def see(self, window: Window, elapsed_s: float, ended: float | None = None) -> bool:
        rows = [row for samples in window.samples for row in _drain(samples)]
        self._pipe.send((rows, _drain(window.errors), window.fatal_error, ended))
        return self._pipe.recv()


def _drain(items: list) -> list:
    """Take away what a list holds now; another thread may append meanwhile."""
    contents = items.copy()
    del items[: len(contents)]
    return contents


def _run_share(
    pipe: Any, adapter: Adapter, photos: Sequence[bytes], load: Load, plan: WindowPlan, first: int
) -> None:
    """Run one process's share of a load, beginning with request `first`; the parent ends it."""
    requests, connections, cores = draw_requests(photos, load.batch, plan.seed), list[Any](), 0.0
    window = Window(adapter, load, requests, observer=_Reports(pipe), request_numbers=itertools.count(first))
    try:
        _prepare_ahead(window)
        cores = _in_threads(window, plan, connections, lambda: nullcontext({}))[1]["client_cpu_cores"]
    except Exception as error:
        window.fatal_error = window.fatal_error or error
    for connection in connections:
        connection.close()
    with contextlib.suppress(EOFError, OSError):  # nobody listens any more
        _Reports(pipe).see(window, 0.0, cores)


@contextmanager
def short_collections() -> Iterator[None]:
    """Freeze all existing objects: a full garbage collection would delay the request that it hits."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _watch(window: Window, plan: WindowPlan, workers: Sequence[threading.Thread], meter: Meter) -> Watched:
    """Open the window once the load is steady, close it at its end, and let the workers finish."""
    load, observer, errors = window.load, window.observer, window.errors

    def goes_on(n: int) -> bool:
        """Return False where waiting for more answers is no use."""
        many_failed = len(errors) > max(10, 0.01 * n) and observer is None
        return not (window.fatal_error or many_failed) and any(worker.is_alive() for worker in workers)

    if plan.ramp_s and load.wave > 1:
        longest_ramp_s = min(RAMP_TIMES * plan.seconds, plan.longest_s)
        while goes_on(n := window.n_answered()):
            elapsed = clock() - window.started_at
            if elapsed >= plan.ramp_s and (n >= RAMP_WAVES * load.wave or elapsed >= longest_ramp_s):
                errors.clear()
                break
            time.sleep(0.02)
        window.started_at = clock()
    before, least = window.n_answered(), max(plan.min_answers, 2 * load.wave + 1)
    length_s, is_open_loop = plan.length_s(load), load.scenario == "server"
    with meter() as counted:
        is_stopped_early, cpu = False, time.process_time()
        while goes_on(n := window.n_answered() - before) and not is_stopped_early:
            time.sleep(0.02)
            elapsed = clock() - window.started_at
            is_stopped_early = observer is not None and observer.see(window, elapsed)
            longest_s = plan.longest_s if n else max(plan.longest_s, FIRST_ANSWER_S)
            is_enough = is_open_loop or n >= least or elapsed >= longest_s
            if elapsed >= length_s and is_enough:
                break
        window.stop_at = clock()
        cores = (time.process_time() - cpu) / (window.stop_at - window.started_at)
    is_cut = is_stopped_early or not goes_on(n)
    window.give_up_at = window.stop_at + (0 if is_cut else max(1.0, length_s / 4))
    for worker in workers:
        worker.join()
    client = {"client_cpu_cores": cores, "client_cpu_share": cores / available_cores()}
    return window.stop_at - window.started_at, {**counted, **client}
