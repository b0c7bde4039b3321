"""Two servers compared: they take turns under one closed loop, and the first also takes turns with itself.

The check compares the first server with itself through other connections. A URL has no second process of that server, so
the check shows the error of the measurement, and not how far two processes of one configuration differ.
"""

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from photodup.bench.anyurl.measure import LoadSpec, LoadTarget, notes_on_cores
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.backends.adapters import answers_to, lowest_cosine
from photodup.bench.pairs import read
from photodup.bench.pairs.alternate import LiveSide, Visit, VisitPlan, measure_visit
from photodup.bench.stats.comparison import LEAST_VISITS, Comparison, Outcome, compare_all, has_failed
from photodup.bench.stats.figures import FEWEST_VISITS
from photodup.bench.stats.metrics import Load
from photodup.bench.stats.sentence import sentence
from photodup.core.errors import PhotodupError
from photodup.core.files import available_cores

SIDES = ("server 1", "server 1 through other connections", "server 2")
VISITS, MAX_PALINDROMES, BLOCK_S = 8, 10, 0.5
USED_SHARE = 0.9  # of the time: connecting and the probe have the rest
SAME_ANSWER = 0.999
SHORTEST = VisitPlan(palindromes=1, block_s=0, min_answers=1, min_waves=1, alone_s=0, warmup_s=0)


@dataclass(frozen=True)
class ServerComparison:
    """A comparison of two servers.

    Attributes:
        outcomes: the check first, then server 2 against server 1, one a metric.
        visits: of the sides in `SIDES`.
        seconds: all of it, the probe included.
    """

    outcomes: list[Outcome]
    sentences: list[str]
    visits: list[Visit]
    notes: list[str]
    seconds: float


def compare_servers(
    first: LoadTarget, second: LoadTarget, spec: LoadSpec, watcher: Watcher
) -> ServerComparison:
    """Measure both servers in turns and compare them.

    Args:
        spec: the load, a closed loop; all of it takes about its `seconds`.

    Raises:
        PhotodupError: a server stopped answering before anything was measured, or the time is too short.
    """
    began, used = time.monotonic(), time.process_time()
    notes = notes_on_answers(first, second, spec.batch)
    watcher.say("finding how long a visit takes")
    sides = first, first, second
    least_s = visit_servers(sides, spec, SHORTEST, 0).seconds
    n_visits, plan = fit_visits(least_s, spec.seconds - (time.monotonic() - began), n_sides=len(sides))
    visits: list[Visit] = []
    for number in range(1, n_visits + 1):
        left_s = spec.seconds - (time.monotonic() - began)
        has_enough = len(visits) >= LEAST_VISITS  # with fewer the time before would be lost
        if watcher.is_stopped or (has_enough and max(visit.seconds for visit in visits) > left_s):
            reason = "It was stopped by you" if watcher.is_stopped else "The time was over"
            notes.append(f"{reason} after {len(visits)} of {n_visits} visits; what was measured is kept.")
            break
        watcher.say(f"visit {number} of {n_visits}, about {left_s:.0f} s left")
        try:
            visits.append(visit_servers(sides, spec, plan, number))
        except PhotodupError as error:
            reason = f"In visit {number} of {n_visits} {str(error).rstrip('.')}"
            if not visits:
                raise PhotodupError(f"{reason}.") from None
            notes.append(f"{reason}; what was measured before is kept.")
            break
    if not visits:
        raise PhotodupError("It was stopped before anything was measured.")
    seconds = time.monotonic() - began
    outcomes = outcomes_of(visits, spec.load)
    sentences = sentences_of(outcomes, first.payloads.unit)
    notes += dict.fromkeys(note for outcome in reversed(outcomes) for note in outcome.notes)
    if first.payloads.description != second.payloads.description:
        notes.append(
            "The two were not sent the same payload, so the difference is not the servers' alone: "
            f"{first.payloads.description}; {second.payloads.description}."
        )
    share = (time.process_time() - used) / seconds / available_cores()
    notes += notes_on_cores(share, first.target, second.target)
    return ServerComparison(outcomes, sentences, visits, notes, seconds)


