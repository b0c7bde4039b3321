"""Two servers compared: they take turns under one closed loop, and the first also takes turns with itself.

What the first server's second connections give is the check. Two processes of one server cannot be had for a URL, so the
check shows what the measuring does, and not how far two processes of one configuration lie apart.
"""

import contextlib
import math
import time
from dataclasses import dataclass

import numpy as np

from photodup.bench.anyurl.measure import Asked, Request, shared_cores
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.backends.adapters import answers_to, lowest_cosine
from photodup.bench.pairs import read
from photodup.bench.pairs.alternate import Lane, Visit, VisitPlan, measure_visit
from photodup.bench.stats.comparison import LEAST_OBSERVATIONS, Outcome, Question, has_failed, judge
from photodup.bench.stats.facts import Load
from photodup.bench.stats.sentence import sentence
from photodup.core.errors import PhotodupError
from photodup.core.files import available_cores

SIDES = ("server 1", "server 1 through other connections", "server 2")
VISITS, BLOCKS, QUADS = 4, 5, 3
USED = 0.9  # of the time: connecting and the probe have the rest
SAME_ANSWER = 0.999
SHORTEST = VisitPlan(blocks=1, block_s=0, quads=1, slice_s=0, alone_s=0, warmup_s=0)


@dataclass(frozen=True)
class Versus:
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


def compare(first: Request, second: Request, asked: Asked, watcher: Watcher) -> Versus:
    """Measure both servers in turns and compare them.

    Args:
        asked: the load, a closed loop; all of it takes about its `seconds`.

    Raises:
        PhotodupError: a server stopped answering before anything was measured, or the time is too short.
    """
    began, used = time.monotonic(), time.process_time()
    notes = same_answers(first, second, asked.batch)
    watcher.say("finding how long a turn takes")
    least_s = visit(first, second, asked, SHORTEST, 0).seconds
    n_visits, plan = fitted(least_s, asked.seconds - (time.monotonic() - began), asked.load)
    seen: list[Visit] = []
    for number in range(1, n_visits + 1):
        left_s = asked.seconds - (time.monotonic() - began)
        # Without the fewest observations the time before would be lost.
        has_enough = len(seen) * plan.blocks >= LEAST_OBSERVATIONS
        if watcher.stop_asked or (has_enough and max(visit.seconds for visit in seen) > left_s):
            why = "It was stopped by you" if watcher.stop_asked else "The time was over"
            notes.append(f"{why} after {len(seen)} of {n_visits} visits; what was measured is kept.")
            break
        watcher.say(f"visit {number} of {n_visits}, about {left_s:.0f} s left")
        try:
            seen.append(visit(first, second, asked, plan, number))
        except PhotodupError as error:
            why = f"In visit {number} of {n_visits} {str(error).rstrip('.')}"
            if not seen:
                raise PhotodupError(f"{why}.") from None
            notes.append(f"{why}; what was measured before is kept.")
            break
    if not seen:
        raise PhotodupError("It was stopped before anything was measured.")
    seconds = time.monotonic() - began
    outcomes = outcomes_of(seen, asked.load)
    sentences = sentences_of(outcomes, first.payloads.unit)
    notes += dict.fromkeys(note for outcome in reversed(outcomes) for note in outcome.notes)
    if first.payloads.words != second.payloads.words:
        notes.append(
            "The two were not sent the same payload, so the difference is not the servers' alone: "
            f"{first.payloads.words}; {second.payloads.words}."
        )
    share = (time.process_time() - used) / seconds / available_cores()
    notes += shared_cores(share, first.target, second.target)
    return Versus(outcomes, sentences, seen, notes, seconds)


def visit(first: Request, second: Request, asked: Asked, plan: VisitPlan, number: int) -> Visit:
    """Measure one visit of the sides in `SIDES`."""
    lanes = [Lane(one.adapter(asked.batch), items=one.payloads.items) for one in (first, first, second)]
    return measure_visit(lanes, (), asked.load, plan, seed=asked.seed + number)


def sentences_of(outcomes: list[Outcome], unit: str) -> list[str]:
    """Return the check's sentence, then the others'; a check that failed marks each of them."""
    check, *found = (sentence(outcome).replace("images/s", unit) for outcome in outcomes)
    if not has_failed(outcomes[0]):
        return [f"Check: {check}", *found]
    failed = f"The check failed, so the measuring itself finds a difference where there is none: {check}"
    return [failed, *(f"{one.rstrip('.')} (the check failed)." for one in found)]


def fitted(least_s: float, seconds: float, load: Load, *, looks: int = 1) -> tuple[int, VisitPlan]:
    """Return how many visits fit into a look, and what each has.

    Args:
        least_s: length of the shortest block, or quad of slices, of all sides.
        seconds: of all looks.

    Raises:
        PhotodupError: not even the fewest observations fit.
    """
    seconds /= looks
    room = int(USED * seconds / least_s)
    if room < LEAST_OBSERVATIONS:
        raise PhotodupError(
            "The time is too short to compare these servers under this load: give --seconds "
            f"{looks * (math.ceil(1.2 * LEAST_OBSERVATIONS * least_s / USED) + 1)}, or fewer requests in flight."
        )
    visits = min(VISITS, room // 2)
    blocks = min(BLOCKS if load.concurrency == 1 else QUADS, room // visits)
    visit_s = USED * seconds / visits
    block_s = 0.8 * visit_s / blocks
    alone_s = 0.05 * visit_s if room >= visits * (blocks + 2) else 0.0
    slice_s, warmup_s = block_s / (2 * len(SIDES)), min(0.5, 0.02 * visit_s)
    return visits, VisitPlan(blocks, block_s, blocks, slice_s, alone_s=alone_s, warmup_s=warmup_s)


def outcomes_of(visits: list[Visit], load: Load) -> list[Outcome]:
    """Return the check's outcome, and server 2 against server 1 in the usual metric and in percentiles."""
    usual = read.usual_metric(load)
    check = Question("check", "", usual, usual, SIDES[0], SIDES[1], "", is_null=True)
    questions = [read.answered(check, [visit.against(1) for visit in visits], load)]
    for metric in dict.fromkeys((usual, "latency_ms_p50", "latency_ms_p95", "latency_ms_p99")):
        # Percentiles rest on the same turns: pooled with the usual metric they would count as turns of their own.
        asked = Question(
            metric, "", metric, metric, SIDES[0], SIDES[2], "", metric == usual, nulls=("check",)
        )
        questions.append(read.answered(asked, [visit.against(2) for visit in visits], load))
    return judge(questions)


def same_answers(first: Request, second: Request, batch: int) -> list[str]:
    """Return a note where the two answer differently; none where either answers no numbers, one row an item."""
    if first.payloads.items[:4] != second.payloads.items[:4]:
        return []
    answers = []
    for one in (first, second):
        with contextlib.closing(one.adapter(batch)) as adapter:
            rows = answers_to(adapter, one.payloads.items[:4])
        answers.append(np.asarray(rows, np.float64))
    a, b = answers
    if not a.size or not b.size:
        return ["The answers of the two were not compared: they hold no rows of numbers."]
    if a.shape != b.shape:
        return [f"The two answer differently: {a.shape[1]} numbers an item and {b.shape[1]}."]
    lowest = lowest_cosine(a, b)
    if lowest < SAME_ANSWER:
        return [
            f"The two answer differently: the cosine of their answers to one item is as low as {lowest:.4f}."
        ]
    return []
