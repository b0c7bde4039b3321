"""Serve one setting and see what it does under a bound, quickly in a closed loop or exactly with random arrivals; or
several settings at once, in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from photodup.bench.load.plan import Stopping
from photodup.bench.pairs.alternate import VisitPlan, measure_visit
from photodup.bench.stats.facts import Load
from photodup.bench.stats.slo import LatencyBound, SloRate, slo_rate
from photodup.serving.triton.copies import configure
from photodup.study.comparisons.measure import reach
from photodup.study.comparisons.slo import sample_at
from photodup.study.notebook.run import Run
from photodup.study.notebook.weights import payload_photos
from photodup.tune.serving.candidates import Setting

IN_FLIGHT = (16, 8, 4, 2, 1)


def quick_trial(run: Run, setting: Setting, bound: LatencyBound, seconds: float) -> dict[str, Any]:
    """Return images/s at the most requests in flight that keep the bound (`score`, 0 if none does), and what was seen.

    A closed loop whose slow answers stay within the bound is about as fast as the open loop that it stands for; it is
    short, so it ranks settings and decides nothing.
    """
    from photodup.bench.backends.adapters import adapter
    from photodup.bench.load.load import measure

    seen, score = [], 0.0
    with served(run, setting) as where:
        under_test = adapter(setting.backend, where.endpoints.backends[setting.backend.name])
        for n in IN_FLIGHT:
            load = Load("closed_loop", concurrency=n) if n > 1 else Load("single_stream")
            stopping = Stopping(seconds, 1, seconds, warmup_requests=2, ramp_s=0.3)
            point = measure(under_test, payload_photos(16), load, stopping, reference=None)
            latency_ms = point.get("raw", {}).get("latency_ms", [])
            if len(latency_ms) < 2 * n:
                continue
            at = float(np.percentile(latency_ms, bound.percentile))
            seen.append({"in_flight": n, "latency_ms": at, "images_per_s": point["throughput_images_per_s"]})
            if at <= bound.bound_ms:
                score = point["throughput_images_per_s"]
                break
    return {"score": score, "seen": seen}


def exact_trial(
    run: Run,
    setting: Setting,
    bound: LatencyBound,
    about_per_s: float,
    *,
    seconds: float,
    n_measurements: int,
) -> SloRate:
    """Return the highest rate of random arrivals that keeps the bound, with its interval.

    Args:
        about_per_s: where to look, requests/s.
    """
    with served(run, setting) as where:
        draws = iter(range(10_000))
        return slo_rate(
            lambda rate: sample_at(where, setting.backend, rate, seconds, next(draws)),
            bound_ms=bound.bound_ms,
            percentile=bound.percentile,
            low_per_s=0.3 * about_per_s,
            high_per_s=1.3 * about_per_s,
            n_measurements=n_measurements,
        )


def measure_finalists(
    run: Run, settings: Sequence[Setting], load: Load, plan: VisitPlan, seed: int
) -> dict[str, Any]:
    """Serve several settings at once, measure them in turns and return the visit's record.

    All are started anew: Triton's settings as copies of its model beside each other, the FastAPI service's as processes.

    Raises:
        PhotodupError: they cannot be served at once, or one stopped answering.
    """
    with contextlib.ExitStack() as stack:
        lanes = []
        for setting in settings:
            where = run if setting.server == "triton" else stack.enter_context(served(run, setting))
            lanes.append(reach(where, setting.side, False, stack).lane())
        return measure_visit(lanes, payload_photos(16), load, plan, seed=seed).as_record()


@contextlib.contextmanager
def served(run: Run, setting: Setting) -> Iterator[Run]:
    """Serve a setting for the length of a block and yield the run that reaches it.

    Triton is reconfigured, and set back afterwards. On this machine the FastAPI service is started with the setting;
    elsewhere it is measured as it is deployed.
    """
    if setting.server == "triton":
        from photodup.serving.triton.control import temporary_config

        change = dict(setting.side.settings)
        with temporary_config(
            run.endpoints.triton_grpc, setting.side.configured_model, lambda c: configure(c, **change)
        ):
            yield run
    elif run.is_here:
        from photodup.serving.service.start import ServiceProcess

        with ServiceProcess(settings=setting.environment) as service:
            backends = run.endpoints.backends | {setting.backend.name: service.url}
            yield replace(run, endpoints=run.endpoints.model_copy(update={"backends": backends}))
    else:
        yield run
