"""Ask every server of an endpoints file whether it is there, and say in words what is wrong."""

from collections.abc import Iterable
from typing import Any

from photodup.serving.endpoints import Endpoints, parse_backend

TIMEOUT_S = 3.0


def check(endpoints: Endpoints, timeout_s: float = TIMEOUT_S) -> list[dict[str, Any]]:
    """Check every backend and metrics page.

    Returns:
        Rows with `backend`, `url`, `ok` (bool) and `finding`: "ready", or what is wrong and what to do.
        An unreachable server is a finding, not an exception.
    """
    probe = _Probe(timeout_s)
    rows = []
    for name, url in endpoints.backends.items():
        backend = parse_backend(name)
        if backend.server == "pytorch":
            finding = probe.pytorch(url)
        elif backend.protocol == "http":
            finding = probe.triton_http(url, backend.model)
        else:
            finding = probe.triton_grpc(url, backend.model)
        rows.append({"backend": name, "url": url, "ok": finding == "ready", "finding": finding})
    for server, url in endpoints.metrics.items():
        finding = probe.metrics(url)
        rows.append(
            {"backend": f"{server} metrics", "url": url, "ok": finding == "ready", "finding": finding}
        )
    return rows


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
        status, reason = self._get(f"{url}/readyz")
        if status == 200:
            return "ready"
        if status == 503:
            return "not ready: the model is still loading, or failed to; see /readyz and the service's log"
        return reason or self._what_is(url, "the FastAPI service", status)

    def triton_http(self, url: str, model: str) -> str:
        status, reason = self._get(f"{url}/v2/health/live")
        if status != 200:
            return reason or self._what_is(url, "Triton's HTTP port", status)
        if self._get(f"{url}/v2/models/{model}/ready")[0] == 200:
            return "ready"
        return _missing(model, self._once(("index", url), lambda: self._index_http(url)))

    def triton_grpc(self, address: str, model: str) -> str:
        from tritonclient.utils import InferenceServerException

        if (live := self._once(("live", address), lambda: self._grpc_live(address))) != "live":
            return live
        with self._grpc(address) as client:
            try:
                if client.is_model_ready(model, client_timeout=self.timeout_s):
                    return "ready"
                index = client.get_model_repository_index(as_json=True, client_timeout=self.timeout_s)
            except InferenceServerException as error:
                return f"Triton answers over gRPC, but not about {model}: {error.message()}"
        return _missing(model, index.get("models", []))

    def metrics(self, url: str) -> str:
        status, reason = self._get(url)
        return "ready" if status == 200 else reason or f"no metrics page there (HTTP {status})"

    def _what_is(self, url: str, expected: str, status: int) -> str:
        """Say which other server of ours answers at this address."""
        base = url.rstrip("/")
        if self._get(f"{base}/v2/health/live")[0] == 200:
            return f"this is Triton's HTTP port, not {expected}: are two ports swapped?"
        if self._get(f"{base}/healthz")[0] == 200:
            return f"this is the FastAPI service, not {expected}: are two ports swapped?"
        if self._get(f"{base}/metrics")[0] == 200:
            return f"this is Triton's metrics port, not {expected}: are two ports swapped?"
        return f"something answers with HTTP {status}, but it is not {expected}"

    def _get(self, url: str) -> tuple[int, str]:
        """Return (HTTP status, "") or (0, why there was no answer)."""
        return self._once(("get", url), lambda: self._fetch(url))

    def _fetch(self, url: str) -> tuple[int, str]:
        import httpx

        try:
            return httpx.get(url, timeout=self.timeout_s).status_code, ""
        except httpx.ConnectTimeout:
            return 0, "no route: connecting timed out (firewall, wrong host, or the port is not forwarded)"
        except httpx.ConnectError as error:
            text = str(error)
            if "Name or service" in text or "getaddrinfo" in text or "name resolution" in text:
                return 0, "unknown host name"
            return 0, "nothing listens there: is the server started, and is this its port?"
        except httpx.TimeoutException:
            return 0, f"connected, but no answer within {self.timeout_s:g} s"
        except (httpx.RemoteProtocolError, httpx.ReadError):
            host_port = url.split("://", 1)[1].split("/", 1)[0]
            if self._once(("live", host_port), lambda: self._grpc_live(host_port, explain=False)) == "live":
                return 0, "this is Triton's gRPC port, given as HTTP: HTTP is usually one lower"
            return 0, "what listens there does not speak HTTP"
        except httpx.HTTPError as error:
            return 0, f"{type(error).__name__}: {error}"
        except httpx.InvalidURL as error:
            return 0, f"not an address: {error}"

    def _index_http(self, url: str) -> list[dict[str, str]]:
        import httpx

        try:
            return httpx.post(f"{url}/v2/repository/index", timeout=self.timeout_s).json()
        except (httpx.HTTPError, ValueError):
            return []

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
                status, reason = self._get(f"http://{address}/v2/health/live")
                if status == 200:
                    return "this is Triton's HTTP port, given as gRPC: gRPC is usually one higher"
                if status:
                    return self._what_is(f"http://{address}", "Triton's gRPC port", status)
                return reason or f"no gRPC server there: {error.message()}"
        return "Triton answers, but is not live"

    def _once(self, key: tuple[str, str], ask: Any) -> Any:
        if key not in self._answers:
            self._answers[key] = ask()
        return self._answers[key]


def _missing(model: str, index: list[dict[str, str]]) -> str:
    """Explain why a model is not ready, from Triton's repository index."""
    for entry in index:
        if entry.get("name") == model:
            state, reason = entry.get("state", ""), entry.get("reason", "")
            if state == "LOADING":
                return f"model {model} is loading: wait"
            if state in ("UNAVAILABLE", "UNLOADING"):
                return (
                    f"model {model} is not loaded ({reason or 'unavailable'}): load it, or see Triton's log"
                )
            if not state:
                return f"model {model} is in the repository but not loaded: load it (--load-model={model})"
    ready = sorted({entry["name"] for entry in index if entry.get("state") == "READY"})
    return f"Triton has no model {model}; ready are: {', '.join(ready) or 'none'}"
