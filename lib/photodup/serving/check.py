"""Check the servers of an endpoints file, and describe what is wrong."""

import contextlib
import re
import socket
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx

from photodup.core.addresses import is_loopback, masked
from photodup.core.errors import PhotodupError, ServerError
from photodup.core.extras import import_extra
from photodup.embedding.backends import ENGINES, PRECISIONS, Backend, parse_backend
from photodup.embedding.client.http import Patience, Remote, ask
from photodup.embedding.client.servers import server_client
from photodup.embedding.wire.http import AnswerError, read_json_answer
from photodup.serving.control_key import grpc_metadata, http_headers
from photodup.serving.endpoints import NO_GPU, UNKNOWN_GPU, UNNAMED_GPU, Endpoints

TIMEOUT_S = 3.0
READY = "ready"


def check_all(endpoints: Endpoints, timeout_s: float = TIMEOUT_S) -> list[dict[str, Any]]:
    """Check every backend and metrics page.

    Returns:
        A row for each, with `backend`, `url`, `ok` (bool), `finding` ("ready", or the fault and the remedy) and `said`
        (the server's description of itself, or None). An unreachable server is a finding, not an exception.

    Raises:
        PhotodupError: Triton's client is not installed.
    """
    import_extra("tritonclient.grpc")
    endpoints.use_control_key()
    probes: list[tuple[str, str, Callable[[], Remote | None]]] = [
        *(
            (name, url, partial(_describe, parse_backend(name), url, timeout_s))
            for name, url in endpoints.backends.items()
        ),
        *(
            (f"{server} metrics", url, partial(_metrics, url, timeout_s))
            for server, url in endpoints.metrics.items()
        ),
    ]
    with ThreadPoolExecutor(16) as pool:  # so that all silent servers cost one timeout together
        return list(pool.map(lambda probe: _row(*probe), probes))


def _row(backend: str, url: str, describe: Callable[[], Remote | None]) -> dict[str, Any]:
    row = {"backend": backend, "url": masked(url)}
    try:
        return {**row, "ok": True, "finding": READY, "said": describe()}
    except PhotodupError as error:
        return {**row, "ok": False, "finding": str(error), "said": None}


def handshake_ms(url: str) -> float:
    """Return the median of nine TCP handshakes with a server: one round trip, without its work.

    Raises:
        OSError: the connection is refused.
    """
    parts = urlsplit(url if "://" in url else f"//{url}")
    samples = []
    for _ in range(9):
        started = time.perf_counter()
        socket.create_connection((parts.hostname, parts.port), 5.0).close()
        samples.append((time.perf_counter() - started) * 1000)
    return statistics.median(samples)


def ready_models(url: str, timeout_s: float = TIMEOUT_S) -> list[str] | None:
    """Return the loaded models of the Triton at `url` (HTTP); None if no Triton answers."""
    models = _models(url, timeout_s)
    return None if models is None else sorted({m["name"] for m in models if m.get("state") == "READY"})


def say_answers(rows: Iterable[dict[str, Any]]) -> str:
    """Return one sentence: which addresses answer, and why others do not.

    Args:
        rows: of `check_all`. An address answers if one of its backends or its metrics page is ready.
    """
    servers: dict[str, tuple[str, list[str]]] = {}
    for row in rows:
        place = urlsplit(row["url"] if "://" in row["url"] else f"//{row['url']}").netloc
        servers.setdefault(row["url"], (f"{_server_named(row['backend'])} ({place})", []))[1].append(
            row["finding"]
        )
    ready = [name for name, findings in servers.values() if READY in findings]
    bad = [(name, findings[0].rstrip(".")) for name, findings in servers.values() if READY not in findings]
    if not ready:
        return f"Nothing answers: {listed([name for name, _ in bad])}; the first: {bad[0][1]}."
    verb = "answer" if ready[1:] else "answers"
    return (
        "; ".join([f"{listed(ready)} {verb}", *(f"{name} cannot be used: {error}" for name, error in bad)])
        + "."
    )


