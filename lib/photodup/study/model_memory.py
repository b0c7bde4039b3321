"""Cold start and memory of a server by itself, and of each model of a Triton, one loaded at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

from photodup.bench.load.plan import WindowPlan
from photodup.bench.load.usage import usage
from photodup.bench.stats.metrics import Load
from photodup.core.errors import PhotodupError
from photodup.embedding.backends import parse_backend

if TYPE_CHECKING:
    from photodup.study.notebook.run import Run

LOAD = Load("closed_loop", concurrency=8, span="prepared")
LONGEST_FALL_S = 30  # until an unloaded model's memory has been given back
COLUMNS = ("gpu_memory_mib", "server_memory_mib", "gpu_utilization", "gpu_power_w")


def start_alone(name: str) -> dict[str, float]:
    """Start the server of a backend on this machine by itself, and ask it ten times.

    Returns:
        The columns of `counters.cold_start`, and `memory_mib`: the proportional set size of its processes afterwards.
    """
    import psutil

    from photodup.bench.backends.adapters import adapter
    from photodup.bench.load.counters import cold_start
    from photodup.serving.embedded import embedded_servers, export_models
    from photodup.study.notebook.weights import payload_photos

    backend, earlier = parse_backend(name), set(psutil.Process().children(recursive=True))
    model = backend.triton_model
    servers = embedded_servers(
        service=False,
        models=[model] if model else (),
        engines=[] if model else [(backend.engine, backend.precision)],
        exported=export_models() if model else None,  # which is no part of the start
    )
    requests: list[Callable[[], object]] = []
    with ExitStack() as stack:

        def start_server() -> None:
            client: Any = adapter(backend, stack.enter_context(servers).backends[name])
            requests.append(partial(client.open().request, client.prepare(payload_photos(1))))

        columns = cold_start(start_server, lambda: requests[0]())
        processes = set(psutil.Process().children(recursive=True)) - earlier
        return columns | {"memory_mib": sum(p.memory_full_info().pss for p in processes) / 2**20}


def memory(page: str, when: str, *, is_falling: bool = False) -> dict[str, float]:
    """Return the memory columns of a server by its metrics page, with `when` at the end of their names.

    Args:
        is_falling: a model was unloaded, and its memory is given back later: wait until no more has been for three seconds.
    """
    readings: list[dict[str, float]] = []
    while len(readings) < LONGEST_FALL_S:
        with usage(page) as columns:
            pass
        readings.append({f"{name}_{when}": columns[name] for name in COLUMNS[:2] if name in columns})
        earlier = readings[-4:-3] if is_falling else readings
        if earlier and all(readings[-1].get(name, mib) > 0.99 * mib for name, mib in earlier[0].items()):
            break
        time.sleep(1.0)
    return readings[-1]


def memory_by_model(
    run: Run, backends: Sequence[str], plan: WindowPlan | None = None
) -> list[dict[str, float | str]]:
    """Return cold start and memory of a Triton with one model at a time; its other models are unloaded meanwhile.

    Args:
        backends: of Triton, each with a model of its own: not ensembles, which load others.
        plan: of the window with eight requests in flight.

    Returns:
        One row for each backend: `backend`, the columns of `counters.cold_start`, the memory columns with `_before` and
        `_loaded` (after the tenth answer), and `COLUMNS` in the window, as far as the server reports them.

    Raises:
        PhotodupError: the server cannot be controlled or does not tell its memory, or a backend cannot be measured.
    """
    from photodup.bench.backends.adapters import adapter
    from photodup.bench.load.counters import cold_start
    from photodup.bench.load.window import measure
    from photodup.serving.triton.control import load_triton_model, nothing_loaded, unload_triton_model
    from photodup.study.notebook.points import N_PHOTOS
    from photodup.study.notebook.weights import payload_photos

    grpc_url, page = run.endpoints.triton_grpc, run.endpoints.metrics_url(backends[0])
    if page is None:
        raise PhotodupError(f"{run.endpoints.name} lists no metrics page of Triton: its memory is not known.")
    rows = []
    with nothing_loaded(grpc_url):
        for name in backends:
            backend = parse_backend(name)
            row: dict[str, float | str] = {"backend": name, **memory(page, "before", is_falling=True)}
            client: Any = adapter(backend, run.address_of(backend))
            with closing(client.open()) as connection:
                row |= cold_start(
                    partial(load_triton_model, grpc_url, backend.triton_model),
                    partial(connection.request, client.prepare(payload_photos(1))),
                )
            row |= memory(page, "loaded")
            with usage(page) as columns:
                window = measure(client, payload_photos(N_PHOTOS), LOAD, plan)
            unload_triton_model(grpc_url, backend.triton_model)
            if window.get("error"):
                raise PhotodupError(f"{name}: {window['error']}")
            rows.append(row | {name: columns[name] for name in COLUMNS if name in columns})
    return rows
