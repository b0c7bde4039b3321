"""The whole search: short trials of every setting, longer ones of the best, exact rates of the last; these take turns."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from photodup.bench.pairs import read
from photodup.bench.pairs.alternate import VisitPlan
from photodup.bench.record.json_files import reading
from photodup.bench.record.record import RunStore
from photodup.bench.stats.comparison import Question, judge
from photodup.bench.stats.facts import Load
from photodup.bench.stats.slo import LatencyBound
from photodup.errors import PhotodupError
from photodup.files import available_cores
from photodup.names import escaped
from photodup.paths import build_dir
from photodup.study.comparisons.outcomes import recorded
from photodup.study.notebook.run import Run
from photodup.tune.serving.candidates import Setting, candidates
from photodup.tune.serving.found import Found, Tuned, write_result
from photodup.tune.serving.trial import exact_trials, measure_finalists, quick_trial

RUNG_SECONDS = (1.0, 2.0)  # of the closed loops, one for each rung; one rung of random arrivals follows
OPEN_SECONDS, OPEN_MEASUREMENTS = 4.0, 6
EXACT_SECONDS, EXACT_MEASUREMENTS = 10.0, 8
VISITS, TURNS = 4, VisitPlan(alone_s=0.0)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def tune(
    run: Run,
    settings: Sequence[Setting],
    bound: LatencyBound,
    *,
    keep: int = 2,
    least_per_s: float | None = None,
    most_per_s: float | None = None,
    minutes: float = math.inf,
    say: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Search the setting with the highest rate under a bound. Every trial is recorded, so a search goes on where it ended.

    The first rungs are closed loops. The last one offers random arrivals, as the exact rates do: settings that answer as
    much in a closed loop can differ by a fifth in the rate at which they keep the bound.

    Args:
        run: its servers; its records hold the trials.
        settings: what takes part; one that cannot be served scores 0 and its reason is in its record.
        keep: how many get an exact rate; they take turns where they can be served at once.
        least_per_s, most_per_s: no lower and no higher rate is offered.
        minutes: after these no further short trial begins; the best so far get their exact rates.
        say: receives a line of text now and then.
    """
    told: list[dict[str, Any]] = []
    limits = {"least_per_s": least_per_s, "most_per_s": most_per_s}
    asked = {"bound_ms": bound.bound_ms, "percentile": bound.percentile}
    asked |= {name: value for name, value in limits.items() if value is not None}
    closed: dict[Setting, float] = {}  # images/s in the last closed loop
    kept: dict[Setting, int] = {}  # the most in flight with which it kept the bound there
    measured: set[str] = set()  # keys of what was measured now, and not read from records
    until = time.monotonic() + 60 * minutes

    def now(
        key: str, measure: Callable[[], dict[str, Any]], config: dict[str, Any], kind: str
    ) -> dict[str, Any]:
        def noted() -> dict[str, Any]:
            measured.add(key)
            return measure()

        measured.discard(key)
        result = run.measure_or_load(key, noted, config=config | asked, kind=kind, may_fail=True)
        with reading(run.store.path_of(key, config | asked)):
            return _checked(result, len(config.get("settings", [])))

    def rates(
        who: Sequence[Setting], about: Sequence[float], seconds: float, count: int
    ) -> list[dict[str, Any]]:
        """The rates of settings in turns, or one after the other where they cannot be served at once."""
        sizes = {"seconds": seconds, "measurements": count, "about": [round(rate, 1) for rate in about]}

        def exact() -> dict[str, Any]:
            ends = exact_trials(run, who, bound, about, seconds=seconds, n_measurements=count, **limits)
            return {"rates": [one.as_record() for one in ends]}

        key = f"rate-{'-'.join(setting.backend.name for setting in who)}"
        found = now(key, exact, {"settings": [asdict(setting) for setting in who], **sizes}, "rate")
        if "rates" in found:
            return found["rates"]
        if len(who) == 1:
            return [found]
        say(f"tune: one after the other, since {found['error']}")
        return [rates([one], [rate], seconds, count)[0] for one, rate in zip(who, about, strict=True)]

    def score(setting: Setting, rung: int) -> float:
        if rung < len(RUNG_SECONDS):
            seconds, key = RUNG_SECONDS[rung], f"trial-{rung}-{setting.backend.name}"
            trial = partial(quick_trial, run, setting, bound, seconds)
            result = now(key, trial, {**asdict(setting), "seconds": seconds}, "trial")
            value = closed[setting] = float(result.get("score") or 0)
            within = [s["in_flight"] for s in result.get("seen", []) if s["latency_ms"] <= bound.bound_ms]
            kept[setting] = max(within, default=1)
            what = "images/s in a closed loop"
        else:
            key, seconds = f"rate-{setting.backend.name}", OPEN_SECONDS
            result = rates([setting], [closed[setting]], seconds, OPEN_MEASUREMENTS)[0]
            value, what = float(result.get("rate_per_s") or 0), "requests/s of random arrivals"
        seen, why = result.get("seen", []), result.get("error") or result.get("because") or ""
        spent_s = seconds * max(1, len(seen))
        told.append(
            {"setting": setting.name, **setting.as_record(), "rung": rung, "score": value, "why": why}
        )
        told[-1] |= {"seconds": spent_s, "seen": seen}
        how = "" if key in measured else " (from the records)"
        said = f"{value:.1f} {what} under {bound}" if value else f"none under {bound}. {why}".rstrip(". ")
        say(f"tune: trial {len(told)} of {n_trials} at most{how}, {setting.name}: {said}")
        return value

    rungs = len(RUNG_SECONDS) + 1
    n_trials = sum(field_sizes(len(set(settings)), rungs=rungs, keep=keep))
    last = halve(
        list(settings), score, rungs=rungs, keep=keep, go_on=lambda: not told or time.monotonic() < until
    )
    about = {t["setting"]: t["score"] for t in told}  # the last trial of a finalist offered random arrivals
    finalists = []
    if last:
        say(f"tune: exact rates of {len(last)} finalists")
    found = rates(last, [about[who.name] for who in last], EXACT_SECONDS, EXACT_MEASUREMENTS) if last else []
    for setting, result in zip(last, found, strict=True):
        why = result.get("because") or result.get("error") or ""
        finalists.append(Found(setting, result.get("rate_per_s"), result.get("low"), result.get("high"), why))
    finalists.sort(key=lambda f: -(f.rate_per_s or 0))
    in_flight = max((kept.get(f.setting, 1) for f in finalists[:1]), default=1)
    finalists, turns_s = in_turns(run, finalists, in_flight, say)
    spent_s = sum(t["seconds"] for t in told) + turns_s
    spent_s += EXACT_SECONDS * sum(len(result.get("seen", [])) for result in found)
    exhaustive_s = EXACT_SECONDS * EXACT_MEASUREMENTS * len(settings)
    return Tuned(bound, tuple(finalists), tuple(told), len(settings), spent_s, exhaustive_s, in_flight)


