"""Measure declared comparisons: every pair is visited several times, and all visits are spread over the pass.

A visit (`photodup.bench.pairs.alternate`) measures both sides in turns and is recorded when it ends, so an
interrupted pass goes on with the visits that are missing; a visit that was interrupted is measured anew for both sides.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.bench import Columns
from photodup.bench.backends.adapters import adapter
from photodup.bench.link.emulate import Link
from photodup.bench.load.usage import processor_time, server_pids
from photodup.bench.pairs.alternate import LiveSide, Visit, VisitPlan, measure_visit
from photodup.bench.pairs.declared import Pair, Side
from photodup.bench.stats.figures import FEWEST_VISITS
from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir
from photodup.core.progress import bar
from photodup.embedding.backends import Backend
from photodup.embedding.engines.model import can_compute
from photodup.serving.service.start import ServiceProcess
from photodup.serving.triton.control import temporary_config
from photodup.serving.triton.copies import configure, model_copy
from photodup.study.notebook.points import LOAD_S, N_PHOTOS, check_answers, tried_answer_s
from photodup.study.notebook.weights import payload_photos
from photodup.study.peers.servers import ServerPair, absence

if TYPE_CHECKING:
    from photodup.bench.stats.metrics import Load
    from photodup.study.notebook.run import Run

KIND = "visit"
SERVED_BLOCK_S = 2.0  # of sides whose model is configured anew for each block
READY_S = 15.0  # a server on two cores takes about so long to start


@dataclass(frozen=True)
class Amount:
    """The amount measured of a primary comparison.

    Attributes:
        starts: how often all servers are started, spread over the rounds of visits; 0: for each round.
        turns_s: about how long the turns of a visit take, at least one palindrome; None leaves their number to the plan.
    """

    visits: int = 4
    plan: VisitPlan = field(default_factory=VisitPlan)
    starts: int = 0
    turns_s: float | None = None

    def visit_s(self, run: Run, pair: Pair) -> float:
        """Return about how long a visit of a comparison takes, seconds."""
        plan, blocks_s = self.plan_of(run, pair), self.blocks_s(run, pair)
        if is_set_for_blocks(run, pair):
            return 2 * blocks_s + 8 * LOAD_S
        return 2 * (READY_S if pair.a.server else plan.warmup_s) + (2 * plan.palindromes + 1) * blocks_s

    def blocks_s(self, run: Run, pair: Pair) -> float:
        """Return about how long a block of each side takes, seconds; the servers are asked how fast they answer."""
        seconds = 0.0
        for side in (pair.a, pair.b):
            url = run.endpoints.backends.get(side.backend.listed_as)  # none of a peer
            answer_s = tried_answer_s(side.backend, url, pair.load, *side.options)
            seconds += self.plan.expected_s(pair.load, answer_s)
        return seconds

    def plan_of(self, run: Run, pair: Pair) -> VisitPlan:
        """Return the plan of a comparison's visits: no answer rests on an exploratory one, so it has one palindrome."""
        if is_set_for_blocks(run, pair):
            return replace(self.plan, palindromes=1, block_s=max(self.plan.block_s, SERVED_BLOCK_S))
        if pair.is_exploratory:
            return replace(self.plan, palindromes=1)
        if self.turns_s is None:
            return self.plan
        return replace(self.plan, palindromes=max(1, round(self.turns_s / (2 * self.blocks_s(run, pair)))))


def amount_of(options: Mapping[str, Any], visits: int | None = None) -> Amount:
    """Return the amount that a file names: `visits`, `starts` and the attributes of `VisitPlan`."""
    counts = {name: options[name] for name in ("visits", "starts") if name in options}
    plan = VisitPlan(**{name: size for name, size in options.items() if name not in counts})
    return Amount(plan=plan, **counts | ({"visits": visits} if visits else {}))


@dataclass(frozen=True)
class SideAddress:
    """How one side is reached; it can be sent to another process.

    Attributes:
        pids: processes of its server on this machine; empty where nobody can see them.
    """

    backend: Backend
    url: str | None
    options: Mapping[str, str | None] = field(default_factory=dict)
    pids: tuple[int, ...] = ()

    def live(self) -> LiveSide:
        cpu_s = (lambda: processor_time(self.pids)) if self.pids else None
        return LiveSide(adapter(self.backend, self.url, **self.options), cpu_s)


