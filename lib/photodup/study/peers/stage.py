"""All servers of the comparison, measured: each alone, then all of them in interleaved rounds.

Alone: how long it takes to start, what it holds in memory, and what it does at twice the rate that it can answer. In
rounds: one request in flight, 8 and 32. Everything is recorded as it is made, so an interrupted pass goes on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.backends import wires
from photodup.bench.backends.adapters import cosine_to_reference
from photodup.bench.judge import facts
from photodup.bench.judge import schedule as order
from photodup.bench.judge.point import Point
from photodup.bench.load.load import measure
from photodup.bench.load.plan import Load, Stopping
from photodup.bench.load.usage import memory_mib
from photodup.errors import PhotodupError
from photodup.study.notebook.weights import choose_weights, payload_photos
from photodup.study.peers.peers import MIN_COSINE, SERVERS, Server, Started, adapter, started

if TYPE_CHECKING:
    from photodup.study.notebook.run import Run

NOTEBOOK = "13_compare_servers"
PLAN, ALONE = "servers-plan", "server-alone"
OURS = "fastapi"  # what every other server is compared with
N_PHOTOS, ROUNDS, STARTS = 64, 8, 3
LOADS = {
    "one": Load("single_stream", span="prepared"),
    "eight": Load("closed_loop", concurrency=8, span="prepared"),
    "thirty-two": Load("closed_loop", concurrency=32, span="prepared"),
}
METRIC = {
    "one": "latency_ms_p50",
    "eight": "throughput_images_per_s",
    "thirty-two": "throughput_images_per_s",
}
# With one in flight as many answers as 8 rounds need together for a 99th percentile; 20 blocks of whole waves otherwise.
WAVES = {"one": 90, "eight": 30, "thirty-two": 24}
SHORTEST_S, LONGEST_S, HALF_WIDTH, OVERHEAD_S = 3.0, 60.0, 0.25, 2.0
PROBE = Stopping(min_duration_s=3.0, min_requests=1, max_duration_s=3.0, warmup_requests=2)
OVERLOAD, OVERLOAD_S, OVERLOAD_IN_FLIGHT = 2.0, 12.0, 128
RECOVERED, RECOVERY_LIMIT_S = 1.5, 30.0  # a single request is back within so many times its latency before


def measure_servers(
    run: Run,
    *,
    only: Sequence[str] = (),
    rounds: int = ROUNDS,
    budget_min: float = 120.0,
    say: Callable[[str], None] = print,
) -> None:
    """Measure what the run has not of the servers that can be started here.

    Args:
        only: names in `SERVERS`; all unless given. Ours is always among them.
        budget_min: the rounds may take this long; the least important comparisons are dropped until they do.
    """
    weights = choose_weights()
    photos = wires.jpegs(payload_photos(N_PHOTOS))
    payloads = Payloads("images", tuple(photos), f"{N_PHOTOS} photographs of 224 × 224 pixels", "image/jpeg")
    wanted = [s for s in SERVERS.values() if s.name == OURS or not only or s.name in only]
    for server in wanted:
        if server.missing:
            say(server.missing)
    there = [server for server in wanted if not server.missing]
    reference = _reference(weights, photos)
    for server in there:
        say(f"{server.label}, alone")
        run.measure_or_load(
            ALONE,
            lambda server=server: _alone(server, weights, payloads, reference),
            config=_config(server, weights),
            kind="server",
            may_fail=True,
        )
    with contextlib.ExitStack() as stack:
        up: dict[str, Started] = {}
        for server in there:
            say(f"{server.label}: starting")
            try:
                one = stack.enter_context(started(server, weights, settings=_PATIENT))
                _check(server, one, payloads, reference)
            except PhotodupError as error:
                say(f"{server.label} takes no part: {error}")
                continue
            up[server.name] = one
        _rounds(run, up, weights, payloads, rounds, budget_min, say)


# The rounds measure queues of 32, so ours may let them grow; alone, at twice its rate, it is as `photodup serve` starts it.
_PATIENT = {"MAX_WAIT_S": "60"}


def arm_of(server: Server, load: str, machine: str) -> facts.Arm:
    """Return what the judge calls this server under this load."""
    side = facts.Side(server.label, server.name, server.engine, "fp32", "http", "jpeg", machine=machine)
    return facts.Arm(side, LOADS[load].as_judged())


def declared(names: Sequence[str], machine: str) -> list[order.Declared]:
    """Return the comparisons of each server with ours, under each load."""
    return [
        order.Declared(
            f"{SERVERS[name].label}, {load}",
            NOTEBOOK,
            METRIC[load],
            arm_of(SERVERS[OURS], load, machine),
            arm_of(SERVERS[name], load, machine),
            importance={"one": 3, "eight": 2, "thirty-two": 1}[load],
        )
        for name in names
        if name != OURS
        for load in LOADS
    ]


def round_config(server: Server, load: str, number: int, again: bool, weights: str) -> dict[str, Any]:
    """Return what identifies the record of one round."""
    return _config(server, weights) | {"load": load, "round": number, "again": again}


def round_key(server: Server, load: str) -> str:
    return f"server-{server.name}-{load}"


def _config(server: Server, weights: str) -> dict[str, Any]:
    return {"server_compared": server.name, "version": server.version, "weights": weights}


def _rounds(
    run: Run,
    up: dict[str, Started],
    weights: str,
    payloads: Payloads,
    rounds: int,
    budget_min: float,
    say: Callable[[str], None],
) -> None:
    def plan() -> dict[str, Any]:
        lengths = {
            name: {load: _seconds(load, _rate(SERVERS[name], one, payloads, load)) for load in LOADS}
            for name, one in up.items()
        }
        planned = order.schedule(
            declared(list(up), run.name),
            seconds=lambda arm: lengths[arm.side.server][_load_of(arm)] + OVERHEAD_S,
            budget_s=60 * budget_min,
            rounds=range(1, rounds + 1),
        )
        checks = [
            {"server": c.a.side.server, "load": _load_of(c.a), "metric": c.metric} for c in planned.checks
        ]
        dropped = [asdict(one) for one in planned.dropped]
        kept = [one.name for one in planned.kept]
        return {
            "servers": list(up),
            "seconds": lengths,
            "rounds": rounds,
            "kept": kept,
            "checks": checks,
            "dropped": dropped,
        }

    found = run.measure_or_load(PLAN, plan, config={"weights": weights}, kind="pass", may_fail=True)
    if found.get("status") == "failed":
        raise PhotodupError(f"No rounds could be planned: {found['error']}")
    kept = [d for d in declared(found["servers"], run.name) if d.name in found["kept"]]
    if gone := sorted(set(found["servers"]) - set(up)):
        raise PhotodupError(
            f"The pass was planned with {', '.join(gone)}: install it again, or take another run name."
        )
    planned = order.schedule(
        kept, seconds=lambda arm: 1.0, budget_s=float("inf"), rounds=range(1, found["rounds"] + 1)
    )
    expected = sum(
        found["seconds"][m.arm.side.server][_load_of(m.arm)] + OVERHEAD_S for m in planned.measurements
    )
    say(
        f"{found['rounds']} rounds, {len(planned.measurements)} measurements, about {expected / 60:.0f} minutes"
    )
    last = [0]

    def one(what: order.Measurement) -> Point:
        if what.round != last[0]:
            last[0] = what.round
            say(f"round {what.round} of {found['rounds']}")
        server, load = SERVERS[what.arm.side.server], _load_of(what.arm)
        seconds = found["seconds"][server.name][load]
        run.measure_or_load(
            round_key(server, load),
            lambda: _point(server, up[server.name], load, seconds, what.round, payloads),
            config=round_config(server, load, what.round, what.again, weights),
            kind="server-round",
            may_fail=True,
        )
        return Point("valid", "")  # what it found is in the record

    order.run(planned, one)


def _load_of(arm: facts.Arm) -> str:
    return next(name for name, load in LOADS.items() if load.as_judged() == arm.load)


def _seconds(load: str, rate: float) -> float:
    return round(min(max(WAVES[load] * LOADS[load].concurrency / max(rate, 0.1), SHORTEST_S), LONGEST_S), 1)


def _rate(server: Server, one: Started, payloads: Payloads, load: str) -> float:
    """Return requests/s under a load, from a short measurement.

    Raises:
        PhotodupError: the server did not hold it.
    """
    point = measure(adapter(server, one.base, payloads), payloads.items, LOADS[load], PROBE)
    if point.get("error") or not point.get("throughput_images_per_s"):
        why = point.get("error") or "nothing was answered"
        raise PhotodupError(f"{server.label} with {LOADS[load].concurrency} in flight: {why}.")
    return point["throughput_images_per_s"]


def _point(
    server: Server, one: Started, load: str, seconds: float, number: int, payloads: Payloads
) -> dict[str, Any]:
    stopping = Stopping(
        min_duration_s=seconds,
        max_duration_s=seconds,
        warmup_requests=2,
        half_width=HALF_WIDTH,
        precise=(METRIC[load],),
        seed=number,
    )
    point = measure(adapter(server, one.base, payloads), payloads.items, LOADS[load], stopping)
    raw = point.pop("raw", None)
    # Nested, for it is no point of a backend of ours: tables of a run's points leave it out.
    return {"point": point} | ({"raw": raw} if raw else {})


def _reference(weights: str, photos: Sequence[bytes]) -> np.ndarray:
    from photodup.embedding.engines.encoder import load_model
    from photodup.embedding.imaging import decode, to_uint8

    model = load_model(pretrained=weights, device="cpu")
    return model.embed_pixels(np.stack([to_uint8(decode(photo)) for photo in photos]))


def _check(server: Server, one: Started, payloads: Payloads, reference: np.ndarray) -> float:
    """Return the lowest cosine to our own embeddings, which are no constant.

    Raises:
        PhotodupError: the server embeds something else, so its times say nothing.
    """
    cosine = cosine_to_reference(adapter(server, one.base, payloads), payloads.items, reference)
    if not cosine >= MIN_COSINE:
        raise PhotodupError(
            f"{server.label} embeds otherwise: cosine {cosine:.6f}, at least {MIN_COSINE} is needed."
        )
    return cosine


def _alone(server: Server, weights: str, payloads: Payloads, reference: np.ndarray) -> dict[str, Any]:
    first_answer_s, ready_s, facts_seen = [], [], {}
    for number in range(STARTS):
        with started(server, weights, settings={} if number else _PATIENT) as one:
            ready_s.append(one.ready_s)
            first_answer_s.append(one.ready_s + _single_ms(server, one, payloads, 1)[0] / 1000)
            if number == 0:
                facts_seen = {
                    "cosine_min": _check(server, one, payloads, reference),
                    "memory_mib": memory_mib(one.pid),
                }
                rate = _rate(server, one, payloads, "eight")
                facts_seen["memory_loaded_mib"] = memory_mib(one.pid)
            elif number == 1:
                facts_seen["overload"] = _overloaded(server, one, payloads, rate)
    return {"ready_s": ready_s, "first_answer_s": first_answer_s, "how": server.how, **facts_seen}


def _overloaded(server: Server, one: Started, payloads: Payloads, rate: float) -> dict[str, Any]:
    """Offer twice the rate for some seconds; count what is refused, and time how soon a single request is as before."""
    before = float(np.median(_single_ms(server, one, payloads, 8)))
    load = Load("server", concurrency=OVERLOAD_IN_FLIGHT, offered_per_s=OVERLOAD * rate, span="prepared")
    seen = _Kept()
    # Nothing to warm up: a burst of first requests on all connections is refused by those who refuse.
    stopping = Stopping(min_duration_s=OVERLOAD_S, max_duration_s=OVERLOAD_S, warmup_requests=0)
    point = measure(adapter(server, one.base, payloads), payloads.items, load, stopping, observer=seen)
    ended = time.monotonic()
    while (waited := time.monotonic() - ended) < RECOVERY_LIMIT_S:
        with contextlib.suppress(PhotodupError, OSError):
            if _single_ms(server, one, payloads, 1)[0] <= RECOVERED * before:
                break
        time.sleep(0.05)
    answered, failed = len(seen.latency_ms), len(seen.errors)
    return {
        "offered_per_s": OVERLOAD * rate,
        "answered": answered,
        "failed": failed,
        "error": max(set(seen.errors), key=seen.errors.count) if seen.errors else "",
        "latency_ms_p50": float(np.median(seen.latency_ms)) if answered else None,
        "latency_ms_p95": float(np.percentile(seen.latency_ms, 95)) if answered >= 200 else None,
        "duration_s": point.get("duration_s"),
        "recovered_s": waited if waited < RECOVERY_LIMIT_S else None,
        "single_ms_before": before,
    }


class _Kept:
    """Keeps the single requests of an overloaded server, which a point that failed does not have."""

    tolerates_errors = True  # what is refused under overload is the result

    def __init__(self) -> None:
        self.latency_ms, self.errors = np.empty(0), []

    def see(self, window: Any, elapsed_s: float) -> bool:
        return False

    def keep(self, rows: np.ndarray, errors: list[tuple[float, str]]) -> None:
        self.latency_ms = (rows[:, -1] - rows[:, 1]) * 1000
        self.errors = [said for _, said in errors]


def _single_ms(server: Server, one: Started, payloads: Payloads, count: int) -> list[float]:
    asks = adapter(server, one.base, payloads)
    connection, found = asks.open(), []
    try:
        for item in payloads.items[:count]:
            request = asks.prepare([item])
            began = time.perf_counter()
            connection.decode(connection.request(request))
            found.append((time.perf_counter() - began) * 1000)
    finally:
        connection.close()
        asks.close()
    return found