def _checked(result: dict[str, Any], n_rates: int) -> dict[str, Any]:
    """Return what a trial, or the rates of so many settings, found; raise where a record holds what neither writes."""
    if "error" in result:
        return result
    found = result["rates"] if n_rates else [result]
    if len(found) != max(n_rates, 1):
        raise ValueError(f"it holds {len(found)} rates, not {n_rates}")
    for one in found:
        names = ("rate_per_s", "low", "high") if n_rates else ("score",)
        numbers = [one[name] for name in names if one[name] is not None]
        for at in one["seen"]:
            load = "rate_per_s" if n_rates else "images_per_s"
            numbers += [at["latency_ms"], at[load], at.get("in_flight", 1)]
        if not all(type(number) in (int, float) and 0 <= number < 1e9 for number in numbers):
            raise ValueError("it holds a number that no measurement gives")
        one["because"] = escaped(one.get("because", ""))
    return result


def in_turns(
    run: Run, finalists: Sequence[Found], in_flight: int, say: Callable[[str], None]
) -> tuple[list[Found], float]:
    """Compare the finalists by measuring them in turns; return them with the best first, and the seconds spent.

    The rate under the bound decides. Where the intervals of two rates overlap, a difference found in turns does.

    Args:
        finalists: the one with the highest rate first.
        in_flight: requests in flight: as many as kept the bound.
    """
    field = [found.setting for found in finalists if found.rate_per_s]
    if len(field) < 2:
        return list(finalists), 0.0
    load = Load("closed_loop", concurrency=in_flight) if in_flight > 1 else Load("single_stream")

    def config(visit: int) -> dict[str, Any]:
        return {"finalists": [asdict(one) for one in field], "load": asdict(load), "visit": visit}

    for number in range(1, VISITS + 1):
        say(f"tune: visit {number} of {VISITS} of the {len(field)} finalists in turns")
        measure = partial(measure_finalists, run, field, load, TURNS, number)
        run.measure_or_load("finalists", measure, config=config(number), kind="visit", may_fail=True)
    seen = list(recorded(run, "finalists", config))
    visits = [visit for _, visit in seen if visit is not None]
    why = next((str(record["error"]) for record, visit in seen if visit is None), "")
    first, *others = (setting.name for setting in field)
    questions = []
    for place, name in enumerate(others, start=1):
        asked = Question(name, "tune", read.usual_metric(load), "turns", first, name, why, is_primary=True)
        questions.append(read.answered(asked, [visit.against(place) for visit in visits], load))
    outcomes = {outcome.question.name: outcome for outcome in judge(questions)}
    compared = [replace(found, outcome=outcomes.get(found.setting.name)) for found in finalists]

    def better(found: Found) -> float:
        """How much more it answers than the one with the highest rate; 0 where that is not found, or rates decide."""
        outcome = found.outcome
        if outcome is None or not outcome.is_different or not found.overlaps(compared[0]):
            return 0.0
        return outcome.effect if outcome.metric.quantity == "throughput" else -outcome.effect

    best = max(compared, key=lambda found: max(better(found), 0.0))  # the first of equal ones
    rest = [found for found in compared if found is not best]
    return [best, *rest], sum(visit.seconds for visit in visits)