def visit_sides(
    sides: Sequence[SideAddress],
    load: Load,
    plan: VisitPlan,
    seed: int,
    serve: Callable[[int], AbstractContextManager[object]] | None = None,
) -> Visit:
    """Measure one visit of two sides with the payload photographs; see `measure_visit`."""
    if set(sides[0].pids) & set(sides[1].pids):  # one server for both: its processor time cannot be divided
        sides = [replace(side, pids=()) for side in sides]
    live, photos = [side.live() for side in sides], payload_photos(N_PHOTOS)
    return measure_visit(live, photos, load, plan, seed=seed, serve=serve)


def seed_of(run: Run, number: int) -> int:
    """Return the seed of a run's number, such as a visit's: passes under other names have other orders."""
    return zlib.crc32(f"{run.name} {number}".encode())


def visit_key(pair: Pair) -> str:
    """Return the readable name of the records of a pair's visits."""
    return f"visit-{pair.name}"


def visit_config(pair: Pair, visit: int) -> Columns:
    """Return what identifies the record of one visit of a pair; visits count from 1."""
    load = {"load": pair.load_name, "link": pair.link, "asked": asdict(pair.load)}
    return {"pair": pair.name, "a": pair.a.name, "b": pair.b.name, **load, "visit": visit}


def offered(run: Run, pair: Pair) -> Pair:
    """Return a comparison between the first two of its sides that a run's servers have; unchanged if there are no two."""
    return pair.offered(partial(_has, run))


def _has(run: Run, backend: Backend) -> bool:
    return can_compute(backend.precision) if backend.server == "peer" else run.endpoints.has(backend)


def obstacle(run: Run, pair: Pair) -> str:
    """Return one sentence why a comparison cannot be measured against a run's servers; empty where it can."""
    missing_backends = [side.backend for side in (pair.a, pair.b) if not _has(run, side.backend)]
    if missing_backends:
        return f"{run.absence_of(missing_backends[0])}."
    if pair.a.server and pair.b.server:
        clause = absence(pair.a.server) or absence(pair.b.server)
        return clause and f"{clause}."
    if pair.is_null and not run.is_here:
        return "A second process of a server elsewhere cannot be started from here."
    if pair.link and not run.is_here:
        return (
            f"No link can be emulated in front of {run.endpoints.name}: its servers are on another machine."
        )
    return ""


def missing_visits(run: Run, pairs: Sequence[Pair], amount: Amount) -> list[tuple[int, Pair]]:
    """Return (number, pair) of each visit that the run lacks and its servers can measure.

    Each round of visits has a random order; the loads of two servers that are started for a visit follow each other.
    """
    visits = []
    for number in range(1, amount.visits + 1):
        drawn = random.Random(seed_of(run, number)).sample(pairs, len(pairs))
        first = {(pair.a, pair.b): place for place, pair in reversed([*enumerate(drawn)])}
        places = {p: first[p.a, p.b] if p.a.server else place for place, p in enumerate(drawn)}
        for pair in sorted(drawn, key=places.__getitem__):
            pair = offered(run, pair)
            # No answer rests on an exploratory comparison, so the fewest visits are enough.
            is_due = number <= FEWEST_VISITS or not pair.is_exploratory
            has_record = is_due and run.store.has(visit_key(pair), config=visit_config(pair, number))
            if is_due and not has_record and not obstacle(run, pair):
                visits.append((number, pair))
    return visits


def measure_comparisons(
    run: Run, pairs: Sequence[Pair], amount: Amount, *, restarted: Callable[[int], Run] | None = None
) -> None:
    """Measure and record every visit of the comparisons that the run has no record of.

    Args:
        pairs: comparisons and nulls, in any order; they are visited in a random one, anew in each round of visits.
        amount: how much of each.
        restarted: ends the run's servers and returns the run with new ones; its argument is the number of the start. It is
            called between two rounds of visits, as often as the amount says, so that what differs from process to process is
            in the data; without it one start serves all visits.
    """
    visits = missing_visits(run, pairs, amount)
    last_start = 0
    with ExitStack() as servers:
        sides = ReadySides(run, servers)
        for number, pair in bar(visits, total=len(visits), desc="visits", unit="visit"):
            start = (number - 1) * (amount.starts or amount.visits) // amount.visits + 1
            if last_start and restarted and start != last_start:
                servers.close()
                sides = ReadySides(restarted(start), servers)
            last_start = start
            measure = partial(sides.measure, pair, number, amount)
            config = visit_config(pair, number)
            run.measure_or_load(visit_key(pair), measure, config=config, kind=KIND, may_fail=True)


