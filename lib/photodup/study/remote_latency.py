"""The network path to a run's servers: measured latencies, and what two models predict for them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from photodup.bench.link import latency_model
from photodup.bench.link.payload_latency import measure_path
from photodup.embedding.backends import parse_backend
from photodup.study.notebook.gaps import NotMeasured

if TYPE_CHECKING:
    import pandas as pd

    from photodup.study.notebook.run import Run

MODELS = ("rounds", "bandwidth-only")


def sink_of(run: "Run") -> tuple[str, str]:
    """Return address and kind of the server that payloads are sent to: Triton over HTTP, else the FastAPI service.

    Raises:
        NotMeasured: the endpoints list neither.
    """
    for server in ("triton", "fastapi"):
        for name, url in run.endpoints.backends.items():
            backend = parse_backend(name)
            if backend.server == server and backend.protocol == "http":
                return url, server
    raise NotMeasured(
        f"{run.endpoints.name} has neither Triton over HTTP nor FastAPI: its path was not measured"
    )


def measure_real_path(run: "Run", payloads_bytes: Sequence[int], **sizes: Any) -> dict[str, Any]:
    """Return the measured path to the run's servers (`payload_latency.measure_path`); measure it unless the run has it.

    Args:
        sizes: `n`, `n_large` and `idle_s` as `measure_path` and `measure_payloads` take them; they identify the record.

    Raises:
        NotMeasured: nobody answers there.
    """
    config = {"payloads": list(payloads_bytes), **sizes}
    measure = lambda: measure_path(*sink_of(run), payloads_bytes, **sizes)  # noqa: E731
    return run.measure_or_load("real-path", measure, config=config, kind="real_path")


def real_and_predicted(path: Mapping[str, Any]) -> "pd.DataFrame":
    """Return one row for each payload and kind of connection: `real_ms` and what `MODELS` predict.

    The server's own time (`turnaround_ms`) is part of both. NaN where something was not measured or is not valid.
    """
    import pandas as pd

    columns = ["payload_bytes", "connection", "latency_ms_p50", "valid"]
    table = pd.DataFrame(path["rows"]).reindex(columns=columns)
    table["real_ms"] = table.latency_ms_p50.astype(float).where(table.valid.astype(bool))
    link = path["rtt_ms"], float(path.get("rate_mbit_s") or "inf"), path["turnaround_ms"]
    for name in MODELS:
        table[name] = [
            latency_model.predict_ms(name, row.payload_bytes, *link, connection=row.connection)
            for row in table.itertuples()
        ]
    return table.drop(columns=["latency_ms_p50", "valid"])


def path_in_words(path: Mapping[str, Any], table: "pd.DataFrame") -> str:
    """Return one sentence: the errors of both models where they differ."""
    measured = table[table["real_ms"].notna() & (table["rounds"] / table["bandwidth-only"] > 1.1)]
    text = f"Over the real way (a round trip of {path['rtt_ms']:.1f} ms)"
    if measured.empty:
        return f"{text} no point was measured where the two explanations differ."
    error = {name: (measured[name] / measured["real_ms"] - 1).abs().median() for name in MODELS}
    return (
        f"{text} counting round trips is off by {error['rounds']:.0%} and bandwidth alone by {error['bandwidth-only']:.0%}: "
        f"medians of {len(measured)} points where the two differ."
    )