def tune_here(
    name: str,
    bound: LatencyBound,
    *,
    endpoints: Path | None = None,
    servers: Sequence[str] = ("fastapi", "triton"),
    **options: Any,
) -> tuple[Tuned, Path]:
    """Start what is needed (unless the servers run elsewhere), search, and write the result under build/tune/NAME.

    Args:
        options: of `tune`.

    Raises:
        PhotodupError: a bad name, no server to try, or servers that cannot be started.
    """
    from photodup.serving.embedded import embedded_servers, export_models
    from photodup.serving.endpoints import load_endpoints

    if not _NAME.fullmatch(name):
        raise PhotodupError(f"{name!r} is no name: use small letters, digits, '.', '_' and '-'.")
    folder = build_dir() / "tune" / name
    with contextlib.ExitStack() as stack:
        if endpoints is not None:
            where = load_endpoints(endpoints)
            where.use_control_key()
            every = candidates(available_cores(), servers=servers)
            field = [s for s in every if s.backend.name in where.backends]
        else:
            exported = export_models()
            int8 = "openvino-int8" in exported["files"]
            if not int8:
                print("No INT8 file: `photodup export --precision int8` makes one; going on without.")
            field = candidates(available_cores(), int8=int8, servers=servers)
            models = sorted({s.backend.triton_model for s in field if s.server == "triton"})
            print(f"Starting Triton with {len(models)} models" if models else "No Triton is needed")
            started = embedded_servers(models=models, service=not models, exported=exported, timeout_s=600.0)
            where = stack.enter_context(started)
        if not field:
            raise PhotodupError("There is nothing to tune: no server listed is one that can be set up here.")
        run = Run(name, folder, where, RunStore(folder))
        with run.store:
            tuned = tune(run, field, bound, say=print, **options)
    return tuned, write_result(tuned, folder)


T = TypeVar("T", bound=Hashable)


def halve(
    field: Sequence[T],
    measure: Callable[[T, int], float],
    *,
    rungs: int = 3,
    keep: int = 2,
    go_on: Callable[[], bool] = lambda: True,
) -> list[T]:
    """Return the last `keep` of a field, best first: successive halving.

    Jamieson and Talwalkar, *Non-stochastic Best Arm Identification and Hyperparameter Optimization*, AISTATS 2016.

    Args:
        field: who takes part; none twice.
        measure: the score of one in a rung; later rungs should measure longer.
        rungs: how often the field is cut, each time to a third. Who scored 0 never goes on.
        go_on: asked before each trial; where it says no, the best of the rung so far are the last, and of the rung before
            it where nobody was tried.

    Raises:
        PhotodupError: nobody takes part, or the numbers make no sense.
    """
    if not field or rungs < 1 or keep < 1:
        raise PhotodupError("A search needs settings to try, a rung and one to keep.")
    left = list(dict.fromkeys(field))
    for rung in range(rungs):
        scores: dict[T, float] = {}
        for who in left:
            if not go_on():
                break
            scores[who] = measure(who, rung)
        if not scores:
            return left[:keep]
        is_over = rung == rungs - 1 or len(scores) < len(left)
        size = keep if is_over else max(keep, math.ceil(len(left) / 3))
        left = sorted((who for who in scores if scores[who] > 0), key=lambda who: -scores[who])[:size]
        if not left or is_over:
            break
    return left


def field_sizes(n: int, *, rungs: int, keep: int) -> list[int]:
    """Return how many are tried in each rung of `halve` at most."""
    sizes = [n]
    while len(sizes) < rungs:
        sizes.append(min(sizes[-1], max(keep, math.ceil(sizes[-1] / 3))))
    return sizes
