"""Measure two or more sides at the same time: request by request, or in slices of whole waves.

A machine's speed changes within seconds. Sides that take turns every few milliseconds all meet the same speed, so their
ratio does not see it. All sides are connected and warm before the first turn. The order of turns is a palindrome: A B B A
or B A A B for two sides, a row of a Williams square and its reverse for more, drawn at random, so that a steady drift
and the effect of the predecessor cancel.

Nothing is left out because of how it turned out. A failed request is counted and its palindrome gives no ratio.
"""

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter

from photodup.bench.backends.adapter import Adapter
from photodup.bench.load.load import short_collections
from photodup.bench.load.plan import request_order
from photodup.bench.load.workers import describe_error
from photodup.bench.stats.facts import Load
from photodup.core.errors import PhotodupError, is_expected
from photodup.core.names import escaped
from photodup.embedding.wire.http import AnswerError

clock = time.perf_counter
LEAST_TURNS = 3  # palindromes in a block, however slow the sides are
GIVE_UP_AFTER = 20  # failed requests of one side without an answer between them
POLL_S = 0.002
_Figures = Annotated[list[Annotated[float, Field(gt=0)] | None], Field(min_length=2)]


@dataclass(frozen=True)
class VisitPlan:
    """The lengths of one visit of the sides of a comparison.

    Attributes:
        blocks: one request in flight: blocks; each gives one observation.
        block_s: length of a block, seconds.
        quads: several in flight: palindromes of slices; each gives one observation.
        slice_s: shortest counted length of a slice, seconds.
        waves: whole waves that a slice counts at least; a wave is as many answers as requests are in flight. A batching
            server answers in bursts, and where a slice begins and ends among them is chance: 16 waves know the rate about
            twice as well as four times as many slices of 4 do in the same time.
        palindromes: of sides that cannot both be up; each gives two observations.
        alone_s: how long each side is measured alone at the end of the visit, seconds; 0 leaves this check out.
        warmup_s: how long each side is asked before the first turn, seconds, and at least three requests.
    """

    blocks: int = 5
    block_s: float = 2.0
    quads: int = 4
    slice_s: float = 1.0
    waves: int = 16
    palindromes: int = 1
    alone_s: float = 2.0
    warmup_s: float = 0.5


@dataclass(frozen=True)
class Visit:
    """The result of one visit of two or more sides; index 0 is the side that the others are compared with.

    Attributes:
        log_ratios: [n_sides - 1][n_observations] of each later side to the first, as natural logarithms: of latency with
            one request in flight, of throughput with several.
        values: [n_sides] median latency (ms) with one in flight, throughput (images/s) with several; None without answers.
        n_requests, n_failed, errors: [n_sides]; the last error of each, or an empty string.
        alone: [n_sides] the same figure of each side without the others; None where it was not measured.
        carried_over: [n_sides] the most processor time that a side's server used while another side was measured alone, as a
            share of that time; None where nobody can see it, or where the sides share their processes.
        kernel_ms_p50, kernel_spread: of a fixed computation between the turns, its median and the standard deviation of
            its logarithm: the machine's speed.
        clock_jump_s: how far the wall clock and the monotonic clock drifted apart: a machine that slept.
        side, block, latency_ms: one entry for each counted answer.
        is_interleaved: False where the sides could not both be up, so that they were measured one after the other.
    """

    log_ratios: list[list[float]]
    values: _Figures
    n_requests: list[int]
    n_failed: list[int]
    errors: list[str]
    alone: _Figures | None
    carried_over: list[float | None] | None
    kernel_ms_p50: float
    kernel_spread: float
    seed: int
    seconds: float
    clock_jump_s: float
    side: np.ndarray
    block: np.ndarray
    latency_ms: np.ndarray
    is_interleaved: bool = True
    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)

    def as_record(self) -> dict[str, Any]:
        """Return this visit as a record keeps it: the answers apart, under `raw`."""
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        return facts | {"raw": {name: facts.pop(name) for name in ANSWERS}}

    @classmethod
    def of_record(cls, result: Mapping[str, Any], raw: Mapping[str, np.ndarray]) -> "Visit":
        """Read what `as_record` wrote; columns that others added are passed over.

        Raises:
            ValueError: a column is missing, or holds what `as_record` never writes.
        """
        known = {**result, **{name: raw.get(name, np.empty(0)) for name in ANSWERS}}
        visit = _VISIT.validate_python(known)
        return replace(visit, errors=[escaped(error) for error in visit.errors])

    def against(self, other: int) -> "Visit":
        """Return this visit with two of its sides: the first, and this one as index 1."""
        of, mine = (0, other), np.isin(self.side, (0, other))

        each = ("values", "n_requests", "n_failed", "errors", "alone", "carried_over")
        two: dict[str, Any] = {
            name: None if (seen := getattr(self, name)) is None else [seen[side] for side in of]
            for name in each
        }
        return replace(
            self,
            **two,
            log_ratios=[self.log_ratios[other - 1]],
            side=(self.side[mine] == other).astype(float),
            block=self.block[mine],
            latency_ms=self.latency_ms[mine],
        )

    def blocks_of(self, side: int) -> list[np.ndarray]:
        """Return the latencies of a side's answers, ms, block by block."""
        mine = self.side == side
        return [self.latency_ms[mine & (self.block == block)] for block in np.unique(self.block)]


