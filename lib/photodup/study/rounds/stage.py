"""The measuring stage: comparisons of any number of notebooks, planned together and measured in interleaved rounds.

What is planned is recorded before the first round (kind `pass`, one record a notebook): what was declared, what the time
or the servers did not allow, and which arms are measured twice as A/A checks. So a stage that was interrupted goes on with
the same plan, and a reader of the records knows what the judge must correct for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from photodup.bench.stats import facts
from photodup.bench.stats import schedule as order
from photodup.bench.stats.point import Point
from photodup.errors import PhotodupError
from photodup.study.rounds.arms import Arm, calibrate, measure_round
from photodup.study.rounds.declared import Pair
from photodup.study.rounds.sizes import OVERHEAD_S, SHORTEST_S

if TYPE_CHECKING:
    from photodup.bench.load.plan import Stopping
    from photodup.study.notebook.run import Run

ROUNDS = 8


def measure_stage(
    run: Run,
    pairs: Sequence[Pair],
    *,
    budget_s: float,
    rounds: int = ROUNDS,
    shortest_s: float = SHORTEST_S,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Plan the comparisons that have no plan yet and measure every round that is not recorded.

    Args:
        pairs: what to compare.
        budget_s: the rounds may take this long, seconds; the least important comparisons are dropped until they do.
        rounds: how many of each.
        shortest_s: no measurement is shorter.
        say: receives a line of text now and then.
    """
    pairs = [sides_of(run, pair) for pair in pairs]
    arms = _arms(run, pairs)
    lengths: dict[facts.Arm, Stopping] = {}
    unplanned = {p.notebook for p in pairs if plan_of(run, p.notebook) is None}
    waiting = [p for p in pairs if p.notebook in unplanned]
    reasons = _calibrate(run, waiting, lengths, shortest_s, say)
    if waiting:
        _plan(run, waiting, reasons, lengths, budget_s, rounds)
    plans = {p.notebook: plan_of(run, p.notebook) or {} for p in pairs}
    kept = [p for p in pairs if p.name in plans[p.notebook].get("kept", ())]
    # Of an earlier plan the calibrations are recorded: nothing is measured twice.
    gone = _calibrate(run, [p for p in kept if p.notebook not in unplanned], lengths, shortest_s, say)
    kept = [p for p in kept if p.name not in gone]
    if not kept:
        return
    rounds = max(plan["rounds"] for plan in plans.values() if plan)
    planned = order.schedule(
        [p.as_declared(run.name) for p in kept],
        seconds=lambda arm: _seconds(lengths[arm]),
        budget_s=float("inf"),
        rounds=range(1, rounds + 1),
    )
    started, last = time.monotonic(), [0]

    def measure(what: order.Measurement) -> Point:
        if what.round != last[0]:
            last[0] = what.round
            spent_min = (time.monotonic() - started) / 60
            say(f"comparisons: round {what.round} of {rounds}, {spent_min:.1f} minutes so far")
        measure_round(run, arms[what.arm], what.round, lengths[what.arm], again=what.again)
        return Point("valid", "")  # what it found is in the record

    # Twice the estimate: a noisy machine takes longer, and an end in the midst of the rounds decides nothing.
    until = started + 2 * max(budget_s, planned.expected_s)
    order.run(planned, measure, is_time_up=lambda: time.monotonic() > until)


def plan_of(run: Run, notebook: str) -> dict[str, Any] | None:
    """Return the recorded plan of a notebook's comparisons, or None.

    Its keys: `declared` (names), `kept`, `dropped` (name and one sentence), `checks` (side, load and metric of each
    A/A arm of the pass), `rounds`.
    """
    record = run.store.record(PLAN, config={"notebook": notebook})
    return record["result"] if record is not None and record["status"] == "ok" else None


def sides_of(run: Run, pair: Pair) -> Pair:
    """Return a comparison with the sides that were measured; before there is a plan, with those that the servers have."""
    plan = plan_of(run, pair.notebook)
    if plan is None:
        return pair.on(run.endpoints.backends)
    return pair.with_sides(plan.get("sides", {}).get(pair.name))


