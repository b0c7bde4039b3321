"""Made-up points, as rows of a run's table."""

import contextlib
from typing import Any

from photodup.embedding.backends import parse_backend
from photodup.errors import PhotodupError


def point(backend: str, *, ci: float = 0.02, **values: Any) -> dict[str, Any]:
    """Return a valid point; its latencies and its throughput have intervals of ±`ci`, relative."""
    row = {"run": "made-up", "link": "rtt25", "rtt_ms": 25.0, "device": "A100 SXM4", "valid": True}
    row |= {
        "scenario": "single_stream", "batch": 1, "concurrency": 1, "connection": "new", "offered_per_s": None,
    }  # fmt: skip
    row["backend"] = backend
    with contextlib.suppress(PhotodupError):  # a plain name, such as body-json
        row |= parse_backend(backend).columns()
    row |= values
    for name in ("latency_ms_p50", "latency_ms_p95", "latency_ms_mean", "throughput_images_per_s"):
        if row.get(name) is not None:
            row[f"{name}_ci_low"], row[f"{name}_ci_high"] = row[name] * (1 - ci), row[name] * (1 + ci)
    return row
