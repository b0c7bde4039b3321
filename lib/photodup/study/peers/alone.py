"""One server of the comparison by itself: start-up, memory, twice its rate, and the highest rate under a bound."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.backends.adapters import check_embeddings
from photodup.bench.load.load import measure
from photodup.bench.load.plan import WindowPlan
from photodup.bench.load.usage import memory_mib
from photodup.bench.load.workers import PatientObserver, common_error
from photodup.bench.stats.facts import Load
from photodup.bench.stats.slo import LatencyBound, RateSearch, search_rates
from photodup.bench.verify.verify import verify
from photodup.core.errors import PhotodupError
from photodup.embedding.wire.wires import pixels
from photodup.serving.service.start import PATIENT
from photodup.study.comparisons.curve import CAPACITY, CAPACITY_PLAN
from photodup.study.peers.peers import MIN_COSINE, Server, Started, started, target

STARTS = 3
OVERLOAD, OVERLOAD_S, IN_FLIGHT = 2.0, 12.0, 128
RECOVERED, RECOVERY_LIMIT_S = 1.5, 30.0  # a single request is back within so many times its latency before
BOUND = LatencyBound(95, 250)
RATE_SECONDS, RATE_MEASUREMENTS = 8.0, 8


def reference_embeddings(weights: str, photos: Sequence[bytes]) -> np.ndarray:
    """Return our own embeddings of these JPEGs, float32 [n, dim] of length 1: what every server has to answer."""
    from photodup.embedding.engines.encoder import load_model

    return load_model(pretrained=weights, device="cpu").embed_pixels(pixels(photos))


def check(one: Started, payloads: Payloads, reference: np.ndarray, least: float = MIN_COSINE) -> float:
    """Return the lowest cosine to our own embeddings.

    Raises:
        PhotodupError: the server embeds something else, so its times say nothing.
    """
    return check_embeddings(one.adapter(payloads), payloads.items, reference, least, name=one.server.label)


def verify_alone(server: Server, weights: str) -> dict[str, Any]:
    """Return what `photodup verify` finds of a server in a process of its own, as broken files may kill it."""
    with started(server, weights, settings=PATIENT) as one:
        asked = target(server, one.base)
        return verify(asked, weights, precision=server.computed, most=server.most).as_record()


def measure_alone(server: Server, weights: str, payloads: Payloads, reference: np.ndarray) -> dict[str, Any]:
    """Return start-up times of `STARTS` starts, memory before and under load in MiB, and what twice its rate did to it."""
    first_answer_s: list[float] = []
    ready_s: list[float] = []
    facts_seen: dict[str, Any] = {}
    for number in range(STARTS):
        with started(server, weights, settings={} if number else PATIENT) as one:
            ready_s.append(one.ready_s)
            first_answer_s.append(one.ready_s + single_ms(one, payloads, 1)[0] / 1000)
            if number == 0:
                facts_seen["cosine_min"] = check(one, payloads, reference)
                facts_seen["memory_mib"] = memory_mib(one.pid)
                rate = probed_rate(one, payloads)
                facts_seen["memory_loaded_mib"] = memory_mib(one.pid)
            elif number == 1:
                facts_seen["overload"] = _overloaded(one, payloads, rate)
    return {"ready_s": ready_s, "first_answer_s": first_answer_s, "how": server.how, **facts_seen}


def _overloaded(one: Started, payloads: Payloads, rate: float) -> dict[str, Any]:
    """Offer twice the rate for some seconds; count what is refused, and time how soon a single request is as before."""
    before = float(np.median(single_ms(one, payloads, 8)))
    load = Load("server", concurrency=IN_FLIGHT, offered_per_s=OVERLOAD * rate, span="prepared")
    seen = PatientObserver()  # what is refused under overload is the result
    # Nothing to warm up: a burst of first requests on all connections is refused by those who refuse.
    plan = WindowPlan(OVERLOAD_S, 1, warmup_requests=0)
    point = measure(one.adapter(payloads), payloads.items, load, plan, observer=seen)
    ended = time.monotonic()
    while (waited := time.monotonic() - ended) < RECOVERY_LIMIT_S:
        with contextlib.suppress(PhotodupError, OSError):
            if single_ms(one, payloads, 1)[0] <= RECOVERED * before:
                break
        time.sleep(0.05)
    answered, failed = len(seen.latency_ms), len(seen.errors)
    return {
        "offered_per_s": OVERLOAD * rate,
        "answered": answered,
        "failed": failed,
        "error": common_error(seen.errors),
        "latency_ms_p50": float(np.median(seen.latency_ms)) if answered else None,
        "latency_ms_p95": float(np.percentile(seen.latency_ms, 95)) if answered >= 200 else None,
        "duration_s": point.get("duration_s"),
        "recovered_s": waited if waited < RECOVERY_LIMIT_S else None,
        "single_ms_before": before,
    }


def single_ms(one: Started, payloads: Payloads, count: int) -> list[float]:
    """Return how long so many requests took, one after the other, ms."""
    found = []
    with contextlib.closing(one.adapter(payloads)) as asks, contextlib.closing(asks.open()) as connection:
        for item in payloads.items[:count]:
            request = asks.prepare([item])
            began = time.perf_counter()
            connection.decode(connection.request(request))
            found.append((time.perf_counter() - began) * 1000)
    return found


def probed_rate(one: Started, payloads: Payloads) -> float:
    """Return requests/s with eight in flight, from a short measurement.

    Raises:
        PhotodupError: the server did not hold it.
    """
    point = measure(one.adapter(payloads), payloads.items, CAPACITY, CAPACITY_PLAN)
    if point.get("error") or not point.get("throughput_images_per_s"):
        why = point.get("error") or "nothing was answered"
        raise PhotodupError(f"{one.server.label} with {CAPACITY.concurrency} in flight: {why}.")
    return point["throughput_images_per_s"]


def highest_rate(server: Server, weights: str, payloads: Payloads) -> dict[str, Any]:
    """Return the highest rate of random arrivals at which a server keeps `BOUND`, as `SloRate.as_record` does."""
    draws = iter(range(10_000))
    with started(server, weights, settings=PATIENT) as one:
        about_per_s = probed_rate(one, payloads)

        def offered(rate_per_s: float) -> dict[str, Any]:
            load = Load("server", concurrency=IN_FLIGHT, offered_per_s=rate_per_s, span="prepared")
            plan = WindowPlan(RATE_SECONDS, 1, warmup_requests=2, seed=next(draws))
            return measure(one.adapter(payloads), payloads.items, load, plan)

        search = RateSearch(BOUND, about_per_s, n_measurements=RATE_MEASUREMENTS)
        return search_rates([search], [offered])[0].as_record()