def visit_servers(sides: Sequence[LoadTarget], spec: LoadSpec, plan: VisitPlan, number: int) -> Visit:
    """Measure one visit of the sides.

    Raises:
        PhotodupError: a side stopped answering; one sentence.
    """
    live = [LiveSide(side.adapter(spec.batch), items=side.payloads.items) for side in sides]
    return measure_visit(live, (), spec.load, plan, seed=spec.seed + number)


def sentences_of(outcomes: list[Outcome], unit: str) -> list[str]:
    """Return the check's sentence, then the others'; a check that failed marks each of them."""
    check, *comparisons = (sentence(outcome).replace("images/s", unit) for outcome in outcomes)
    if not has_failed(outcomes[0]):
        return [f"Check: {check}", *comparisons]
    failed = f"The check failed, so the measuring itself finds a difference where there is none: {check}"
    return [failed, *(f"{comparison.rstrip('.')} (the check failed)." for comparison in comparisons)]


def fit_visits(
    least_s: float, seconds: float, *, n_sides: int, looks: int = 1, most_visits: int = VISITS
) -> tuple[int, VisitPlan]:
    """Return how many visits fit into a look, and the plan of each.

    Args:
        least_s: length of the shortest visit of all sides.
        seconds: of all looks.
        looks: planned tests of a gate (see `gate`); 1 for a comparison.
        most_visits: of a look.

    Raises:
        PhotodupError: not even the fewest visits fit.
    """
    seconds /= looks
    room = int(USED_SHARE * seconds / least_s)
    if room < FEWEST_VISITS:
        raise PhotodupError(
            "The time is too short to compare these servers under this load: give --seconds "
            f"{looks * (math.ceil(1.2 * FEWEST_VISITS * least_s / USED_SHARE) + 1)}, or fewer requests in flight."
        )
    visits = min(most_visits, room)
    visit_s, n_blocks = USED_SHARE * seconds / visits, 2 * n_sides
    warmup_s = min(0.5, 0.02 * visit_s) if room >= 2 * visits else 0.0
    turns_s = visit_s - n_sides * warmup_s
    palindromes = min(max(1, int(turns_s / (least_s + n_blocks * BLOCK_S))), MAX_PALINDROMES)
    block_s = max(0.0, turns_s / palindromes - least_s) / n_blocks
    return visits, VisitPlan(palindromes, block_s, min_answers=1, min_waves=1, alone_s=0.0, warmup_s=warmup_s)


def outcomes_of(visits: list[Visit], load: Load) -> list[Outcome]:
    """Return the check's outcome, and server 2 against server 1 in the usual metric and in percentiles."""
    usual = load.usual_metric
    check = Comparison("check", "", usual, usual, SIDES[0], SIDES[1], "", is_null=True, requests=load)
    comparisons = [read.with_observations(check, [visit.against(1) for visit in visits])]
    for metric in dict.fromkeys((usual, "latency_ms_p50", "latency_ms_p95", "latency_ms_p99")):
        # Percentiles rest on the same turns, so one of the metrics alone is primary.
        sides, is_usual = (SIDES[0], SIDES[2]), metric == usual
        comparison = Comparison(
            metric, "", metric, metric, *sides, "", is_usual, nulls=("check",), requests=load
        )
        comparisons.append(read.with_observations(comparison, [visit.against(2) for visit in visits]))
    return compare_all(comparisons)


def notes_on_answers(first: LoadTarget, second: LoadTarget, batch: int) -> list[str]:
    """Return a note where the two answer differently or cannot be compared; none if they are sent different items."""
    if first.payloads.items[:4] != second.payloads.items[:4]:
        return []
    answers = []
    for server in (first, second):
        with contextlib.closing(server.adapter(batch)) as adapter:
            answers.append(np.asarray(answers_to(adapter, server.payloads.items[:4]), np.float64))
    a, b = answers
    if not a.size or not b.size:
        return ["The answers of the two were not compared: they hold no rows of numbers."]
    if a.shape != b.shape:
        return [f"The two answer differently: {a.shape[1]} numbers an item and {b.shape[1]}."]
    if (lowest := lowest_cosine(a, b)) >= SAME_ANSWER:
        return []
    return [f"The two answer differently: the cosine of their answers to one item is as low as {lowest:.4f}."]