_VISIT = TypeAdapter(Visit)
ANSWERS = ("side", "block", "latency_ms")


@dataclass
class Lane:
    """One side while it is visited.

    Attributes:
        adapter: opened and closed by `measure_visit`.
        cpu_s: returns the processor time that the side's server has used, seconds; None where nobody can see it.
        items: what this side is sent where it does not take what the others take.
    """

    adapter: Adapter
    cpu_s: Callable[[], float] | None = None
    items: Sequence[Any] = ()
    connections: list[Any] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    n_failed: int = 0
    n_failed_in_a_row: int = 0
    last_error: str = ""

    def ask(self, connection: Any, number: int, load: Load) -> float:
        """Send request `number`; return its latency in milliseconds, NaN if it failed."""
        request = self.requests[number % len(self.requests)]
        if load.idle_s:
            time.sleep(load.idle_s)
        begun = clock()
        try:
            if load.span == "photo":
                request = self.adapter.prepare(request)
            embedding = connection.decode(connection.request(request))
            latency_ms = (clock() - begun) * 1000
            if len(embedding) != load.batch:
                raise AnswerError(f"{load.batch} embeddings were requested, {len(embedding)} came")
            self.n_failed_in_a_row = 0
        except Exception as error:
            if not is_expected(error):
                raise
            self.n_failed, self.n_failed_in_a_row = self.n_failed + 1, self.n_failed_in_a_row + 1
            self.last_error = describe_error(error)
            connection.close()
            if self.n_failed_in_a_row >= GIVE_UP_AFTER:
                raise PhotodupError(
                    f"{self.adapter.backend} failed {GIVE_UP_AFTER} requests in a row: {self.last_error}"
                ) from None
            time.sleep(0.02)
            latency_ms = float("nan")
        if load.connection == "new":
            connection.close()
        return latency_ms


