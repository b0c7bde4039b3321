"""Random arrivals at one rate on a run's server, for a search by rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from photodup.bench.load.plan import Stopping
from photodup.bench.stats.facts import Load
from photodup.bench.stats.point import Sample
from photodup.embedding.backends import Backend
from photodup.study.notebook.points import MIN_COSINE, N_PHOTOS

if TYPE_CHECKING:
    from photodup.study.notebook.run import Run


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
