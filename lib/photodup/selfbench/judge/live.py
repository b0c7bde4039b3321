"""The same question asked of real servers: does the judge call a server different from itself?

The measuring is a callback, so that a null server, Triton or any other thing can be asked.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from photodup.bench.judge.compare import FIXED, Comparison, Outcome, Plan, judge_family
from photodup.bench.judge.facts import Arm
from photodup.bench.judge.measured import Round
from photodup.bench.judge.point import Point
from photodup.bench.judge.schedule import measured
from photodup.bench.judge.sentence import comparison_sentence
from photodup.errors import PhotodupError


@dataclass(frozen=True)
class LiveChecks:
    """How a server compared with itself came out.

    Attributes:
        n: comparisons.
        false_claims: those called different.
        outcomes, sentences: one for each.
    """

    n: int
    false_claims: int
    outcomes: tuple[Outcome, ...]
    sentences: tuple[str, ...]


def check_live(
    arms: Sequence[tuple[Arm, Callable[[], Point]]],
    metrics: Sequence[str] = ("latency_ms_p50", "throughput_images_per_s"),
    *,
    repeats: int = 5,
    plan: Plan = FIXED,
    seed: int = 0,
) -> LiveChecks:
    """Compare each arm with itself, `repeats` times for each metric, in interleaved rounds.

    Args:
        arms: what is measured, and the callback that measures it once. Two arms, two metrics and five repeats are
            twenty comparisons; each measurement serves all metrics.
        plan: rounds; each takes two measurements of each arm and repeat.

    Raises:
        PhotodupError: no arms, or fewer than one repeat.
    """
    if not arms or not metrics or repeats < 1:
        raise PhotodupError("A live check needs one arm, one metric and one repeat or more.")
    generator = random.Random(seed)
    jobs = [
        (index, repeat, side) for index in range(len(arms)) for repeat in range(repeats) for side in (0, 1)
    ]
    rounds: dict[tuple[int, int], list[tuple[int, Point, Point]]] = {}
    for number in range(1, plan.looks[-1] + 1):
        points = {job: arms[job[0]][1]() for job in generator.sample(jobs, len(jobs))}
        for index, repeat, side in jobs:
            if side == 0:
                pair = (number, points[index, repeat, 0], points[index, repeat, 1])
                rounds.setdefault((index, repeat), []).append(pair)
    outcomes = []
    for (index, repeat), pairs in rounds.items():
        arm = arms[index][0]
        for metric in metrics:
            told = tuple(Round(n, measured(a, metric), measured(b, metric)) for n, a, b in pairs)
            name = f"{arm.side.label} {metric} {repeat}"
            check = Comparison(name, "live", metric, arm, arm, told, is_check=True)
            outcomes += judge_family([check], plan)
    false = sum(outcome.verdict == "different" for outcome in outcomes)
    return LiveChecks(len(outcomes), false, tuple(outcomes), tuple(map(comparison_sentence, outcomes)))