def turns(n_sides: int, draw: random.Random) -> list[int]:
    """Return a palindrome of turns in which each side has two: a random row of a Williams square and its reverse."""
    row = [step // 2 if step % 2 == 0 else n_sides - (step + 1) // 2 for step in range(n_sides)]
    shift, names = draw.randrange(n_sides), draw.sample(range(n_sides), n_sides)
    order = [names[(side + shift) % n_sides] for side in row]
    return order + order[::-1]


def measure_visit(
    lanes: Sequence[Lane],
    photos: Sequence[bytes],
    load: Load,
    plan: VisitPlan | None = None,
    *,
    seed: int,
    serve: Callable[[int], AbstractContextManager[object]] | None = None,
) -> Visit:
    """Measure all sides once, taking turns.

    Args:
        lanes: two or more sides; their adapters are opened and closed here.
        photos: encoded photographs; all sides get the same ones in the same order.
        load: of every side; a closed loop.
        seed: of the order of turns and photographs; recorded.
        serve: makes a side (0 or 1) ready for the length of a block, for two sides that cannot both be up. They are then
            measured one after the other, and the visit is not interleaved: its ratios hold what the machine changed
            between two turns.

    Raises:
        PhotodupError: an open loop, an asynchronous client, or a side that stopped answering; names the side.
    """
    plan = plan or VisitPlan()
    if len(lanes) < 2 or load.scenario == "server":
        raise PhotodupError("Sides take turns only under a closed loop, and there must be two or more.")
    draw, began, wall = random.Random(seed), clock(), time.time()
    with ExitStack() as opened, short_collections():
        if serve is not None:
            seen = _one_after_the_other(lanes, photos, load, plan, draw, serve)
        else:
            for lane in lanes:
                opened.enter_context(_ready(lane, photos, load, seed))
            seen = (_one_in_flight if load.concurrency == 1 else _in_slices)(lanes, load, plan, draw)
    jump_s = abs((time.time() - wall) - (clock() - began))
    return Visit(**seen, seed=seed, seconds=clock() - began, clock_jump_s=jump_s)


def _one_after_the_other(
    lanes: Sequence[Lane],
    photos: Sequence[bytes],
    load: Load,
    plan: VisitPlan,
    draw: random.Random,
    serve: Callable[[int], AbstractContextManager[object]],
) -> dict[str, Any]:
    """Measure two sides A B B A or B A A B, each started for its turn; both halves of a palindrome are observations."""
    rows: list[tuple[int, int, float]] = []
    kernel: list[float] = []

    def turn_of(side: int) -> float:
        half = len(kernel) // 2
        kernel.append(_kernel_ms())
        with serve(side):
            latencies, value = measure_turn(lanes[side], photos, load, plan, seed=half)
        if not latencies:
            raise PhotodupError(f"{lanes[side].adapter.backend} answered nothing: {lanes[side].last_error}")
        rows.extend((side, half, latency) for latency in latencies)
        return value

    logs = np.log(in_turns([partial(turn_of, side) for side in (0, 1)], plan.palindromes, draw))
    found = _result(lanes, [(logs[1] - logs[0]).tolist()], np.exp(logs.mean(axis=1)).tolist(), rows, kernel)
    return found | {"is_interleaved": False}


def measure_turn(
    lane: Lane, photos: Sequence[bytes], load: Load, plan: VisitPlan, *, seed: int
) -> tuple[list[float], float]:
    """Measure one side alone for a block or a long slice: latencies (ms), and their median or images/s."""
    with _ready(lane, photos, load, seed):
        if load.concurrency == 1:
            _alone(lane, load, plan.warmup_s, least=3)
            latencies = _alone(lane, load, plan.block_s, least=2 * LEAST_TURNS)
            return latencies, float(np.median(latencies or [np.nan]))
        with _Crew(lane, load) as crew:
            crew.run_slice(plan.warmup_s, 1)
            latencies = crew.run_slice(plan.block_s, plan.waves)
            return latencies, crew.rate() * load.batch


@contextmanager
def _ready(lane: Lane, photos: Sequence[bytes], load: Load, seed: int) -> Iterator[None]:
    """Open a side's connections and prepare its requests; close everything afterwards."""
    try:
        lane.connections = [lane.adapter.open() for _ in range(load.concurrency or 1)]
        lane.requests = list(request_order(lane.items or photos, load.batch, seed))
        if load.span == "prepared":
            lane.requests = [lane.adapter.prepare(request) for request in lane.requests]
        yield
    finally:
        for connection in lane.connections:
            connection.close()
        lane.adapter.close()


def _kernel_ms(data: bytes = bytes(4_000_000)) -> float:
    """Return how long a fixed computation of about 2 ms took."""
    begun = clock()
    hashlib.sha256(data).digest()
    return (clock() - begun) * 1000


def _one_in_flight(lanes: Sequence[Lane], load: Load, plan: VisitPlan, draw: random.Random) -> dict[str, Any]:
    for lane in lanes:
        _alone(lane, load, plan.warmup_s, least=3)
        lane.n_failed = 0
    rows: list[tuple[int, int, float]] = []
    ratios: list[list[float]] = [[] for _ in lanes[1:]]
    kernel: list[float] = []
    number = 0
    for block in range(plan.blocks):
        until, n_turns = clock() + plan.block_s, 0
        logs: list[list[float]] = [[] for _ in lanes[1:]]
        while clock() < until or n_turns < LEAST_TURNS:
            kernel.append(_kernel_ms())
            latency: list[list[float]] = [[] for _ in lanes]
            for side in turns(len(lanes), draw):
                # The same photograph to all sides: the first of a palindrome's halves gets one, the second the next.
                lane = lanes[side]
                value = lane.ask(lane.connections[0], number + len(latency[side]), load)
                latency[side].append(value)
                rows.append((side, block, value))
            for other, found in enumerate(logs, start=1):
                found += np.log(np.divide(latency[other], latency[0])).tolist()
            number += 2
            n_turns += 1
        for found, observations in zip(logs, ratios, strict=True):
            if answered := [one for one in found if one == one]:
                observations.append(float(np.median(answered)))
    rows = [row for row in rows if row[2] == row[2]]
    answers = [[row[2] for row in rows if row[0] == side] for side in range(len(lanes))]
    result = _result(lanes, ratios, [float(np.median(one)) if one else None for one in answers], rows, kernel)
    return result | (_without_the_others(lanes, load, plan) if plan.alone_s else {})


def _without_the_others(lanes: Sequence[Lane], load: Load, plan: VisitPlan) -> dict[str, Any]:
    """Measure each side alone: its figure, and how much processor time the other sides' servers use meanwhile."""
    alone: list[float | None] = []
    carried: list[float | None] = [None for _ in lanes]
    for side, lane in enumerate(lanes):
        before, begun = _cpu(lanes), clock()
        latencies = _alone(lane, load, plan.alone_s, least=3)
        alone.append(float(np.median(latencies)) if latencies else None)
        for other, (first, last) in enumerate(zip(before, _cpu(lanes), strict=True)):
            if other != side and first is not None and last is not None:
                carried[other] = max((last - first) / (clock() - begun), carried[other] or 0.0)
    return {"alone": alone, "carried_over": carried}


def _alone(lane: Lane, load: Load, seconds: float, *, least: int) -> list[float]:
    """Ask one side for some seconds and return the latencies of its answers, ms."""
    latencies: list[float] = []
    until, number = clock() + seconds, 0
    while clock() < until or number < least:
        value = lane.ask(lane.connections[0], number, load)
        latencies += [value] if value == value else []
        number += 1
    return latencies


def _cpu(lanes: Sequence[Lane]) -> list[float | None]:
    return [lane.cpu_s() if lane.cpu_s else None for lane in lanes]


class _Crew:
    """The workers of one side: they ask while the gate is open and wait while it is closed."""

    def __init__(self, lane: Lane, load: Load) -> None:
        self.lane, self.load = lane, load
        self.answers: list[tuple[float, float]] = []  # when it came, latency in ms
        self.mistake: BaseException | None = None
        self._gate, self._over = threading.Event(), False
        self._number, self._busy, self._change = 0, 0, threading.Condition()
        self._ends_s: list[float] = []  # of the last slice: when the answers of its whole waves came
        self._threads = [
            threading.Thread(target=self._work, args=(connection,), daemon=True)
            for connection in lane.connections
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, connection: Any) -> None:
        while True:
            self._gate.wait()
            if self._over:
                return
            with self._change:
                if not self._gate.is_set():
                    continue
                number, self._number, self._busy = self._number, self._number + 1, self._busy + 1
            try:
                latency_ms = self.lane.ask(connection, number, self.load)
                if latency_ms == latency_ms:
                    self.answers.append((clock(), latency_ms))
            except BaseException as error:
                with self._change:
                    self.mistake = self.mistake or error
                    if not self._over:  # at the end the gate stays open, so that nobody waits at it
                        self._gate.clear()
            finally:
                with self._change:
                    self._busy -= 1
                    self._change.notify_all()

    def __enter__(self) -> "_Crew":
        return self

    def run_slice(self, shortest_s: float, waves: int) -> list[float]:
        """Keep the side busy; return the latencies (ms) of whole waves after the first.

        The first wave after a switch is left out, and so is what is answered after the cut.
        """
        wave, self.answers = len(self.lane.connections), []
        self._gate.set()
        while self.mistake is None:
            time.sleep(POLL_S)
            answers = self.answers
            if len(answers) >= wave * (1 + waves) and answers[-1][0] - answers[wave - 1][0] >= shortest_s:
                break
        self._gate.clear()
        n_before_the_cut = len(self.answers)
        with self._change:
            self._change.wait_for(lambda: self._busy == 0)
        if self.mistake is not None:
            raise self.mistake
        kept = sorted(self.answers[: wave * (n_before_the_cut // wave)])
        self._ends_s = [end for end, _ in kept[wave - 1 :]]
        return [latency for _, latency in kept[wave:]]

    def rate(self) -> float:
        """Return requests/s of the last slice."""
        return (len(self._ends_s) - 1) / (self._ends_s[-1] - self._ends_s[0])

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._over = True
            self._gate.set()
        for thread in self._threads:
            thread.join()


def in_turns(sides: Sequence[Callable[[], float]], n: int, draw: random.Random) -> list[list[float]]:
    """Ask each side for a figure above 0 in n palindromes of turns, and return them: [n_sides][2 n]."""
    figures: list[list[float]] = [[] for _ in sides]
    for _ in range(n):
        for side in turns(len(sides), draw):
            figures[side].append(sides[side]())
    return figures


def log_ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Return the log ratio of b to a in each palindrome, from what `in_turns` returns of two sides."""
    return (np.log(b) - np.log(a)).reshape(-1, 2).mean(axis=1).tolist()


def _in_slices(lanes: Sequence[Lane], load: Load, plan: VisitPlan, draw: random.Random) -> dict[str, Any]:
    rows: list[tuple[int, int, float]] = []
    kernel: list[float] = []

    def slice_of(side: int) -> float:
        quad = len(kernel) // (2 * len(lanes))
        kernel.append(_kernel_ms())
        rows.extend((side, quad, ms) for ms in crews[side].run_slice(plan.slice_s, plan.waves))
        return crews[side].rate() * load.batch

    alone = []
    with ExitStack() as stack:
        crews = [stack.enter_context(_Crew(lane, load)) for lane in lanes]
        for crew in crews:
            crew.run_slice(plan.warmup_s, 1)
            crew.lane.n_failed = 0
        rates = in_turns([partial(slice_of, side) for side in range(len(crews))], plan.quads, draw)
        for crew in crews if plan.alone_s else ():
            crew.run_slice(plan.alone_s, 1)
            alone.append(crew.rate() * load.batch)
    ratios = [log_ratios(rates[0], rate) for rate in rates[1:]]
    values = [float(np.exp(np.mean(np.log(rate)))) for rate in rates]
    return _result(lanes, ratios, values, rows, kernel) | {"alone": alone or None}


def _result(
    lanes: Sequence[Lane],
    ratios: list[list[float]],
    values: Sequence[float | None],
    rows: Sequence[tuple[int, int, float]],
    kernel: Sequence[float],
) -> dict[str, Any]:
    """Return what is known of a visit without any side alone; `rows` has side, block and latency (ms) of each answer."""
    table = np.array(rows, float).reshape(-1, 3)
    return {
        "log_ratios": ratios,
        "values": list(values),
        "n_requests": [int((table[:, 0] == side).sum()) for side in range(len(lanes))],
        "n_failed": [lane.n_failed for lane in lanes],
        "errors": [lane.last_error for lane in lanes],
        "alone": None,
        "carried_over": None,
        "kernel_ms_p50": float(np.median(kernel)),
        "kernel_spread": float(np.std(np.log(kernel))),
        "side": table[:, 0],
        "block": table[:, 1],
        "latency_ms": table[:, 2],
    }