PLAN = "comparisons"


def leave_out(run: Run, pairs: Sequence[Pair], because: str) -> None:
    """Record for notebooks without a plan that their comparisons are not measured in this run, and why."""
    for notebook in dict.fromkeys(p.notebook for p in pairs):
        own = [p for p in pairs if p.notebook == notebook]
        _record(run, notebook, own, set(), {p.name: because for p in own})


def _record(
    run: Run,
    notebook: str,
    own: Sequence[Pair],
    kept: set[str],
    reasons: dict[str, str],
    checks: Sequence[dict[str, str]] = (),
    rounds: int = 0,
) -> None:
    names = [p.name for p in own]
    plan = {
        "declared": names,
        "kept": [name for name in names if name in kept],
        "dropped": [{"name": name, "because": reasons[name]} for name in names if name in reasons],
        "checks": list(checks),
        "rounds": rounds,
        "sides": {p.name: [p.a.name, p.b.name] for p in own if p.elsewhere},
    }
    run.measure_or_load(PLAN, lambda: plan, config={"notebook": notebook}, kind="pass")


def _plan(
    run: Run,
    pairs: Sequence[Pair],
    reasons: dict[str, str],
    lengths: dict[facts.Arm, Stopping],
    budget_s: float,
    rounds: int,
) -> None:
    possible = [p.as_declared(run.name) for p in pairs if p.name not in reasons]
    checks, kept = [], set()
    try:
        planned = order.schedule(
            possible,
            seconds=lambda arm: _seconds(lengths[arm]),
            budget_s=budget_s,
            rounds=range(1, rounds + 1),
        )
        kept = {declared.name for declared in planned.kept}
        reasons |= {dropped.name: dropped.because for dropped in planned.dropped}
        back = _arms(run, pairs)
        for check in planned.checks:
            arm = back[check.a]
            checks.append({"side": arm.side.name, "load": arm.asked.name, "metric": check.metric})
    except PhotodupError as error:  # not even one fits
        reasons |= {declared.name: str(error) for declared in possible}
    for notebook in dict.fromkeys(p.notebook for p in pairs):
        own = [p for p in pairs if p.notebook == notebook]
        _record(run, notebook, own, kept, reasons, checks, rounds)


def _calibrate(
    run: Run,
    pairs: Sequence[Pair],
    lengths: dict[facts.Arm, Stopping],
    shortest_s: float,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Fill `lengths` for the arms of these comparisons; return the sentence for each that cannot be measured."""
    reasons: dict[str, str] = {}
    failed: dict[facts.Arm, str] = {}
    checked: set[str] = set()
    todo = [(arm, p) for p in pairs for arm in _arms(run, [p])]
    compared: dict[facts.Arm, set[str]] = {}
    for arm, pair in todo:
        compared.setdefault(arm, set()).add(pair.metric)
    for number, (arm, pair) in enumerate(todo):
        if arm not in lengths and arm not in failed:
            if number and number % 10 == 0:
                say(f"comparisons: {number} of {len(todo)} calibrated")
            what = _arms(run, [pair])[arm]
            backend = what.side.backend.name
            if backend not in run.endpoints.backends and not what.side.backend.is_local:
                failed[arm] = f"{run.endpoints.name} has no {backend}."
            else:
                first = backend not in checked
                found = calibrate(run, what, compared[arm], shortest_s=shortest_s, check=first)
                checked.add(backend)
                if isinstance(found, str):
                    failed[arm] = found
                else:
                    lengths[arm] = found
        if arm in failed:
            reasons[pair.name] = failed[arm]
    return reasons


def _arms(run: Run, pairs: Sequence[Pair]) -> dict[facts.Arm, Arm]:
    """Return what the judge calls an arm and what is measured for it."""
    return {
        facts.Arm(side.as_judged(run.name), p.asked.as_judged()): Arm(side, p.asked)
        for p in pairs
        for side in (p.a, p.b)
    }


def _seconds(stopping: Stopping) -> float:
    return stopping.min_duration_s + stopping.ramp_s + OVERHEAD_S
