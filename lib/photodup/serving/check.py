"""Ask every server of an endpoints file whether it is there, and say in words what is wrong."""

import socket
import statistics
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from photodup.embedding.backends import parse_backend
from photodup.embedding.client.which_server import ANOTHER, FASTAPI, TRITON_HTTP, which_server
from photodup.extras import need
from photodup.serving.control_key import grpc_metadata, http_headers
from photodup.serving.endpoints import Endpoints

TIMEOUT_S = 3.0


def check(endpoints: Endpoints, timeout_s: float = TIMEOUT_S) -> list[dict[str, Any]]:
    """Check every backend and metrics page.

    Returns:
        Rows with `backend`, `url`, `ok` (bool) and `finding`: "ready", or what is wrong and what to do.
        An unreachable server is a finding, not an exception.

    Raises:
        PhotodupError: Triton's client, which asks over gRPC, is not installed.
    """
    need("tritonclient.grpc")
    endpoints.use_control_key()
    probe = _Probe(timeout_s)
    rows = []
    for name, url in endpoints.backends.items():
        backend = parse_backend(name)
        if backend.server == "fastapi":
            finding = probe.pytorch(url)
        elif backend.protocol == "http":
            finding = probe.triton_http(url, backend.triton_model)
        else:
            finding = probe.triton_grpc(url, backend.triton_model)
        rows.append({"backend": name, "url": url, "ok": finding == "ready", "finding": finding})
    for server, url in endpoints.metrics.items():
        finding = probe.metrics(url)
        rows.append(
            {"backend": f"{server} metrics", "url": url, "ok": finding == "ready", "finding": finding}
        )
    return rows


def handshake_ms(url: str, n: int = 9, timeout_s: float = 5.0) -> float:
    """Return the median time of `n` TCP handshakes with a server: one round trip, and nothing of its work.

    Raises:
        OSError: nobody accepts.
    """
    parts = urlsplit(url if "://" in url else f"//{url}")
    samples = []
    for _ in range(n):
        started = time.perf_counter()
        socket.create_connection((parts.hostname, parts.port), timeout_s).close()
        samples.append((time.perf_counter() - started) * 1000)
    return statistics.median(samples)


def ready_models(url: str, timeout_s: float = TIMEOUT_S) -> list[str] | None:
    """Return the models that the Triton at `url` (HTTP) has loaded; None where no Triton answers."""
    models = _models(url, timeout_s)
    return None if models is None else sorted({m["name"] for m in models if m.get("state") == "READY"})


def render_check(rows: Iterable[dict[str, Any]]) -> str:
    """Lay the rows out for a terminal."""
    rows = list(rows)
    wide = [max((len(row[key]) for row in rows), default=0) for key in ("backend", "url")]
    return "\n".join(
        f"{'ok  ' if row['ok'] else 'BAD '} {row['backend']:<{wide[0]}}  {row['url']:<{wide[1]}}  "
        f"{row['finding']}"
        for row in rows
    )