def gpu_of(endpoints: Endpoints) -> tuple[str, int]:
    """Return the model and the number of a machine's GPUs, as its servers state them.

    Our service names its GPUs on `/info`. Triton's metrics list each GPU by its UUID only; its models' configurations
    state whether they run on a GPU.

    Returns:
        The model, `UNNAMED_GPU`, `NO_GPU` (every server stated that it computes on the CPU) or `UNKNOWN_GPU`; the count.
    """
    listed = [(parse_backend(name), url) for name, url in endpoints.backends.items()]
    services = {url for backend, url in listed if backend.server == "fastapi"}
    tritons: dict[str, set[str]] = {}
    for backend, url in listed:
        if backend.server == "triton":
            tritons.setdefault(url if backend.protocol == "http" else "", set()).add(backend.triton_model)
    if len(tritons) > 1:  # one of them is asked over HTTP
        tritons.pop("", None)
    stated = [_gpu_of_service(url) for url in sorted(services)]
    stated += [_gpu_of_triton(endpoints, url, names) for url, names in sorted(tritons.items())]
    models = [gpu for gpu, _ in stated]
    gpu_names = [gpu for gpu in models if gpu not in (NO_GPU, UNKNOWN_GPU, UNNAMED_GPU)]
    gpu = gpu_names[0] if gpu_names else UNNAMED_GPU if UNNAMED_GPU in models else UNKNOWN_GPU
    if models and set(models) == {NO_GPU}:
        gpu = NO_GPU
    return gpu, max((count for _, count in stated), default=1)


def service_computes(url: str) -> tuple[str, str]:
    """Return engine and precision of the FastAPI service at `url`; PyTorch (also for `compile`) and FP32 by default."""
    info = _object(url, "/info")
    engine, precision = info.get("engine"), info.get("precision")
    return engine if engine in ENGINES else "pytorch", precision if precision in PRECISIONS else "fp32"


def render_check(rows: Iterable[dict[str, Any]]) -> str:
    """Return the rows as lines for a terminal."""
    rows = list(rows)
    wide = [max((len(row[key]) for row in rows), default=0) for key in ("backend", "url")]
    return "\n".join(
        f"{'ok  ' if row['ok'] else 'BAD '} {row['backend']:<{wide[0]}}  {row['url']:<{wide[1]}}  "
        f"{row['finding']}"
        for row in rows
    )


def _describe(backend: Backend, url: str, timeout_s: float) -> Remote:
    """Return a server's description for the client.

    Raises:
        PhotodupError: it is not ready; lists the models of a Triton without this one.
    """
    try:
        with contextlib.closing(
            server_client(url, backend, Patience(timeout_s, timeout_s, attempts=1))
        ) as server:
            remote = server.describe()
        if backend.server == "fastapi" and ask(url, "/readyz", timeout_s).status_code != 200:
            raise PhotodupError(
                "not ready: the model is still loading, or failed to; see /readyz and the service's log"
            )
    except PhotodupError as error:
        index = None
        if backend.server == "triton":
            index = (_models if backend.protocol == "http" else _models_grpc)(url, timeout_s)
        raise PhotodupError(_missing(backend.triton_model, index or []) or str(error)) from None
    return remote


def _metrics(url: str, timeout_s: float) -> None:
    try:
        parts = urlsplit(url)
        answer = ask(f"{parts.scheme}://{parts.netloc}", parts.path, timeout_s)
    except ServerError as error:
        raise PhotodupError(f"no metrics page there: {error}") from None
    if "# HELP" not in answer.text:
        raise PhotodupError(f"no metrics page there (HTTP {answer.status_code})")


def _server_named(backend: str) -> str:
    """Return the subject of a row of `check_all` in words."""
    name, _, metrics = backend.partition(" ")
    server = "FastAPI" if name.startswith("fastapi") else "Triton"
    if metrics:
        return f"{server}'s metrics"
    return server if server == "FastAPI" else f"Triton over {'gRPC' if '-grpc-' in name else 'HTTP'}"


