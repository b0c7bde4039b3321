"""Decide on a noisy machine, with known error rates, whether one server is slower than another by more than a limit.

Base and head take turns. The gate fails where the lower one-sided bound of head's slowdown exceeds the limit. A head exactly
at the limit fails in less than 5% of runs, shared between two planned looks; a clear case ends the gate at the first. How
often it errs is simulated with the spread that was just measured.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from photodup.bench import Columns
from photodup.bench.anyurl.comparison import SHORTEST, fit_visits, notes_on_answers, visit_servers
from photodup.bench.anyurl.measure import LoadSpec, LoadTarget
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.pairs import read
from photodup.bench.pairs.alternate import Visit
from photodup.bench.stats.comparison import Observed, one_sided
from photodup.bench.stats.sentence import number
from photodup.core.errors import PhotodupError
from photodup.core.files import write_atomically
from photodup.core.names import count

# Levels of the first and the second look. A head at the limit fails with less than their sum.
LEVELS = (0.005, 0.04)
VISITS = 4  # of a look
N_SIMULATED, EXCESS = 400, 0.10
FAILED_SHARE = 0.01  # of the head's requests: more fails the gate where the base does not fail so many


@dataclass(frozen=True)
class Slowdown:
    """By how much head is slower than base, as a fraction of base's time for a request.

    Attributes:
        low, high: one-sided bounds, each wrong at the level of the last look.
        verdict: `passed`, `failed`, or `open` where the second look is to decide.
        looks: how many were taken.
    """

    limit: float
    slower: float
    low: float
    high: float
    looks: int
    verdict: str


@dataclass(frozen=True)
class GateResult:
    """The result of a gate.

    Attributes:
        spread: standard deviation of a visit's mean, a fraction.
        rates: by the planted slowdown, as a fraction: the share of simulated gates that fail at the spread just measured.
        values: base's and head's figure, in `unit`.
        reason: a cause of failure other than the slowdown, or empty.
    """

    slowdown: Slowdown
    values: tuple[float, float]
    unit: str
    n: int
    n_visits: int
    seconds: float
    spread: float
    rates: dict[float, float]
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def has_failed(self) -> bool:
        return bool(self.reason) or self.slowdown.verdict == "failed"

    def sentences(self) -> list[str]:
        """Return the verdict, what it rests on, and how often it would be wrong."""
        slowdown, (base, head) = self.slowdown, self.values
        way = "slower" if slowdown.slower >= 0 else "faster"
        size = f"head is {abs(slowdown.slower):.1%} {way} than base ({number(head)} against {number(base)} {self.unit})"
        bounds = f"one-sided bounds {slowdown.low:+z.1%} and {slowdown.high:+z.1%}"
        verdict = "FAILED" if self.has_failed else "PASSED"
        reason = f"{self.reason} " if self.reason else ""
        rates = ", ".join(
            f"one {p:.0%} slower in {r:.1%}" if p else f"an equal head in {r:.1%}"
            for p, r in self.rates.items()
        )
        rests_on = f"{count(self.n, 'observation')} in {count(self.n_visits, 'visit')}"
        return [
            f"{verdict}: {reason}{size}; {bounds}, the limit is {slowdown.limit:+z.1%}.",
            f"It rests on {rests_on}, {self.seconds:.0f} s, and look {slowdown.looks} of {len(LEVELS)}.",
            f"Simulated {N_SIMULATED} times at the spread just measured ({self.spread:.1%} between visits), this "
            f"gate fails {rates} of runs.",
        ]

    def as_record(self) -> Columns:
        """Return it as JSON."""
        return {**asdict(self), "failed": self.has_failed, "sentences": self.sentences()}


def decide(ratios: Sequence[np.ndarray], limit: float, look: int) -> Slowdown:
    """Decide at one look, from the log ratios of head's time to base's.

    Args:
        ratios: one array a visit.
        look: from 1.
    """
    observed, level = Observed(tuple(ratios), 1.0, 1.0), LEVELS[look - 1]
    low, high = one_sided(observed, level)
    is_over = look == len(LEVELS) or high < limit
    verdict = "failed" if low > limit else "passed" if is_over else "open"
    return Slowdown(limit, math.expm1(observed.mean), low, high, look, verdict)


Draw = Callable[[int, np.random.Generator], Sequence[np.ndarray]]
"""Draws log ratios around 0 of all visits of so many looks, one array a visit."""


def normal_draw(spread: float, per_look: int) -> Draw:
    """Return a function that draws normal log ratios with this standard deviation, `per_look` visits a look."""
    return lambda looks, generator: tuple(generator.normal(0, spread, (looks * per_look, 1)))


def planted_heads(draw: Draw, planted: float) -> Iterator[list[np.ndarray]]:
    """Yield the log ratios of `N_SIMULATED` heads that are slower by `planted`, each with those of all looks."""
    generator = np.random.default_rng(0)
    for _ in range(N_SIMULATED):
        yield [math.log1p(planted) + visit for visit in draw(len(LEVELS), generator)]


def fails(ratios: Sequence[np.ndarray], limit: float) -> bool:
    """Return whether the gate fails a head with these log ratios of all looks; a clear case ends at the first."""
    for look in range(1, len(LEVELS) + 1):
        decision = decide(ratios[: look * len(ratios) // len(LEVELS)], limit, look)
        if decision.verdict != "open":
            break
    return decision.verdict == "failed"


def failure_rate(draw: Draw, limit: float, planted: float) -> float:
    """Return the share of simulated gates that fail where head is slower by `planted`."""
    return sum(fails(head, limit) for head in planted_heads(draw, planted)) / N_SIMULATED


Sides = Callable[[], AbstractContextManager[tuple[LoadTarget, LoadTarget]]]
Start = Callable[[Callable[[], LoadTarget]], AbstractContextManager[LoadTarget]]


def measure_gate(sides: Sides, spec: LoadSpec, watcher: Watcher, *, limit: float) -> GateResult:
    """Measure base and head in turns and decide whether head is slower by more than the limit.

    Args:
        sides: makes both ready for one visit: commands are started anew, so what differs from start to start counts.
        spec: the load, a closed loop; all visits take about its `seconds`, without the starts.

    Raises:
        PhotodupError: nothing could be measured, or it was stopped.
    """
    began = time.monotonic()
    with sides() as (base, head):
        notes = notes_on_answers(base, head, spec.batch)
        least_s = visit_servers((base, head), spec, SHORTEST, 0).seconds
    per_look, plan = fit_visits(least_s, spec.seconds, n_sides=2, looks=len(LEVELS), most_visits=VISITS)
    is_rate = spec.load.concurrency != 1
    visits: list[Visit] = []
    for look in range(1, len(LEVELS) + 1):
        for number_ in range(len(visits) + 1, per_look * look + 1):
            if watcher.is_stopped:
                raise PhotodupError("The gate was stopped by you, so nothing is decided.")
            watcher.say(f"look {look} of {len(LEVELS)}, visit {number_} of {per_look * look}")
            with sides() as (base, head):
                visits.append(visit_servers((base, head), spec, plan, number_))
        observed = read.observed(visits, spec.load, spec.load.usual_metric)
        if isinstance(observed, str):
            raise PhotodupError(f"Base and head cannot be compared: {observed}")
        ratios = [-in_visit if is_rate else in_visit for in_visit in observed.log_ratios]
        decision = decide(ratios, limit, look)
        if decision.verdict != "open":
            break
    assert isinstance(observed, Observed)
    spread = math.sqrt(observed.variance)
    draw = normal_draw(spread, per_look)
    rates = {
        planted: failure_rate(draw, limit, planted) for planted in dict.fromkeys((0.0, limit, limit + EXCESS))
    }
    shares = []
    for side in (0, 1):
        n_failed = sum(v.n_failed[side] for v in visits)
        shares.append(n_failed / max(1, n_failed + sum(v.n_requests[side] for v in visits)))
    has_more_failures = shares[1] > FAILED_SHARE >= shares[0]
    return GateResult(
        decision,
        (observed.value_a, observed.value_b),
        "requests/s" if is_rate else "ms",
        observed.n,
        len(visits),
        time.monotonic() - began,
        spread,
        rates,
        (*notes, *read.notes_on_visits(visits)),
        f"{shares[1]:.1%} of head's requests failed." if has_more_failures else "",
    )


def sides_of(
    server_of: Callable[[str], LoadTarget], urls: Sequence[str], starts: Sequence[Start], watcher: Watcher
) -> Sides:
    """Return a function that makes base and head ready for a visit.

    Args:
        server_of: reads a URL; raises a `PhotodupError` where nothing answers yet.
        urls: of base and head.
        starts: start one server each for a block, and yield it once it is ready; empty where both are up.
        watcher: Ctrl-C ends a start, too.
    """

    def ready(url: str) -> LoadTarget:
        if watcher.is_stopped:
            raise KeyboardInterrupt
        server = server_of(url)
        server.try_once()
        return server

    @contextlib.contextmanager
    def sides() -> Iterator[tuple[LoadTarget, LoadTarget]]:
        with contextlib.ExitStack() as stack:
            begin: Sequence[Start] = starts or [lambda make: contextlib.nullcontext(make())] * len(urls)
            base, head = (stack.enter_context(s(partial(ready, u))) for s, u in zip(begin, urls, strict=True))
            yield base, head

    return sides


def write_junit(gate_result: GateResult, path: Path) -> None:
    """Write the report for a CI system: one test case.

    Raises:
        PhotodupError: it cannot be written.
    """
    failures, (verdict, *basis) = str(int(gate_result.has_failed)), gate_result.sentences()
    suite = ElementTree.Element("testsuite", name="photodup gate", tests="1", failures=failures, errors="0")
    name = f"head is not slower than base by more than {gate_result.slowdown.limit:.1%}"
    labels = {"classname": "photodup.gate", "name": name, "time": f"{gate_result.seconds:.1f}"}
    case = ElementTree.SubElement(suite, "testcase", labels)
    if gate_result.has_failed:
        ElementTree.SubElement(case, "failure", message=verdict).text = "\n".join((verdict, *basis))
    ElementTree.SubElement(case, "system-out").text = "\n".join((verdict, *basis, *gate_result.notes))
    try:
        write_atomically(path, ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")
    except OSError as error:
        raise PhotodupError(f"{error.filename or path} cannot be written: {error.strerror}.") from None
