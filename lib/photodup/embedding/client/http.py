"""The HTTP client: one connection pool, retries, errors in sentences; and what it shares with gRPC."""

import contextlib
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from photodup.core.addresses import http_address, is_loopback, masked
from photodup.core.errors import ServerError
from photodup.embedding.imaging import ImageError
from photodup.embedding.wire.http import AnswerError, HttpRequest, read_json_answer

Answer = TypeVar("Answer")


class Transient(Exception):
    """A failure that may pass with a second attempt."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Remote:
    """A server's description of itself; None where it states nothing."""

    digest: str | None = None
    name: str | None = None
    pretrained: str | None = None
    dim: int | None = None
    precision: str | None = None
    accuracy_check: str | None = None
    max_images: int = 32
    max_bytes: int = 1 << 60


@dataclass(frozen=True)
class Patience:
    """Timeouts and retries of one request.

    Attributes:
        connect_s: until the connection is open.
        request_s: from the last byte sent to the answer.
        attempts: in all; a retry is safe, since embedding twice gives the same answer.
        pause_s: before the second try, doubled before each further one.
    """

    connect_s: float = 5.0
    request_s: float = 60.0
    attempts: int = 3
    pause_s: float = 0.2

    def retry(self, call: Callable[[], Answer]) -> Answer:
        for attempt in range(1, self.attempts + 1):
            try:
                return call()
            except Transient as error:
                if attempt == self.attempts:
                    tries = f" ({attempt} attempts)" if attempt > 1 else ""
                    raise ServerError(f"{error}{tries}") from error
                time.sleep(max(error.wait_s, self.pause_s * 2 ** (attempt - 1)))
        raise AssertionError("attempts must be at least 1")


TRITON_HTTP, TRITON_METRICS = "Triton's HTTP port", "Triton's metrics port"
FASTAPI, ANOTHER = "the FastAPI service", "an HTTP server"
MOST_BYTES = 1 << 24  # of an answer, unpacked


