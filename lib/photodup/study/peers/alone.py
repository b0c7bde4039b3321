"""Each server by itself, in FP32: start-up, memory, overload at twice its rate, and the findings of `photodup verify`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from photodup.bench import Columns
from photodup.bench.load.plan import WindowPlan
from photodup.bench.load.usage import memory_mib
from photodup.bench.load.window import measure
from photodup.bench.load.workers import Observer, common_error
from photodup.bench.pairs.declared import Side
from photodup.bench.stats.metrics import Load
from photodup.bench.verify.checks import verify_server
from photodup.core.errors import PhotodupError
from photodup.study.notebook.points import CAPACITY, CAPACITY_PLAN
from photodup.study.notebook.run import Run
from photodup.study.notebook.weights import choose_weights
from photodup.study.peers.servers import LiveServer, absence, fp32_sides, payloads, peer_of, started, version

ByServer = dict[str, Columns]  # a server's label → what was recorded of it, with `error`
STARTS = 3
OVERLOAD_RATIO, OVERLOAD_S, IN_FLIGHT = 2.0, 12.0, 128
REFUSING = {"MAX_WAIT_S": "2"}  # as `photodup serve` does
# Recovered: a request takes at most so many times its earlier latency.
RECOVERED_RATIO, RECOVERY_LIMIT_S = 1.5, 30.0


def start_costs(run: Run) -> ByServer:
    """Return the columns of `measure_alone` for each server, measured unless the run has them."""
    return _of_each(run, "server-alone", measure_alone)


def verified(run: Run) -> ByServer:
    """Return what `photodup verify` finds of each server (`VerifiedServer.as_record`), measured unless the run has it."""
    return _of_each(run, "server-verify", verify_alone)


def _of_each(run: Run, key: str, measure_one: Callable[[Side], Columns]) -> ByServer:
    """Measure each server that can be started here unless the run has it; return what the run has."""
    records: ByServer = {}
    for side in fp32_sides():
        config = config_of(side)
        if run.store.has(key, config=config) or not absence(peer_of(side)):
            run.measure_or_load(key, partial(measure_one, side), config=config, kind="server", may_fail=True)
        if record := run.store.record(key, config=config):
            records[side.label] = {**record["result"], "error": record["error"]}
    return records


def config_of(side: Side) -> dict[str, str]:
    """Return what identifies a server in every record of it."""
    server = peer_of(side)
    return {"server_compared": server.name, "version": version(server), "weights": choose_weights()}


def verify_alone(side: Side) -> Columns:
    """Return what `photodup verify` finds of a server that is started for this alone, since broken files may kill it."""
    max_images = peer_of(side).max_images
    with started(side) as server:
        report = verify_server(server.target, choose_weights(), precision="fp32", max_images=max_images)
    return report.as_record()


def measure_alone(side: Side) -> Columns:
    """Return `first_answer_s` of `STARTS` starts, `cosine_min`, `memory_loaded_mib` after a load, and `overload`."""
    first_answer_s: list[float] = []
    facts: Columns = {}
    for number in range(STARTS):
        with started(side, **REFUSING if number else {}) as server:
            first_answer_s.append(server.ready_s + single_ms(server, 1)[0] / 1000)
            if number == 0:
                facts["cosine_min"] = server.check()
                rate = measure_capacity(server)
                facts["memory_loaded_mib"] = memory_mib(server.pid)
            elif number == 1:
                facts["overload"] = overloaded(server, rate)
    return {"first_answer_s": first_answer_s, **facts}


def overloaded(server: LiveServer, rate: float) -> Columns:
    """Offer twice the rate for `OVERLOAD_S`; count answers and failures, and time the recovery (`RECOVERED_RATIO`)."""
    before_ms = float(np.median(single_ms(server, 8)))
    load = Load("server", concurrency=IN_FLIGHT, offered_per_s=OVERLOAD_RATIO * rate, span="prepared")
    watcher = Observer()  # lets the window go on while requests are refused
    # No warm-up: its burst of requests on all connections would be refused.
    window = WindowPlan(OVERLOAD_S, warmup_requests=0)
    measure(server.adapter(), payloads().items, load, window, observer=watcher)
    ended = time.monotonic()
    while (waited := time.monotonic() - ended) < RECOVERY_LIMIT_S:
        with contextlib.suppress(PhotodupError, OSError):
            if single_ms(server, 1)[0] <= RECOVERED_RATIO * before_ms:
                break
        time.sleep(0.05)
    return {
        "offered_per_s": OVERLOAD_RATIO * rate,
        "answered": len(watcher.latency_ms),
        "failed": len(watcher.errors),
        "error": common_error(watcher.errors),
        "latency_ms_p50": float(np.median(watcher.latency_ms)) if len(watcher.latency_ms) else None,
        "recovered_s": waited if waited < RECOVERY_LIMIT_S else None,
    }


def single_ms(server: LiveServer, count: int) -> list[float]:
    """Return the latency of `count` requests, one after the other, ms."""
    times_ms = []
    client: Any = server.adapter()
    with contextlib.closing(client), contextlib.closing(client.open()) as connection:
        for photo in payloads().items[:count]:
            request = client.prepare([photo])
            began = time.perf_counter()
            connection.decode(connection.request(request))
            times_ms.append((time.perf_counter() - began) * 1000)
    return times_ms


def measure_capacity(server: LiveServer) -> float:
    """Return requests/s with eight in flight, from a short window.

    Raises:
        PhotodupError: the window gave no rate; names its error.
    """
    columns = measure(server.adapter(), payloads().items, CAPACITY, CAPACITY_PLAN)
    if not (rate := columns.get("throughput_images_per_s")):
        reason = columns.get("error") or "nothing was answered"
        raise PhotodupError(f"{server.side.label} with {CAPACITY.concurrency} in flight: {reason}.")
    return rate
