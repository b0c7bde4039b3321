"""Check the servers of an endpoints file, and describe what is wrong."""

import contextlib
import re
import socket
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx

from photodup.core.addresses import masked
from photodup.core.errors import PhotodupError, ServerError
from photodup.core.extras import import_extra
from photodup.core.names import in_short
from photodup.core.settings import key_headers
from photodup.embedding.backends import ENGINES, PRECISIONS, Backend, parse_backend
from photodup.embedding.client.http import Patience, Remote, ask
from photodup.embedding.client.servers import server_client
from photodup.embedding.wire.http import AnswerError, read_json_answer
from photodup.serving.endpoints import NO_GPU, UNKNOWN_GPU, UNNAMED_GPU, Endpoints
from photodup.serving.triton.control_key import http_headers

TIMEOUT_S = 3.0
READY = "ready"


@dataclass(frozen=True)
class Check:
    """The check of one backend or metrics page.

    Attributes:
        subject: a backend's name, or `triton metrics`.
        url: without passwords.
        finding: "ready", or the fault and the remedy.
        remote: the server's description of itself; None for a metrics page or an unusable server.
    """

    subject: str
    url: str
    finding: str = READY
    remote: Remote | None = None

    @property
    def is_ready(self) -> bool:
        return self.finding == READY


def check_all(endpoints: Endpoints, timeout_s: float = TIMEOUT_S) -> list[Check]:
    """Check every backend and metrics page; an unreachable server is a finding, not an exception.

    Raises:
        PhotodupError: Triton's client is not installed.
    """
    import_extra("tritonclient.grpc")
    endpoints.use_control_key()
    with ThreadPoolExecutor(16) as pool:  # so that all silent servers cost one timeout together
        checks = [
            pool.submit(_check, name, url, partial(_describe, parse_backend(name), url, timeout_s))
            for name, url in endpoints.backends.items()
        ]
        checks += [
            pool.submit(_check, f"{server} metrics", url, partial(_check_metrics, server, url, timeout_s))
            for server, url in endpoints.metrics.items()
        ]
    return [check.result() for check in checks]


def _check(subject: str, url: str, describe: Callable[[], Remote | None]) -> Check:
    try:
        return Check(subject, masked(url), remote=describe())
    except PhotodupError as error:
        return Check(subject, masked(url), str(error))


def round_trip_ms(url: str) -> float:
    """Return the median time of nine TCP handshakes, ms: one round trip, without the server's work.

    Raises:
        OSError: the connection is refused, or not open within five seconds.
    """
    parts = urlsplit(url if "://" in url else f"//{url}")
    samples = []
    for _ in range(9):
        started = time.perf_counter()
        socket.create_connection(
            (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)), 5.0
        ).close()
        samples.append((time.perf_counter() - started) * 1000)
    return statistics.median(samples)


def ready_models(url: str, timeout_s: float = TIMEOUT_S) -> list[str] | None:
    """Return the loaded models of the Triton at `url` (HTTP); None if no Triton answers."""
    models = _models(url, timeout_s)
    return None if models is None else sorted({m["name"] for m in models if m.get("state") == "READY"})


def availability_sentence(checks: Iterable[Check]) -> str:
    """Return one sentence: which addresses answer, and why others do not.

    An address answers if one of its backends or its metrics page is ready.
    """
    servers: dict[str, tuple[str, list[str]]] = {}
    for check in checks:
        place = urlsplit(check.url if "://" in check.url else f"//{check.url}").netloc
        server = f"{_server_named(check.subject)} ({place})"
        servers.setdefault(check.url, (server, []))[1].append(check.finding)
    ready = [name for name, findings in servers.values() if READY in findings]
    bad = [(name, findings[0].rstrip(".")) for name, findings in servers.values() if READY not in findings]
    if not ready:
        return f"Nothing answers: {in_short([name for name, _ in bad], None)}; the first: {bad[0][1]}."
    answer = f"{in_short(ready, None)} {'answer' if ready[1:] else 'answers'}"
    return "; ".join([answer, *(f"{name} cannot be used: {error}" for name, error in bad)]) + "."


def gpu_of(endpoints: Endpoints) -> tuple[str, int]:
    """Return the model and the number of a machine's GPUs, as its servers state them.

    Our service names its GPUs on `/info`. Triton's metrics list each GPU by its UUID only; its models' configurations
    state whether they run on a GPU.

    Returns:
        The model, `UNNAMED_GPU`, `NO_GPU` (every server stated that it computes on the CPU) or `UNKNOWN_GPU`; the count.
    """
    listed = [(parse_backend(name), url) for name, url in endpoints.backends.items()]
    services = {url for backend, url in listed if backend.server == "fastapi"}
    tritons = [(backend, url) for backend, url in listed if backend.server == "triton"]
    gpus = [_gpu_of_service(url) for url in sorted(services)]
    if tritons:  # asked over HTTP; gRPC leads to the same Triton
        url = next((url for backend, url in tritons if backend.protocol == "http"), "")
        gpus.append(_gpu_of_triton(endpoints, url, {backend.triton_model for backend, _ in tritons}))
    models = [gpu for gpu, _ in gpus]
    gpu_names = [gpu for gpu in models if gpu not in (NO_GPU, UNKNOWN_GPU, UNNAMED_GPU)]
    gpu = gpu_names[0] if gpu_names else UNNAMED_GPU if UNNAMED_GPU in models else UNKNOWN_GPU
    if models and set(models) == {NO_GPU}:
        gpu = NO_GPU
    return gpu, max((count for _, count in gpus), default=1)