class Http:
    """One kept-alive connection pool; thread-safe."""

    def __init__(self, url: str, patience: Patience, headers: dict[str, str] | None = None) -> None:
        self._address, self._patience = http_address(url), patience
        self.url = masked(self._address)
        timeout = httpx.Timeout(patience.request_s, connect=patience.connect_s)
        self._client = _client(self._address, timeout, headers)

    def call(self, method: str, path: str, **request: Any) -> httpx.Response:
        return self._patience.retry(lambda: self._once(method, path, **request))

    def post(self, request: HttpRequest) -> httpx.Response:
        return self.call("POST", request.path, content=request.body, headers=request.headers)

    def _once(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            response = _fetch(self._client, method, path, self._patience.request_s, **request)
        except (httpx.ConnectError, httpx.ProxyError) as error:
            proxy = _proxy_for(self._address)
            through = f" through the proxy {masked(proxy)}, which NO_PROXY can leave out" if proxy else ""
            raise Transient(
                f"No server answers at {self.url}{through} ({error}): start it (`photodup serve`), or correct the address."
            ) from error
        except httpx.TimeoutException as error:
            raise Transient(
                f"{self.url} did not answer in time ({type(error).__name__}): is it overloaded or behind a firewall?"
            ) from error
        except httpx.RemoteProtocolError as error:
            if "disconnected" in str(error).lower():
                raise Transient(
                    f"{self.url} closed the connection: is this a gRPC port (HTTP is usually one lower)?"
                ) from error
            raise ServerError(
                f"What listens at {self.url} does not speak HTTP: is this the gRPC port? HTTP is usually one lower."
            ) from error
        except httpx.NetworkError as error:
            raise Transient(f"The connection to {self.url} broke ({type(error).__name__}).") from error
        except httpx.InvalidURL as error:
            raise ServerError(f"{self.url!r} is no HTTP address ({error}): use http://host:port.") from error
        if response.status_code == 401:
            raise ServerError(f"{self.url} asks for an API key, and this is not it: set PHOTODUP_API_KEY.")
        if response.status_code in (429, 502, 503, 504):
            wait = response.headers.get("retry-after", "0")
            raise Transient(
                f"{self.url} answers {response.status_code}: {error_sentence(response)}",
                float(wait) if wait.isdigit() else 0.0,
            )
        return response

    def explain(self, response: httpx.Response, expected: str) -> ServerError:
        """Return an error that names the server behind an unexpected answer."""
        server = which_server(self._address)
        if server and server not in (expected, ANOTHER):
            return ServerError(
                f"{self.url} is {server}, not {expected}: correct the port or the backend (INFERENCE_BACKEND)."
            )
        return ServerError(
            f"{self.url} answers {response.status_code} and is not {expected} as it should be: "
            f"{error_sentence(response)}"
        )

    def close(self) -> None:
        self._client.close()


def error_sentence(response: httpx.Response) -> str:
    """Return the server's own error text, shortened."""
    try:
        body = read_json_answer(response.content)
        text = body.get("detail") or body.get("error") or body.get("status") or response.text
    except (AnswerError, AttributeError):
        text = response.text
    return " ".join(str(text).split())[:300]


def image_problems(response: httpx.Response) -> list[tuple[int, str]]:
    """Return the positions of the images that a refusal lists, with the reason of each."""
    try:
        problems = read_json_answer(response.content)["errors"]
        return [(int(problem["index"]), str(problem["reason"])) for problem in problems]
    except (AnswerError, LookupError, TypeError, ValueError):
        return []


def bad_image(response: httpx.Response) -> ImageError:
    if not (problems := image_problems(response)):
        return ImageError(error_sentence(response))
    error = ImageError(problems[0][1])
    error.index = problems[0][0]
    return error


def _client(url: str, timeout: Any, headers: dict[str, str] | None = None) -> httpx.Client:
    """Return a client; the environment's proxies are not used for loopback."""
    try:
        return httpx.Client(base_url=url, timeout=timeout, headers=headers, trust_env=not is_loopback(url))
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        cause = (
            error if isinstance(error, ImportError) else type(error).__name__
        )  # the others show a password
        raise ServerError(
            f"The proxy or the certificates of the environment cannot be used for {masked(url)} ({cause}): correct "
            "ALL_PROXY, HTTP_PROXY or SSL_CERT_FILE, or leave the address out with NO_PROXY."
        ) from None


def _proxy_for(url: str) -> str:
    parts, proxies = urlsplit(url), urllib.request.getproxies()
    if is_loopback(url) or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return ""
    return proxies.get(parts.scheme, proxies.get("all", ""))


def _fetch(client: httpx.Client, method: str, path: str, seconds: float, **request: Any) -> httpx.Response:
    """Return an answer of at most `MOST_BYTES` that is complete within `seconds` of its head.

    Raises:
        ServerError: it is longer.
        httpx.HTTPError: nothing answers, or not in time.
    """
    content = bytearray()
    with client.stream(method, path, **request) as response:
        until = time.monotonic() + seconds
        for chunk in response.iter_bytes():
            content += chunk
            if len(content) > MOST_BYTES:
                raise ServerError(f"{masked(str(response.url))} answers more than {MOST_BYTES:,} bytes.")
            if time.monotonic() > until:
                raise httpx.ReadTimeout(f"not whole within {seconds:g} s", request=response.request)
    headers = [pair for pair in response.headers.multi_items() if pair[0].lower() != "content-encoding"]
    return httpx.Response(
        response.status_code, headers=headers, content=bytes(content), request=response.request
    )


def ask(
    url: str, path: str, seconds: float, method: str = "GET", headers: dict[str, str] | None = None
) -> httpx.Response:
    """Return a server's answer to one request, whatever its status.

    Raises:
        ServerError: no answer in time; gives the cause.
    """
    try:
        with _client(http_address(url), seconds, headers) as client:
            return _fetch(client, method, path, seconds)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(str(error) or type(error).__name__) from None


def which_server(url: str) -> str | None:
    """Return the kind of server at `http://host:port`, such as `TRITON_HTTP`; None if nothing answers HTTP."""

    def get(path: str) -> tuple[int, str]:
        with contextlib.suppress(ServerError):
            answer = ask(url, path, 2)
            return answer.status_code, answer.text
        return 0, ""

    status, text = get("/v2")
    if not status:
        return None
    # Triton's metrics port answers 200 with an empty body to every path, so a status alone says nothing.
    if '"extensions"' in text and '"version"' in text:
        return TRITON_HTTP
    if "nv_inference" in get("/metrics")[1]:
        return TRITON_METRICS
    return FASTAPI if get("/healthz")[0] == 200 else ANOTHER
