"""The highest rate of random arrivals at which a side keeps a latency bound, searched on the run's servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from photodup.bench.load.plan import Stopping
from photodup.bench.pairs.declared import Side
from photodup.bench.stats.facts import Load
from photodup.bench.stats.point import Sample
from photodup.bench.stats.slo import slo_rate
from photodup.embedding.backends import Backend
from photodup.study.notebook.points import MIN_COSINE, N_PHOTOS

if TYPE_CHECKING:
    from photodup.study.notebook.run import Run

LOWEST, HIGHEST = 0.3, 1.1  # of what the side answers with several in flight: between them lies the rate


def highest_rate(
    run: Run,
    side: Side,
    *,
    closed_per_s: float,
    bound_ms: float,
    percentile: float = 95,
    n_measurements: int = 9,
    seconds: float = 15.0,
) -> dict[str, Any]:
    """Return the highest rate at which `percentile` of the latencies lies within `bound_ms`; searched once a run.

    Args:
        closed_per_s: images/s that the side answers with several in flight; the search is around it.
        n_measurements, seconds: of Poisson arrivals each, with a new draw for each.

    Returns:
        `rate_per_s`, `low`, `high` (95 %), `seen` (every measurement), `because`; the rate is None where the sentence
        says why there is none. A gap where the side cannot be asked.
    """
    config = {"backend": side.backend.name, "side": side.name, "bound_ms": bound_ms, "percentile": percentile}
    config |= {"n_measurements": n_measurements, "seconds": seconds}
    known = run.store.record(f"slo-rate-{side.name}", config=config) is not None
    if not known and side.backend.name not in run.endpoints.backends:
        return {"rate_per_s": None, "because": f"{run.endpoints.name} has no {side.backend}"}

    def search() -> dict[str, Any]:
        draws = iter(range(10_000))
        found = slo_rate(
            lambda rate: sample_at(run, side.backend, rate, seconds, next(draws), dict(side.options)),
            bound_ms=bound_ms,
            percentile=percentile,
            low_per_s=LOWEST * closed_per_s,
            high_per_s=HIGHEST * closed_per_s,
            n_measurements=n_measurements,
        )
        return {**side.backend.columns(), **found.as_record()}

    return run.measure_or_load(f"slo-rate-{side.name}", search, config=config, kind="slo_rate", may_fail=True)


def sample_at(
    run: Run,
    backend: Backend,
    rate_per_s: float,
    seconds: float,
    draw: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Sample:
    """Offer random arrivals to a backend at a rate and return what was answered.

    Args:
        rate_per_s: requests/s, of one photograph each.
        draw: number of the draw of arrival times.
        options: of the adapter.
    """
    from photodup.bench.backends.adapters import adapter
    from photodup.bench.load.load import measure
    from photodup.bench.load.summary import sample_of_point
    from photodup.study.notebook.weights import payload_photos

    point = measure(
        adapter(backend, run.endpoints.backends[backend.name], **(options or {})),
        payload_photos(N_PHOTOS),
        Load("server", offered_per_s=rate_per_s),
        Stopping(min_duration_s=seconds, max_duration_s=seconds, seed=draw),
        reference=None,
        min_cosine=MIN_COSINE.get(backend.wire, 0.999),
        way=run.measure_way(),
    )
    return sample_of_point(point)