def service_engine(url: str) -> tuple[str, str]:
    """Return engine and precision of the FastAPI service at `url`; `pytorch` and `fp32` for unknown or missing ones."""
    info = _object(url, "/info", headers=key_headers())
    engine, precision = info.get("engine"), info.get("precision")
    return engine if engine in ENGINES else "pytorch", precision if precision in PRECISIONS else "fp32"


def render_check(checks: Sequence[Check]) -> str:
    """Return the checks as lines for a terminal."""
    subjects, urls = (
        max(map(len, column)) for column in zip(*((c.subject, c.url) for c in checks), strict=True)
    )
    return "\n".join(
        f"{'ok  ' if c.is_ready else 'BAD '} {c.subject:<{subjects}}  {c.url:<{urls}}  {c.finding}"
        for c in checks
    )


def _describe(backend: Backend, url: str, timeout_s: float) -> Remote:
    """Return a server's description for the client.

    Raises:
        PhotodupError: the server is not ready; names the state of Triton's model.
    """
    patience = Patience(timeout_s, timeout_s, attempts=1)
    try:
        with contextlib.closing(server_client(url, backend, patience)) as server:
            return server.describe()
    except PhotodupError as error:
        models = _models(url, timeout_s) if backend.triton_model and backend.protocol == "http" else None
        raise PhotodupError(_not_ready_reason(backend.triton_model, models or []) or str(error)) from None


def _check_metrics(server: str, url: str, timeout_s: float) -> None:
    headers = key_headers() if server.startswith("fastapi") else None
    try:
        answer = ask(url.removesuffix("/metrics"), "/metrics", timeout_s, headers=headers)
    except ServerError as error:
        raise PhotodupError(f"no metrics page there: {error}") from None
    if "# HELP" not in answer.text:
        raise PhotodupError(f"no metrics page there (HTTP {answer.status_code})")


def _server_named(subject: str) -> str:
    name, _, metrics = subject.partition(" ")
    server = "FastAPI" if name.startswith("fastapi") else "Triton"
    if metrics:
        return f"{server}'s metrics"
    return server if server == "FastAPI" else f"Triton over {'gRPC' if '-grpc-' in name else 'HTTP'}"


def _get(url: str, path: str = "", seconds: float = TIMEOUT_S, **request: Any) -> httpx.Response | None:
    """Return an answer with status 200, or None."""
    with contextlib.suppress(ServerError):
        answer = ask(url, path, seconds, **request)
        return answer if answer.status_code == 200 else None
    return None


def _json(url: str, path: str, seconds: float = TIMEOUT_S, **request: Any) -> Any:
    """Return the JSON at a path; an empty object if there is none."""
    with contextlib.suppress(AnswerError):
        return read_json_answer(answer.content) if (answer := _get(url, path, seconds, **request)) else {}
    return {}


def _object(url: str, path: str, **request: Any) -> Mapping[str, Any]:
    content = _json(url, path, **request)
    return content if isinstance(content, dict) else {}


def _gpu_of_service(url: str) -> tuple[str, int]:
    info = _object(url, "/info", headers=key_headers())
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
        index = _json(url, "/v2/repository/index", timeout_s, method="POST", headers=http_headers(url))
        if isinstance(index, list) and index:
            return [row for row in index if isinstance(row, dict)]
        # Statistics need no key, and have a row for each ready model.
        rows = _json(url, "/v2/models/stats", timeout_s)["model_stats"]
        return [{"name": row["name"], "state": "READY"} for row in rows]
    except (KeyError, TypeError):
        return None


def _not_ready_reason(model: str, index: list[dict[str, str]]) -> str:
    """Explain from Triton's repository index why a model is not ready; empty if it is, or is not in the index."""
    entry = next((row for row in index if row.get("name") == model and row.get("state") != "READY"), None)
    if entry is None:
        return ""
    state, reason = entry.get("state", ""), entry.get("reason", "")
    if state in ("LOADING", "UNLOADING"):
        return f"model {model} is {state.lower()}: wait"
    # "unloaded" is Triton's reason for a model that was loaded and unloaded again.
    if state == "UNAVAILABLE" and reason != "unloaded":
        return f"model {model} could not be loaded ({reason or 'no reason given'}): see Triton's log"
    return f"model {model} is in the repository but not loaded: load it (--load-model={model})"
