"""Serve settings and see what they do under a bound: one quickly in a closed loop; one or several, which then take turns,
exactly with random arrivals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from photodup.bench.load.load import measure
from photodup.bench.load.plan import Stopping
from photodup.bench.load.summary import sample_of_point
from photodup.bench.pairs.alternate import Lane, VisitPlan, measure_visit
from photodup.bench.stats.facts import Load
from photodup.bench.stats.point import Sample
from photodup.bench.stats.slo import LatencyBound, RateSearch, SloRate, search_rates
from photodup.study.comparisons.measure import reach, with_settings
from photodup.study.notebook.points import N_PHOTOS
from photodup.study.notebook.run import Run
from photodup.study.notebook.weights import payload_photos
from photodup.tune.serving.candidates import Setting

IN_FLIGHT = (16, 8, 4, 2, 1)


def quick_trial(run: Run, setting: Setting, bound: LatencyBound, seconds: float) -> dict[str, Any]:
    """Return images/s at the most requests in flight that keep the bound (`score`, 0 if none does), and what was seen.

    A closed loop whose slow answers stay within the bound is about as fast as the open loop that it stands for; it is
    short, so it ranks settings and decides nothing.
    """
    seconds = max(
        seconds, 3 * bound.bound_ms / 1000
    )  # else too few answers that keep the bound arrive to be counted
    seen, score = [], 0.0
    with at_once(run, [setting]) as (lane,):
        for n in IN_FLIGHT:
            load = Load("closed_loop", concurrency=n) if n > 1 else Load("single_stream")
            stopping = Stopping(seconds, 1, seconds, warmup_requests=2, ramp_s=0.3)
            point = measure(lane.adapter, payload_photos(N_PHOTOS), load, stopping, reference=None)
            latency_ms = point.get("raw", {}).get("latency_ms", [])
            if len(latency_ms) < 2 * n:
                continue
            at = float(np.percentile(latency_ms, bound.percentile))
            seen.append({"in_flight": n, "latency_ms": at, "images_per_s": point["throughput_images_per_s"]})
            if at <= bound.bound_ms:
                score = point["throughput_images_per_s"]
                break
    return {"score": score, "seen": seen}


def exact_trials(
    run: Run,
    settings: Sequence[Setting],
    bound: LatencyBound,
    about_per_s: Sequence[float],
    *,
    seconds: float,
    n_measurements: int,
    least_per_s: float | None = None,
    most_per_s: float | None = None,
) -> list[SloRate]:
    """Return each setting's highest rate of random arrivals that keeps the bound; several settings take turns.

    Args:
        about_per_s: where to look for each, requests/s.
        seconds: of one measurement at one rate.
        n_measurements, least_per_s, most_per_s: of `RateSearch`.
    """
    draws = iter(range(10_000))

    def offered(lane: Lane) -> Callable[[float], Sample]:
        def at(rate: float) -> Sample:
            stopping = Stopping(seconds, max_duration_s=seconds, seed=next(draws))
            load = Load("server", offered_per_s=rate)
            return sample_of_point(measure(lane.adapter, payload_photos(N_PHOTOS), load, stopping))

        return at

    searches = [
        RateSearch(
            bound, about, least_per_s=least_per_s, most_per_s=most_per_s, n_measurements=n_measurements
        )
        for about in about_per_s
    ]
    with at_once(run, settings) as lanes:
        return search_rates(searches, [offered(lane) for lane in lanes])


def measure_finalists(
    run: Run, settings: Sequence[Setting], load: Load, plan: VisitPlan, seed: int
) -> dict[str, Any]:
    """Serve several settings at once, measure them in turns and return the visit's record.

    Raises:
        PhotodupError: they cannot be served at once, or one stopped answering.
    """
    with at_once(run, settings) as lanes:
        return measure_visit(lanes, payload_photos(N_PHOTOS), load, plan, seed=seed).as_record()


@contextlib.contextmanager
def at_once(run: Run, settings: Sequence[Setting]) -> Iterator[list[Lane]]:
    """Serve settings for the length of a block and yield what reaches each.

    All are started anew: the FastAPI service's as processes; Triton's as copies of its model beside each other, a single
    one as its model itself, which a Triton elsewhere allows.

    Raises:
        PhotodupError: they cannot be served at once.
    """
    with contextlib.ExitStack() as stack:
        lanes = []
        for setting in settings:
            where, side = run, setting.side
            if setting.server == "fastapi" or len(settings) == 1:
                where, side = stack.enter_context(served(run, setting)), replace(side, settings=())
            lanes.append(reach(where, side, False, stack).lane())
        yield lanes


@contextlib.contextmanager
def served(run: Run, setting: Setting) -> Iterator[Run]:
    """Serve a setting for the length of a block and yield the run that reaches it.

    Triton is reconfigured, and set back afterwards. On this machine the FastAPI service is started with the setting;
    elsewhere it is measured as it is deployed.
    """
    if setting.server == "triton":
        with with_settings(run, setting.side):
            yield run
    elif run.is_here:
        from photodup.serving.service.start import ServiceProcess

        with ServiceProcess(settings=setting.environment) as service:
            backends = run.endpoints.backends | {setting.backend.name: service.url}
            yield replace(run, endpoints=run.endpoints.model_copy(update={"backends": backends}))
    else:
        yield run