@dataclass
class ReadySides:
    """The sides of a round of visits: each is made ready once, when a pair first has it.

    Attributes:
        servers: ends copies of models and second processes.
    """

    run: Run
    servers: ExitStack
    reached: dict[tuple[Side, bool], SideAddress] = field(default_factory=dict)
    server_pair: ServerPair = field(default_factory=ServerPair)

    def __post_init__(self) -> None:
        self.servers.callback(self.server_pair.close)

    def measure(self, pair: Pair, visit: int, amount: Amount) -> Columns:
        """Measure one visit of a pair; return the record's columns.

        The second of two visits mirrors the first, so that no side is favoured by its place: what started and had its turn
        first comes last. Of a null, the two processes change places and nothing is turned back: it asks how much a place
        favours, and by how much the processes differ widens its interval.
        """
        is_mirrored, plan, serve = visit % 2 == 0, amount.plan_of(self.run, pair), None
        seed = seed_of(self.run, (visit + 1) // 2)
        first, second = (pair.b, pair.a) if is_mirrored else (pair.a, pair.b)

        def record(measured: Visit) -> Columns:
            return (measured.against(0, 1) if is_mirrored and not pair.is_null else measured).as_record()

        if pair.a.server and pair.b.server:
            with self.server_pair.sides(first, second, visit) as live:
                return record(measure_visit(live, (), pair.load, plan, seed=seed))
        sides = [first, second]
        if is_set_for_blocks(self.run, pair):
            serve = lambda side: with_settings(self.run, (first, second)[side])  # noqa: E731
            sides = [replace(side, settings=()) for side in sides]
        ready = [self.ready(side, pair.is_null and side.label == pair.b.label) for side in sides]
        if not pair.link:
            return record(visit_sides(ready, pair.load, plan, seed, serve))
        with Link(pair.link) as link:
            behind_link = [replace(side, url=link.url(side.url or "")) for side in ready]
            is_grpc = any(side.backend.protocol == "grpc" for side in behind_link)
            measure = partial(visit_sides, behind_link, pair.load, plan, seed)
            columns = record(link.measure_far(measure, in_own_process=is_grpc))
            return columns | {"link_late": link.invalid_reason()}

    def ready(self, side: Side, is_second: bool) -> SideAddress:
        """Make a side ready and compare its embeddings with the reference, once."""
        if (side, is_second) not in self.reached:
            address = reach(self.run, side, is_second, self.servers)
            if not side.backend.is_emulated:
                check_answers(self.run, side.backend, address.live().adapter)
            self.reached[side, is_second] = address
        return self.reached[side, is_second]


def is_set_for_blocks(run: Run, pair: Pair) -> bool:
    """Return whether Triton gets a side's settings for each block, since no copy of the model can stand beside it."""
    sides = pair.a, pair.b
    return any(side.settings for side in sides) and not _has_models(run, *sides)


def with_settings(run: Run, side: Side) -> AbstractContextManager[object]:
    """Give Triton's model the settings of a side for the length of a block."""
    change = partial(configure, **dict(side.settings))
    return temporary_config(run.endpoints.triton_grpc, side.configured_model, change)


def _repository() -> Path:
    return build_dir() / "triton" / "cpu-embedded"


def _has_models(run: Run, *sides: Side) -> bool:
    """Return whether Triton's model folder is here, so that a copy of a model can stand beside it."""
    return run.is_here and all((_repository() / side.configured_model).is_dir() for side in sides)


def reach(run: Run, side: Side, is_second: bool, servers: ExitStack) -> SideAddress:
    """Return the address of a side; first start a model copy with its settings or, with `is_second`, a second process."""
    backend, options = side.backend, dict(side.options)
    url = run.address_of(backend)
    inner = side.configured_model if backend.server == "triton" else ""
    if (side.settings or is_second) and backend.server == "triton":
        name = f"{inner}_{'again' if is_second else side.name.replace('-', '_')}"
        if not _has_models(run, side):
            raise PhotodupError(
                f"{side.label} needs a second model beside the first: Triton's model folder is not on this machine."
            )
        change = partial(configure, **dict(side.settings))
        copy = model_copy(run.endpoints.triton_grpc, _repository(), backend.triton_model, name, change)
        options["model"], inner = servers.enter_context(copy), name
    elif is_second and backend.server == "fastapi":
        settings = {"ENGINE": backend.engine, "PRECISION": backend.precision}
        url = servers.enter_context(ServiceProcess(settings=settings)).url
    pids = server_pids(url, inner) if url and run.is_here else ()
    return SideAddress(backend, url, options, pids)
