"""The whole search: short trials of every setting, longer ones of the best, exact rates of the last, and what is written."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from photodup.bench.judge.slo import LatencyBound
from photodup.bench.record.record import RunStore
from photodup.errors import PhotodupError
from photodup.files import available_cores
from photodup.paths import build_dir
from photodup.study.notebook.run import Run
from photodup.tune.serving.candidates import Setting, candidates
from photodup.tune.serving.found import Found, Tuned
from photodup.tune.serving.page import write_result
from photodup.tune.serving.trial import exact_trial, quick_trial

RUNG_SECONDS = (1.0, 2.0)
OPEN_SECONDS, OPEN_MEASUREMENTS = 4.0, 6
EXACT_SECONDS, EXACT_MEASUREMENTS = 10.0, 8
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def tune(
    run: Run,
    settings: Sequence[Setting],
    bound: LatencyBound,
    *,
    keep: int = 2,
    rung_seconds: Sequence[float] = RUNG_SECONDS,
    open_seconds: float = OPEN_SECONDS,
    exact_seconds: float = EXACT_SECONDS,
    exact_measurements: int = EXACT_MEASUREMENTS,
    say: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Search the setting with the highest rate under a bound. Every trial is recorded, so a search goes on where it ended.

    The first rungs are closed loops. The last one offers random arrivals, as the exact rates do: settings that answer as
    much in a closed loop can differ by a fifth in the rate at which they keep the bound.

    Args:
        run: its servers; its records hold the trials.
        settings: what takes part; one that cannot be served scores 0 and its reason is in its record.
        keep: how many get an exact rate.
        rung_seconds: length of the closed loops, one for each rung; one rung of random arrivals follows.
        open_seconds: length of each of that rung's `OPEN_MEASUREMENTS`.
        say: receives a line of text now and then.
    """
    told: list[dict[str, Any]] = []
    asked = {"bound_ms": bound.bound_ms, "percentile": bound.percentile}
    closed: dict[Setting, float] = {}  # images/s in the last closed loop

    def short(setting: Setting, rung: int) -> dict[str, Any]:
        seconds = rung_seconds[rung]
        return run.measure_or_load(
            f"trial-{rung}-{setting.backend.name}",
            lambda: quick_trial(run, setting, bound, seconds),
            config={**asdict(setting), **asked, "seconds": seconds},
            kind="trial",
            may_fail=True,
        )

    def rate(setting: Setting, about_per_s: float, seconds: float, n_measurements: int) -> dict[str, Any]:
        config = {**asdict(setting), **asked, "seconds": seconds, "measurements": n_measurements}
        return run.measure_or_load(
            f"rate-{setting.backend.name}",
            lambda: exact_trial(
                run, setting, bound, about_per_s, seconds=seconds, n_measurements=n_measurements
            ).as_record(),
            config={**config, "about": round(about_per_s, 1)},
            kind="rate",
            may_fail=True,
        )

    def score(setting: Setting, rung: int) -> float:
        if rung < len(rung_seconds):
            result = short(setting, rung)
            value = closed[setting] = float(result.get("score") or 0)
            spent_s, what = (
                rung_seconds[rung] * max(1, len(result.get("seen", []))),
                "images/s in a closed loop",
            )
        else:
            result = rate(setting, closed[setting], open_seconds, OPEN_MEASUREMENTS)
            value = float(result.get("rate_per_s") or 0)
            spent_s, what = open_seconds * OPEN_MEASUREMENTS, "requests/s of random arrivals"
        why = result.get("error") or result.get("because") or ""
        told.append(
            {"setting": setting.name, **setting.as_record(), "rung": rung, "score": value, "why": why}
        )
        told[-1] |= {"seconds": spent_s, "seen": result.get("seen", [])}
        say(f"tune: trial {len(told)}, {setting.name}: {value:.1f} {what} under {bound}")
        return value

    last, trials = halve(list(settings), score, rungs=len(rung_seconds) + 1, keep=keep)
    rates = {t.who: t.score for t in trials}  # the last trial of a finalist offered random arrivals
    finalists = []
    for setting in last:
        say(f"tune: exact rate of {setting.name}")
        result = rate(setting, rates[setting], exact_seconds, exact_measurements)
        why = result.get("because") or result.get("error") or ""
        finalists.append(Found(setting, result.get("rate_per_s"), result.get("low"), result.get("high"), why))
    finalists.sort(key=lambda f: -(f.rate_per_s or 0))
    exact_s = exact_seconds * exact_measurements
    return Tuned(
        bound,
        tuple(finalists),
        tuple(told),
        len(settings),
        sum(t["seconds"] for t in told) + exact_s * len(last),
        exact_s * len(settings),
    )


def tune_here(
    name: str,
    bound: LatencyBound,
    *,
    endpoints: Path | None = None,
    servers: Sequence[str] = ("fastapi", "triton"),
    keep: int = 2,
    say: Callable[[str], None] = print,
) -> tuple[Tuned, Path]:
    """Start what is needed (unless the servers run elsewhere), search, and write the result under build/tune/NAME.

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
                say("No INT8 file: `photodup export --precision int8` makes one; going on without.")
            field = candidates(available_cores(), int8=int8, servers=servers)
            models = sorted({s.backend.triton_model for s in field if s.server == "triton"})
            free: dict[str, Any] = dict.fromkeys(
                ("pytorch_port", "triton_http_port", "triton_grpc_port", "triton_metrics_port"), 0
            )
            say(f"Starting Triton with {len(models)} models" if models else "No Triton is needed")
            started = embedded_servers(
                models=models, service=not models, exported=exported, timeout_s=600.0, **free
            )
            where = stack.enter_context(started)
        if not field:
            raise PhotodupError("There is nothing to tune: no server listed is one that can be set up here.")
        run = Run(name, folder, where, RunStore(folder))
        with run.store:
            tuned = tune(run, field, bound, keep=keep, say=say)
    return tuned, write_result(tuned, folder)


T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Trial(Generic[T]):
    """One trial: who, in which rung (from 0), and the score; higher is better, 0 is useless."""

    who: T
    rung: int
    score: float


def halve(
    field: Sequence[T],
    measure: Callable[[T, int], float],
    *,
    rungs: int = 3,
    keep: int = 2,
    share: float = 1 / 3,
) -> tuple[list[T], list[Trial[T]]]:
    """Return the last `keep` of a field, best first, and every trial that was made: successive halving.

    Jamieson and Talwalkar, *Non-stochastic Best Arm Identification and Hyperparameter Optimization*, AISTATS 2016.

    Args:
        field: who takes part; none twice.
        measure: the score of one in a rung; later rungs should measure longer.
        rungs: how often the field is cut.
        share: of the field that goes on to the next rung, above 0 and below 1. Who scored 0 never goes on.

    Raises:
        PhotodupError: nobody takes part, or the numbers make no sense.
    """
    if not field or rungs < 1 or keep < 1 or not 0 < share < 1:
        raise PhotodupError(
            "A search needs settings to try, a rung, one to keep and a share between 0 and 1."
        )
    left, trials = list(dict.fromkeys(field)), []
    for rung in range(rungs):
        seen = [Trial(who, rung, measure(who, rung)) for who in left]
        trials += seen
        ranked = sorted((t for t in seen if t.score > 0), key=lambda t: -t.score)
        size = keep if rung == rungs - 1 else max(keep, math.ceil(share * len(left)))
        left = [t.who for t in ranked[:size]]
        if not left:
            break
    return left, trials
