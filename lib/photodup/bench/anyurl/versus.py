"""Two servers compared: interleaved rounds under one load, each server also measured against itself."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from photodup.bench.anyurl.measure import Asked, Measured, measure_load
from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.anyurl.target import Target
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.backends.adapter import decoded
from photodup.bench.stats import facts, schedule
from photodup.bench.stats.compare import Outcome, judge_pass
from photodup.bench.stats.point import Point
from photodup.bench.stats.sentence import comparison_sentence

ROUNDS = 8
WAVES, WAVES_OF_ONE = 30, 42  # of a measurement: 20 blocks are needed, some are lost to the warm-up
# Wider than of a load that stands alone: what a short measurement misses shows in the spread between the rounds, from
# which the comparison's interval comes.
HALF_WIDTH = 0.25
SHORTEST_S, LONGEST_S, PROBE_S = 3.0, 30.0, 1.5
SLACK = 1.6  # single requests: time for a second look on a machine that has become slower
SAME_ANSWER = 0.999


@dataclass(frozen=True)
class Versus:
    """What came of a comparison: the judge's outcomes, its sentences, and everything that was measured."""

    outcomes: list[Outcome]
    sentences: list[str]
    measured: list[tuple[str, int, Measured]]  # URL, round, what came of it
    notes: list[str]


@dataclass(frozen=True)
class Competitor:
    """A server with the maker of its adapters."""

    target: Target
    make: Callable[[], Any]
    payloads: Payloads
    variant: str = ""

    @property
    def side(self) -> facts.Side:
        # Which engine stands behind a URL nobody knows: each server has an A/A arm of its own.
        name = f"{self.target.name}{f' ({self.variant})' if self.variant else ''}"
        return facts.Side(
            name, name, name, "", self.target.protocol, self.payloads.kind, machine="as addressed"
        )


def compare(
    first: Competitor, second: Competitor, asked: Asked, watcher: Watcher, *, rounds: int = ROUNDS
) -> Versus:
    """Measure both servers in rounds and judge them.

    Args:
        asked: the load; its `seconds` is the longest time of one measurement.
    """
    pair = [first, second]
    if first.side == second.side:
        pair = [replace(first, variant="first"), replace(second, variant="second")]
    notes = _same_answers(*pair)
    load = asked.load.as_judged("as addressed")
    arms = {facts.Arm(one.side, load): one for one in pair}
    lengths = {arm: _length(one, asked, watcher) for arm, one in arms.items()}
    seconds = max(lengths.values())  # of both alike: a longer window must not be a better figure
    precise: tuple[str, ...] = ("latency_ms_p50",)
    precise += ("throughput_images_per_s",) if asked.rate_per_s is None and asked.concurrency > 1 else ()
    metrics = (*precise, "latency_ms_p99")
    asked = replace(asked, half_width=HALF_WIDTH, precise=precise)
    a, b = arms
    declared = [schedule.Declared(metric, "two servers", metric, a, b) for metric in metrics]
    planned = schedule.schedule(
        declared,
        seconds=lambda arm: seconds,
        budget_s=math.inf,
        rounds=range(1, rounds + 1),
        seed=asked.seed,
    )
    measured: list[tuple[str, int, Measured]] = []
    total = len(planned.measurements)

    def one(measurement: schedule.Measurement) -> Point:
        if watcher.stop_asked:
            return Point("failed", "it was stopped by you")
        who = arms[measurement.arm]
        longest = seconds * (SLACK if load.wave == 1 and asked.rate_per_s is None else 1)
        timed = replace(asked, seconds=longest, shortest_s=seconds, seed=asked.seed + measurement.round)
        label = f"{len(measured) + 1} of {total}, round {measurement.round}, {who.target.name}"
        came = measure_load(who.make, who.payloads, timed, watcher, label=label)
        measured.append((who.side.label, measurement.round, came))
        return came.point

    watcher.say(
        f"{rounds} rounds, {total} measurements of {seconds:.0f} s: about {total * (seconds + 0.5) / 60:.1f} minutes."
    )
    points = schedule.run(planned, one, is_time_up=lambda: watcher.stop_asked)
    outcomes = judge_pass(schedule.comparisons_of(planned, points))
    unit = {"images": "images/s", "texts": "texts/s", "files": "files/s"}.get(first.payloads.kind, "items/s")
    sentences = [comparison_sentence(o).replace("images/s", unit) for o in outcomes]
    if watcher.stop_asked:
        notes.append("It was stopped by you; what was measured until then is kept.")
    if failed := [m for _, _, m in measured if m.point.verdict == "failed"]:
        notes.append(f"{len(failed)} of {len(measured)} measurements failed: {failed[0].point.because}.")
    if first.payloads.words != second.payloads.words:
        notes.append("The two were not sent the same payload, so the comparison says nothing of the servers.")
    shares = [m.columns.get("client_cpu_share", 0.0) for _, _, m in measured]
    if max(shares, default=0.0) > 0.25 and any(c.target.is_local for c in pair):
        notes.append(f"The generator took up to {max(shares):.0%} of the cores that it shares with a server.")
    return Versus(outcomes, sentences, measured, notes)


def _length(one: Competitor, asked: Asked, watcher: Watcher) -> float:
    """Return how long a measurement has to be for enough whole waves, from a short one."""
    probe = replace(asked, seconds=PROBE_S, shortest_s=PROBE_S)
    came = measure_load(one.make, one.payloads, probe, watcher, label=f"{one.target.name}, to find how long")
    rate = len(came.sample.latency_ms) / PROBE_S
    wave = came.asked.load.as_judged().wave
    if asked.rate_per_s is not None:
        return min(asked.seconds, LONGEST_S)
    waves = WAVES_OF_ONE if wave == 1 else WAVES
    return min(max(waves * wave / max(rate, 0.1), SHORTEST_S), max(asked.seconds, SHORTEST_S), LONGEST_S)


def _same_answers(first: Competitor, second: Competitor) -> list[str]:
    """Say whether the two answer alike; only where both answer numbers, one row an item."""
    if first.payloads.items[:4] != second.payloads.items[:4]:
        return []
    answers = []
    for one in (first, second):
        adapter = one.make()
        connection = adapter.open()
        try:
            rows = [
                decoded(connection, connection.request(adapter.prepare([item])))[0]
                for item in one.payloads.items[:4]
            ]
        finally:
            connection.close()
            adapter.close()
        answers.append(np.asarray(rows, np.float64))
    a, b = answers
    if not a.size or not b.size:
        return ["Whether the two answer the same was not checked: these answers hold no rows of numbers."]
    if a.shape != b.shape:
        return [f"The two answer differently: {a.shape[1]} numbers an item and {b.shape[1]}."]
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    lowest = float(np.min(np.sum(a * b, axis=1) / np.where(norms > 0, norms, 1)))
    if lowest < SAME_ANSWER:
        return [
            f"The two answer differently: the cosine of their answers to one item is as low as {lowest:.4f}."
        ]
    return []
