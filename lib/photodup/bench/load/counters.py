"""The server's own account of a window: Prometheus counters read before and after.

Cumulative counters mean nothing alone (the published 29 ms of "inference" was a mean since start-up, engine
builds included); only their difference over the window is used. What a server does not report is absent,
never zero.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from photodup.bench import Columns
from photodup.bench.link.emulate import time_ms
from photodup.bench.load.usage import metrics_page, usage
from photodup.core.errors import PhotodupError

Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]  # (name, sorted labels) → value
TRITON_STAGES = {
    "server_request_ms_mean": "nv_inference_request_duration_us",
    "server_queue_ms_mean": "nv_inference_queue_duration_us",
    "server_compute_input_ms_mean": "nv_inference_compute_input_duration_us",
    "server_compute_infer_ms_mean": "nv_inference_compute_infer_duration_us",
    "server_compute_output_ms_mean": "nv_inference_compute_output_duration_us",
}
FASTAPI_STAGES = {
    "server_receive_ms_mean": "receive",
    "server_decode_ms_mean": "decode",
    "server_queue_ms_mean": "queue",
    "server_compute_infer_ms_mean": "compute",
    "server_respond_ms_mean": "respond",
}


class CounterError(PhotodupError):
    """Metrics that cannot be read, or that do not belong to one undisturbed server."""


def read_counters(url: str, headers: Mapping[str, str] = {}) -> Scrape:
    """Read a Prometheus text page.

    Args:
        url: `http://host:port` of Triton's metrics or of the FastAPI service, with or without `/metrics`.
        headers: that the page asks for.

    Raises:
        CounterError: no page answers there, or one that is not in Prometheus's format.
    """
    try:
        page = metrics_page(url, headers)
    except (OSError, PhotodupError, UnicodeDecodeError) as error:
        raise CounterError(f"No metrics at {url.removesuffix('/metrics')}/metrics: {error}.") from None
    return parse(page)


def parse(text: str) -> Scrape:
    """Parse the Prometheus text format.

    Raises:
        CounterError: the page is not in that format.
    """
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(text))
    except ValueError as error:
        raise CounterError(f"The metrics page is not in Prometheus's text format: {error}.") from None
    samples = (sample for family in families for sample in family.samples)
    return {(_bare(s.name), tuple(sorted(s.labels.items()))): s.value for s in samples}


def _bare(name: str) -> str:
    """Return a name without `_total`, which OpenMetrics and the parser add and Triton does not."""
    return name.removesuffix("_total")


def total(scrape: Scrape, name: str, **labels: str) -> float | None:
    """Return the sum over all series of `name` with these labels; None when there is none."""
    required = set(labels.items())
    values = [v for (metric, tags), v in scrape.items() if metric == _bare(name) and required <= set(tags)]
    return sum(values) if values else None


def difference(before: Scrape, after: Scrape, name: str, **labels: str) -> float | None:
    """Return how much a counter grew; None when the server does not have it.

    Raises:
        CounterError: it shrank, so the server was restarted in between.
    """
    end = total(after, name, **labels)
    if end is None:
        return None
    growth = end - (total(before, name, **labels) or 0.0)
    if growth < 0:
        raise CounterError(f"{name} went down by {-growth:g}: the server was restarted during the window.")
    return growth


def triton_window(before: Scrape, after: Scrape, models: Sequence[str]) -> dict[str, float | None]:
    """Return Triton's account of the window.

    Args:
        models: the model requested; for an ensemble also its steps in order, the one that computes last.

    Returns:
        `server_requests`, `server_inferences` (images), `server_executions` and `server_batch_mean` of the
        model that computes, and the mean milliseconds per request of each stage (`TRITON_STAGES`). A stage
        counts in full for each request of a batch. For an ensemble the times are summed over its steps,
        except that the computing of the earlier ones is `server_decode_ms_mean`. Empty when nothing
        was answered.
    """
    requested, steps, computing = models[0], models[1:] or models, models[-1]

    def growth(name: str, model: str) -> float:
        return difference(before, after, name, model=model) or 0.0

    requests = growth("nv_inference_request_success", requested)
    if not requests:
        return {}
    inferences, executions = (
        growth(name, computing) for name in ("nv_inference_count", "nv_inference_exec_count")
    )
    columns = _batches(requests, inferences, executions)
    for column, name in TRITON_STAGES.items():
        models_of = {"server_request_ms_mean": [requested], "server_compute_infer_ms_mean": [computing]}
        if total(after, name, model=computing) is not None:
            spent_us = sum(growth(name, model) for model in models_of.get(column, steps))
            columns[column] = spent_us / requests / 1000
    if len(steps) > 1:
        name = TRITON_STAGES["server_compute_infer_ms_mean"]
        columns["server_decode_ms_mean"] = sum(growth(name, step) for step in steps[:-1]) / requests / 1000
    return columns


def _batches(requests: float, inferences: float | None, executions: float | None) -> dict[str, float | None]:
    return {
        "server_requests": requests,
        "server_inferences": inferences,
        "server_executions": executions,
        "server_batch_mean": None if inferences is None or not executions else inferences / executions,
    }


def fastapi_window(before: Scrape, after: Scrape) -> dict[str, float | None]:
    """Return the FastAPI service's account of the window, under Triton's column names where they mean the same.

    `server_compute_infer_ms_mean` is the execution a request was part of, `server_decode_ms_mean` bytes to
    pixels, both as in Triton (where an ensemble decodes). Empty when nothing was answered.
    """
    requests = difference(before, after, "photodup_requests_total", status="200")
    if not requests:
        return {}
    inferences = difference(before, after, "photodup_inferences_total")
    executions = difference(before, after, "photodup_executions_total")
    columns = _batches(requests, inferences, executions)
    for column, stage in FASTAPI_STAGES.items():
        seconds, count = (
            difference(before, after, f"photodup_request_stage_seconds_{part}", stage=stage)
            for part in ("sum", "count")
        )
        if seconds is not None and count:
            columns[column] = seconds / count * 1000
    return columns


def meter(
    url: str, models: Sequence[str], headers: Mapping[str, str] = {}
) -> Callable[[], contextlib.AbstractContextManager[Columns]]:
    """Return a meter for `window.measure`: the server's counters and its usage during the window.

    Where metrics cannot be read, their columns are absent and `counters_error` says why.

    Args:
        url: of the metrics page.
        models: Triton's, as `triton_window` takes them; empty for the FastAPI service.
        headers: that the page asks for.
    """

    @contextlib.contextmanager
    def around() -> Iterator[Columns]:
        columns: Columns = {}
        before = _try_read(url, headers, columns)
        with usage(url, headers) as used:
            yield columns
        after = _try_read(url, headers, columns)
        if before is not None and after is not None:
            try:
                columns |= triton_window(before, after, models) if models else fastapi_window(before, after)
            except CounterError as error:
                columns["counters_error"] = str(error)
        columns.update(used)

    return around


def check_page(url: str, models: Sequence[str], headers: Mapping[str, str]) -> None:
    """Raise a `CounterError` unless a page can be read and has the counters of these models, or of the FastAPI service."""
    page = read_counters(url, headers)
    of_model = {"model": models[-1]} if models else {}
    counter = total(page, "nv_inference_count" if models else "photodup_executions", **of_model)
    if counter is None:
        raise CounterError(f"{url} has no counters of {models[-1] if models else 'an embedding service'}.")


def _try_read(url: str, headers: Mapping[str, str], columns: Columns) -> Scrape | None:
    try:
        return read_counters(url, headers)
    except CounterError as error:
        columns["counters_error"] = str(error)
        return None


def cold_start(start: Callable[[], object], request: Callable[[], object]) -> dict[str, float]:
    """Time a server, or one model of it, from nothing to its tenth answer.

    Args:
        start: starts it and returns when it is ready.
        request: one request, run ten times: the first may still build or allocate.

    Returns:
        `ready_s` from the start, `first_answer_ms`, `third_answer_ms`, `tenth_answer_ms`, and `first_answer_s` from the
        start.
    """
    columns, answers_ms = {"ready_s": time_ms(start) / 1000}, [time_ms(request) for _ in range(10)]
    columns |= {f"{name}_answer_ms": answers_ms[i] for name, i in (("first", 0), ("third", 2), ("tenth", 9))}
    return columns | {"first_answer_s": columns["ready_s"] + answers_ms[0] / 1000}
