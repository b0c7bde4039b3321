"""All simulations in one result, with the goals they are held to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from photodup.bench.stats.compare import EXTENDED, FIXED
from photodup.selfbench.stats.simulate import as_plain, coverage, verdicts
from photodup.selfbench.stats.traces import read_traces, sources

MAX_FALSE_SHARE = 0.03  # 12 of 400, at a level of 5 % for a family
MIN_POWER = 0.90  # at a planted 10 %, where the spread between rounds is at most 2.5 %
COVERAGE = (0.93, 0.97)
EFFECTS = (0.0, 0.05, 0.10)


def measure_judge(
    run_dir: Path | str, *, seed: int = 0, n: int = 400, n_intervals: int = 1000
) -> dict[str, Any]:
    """Return the simulated error rates of the judge, deterministic by `seed`.

    Args:
        run_dir: a run whose recorded points are resampled.
        n: comparisons for each planted effect and plan.
        n_intervals: valid points whose intervals are checked.

    Raises:
        PhotodupError: the run has no point that is long and steady enough.
    """
    found = sources(read_traces(run_dir))
    children = iter(np.random.default_rng(seed).spawn(5))
    held = coverage(found, next(children), n_intervals)
    fixed = [verdicts(found, next(children), planted=effect, n=n) for effect in EFFECTS]
    extended = verdicts(found, next(children), planted=0.0, n=n, plan=EXTENDED)
    low_spread = next(iter(fixed[-1].power))
    goals = {
        "false_claims": all(v.wrong <= MAX_FALSE_SHARE * v.n for v in (fixed[0], extended)),
        "power_at_10_percent": (fixed[-1].power[low_spread] or 0.0) >= MIN_POWER,
        # The first figure, the mean, is the one that 1,000 intervals were asked of; each other is shown beside it.
        "coverage": COVERAGE[0] <= held.share["latency_ms_mean"] <= COVERAGE[1],
    }
    return {
        "run": Path(run_dir).name,
        "seed": seed,
        "n_sources": len(found),
        "plan": list(FIXED.looks),
        "coverage": as_plain(held),
        "comparisons": [as_plain(v) for v in (*fixed, extended)],
        "goals": goals,
        "passed": all(goals.values()),
    }


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the result as lines to print."""
    held = result["coverage"]
    told = [f"{result['n_sources']} recorded points of {result['run']} resampled, seed {result['seed']}."]
    for v in result["comparisons"]:
        plan = " and ".join(map(str, v["plan"]))
        told.append(
            f"planted {v['planted']:+.0%}, looks at {plan} rounds: {v['n']} comparisons: {v['different']} different, "
            f"{v['equal']} equal, {v['undecided']} undecided, {v['not_compared']} not compared; {v['wrong']} wrong"
        )
        shares = [
            f"{name}: {p:.0%} of {v['n_by_spread'][name]}" for name, p in v["power"].items() if p is not None
        ]
        if shares:
            told.append(f"  found by spread between rounds: {'; '.join(shares)}")
    told.append(
        f"intervals of {held['n_valid']} valid points (of {held['n_points']}) that hold the truth: "
        + ", ".join(f"{name} {share:.1%}" for name, share in held["share"].items())
    )
    told += [f"goal {name}: {'met' if met else 'MISSED'}" for name, met in result["goals"].items()]
    return told
