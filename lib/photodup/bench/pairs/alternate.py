"""Measure one or more sides under one load: they take turns in blocks of about half a second.

A machine's speed changes within seconds, so sides that are compared have to run in the same seconds. In turns of single
requests two servers would also disturb each other's caches, by up to a tenth of the ratio; in a block of half a second only
the first answers are affected, and these are skipped. All sides are connected and warm before the first block.

The order of blocks is a palindrome, drawn at random: A B B A or B A A B for two sides, a row of a Williams square and its
reverse for more. So a steady drift cancels, and so does the effect of the preceding side.

No answer is left out because of its latency. Failed requests are counted.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter

from photodup.bench import Columns, Item
from photodup.bench.backends.adapters import Adapter, Connection
from photodup.bench.load.plan import draw_requests
from photodup.bench.load.window import short_collections
from photodup.bench.load.workers import COLUMNS, Window, clock, run_worker
from photodup.bench.stats.metrics import Load
from photodup.core.errors import PhotodupError
from photodup.core.names import escaped

SKIPPED_ANSWERS = 3  # of a block with one request in flight: another server ran before
SKIPPED_WAVES = 4  # of a block with several, until requests that started together are spread
LONGEST_S, FEWEST_ANSWERS = 10.0, 3  # of a block of slow answers
GIVE_UP_AFTER = 20  # failed requests of one side without an answer between them
_BEGUN = COLUMNS.index("begun")
_Alone = Annotated[list[Annotated[float, Field(gt=0)] | None], Field(min_length=1)]


@dataclass(frozen=True)
class VisitPlan:
    """The lengths of one visit.

    Attributes:
        palindromes: each gives two observations.
        block_s: shortest counted length of a block, seconds.
        min_answers: counted answers of a block at least. Where answers are slow, it ends with the first whole wave after
            `LONGEST_S`, once `FEWEST_ANSWERS` were counted.
        skipped_answers: of a block with one request in flight, which do not count: so many, or those of `LONGEST_S`.
        min_waves: several in flight: whole waves that a block counts at least; a wave is as many answers as requests are in
            flight.
        alone_s: how long each side is measured alone at the end of the visit, seconds; 0 leaves this check out.
        warmup_s: how long each side is asked before the first block, seconds, and at least three requests.
    """

    palindromes: int = 3
    block_s: float = 0.5
    min_answers: int = 10
    min_waves: int = 8
    alone_s: float = 1.0
    warmup_s: float = 0.5
    skipped_answers: int = SKIPPED_ANSWERS

    def answer_counts(self, load: Load) -> tuple[int, int]:
        """Return how many answers of a block are skipped, and how many are counted at least."""
        if load.concurrency == 1:
            return self.skipped_answers, self.min_answers
        return SKIPPED_WAVES * load.wave, max(self.min_waves * load.wave, self.min_answers)

    def expected_s(self, load: Load, answer_s: float) -> float:
        """Return about how long a block takes whose answers come so many seconds after each other."""
        answers_s = sum(self.answer_counts(load)) * answer_s
        return max(1.1 * self.block_s, min(answers_s, LONGEST_S + FEWEST_ANSWERS * answer_s))


@dataclass(frozen=True)
class Visit:
    """The result of one visit of one or more sides.

    Attributes:
        in_flight, images: requests in flight, and images in each, of every side.
        n_failed, errors: [n_sides]; the last error of each, or an empty string.
        alone: [n_sides] median latency (ms) of each side without the others; None where it was not measured.
        carried_over: [n_sides] the most processor time that a side's server used while another side was measured alone, as a
            share of that time; None where nobody can see it, or where the sides share their processes.
        seed: of the order of turns and photographs.
        seconds: how long all of it took, warm-up included.
        clock_jump_s: how far the wall clock and the monotonic clock drifted apart: a machine that slept.
        side, half, latency_ms: one entry for each counted answer; in each half of a palindrome each side has one block.
        at_s: when each answer came, seconds since the visit began; empty in older records.
        is_interleaved: False where the sides could not both be up, so that each was started for its block.
    """

    in_flight: Annotated[int, Field(ge=1)]
    images: Annotated[int, Field(ge=1)]
    n_failed: Annotated[list[int], Field(min_length=1)]
    errors: list[str]
    alone: _Alone | None
    carried_over: list[float | None] | None
    seed: int
    seconds: float
    clock_jump_s: float
    side: np.ndarray
    half: np.ndarray
    latency_ms: np.ndarray
    at_s: np.ndarray
    is_interleaved: bool = True
    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)

    @property
    def n_sides(self) -> int:
        return len(self.n_failed)

    @property
    def n_requests(self) -> list[int]:
        """[n_sides] counted answers."""
        return [int((self.side == side).sum()) for side in range(self.n_sides)]

    def latencies(self, side: int) -> np.ndarray:
        """Return the latencies of a side's answers, ms."""
        return self.latency_ms[self.side == side]

    def blocks(self, side: int) -> dict[int, np.ndarray]:
        """Return the latencies of a side's answers, ms, by the half in which they came."""
        is_of_side = self.side == side
        return {
            int(half): self.latency_ms[is_of_side & (self.half == half)]
            for half in np.unique(self.half[is_of_side])
        }

    def figure(self, latency_ms: np.ndarray) -> float:
        """Return what sides are compared by: median latency (ms) with one in flight, throughput (images/s) with several."""
        return float(np.median(latency_ms)) if self.in_flight == 1 else self.throughput(latency_ms)

    def throughput(self, latency_ms: np.ndarray) -> float:
        """Return images/s by Little's law: a closed loop has as many requests in flight as workers.

        Counting answers between two moments would depend on where in a burst these lie.
        """
        return self.in_flight * self.images * 1000 / float(latency_ms.mean())

    def values(self) -> list[float | None]:
        """Return each side's figure over the visit, [n_sides]; None without answers."""
        answers = [self.latencies(side) for side in range(self.n_sides)]
        return [self.figure(latency_ms) if len(latency_ms) else None for latency_ms in answers]

    def log_ratios(self, side: int) -> np.ndarray:
        """Return the log ratio of a side's figure to the first side's, one for each half in which both answered."""
        first, other = self.blocks(0), self.blocks(side)
        halves = [half for half in first if half in other]
        return np.array([np.log(self.figure(other[half]) / self.figure(first[half])) for half in halves])

    def as_record(self) -> Columns:
        """Return this visit as a record keeps it: the answers apart, under `raw`."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        return columns | {"raw": {name: columns.pop(name) for name in ANSWERS}}

    @classmethod
    def of_record(cls, columns: Mapping[str, Any], raw: Mapping[str, np.ndarray]) -> "Visit":
        """Read what `as_record` wrote; other columns are ignored.

        Raises:
            ValueError: a column is missing, or holds what `as_record` never writes.
        """
        visit = _VISIT.validate_python({**columns, **{name: raw.get(name, np.empty(0)) for name in ANSWERS}})
        if not len(visit.side) == len(visit.half) == len(visit.latency_ms):
            raise ValueError("side, half and latency_ms differ in length")
        return replace(visit, errors=[escaped(error) for error in visit.errors])

    def against(self, other: int, first: int = 0) -> "Visit":
        """Return this visit with two of its sides: `first` as index 0, and `other` as index 1."""
        pair = (first, other)
        is_of_pair = np.isin(self.side, pair)
        lists: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else [column[side] for side in pair]
            for name in ("n_failed", "errors", "alone", "carried_over")
        }
        answers = {name: getattr(self, name)[is_of_pair] for name in ANSWERS if len(getattr(self, name))}
        return replace(self, **lists, **answers | {"side": (self.side[is_of_pair] == other).astype(float)})


_VISIT = TypeAdapter(Visit)
ANSWERS = ("side", "half", "latency_ms", "at_s")


@dataclass
class LiveSide:
    """One side while it is visited.

    Attributes:
        adapter: opened and closed by `measure_visit`.
        cpu_s: returns the processor time that the side's server has used, seconds; None where nobody can see it.
        items: sent to this side in place of the photographs of the others.
    """

    adapter: Adapter
    cpu_s: Callable[[], float] | None = None
    items: Sequence[Item] = ()
    connections: list[Connection] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    n_failed: int = 0
    last_error: str = ""

    def run_block(
        self, load: Load, seconds: float, counts: tuple[int, int], first: int = 0
    ) -> list[tuple[float, float]]:
        """Keep the side busy; return when each counted answer came, and its latency (ms).

        Args:
            seconds: shortest length, from the last skipped answer on.
            counts: answers that are skipped, and those that are counted at least, in whole waves; see `VisitPlan`.
            first: number of the block's first request.

        Raises:
            PhotodupError: the side stopped answering.
        """
        block = _Block(
            self.adapter, load, self.requests, request_numbers=itertools.count(first), longest_pause_s=0.02,
            seconds=seconds, skipped=counts[0], counted=counts[1],
        )  # fmt: skip
        ready = threading.Barrier(len(self.connections))
        workers = [
            threading.Thread(target=run_worker, args=(block, connection, block.rows, ready), daemon=True)
            for connection in self.connections
        ]
        block.started_at = clock()
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            block.give_up_at = 0.0  # ends workers that still run after Ctrl-C
        self.n_failed += len(block.errors)
        self.last_error = block.errors[-1][1] if block.errors else self.last_error
        if block.fatal_error:
            raise block.fatal_error
        return [(row[-1], (row[-1] - row[_BEGUN]) * 1000) for row in block.rows[block.skipped :]]


@dataclass
class _Block(Window):
    """A window of one side that ends with a whole wave, so that no burst of answers is cut.

    Attributes:
        seconds, skipped, counted: as in `LiveSide.run_block`.
        rows: all answers until its end, in the order in which they came.
    """

    seconds: float = 0.0
    skipped: int = 0
    counted: int = 0
    rows: list[tuple[float, ...]] = field(default_factory=list)
    n_failed_in_a_row: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, samples: list[tuple[float, ...]], row: tuple[float, ...]) -> None:
        with self.lock:
            self.n_failed_in_a_row = 0
            if self.stop_at is None:  # later answers do not count
                samples.append(row)
                if row[-1] - self.started_at >= LONGEST_S:
                    self.counted = min(self.counted, FEWEST_ANSWERS)
                    if self.load.wave == 1:
                        self.skipped = min(self.skipped, len(samples))
                n, at = len(samples) - self.skipped, row[-1]
                start = samples[self.skipped - 1][-1] if self.skipped and n > 0 else self.started_at
                if n >= self.counted and not n % self.load.wave and at - start >= self.seconds:
                    self.stop_at = clock()

    def note_failure(self, error: Exception) -> bool:
        with self.lock:
            is_of_the_server = super().note_failure(error)
            self.n_failed_in_a_row += 1
            if self.n_failed_in_a_row >= GIVE_UP_AFTER:
                last = self.errors[-1][1].rstrip(".")
                self.fatal_error = self.fatal_error or PhotodupError(
                    f"{self.adapter.backend} failed {GIVE_UP_AFTER} requests in a row: {last}."
                )
            return is_of_the_server


def palindrome(n_sides: int, draw: random.Random) -> list[int]:
    """Return a palindrome of turns in which each side has two: a random row of a Williams square and its reverse."""
    row = [step // 2 if step % 2 == 0 else n_sides - (step + 1) // 2 for step in range(n_sides)]
    shift, names = draw.randrange(n_sides), draw.sample(range(n_sides), n_sides)
    order = [names[(side + shift) % n_sides] for side in row]
    return order + order[::-1]


def measure_visit(
    sides: Sequence[LiveSide],
    photos: Sequence[bytes],
    load: Load,
    plan: VisitPlan,
    *,
    seed: int,
    serve: Callable[[int], AbstractContextManager[object]] | None = None,
) -> Visit:
    """Measure all sides once, taking turns.

    Args:
        sides: one side or more; their adapters are opened and closed here.
        photos: encoded photographs; all sides get the same ones in the same order.
        load: of every side; a closed loop.
        seed: of the order of turns and photographs; recorded.
        serve: starts a side for the length of a block, where the sides cannot all be up at once. The visit is then not
            interleaved: its ratios include changes of the machine between two blocks.

    Raises:
        PhotodupError: an open loop, or a side that stopped answering; names the side.
    """
    if not sides or load.scenario == "server":
        raise PhotodupError("Sides take turns only under a closed loop, and there must be one or more.")
    draw, began, wall = random.Random(seed), clock(), time.time()
    rows: list[tuple[int, int, float, float]] = []
    shared: dict[str, Any] = {"alone": None, "carried_over": None}
    with ExitStack() as stack, short_collections():
        for side in sides:
            stack.enter_context(_ready(side, photos, load, seed))
        for side in sides if serve is None else ():
            side.run_block(load, plan.warmup_s, (0, 3))
            side.n_failed = 0
        for number in range(plan.palindromes):
            for place, index in enumerate(palindrome(len(sides), draw)):
                half = 2 * number + place // len(sides)
                with serve(index) if serve else nullcontext():
                    # The same photographs to all sides of a half.
                    answers = sides[index].run_block(load, plan.block_s, plan.answer_counts(load), 8 * half)
                rows += [(index, half, latency_ms, at - began) for at, latency_ms in answers]
        if plan.alone_s and serve is None and len(sides) > 1:
            shared = _measure_alone(sides, load, plan)
    table = np.array(rows, float).reshape(-1, 4)
    return Visit(
        in_flight=load.concurrency,
        images=load.batch,
        n_failed=[side.n_failed for side in sides],
        errors=[side.last_error for side in sides],
        **shared,
        seed=seed,
        seconds=clock() - began,
        clock_jump_s=abs((time.time() - wall) - (clock() - began)),
        side=table[:, 0],
        half=table[:, 1],
        latency_ms=table[:, 2],
        at_s=table[:, 3],
        is_interleaved=serve is None,
    )


def _measure_alone(sides: Sequence[LiveSide], load: Load, plan: VisitPlan) -> Columns:
    """Measure each side alone: its median, and how much processor time the other sides' servers use meanwhile."""
    alone: list[float | None] = []
    carried_over: list[float | None] = [None for _ in sides]

    def cpu_s() -> list[float | None]:
        return [side.cpu_s() if side.cpu_s else None for side in sides]

    for index, side in enumerate(sides):
        before, begun = cpu_s(), clock()
        answers = side.run_block(load, plan.alone_s, plan.answer_counts(load))  # as in turns
        after, seconds = cpu_s(), clock() - begun
        alone.append(float(np.median([latency_ms for _, latency_ms in answers])) if answers else None)
        for idle, (first, last) in enumerate(zip(before, after, strict=True)):
            if idle != index and first is not None and last is not None:
                carried_over[idle] = max((last - first) / seconds, carried_over[idle] or 0.0)
    return {"alone": alone, "carried_over": carried_over}


@contextmanager
def _ready(side: LiveSide, photos: Sequence[bytes], load: Load, seed: int) -> Iterator[LiveSide]:
    """Open a side's connections and prepare its requests; close everything afterwards."""
    try:
        side.connections = [side.adapter.open() for _ in range(load.concurrency)]
        side.requests = list(draw_requests(side.items or photos, load.batch, seed))
        if load.span == "prepared":
            side.requests = [side.adapter.prepare(request) for request in side.requests]
        yield side
    finally:
        for connection in side.connections:
            connection.close()
        side.adapter.close()
