"""All servers of the comparison, measured: each alone (`alone.py`), then all of them in interleaved rounds.

In rounds: one request in flight and 8, all in FP32; then the same and 32 with each at its fastest precision. Everything is
recorded as it is made, so an interrupted pass goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.judge import facts
from photodup.bench.judge import schedule as order
from photodup.bench.judge.point import Point
from photodup.bench.load.load import measure
from photodup.bench.load.plan import Load, Stopping
from photodup.embedding.wire import wires
from photodup.errors import PhotodupError
from photodup.serving.service.start import PATIENT
from photodup.study.notebook.weights import choose_weights, payload_photos
from photodup.study.peers.alone import (
    BOUND,
    PROBED,
    check,
    highest_rate,
    measure_alone,
    probed_rate,
    reference_embeddings,
)
from photodup.study.peers.peers import MIN_COSINE, SERVERS, Server, Started, adapter, fastest, started

if TYPE_CHECKING:
    from photodup.study.notebook.run import Run

NOTEBOOK = "13_compare_servers"
PLAN, ALONE, RATE = "servers-plan", "server-alone", "server-rate"
OURS = "fastapi"  # what every other server is compared with
N_PHOTOS, ROUNDS = 64, 8
LOADS = {
    "one": Load("single_stream", span="prepared"),
    "eight": PROBED,
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


@dataclass(frozen=True)
class Pass:
    """Rounds that are planned together.

    Attributes:
        loads: names in `LOADS`.
        is_fastest: each server at its fastest precision, and not in FP32.
        min_cosine: of its embeddings to ours in FP32.
        told: what identifies its plan's record.
    """

    loads: tuple[str, ...]
    is_fastest: bool = False
    min_cosine: float = MIN_COSINE
    told: tuple[tuple[str, str], ...] = ()

    def server(self, name: str) -> Server:
        return fastest(SERVERS[name]) if self.is_fastest else SERVERS[name]


PASSES: Mapping[str, Pass] = {
    "fp32": Pass(("one", "eight")),
    "fastest": Pass(("one", "eight"), is_fastest=True, min_cosine=0.98, told=(("pass", "fastest"),)),
    # In FP32 the last of 32 waits for four seconds here, and a measurement would take a minute.
    "many": Pass(("thirty-two",), is_fastest=True, min_cosine=0.98, told=(("pass", "many"),)),
}


def measure_servers(
    run: Run,
    *,
    only: Sequence[str] = (),
    passes: Sequence[str] = tuple(PASSES),
    rounds: int = ROUNDS,
    budget_min: float = 120.0,
    say: Callable[[str], None] = print,
) -> None:
    """Measure what the run has not of the servers that can be started here.

    Args:
        only: names in `SERVERS`; all unless given. Ours is always among them.
        passes: names in `PASSES`.
        budget_min: the rounds of each pass may take this long; the least important comparisons are dropped until they do.
    """
    if unknown := [name for name in passes if name not in PASSES]:
        raise PhotodupError(f"There is no pass {unknown[0]!r}: use {', '.join(PASSES)}.")
    weights = choose_weights()
    photos = wires.jpegs(payload_photos(N_PHOTOS))
    payloads = Payloads("images", tuple(photos), f"{N_PHOTOS} photographs of 224 × 224 pixels", "image/jpeg")
    wanted = [s for s in SERVERS.values() if s.name == OURS or not only or s.name in only]
    for server in wanted:
        if server.missing:
            say(server.missing)
    there = [server for server in wanted if not server.missing]
    reference = reference_embeddings(weights, photos)
    for server in there:
        say(f"{server.label}, alone")
        run.measure_or_load(
            ALONE,
            partial(measure_alone, server, weights, payloads, reference),
            config=config_of(server, weights),
            kind="server",
            may_fail=True,
        )
        quick = fastest(server)  # in FP32 a single request takes half the bound here
        say(f"{server.label} in {quick.precision}, its highest rate under {BOUND}")
        run.measure_or_load(
            RATE,
            partial(highest_rate, quick, weights, payloads),
            config=rate_config(quick, weights),
            kind="server-rate",
            may_fail=True,
        )
    for name in passes:
        with contextlib.ExitStack() as stack:
            up: dict[str, Started] = {}
            for server in (PASSES[name].server(one.name) for one in there):
                say(f"{server.label}, {server.precision}: starting")
                try:
                    one = stack.enter_context(started(server, weights, settings=PATIENT))
                    check(server, one, payloads, reference, PASSES[name].min_cosine)
                except PhotodupError as error:
                    say(f"{server.label} takes no part: {error}")
                    continue
                up[server.name] = one
            if OURS not in up:
                raise PhotodupError(
                    f"Without {SERVERS[OURS].label} there is nothing to compare with; why is said above."
                )
            _rounds(run, PASSES[name], up, weights, payloads, rounds, budget_min, say)


def arm_of(server: Server, load: str, machine: str) -> facts.Arm:
    """Return what the judge calls this server under this load."""
    side = facts.Side(
        server.label, server.name, server.engine, server.computed, "http", "jpeg", machine=machine
    )
    return facts.Arm(side, LOADS[load].as_judged())


def declared(names: Sequence[str], machine: str, planned: Pass) -> list[order.Declared]:
    """Return a pass's comparisons of each server with ours, under each of its loads."""
    return [
        order.Declared(
            f"{SERVERS[name].label}, {load}",
            NOTEBOOK,
            METRIC[load],
            arm_of(planned.server(OURS), load, machine),
            arm_of(planned.server(name), load, machine),
            importance={"one": 3, "eight": 2, "thirty-two": 1}[load],
        )
        for name in names
        if name != OURS
        for load in planned.loads
    ]


def round_config(server: Server, load: str, number: int, again: bool, weights: str) -> dict[str, Any]:
    """Return what identifies the record of one round."""
    return config_of(server, weights) | {"load": load, "round": number, "again": again}


def round_key(server: Server, load: str) -> str:
    return f"server-{server.name}-{load}"


def rate_config(server: Server, weights: str) -> dict[str, Any]:
    """Return what identifies the record of the highest rate under `BOUND` of a server."""
    return config_of(server, weights) | asdict(BOUND)


def plan_config(planned: Pass, weights: str) -> dict[str, Any]:
    return {"weights": weights, **dict(planned.told)}


def config_of(server: Server, weights: str) -> dict[str, Any]:
    """Return what identifies a server in every record of it."""
    config = {"server_compared": server.name, "version": server.version, "weights": weights}
    return config | (
        {} if server.precision == "fp32" else {"engine": server.engine, "precision": server.precision}
    )


def _rounds(
    run: Run,
    of: Pass,
    up: dict[str, Started],
    weights: str,
    payloads: Payloads,
    rounds: int,
    budget_min: float,
    say: Callable[[str], None],
) -> None:
    def plan() -> dict[str, Any]:
        lengths = {
            name: {
                load: _seconds(load, probed_rate(of.server(name), one, payloads, LOADS[load]))
                for load in of.loads
            }
            for name, one in up.items()
        }
        planned = order.schedule(
            declared(list(up), run.name, of),
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

    found = run.measure_or_load(PLAN, plan, config=plan_config(of, weights), kind="pass", may_fail=True)
    if found.get("status") == "failed":
        raise PhotodupError(f"No rounds could be planned: {found['error']}")
    kept = [d for d in declared(found["servers"], run.name, of) if d.name in found["kept"]]
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
        server, load = of.server(what.arm.side.server), _load_of(what.arm)
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