class _Probe:
    """Each address is asked once per question, however many backends share it."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._answers: dict[tuple[str, str], Any] = {}

    def pytorch(self, url: str) -> str:
        if (problem := self._not(url, FASTAPI)) is not None:
            return problem
        if self._get(f"{url}/readyz")[0] == 200:
            return "ready"
        return "not ready: the model is still loading, or failed to; see /readyz and the service's log"

    def triton_http(self, url: str, model: str) -> str:
        if (problem := self._not(url, TRITON_HTTP)) is not None:
            return problem
        if self._get(f"{url}/v2/models/{model}/ready")[0] == 200:
            return "ready"
        return _missing(model, self._once(("models", url), lambda: _models(url, self.timeout_s) or []))

    def triton_grpc(self, address: str, model: str) -> str:
        from tritonclient.utils import InferenceServerException

        if (live := self._once(("live", address), lambda: self._grpc_live(address))) != "live":
            return live
        with self._grpc(address) as client:
            try:
                if client.is_model_ready(model, client_timeout=self.timeout_s):
                    return "ready"
                return _missing(model, _models_grpc(client, address, self.timeout_s))
            except InferenceServerException as error:
                return f"Triton answers over gRPC, but not about {model}: {error.message()}"

    def metrics(self, url: str) -> str:
        status, text, reason = self._get(url)
        if reason:
            return reason
        return "ready" if "# HELP" in text else f"no metrics page there (HTTP {status})"

    def _not(self, url: str, expected: str) -> str | None:
        """Return what is wrong if `url` is not the server `expected`; None if it is."""
        found = which_server(lambda path: self._get(url + path)[:2])
        if found is None:
            return self._get(f"{url}/v2")[2]
        if found == ANOTHER:
            return f"something answers there, but it is not {expected}"
        return None if found == expected else f"this is {found}, not {expected}: are two swapped?"

    def _get(self, url: str) -> tuple[int, str, str]:
        """Return (HTTP status, body, "") or (0, "", why there was no answer)."""
        return self._once(("get", url), lambda: self._fetch(url))

    def _fetch(self, url: str) -> tuple[int, str, str]:
        import httpx

        try:
            answer = httpx.get(url, timeout=self.timeout_s)
            return answer.status_code, answer.text, ""
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return 0, "", self._explain(url, error)

    def _explain(self, url: str, error: Exception) -> str:
        import httpx

        if isinstance(error, httpx.ConnectTimeout):
            return "no route: connecting timed out (firewall, wrong host, or the port is not forwarded)"
        if isinstance(error, httpx.ConnectError):
            if any(words in str(error) for words in ("Name or service", "getaddrinfo", "name resolution")):
                return "unknown host name"
            return "nothing listens there: is the server started, and is this its port?"
        if isinstance(error, httpx.TimeoutException):
            return f"connected, but no answer within {self.timeout_s:g} s"
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
            address = url.split("://", 1)[1].split("/", 1)[0]
            if self._once(("live", address), lambda: self._grpc_live(address, explain=False)) == "live":
                return "this is Triton's gRPC port, given as HTTP: HTTP is usually one lower"
            return "what listens there does not speak HTTP"
        return f"{type(error).__name__}: {error}"

    def _grpc(self, address: str) -> Any:
        from tritonclient.grpc import InferenceServerClient

        return InferenceServerClient(address)

    def _grpc_live(self, address: str, explain: bool = True) -> str:
        from tritonclient.utils import InferenceServerException

        with self._grpc(address) as client:
            try:
                if client.is_server_live(client_timeout=self.timeout_s):
                    return "live"
            except InferenceServerException as error:
                if not explain:
                    return "dead"
                problem = self._not(f"http://{address}", "Triton's gRPC port")
                if problem and TRITON_HTTP in problem:
                    return "this is Triton's HTTP port, given as gRPC: gRPC is usually one higher"
                return problem or f"no gRPC server there: {error.message()}"
        return "Triton answers, but is not live"

    def _once(self, key: tuple[str, str], ask: Any) -> Any:
        if key not in self._answers:
            self._answers[key] = ask()
        return self._answers[key]


def _models(url: str, timeout_s: float) -> list[dict[str, str]] | None:
    """Ask a Triton for its models: the repository's index where its control is open to us, else those that are ready.

    Returns:
        `name`, `state` and perhaps `reason` of each; None where no Triton answers.
    """
    import httpx

    try:
        with httpx.Client(base_url=url, timeout=timeout_s) as client:
            index = client.post("/v2/repository/index", headers=http_headers(url, environment=False))
            if index.status_code == 200:
                return index.json()
            # Statistics are open, and have a row for each model that is ready.
            return _ready(client.get("/v2/models/stats").raise_for_status().json())
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None


def _models_grpc(client: Any, address: str, timeout_s: float) -> list[dict[str, str]]:
    """Return what `_models` does, over gRPC."""
    from tritonclient.utils import InferenceServerException

    options = {"as_json": True, "client_timeout": timeout_s}
    try:
        index = client.get_model_repository_index(
            headers=grpc_metadata(address, environment=False), **options
        )
        return index.get("models", [])
    except InferenceServerException:
        return _ready(client.get_inference_statistics(**options))


def _ready(statistics: dict[str, Any]) -> list[dict[str, str]]:
    return [{"name": row["name"], "state": "READY"} for row in statistics.get("model_stats", [])]


def _missing(model: str, index: list[dict[str, str]]) -> str:
    """Explain why a model is not ready, from Triton's repository index."""
    for entry in index:
        if entry.get("name") == model:
            state, reason = entry.get("state", ""), entry.get("reason", "")
            if state == "LOADING":
                return f"model {model} is loading: wait"
            # A model that was loaded once and taken out again is no failure: Triton gives "unloaded" as the reason.
            if state == "UNAVAILABLE" and reason != "unloaded":
                return f"model {model} could not be loaded ({reason or 'no reason given'}): see Triton's log"
            if state == "UNLOADING":
                return f"model {model} is being unloaded: wait, then load it"
            if state in ("", "UNAVAILABLE"):
                return f"model {model} is in the repository but not loaded: load it (--load-model={model})"
    ready = sorted({entry["name"] for entry in index if entry.get("state") == "READY"})
    return f"Triton has no model {model}; ready are: {', '.join(ready) or 'none'}"
