"""All servers of the comparison, measured: each alone and verified (`alone.py`), then all of them taking turns.

In turns: one request in flight and 8, all in FP32; then the same and 32 with each at its fastest precision. All servers
are up at once; one that cannot be started beside the others takes no part, and is named. Every visit is recorded when it
ends, so an interrupted pass goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.load.usage import processor_time
from photodup.bench.pairs.alternate import Lane, VisitPlan, measure_visit
from photodup.bench.stats.facts import Load
from photodup.core.errors import PhotodupError, is_expected
from photodup.embedding.wire import wires
from photodup.serving.service.start import PATIENT
from photodup.study.notebook.weights import choose_weights, payload_photos
from photodup.study.peers import alone
from photodup.study.peers.peers import MIN_COSINE, SERVERS, Server, Started, fastest, started

if TYPE_CHECKING:
    from photodup.study.notebook.run import Run

ALONE, VERIFY, RATE = "server-alone", "server-verify", "server-rate"
OURS = "fastapi"  # what every other server is compared with
AGAIN = "fastapi again"  # a second process of ours: how far two equal servers lie apart
N_PHOTOS = 64
LOADS = {
    "one": Load("single_stream", span="prepared"),
    "eight": alone.CAPACITY,
    "thirty-two": Load("closed_loop", concurrency=32, span="prepared"),
}
# With one in flight four visits at 50 ms hold the 662 answers that a 99th percentile needs. Half the usual waves: a turn of
# eight servers is long already, and 32 in flight answer in bursts of 32.
PLAN = VisitPlan(block_s=1.0, min_waves=4)


@dataclass(frozen=True)
class Pass:
    """Loads that are measured with the same processes.

    Attributes:
        loads: names in `LOADS`.
        is_fastest: each server at its fastest precision, and not in FP32.
        min_cosine: of its embeddings to ours in FP32.
    """

    loads: tuple[str, ...]
    is_fastest: bool = False
    min_cosine: float = MIN_COSINE

    def server(self, name: str) -> Server:
        server = SERVERS[OURS if name == AGAIN else name]
        return fastest(server) if self.is_fastest else server


PASSES: Mapping[str, Pass] = {
    "fp32": Pass(("one", "eight")),
    "fastest": Pass(("one", "eight"), is_fastest=True, min_cosine=0.98),
    # In FP32 the last of 32 waits for four seconds here, and a slice would take half a minute.
    "many": Pass(("thirty-two",), is_fastest=True, min_cosine=0.98),
}
STEPS = ("alone", "verify", "rate", *PASSES)


def measure_servers(
    run: Run,
    *,
    only: Sequence[str] = (),
    steps: Sequence[str] = STEPS,
    visits: int,
    say: Callable[[str], None] = print,
) -> None:
    """Measure what the run has not of the servers that can be started here.

    Args:
        only: names in `SERVERS`; all unless given. Ours is always among them.
        steps: names in `STEPS`.
        visits: of all servers under each load.
    """
    if unknown := [name for name in steps if name not in STEPS]:
        raise PhotodupError(f"There is no step {unknown[0]!r}: use {', '.join(STEPS)}.")
    weights = choose_weights()
    photos = wires.jpegs(payload_photos(N_PHOTOS))
    payloads = Payloads("images", tuple(photos), f"{N_PHOTOS} photographs of 224 × 224 pixels", "image/jpeg")
    wanted = [s for s in SERVERS.values() if s.name == OURS or not only or s.name in only]
    for server in wanted:
        if server.missing:
            say(server.missing)
    there = [server for server in wanted if not server.missing]
    reference = alone.reference_embeddings(weights, photos)
    for server in there:
        config, quick = config_of(server, weights), fastest(server)
        rate = partial(alone.highest_rate, quick, weights, payloads)
        one_by_one: list[tuple[str, str, Callable[[], dict[str, Any]], dict[str, Any]]] = [
            ("alone", ALONE, partial(alone.measure_alone, server, weights, payloads, reference), config),
            ("verify", VERIFY, partial(alone.verify_alone, server, weights), config),
            # In FP32 a single request takes half the bound here.
            ("rate", RATE, rate, rate_config(quick, weights)),
        ]
        for step, key, measure, facts in one_by_one:
            if step in steps:
                say(f"{server.label}: {step}")
                run.measure_or_load(key, measure, config=facts, kind="server", may_fail=True)
    for name in (name for name in PASSES if name in steps):
        todo = [
            (number, load)
            for number in range(1, visits + 1)
            for load in PASSES[name].loads
            if not run.store.has(visit_key(load), config=visit_config(name, load, weights, number))
        ]
        with contextlib.ExitStack() as stack:
            up: dict[str, Started] = {}
            for key in (*(s.name for s in there), AGAIN) if todo else ():
                server = PASSES[name].server(key)
                say(f"{key}, {server.precision}: starting")
                try:
                    one = stack.enter_context(started(server, weights, settings=PATIENT))
                    alone.check(one, payloads, reference, PASSES[name].min_cosine)
                except PhotodupError as error:
                    say(f"{server.label} takes no part: {error}")
                    continue
                up[key] = one
            _take_turns(run, name, todo, up, weights, payloads, say)


def _take_turns(
    run: Run,
    name: str,
    todo: Sequence[tuple[int, str]],
    up: dict[str, Started],
    weights: str,
    payloads: Payloads,
    say: Callable[[str], None],
) -> None:
    """Visit all servers under each load; one that dies is left out from then on, and the others are visited again."""
    lost: dict[str, str] = {}
    for number, load in todo:
        while True:
            if OURS not in up:
                raise PhotodupError(
                    f"Without {SERVERS[OURS].label} there is nothing to compare with; why is said above."
                )
            say(f"visit {number}, {load} in flight, {len(up)} servers")
            key, config = visit_key(load), visit_config(name, load, weights, number)
            measure = partial(_visit, load, up, payloads, number, lost)
            found = run.measure_or_load(key, measure, config=config, kind="server-visit", may_fail=True)
            if found.get("status") != "failed":
                break
            say(found["error"])
            gone = [key for key, one in up.items() if not _still_answers(one, payloads)]
            for key in gone:
                del up[key]
                lost[key] = found["error"]
            if not gone:
                break


def _visit(
    load: str, up: Mapping[str, Started], payloads: Payloads, number: int, lost: Mapping[str, str]
) -> dict[str, Any]:
    lanes = [Lane(one.adapter(payloads), partial(processor_time, one.pids())) for one in up.values()]
    visit = measure_visit(lanes, payloads.items, LOADS[load], PLAN, seed=number)
    servers = {key: config_of(one.server, "") for key, one in up.items()}
    return visit.as_record() | {"servers": list(up), "about": servers, "lost": dict(lost)}


def _still_answers(one: Started, payloads: Payloads) -> bool:
    try:
        alone.single_ms(one, payloads, 1)
    except Exception as error:
        if not is_expected(error):
            raise
        return False
    return True


def visit_key(load: str) -> str:
    return f"servers-{load}"


def visit_config(name: str, load: str, weights: str, number: int) -> dict[str, Any]:
    """Return what identifies the record of one visit of a pass; visits count from 1."""
    return {"pass": name, "load": load, "asked": asdict(LOADS[load]), "weights": weights, "visit": number}


def rate_config(server: Server, weights: str) -> dict[str, Any]:
    """Return what identifies the record of the highest rate under `alone.BOUND` of a server."""
    return config_of(server, weights) | asdict(alone.BOUND)


def config_of(server: Server, weights: str) -> dict[str, Any]:
    """Return what identifies a server in every record of it."""
    config = {"server_compared": server.name, "version": server.version, "weights": weights}
    return config | (
        {} if server.precision == "fp32" else {"engine": server.engine, "precision": server.precision}
    )