def listed(names: list[str]) -> str:
    """Join names as in a sentence: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _get(url: str, path: str = "", seconds: float = TIMEOUT_S, **request: Any) -> httpx.Response | None:
    """Return an answer with status 200, or None."""
    with contextlib.suppress(ServerError):
        answer = ask(url, path, seconds, **request)
        return answer if answer.status_code == 200 else None
    return None


def _object(url: str, path: str) -> dict[str, Any]:
    content = _json(url, path)
    return content if isinstance(content, dict) else {}


def _json(url: str, path: str, seconds: float = TIMEOUT_S, **request: Any) -> Any:
    """Return the JSON at a path; an empty object if there is none."""
    with contextlib.suppress(AnswerError):
        return read_json_answer(answer.content) if (answer := _get(url, path, seconds, **request)) else {}
    return {}


def _gpu_of_service(url: str) -> tuple[str, int]:
    info = _object(url, "/info")
    device, names = str(info.get("device", "")), list(map(str, info.get("gpus") or []))
    if device in ("", "triton"):  # Triton is checked itself
        return UNKNOWN_GPU, 1
    if device == "cpu":
        return NO_GPU, 1
    return " and ".join(sorted(set(names))) or UNNAMED_GPU, max(1, len(names))


def _gpu_of_triton(endpoints: Endpoints, url: str, models: set[str]) -> tuple[str, int]:
    page = _get(endpoints.metrics.get("triton", ""))
    if page and (uuids := set(re.findall(r'^nv_gpu_\w+\{[^}]*gpu_uuid="([^"]+)"', page.text, re.MULTILINE))):
        return UNNAMED_GPU, len(uuids)
    configs = [_object(url, f"/v2/models/{model}/config") for model in sorted(models)] if url else []
    groups = [group for config in configs for group in config.get("instance_group", [])]
    if on_gpu := [group for group in groups if group.get("kind") == "KIND_GPU"]:
        return UNNAMED_GPU, max(len(group.get("gpus", [])) or 1 for group in on_gpu)
    return (NO_GPU if groups and {g.get("kind") for g in groups} == {"KIND_CPU"} else UNKNOWN_GPU), 1


def _models(url: str, timeout_s: float) -> list[dict[str, str]] | None:
    """Return a Triton's models: its repository's index if we may read it, else the ready ones.

    Returns:
        `name`, `state` and perhaps `reason` of each; None if no Triton answers.
    """
    try:
        index = _json(
            url,
            "/v2/repository/index",
            timeout_s,
            method="POST",
            headers=http_headers(url, environment=False),
        )
        if isinstance(index, list) and index:
            return [row for row in index if isinstance(row, dict)]
        # Statistics need no key, and have a row for each ready model.
        rows = _json(url, "/v2/models/stats", timeout_s)["model_stats"]
        return [{"name": row["name"], "state": "READY"} for row in rows]
    except (KeyError, TypeError):
        return None


def _models_grpc(address: str, timeout_s: float) -> list[dict[str, str]] | None:
    """Do the same as `_models` over gRPC."""
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    options = {"as_json": True, "client_timeout": timeout_s}
    key = grpc_metadata(address, environment=False)
    try:
        options_of_channel = [("grpc.enable_http_proxy", int(not is_loopback(address)))]
        with InferenceServerClient(address, channel_args=options_of_channel) as client:
            return client.get_model_repository_index(headers=key, **options).get("models", [])
    except InferenceServerException:  # the client's sentence names what is ready
        return None


def _missing(model: str, index: list[dict[str, str]]) -> str:
    """Explain from Triton's repository index why a model is not ready; empty if it is, or is not in the index."""
    for entry in index:
        if entry.get("name") == model:
            state, reason = entry.get("state", ""), entry.get("reason", "")
            if state == "LOADING":
                return f"model {model} is loading: wait"
            # "unloaded" is Triton's reason for a model that was loaded and unloaded again.
            if state == "UNAVAILABLE" and reason != "unloaded":
                return f"model {model} could not be loaded ({reason or 'no reason given'}): see Triton's log"
            if state == "UNLOADING":
                return f"model {model} is being unloaded: wait, then load it"
            if state in ("", "UNAVAILABLE"):
                return f"model {model} is in the repository but not loaded: load it (--load-model={model})"
    return ""
