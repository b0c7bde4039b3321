"""Read a URL: its address, and its protocol by the path or by asking the server."""

import base64
import contextlib
import re
import ssl
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from photodup.bench.backends.http_connection import MOST_METADATA_BYTES, HttpConnection, HttpError
from photodup.core.addresses import http_address, is_loopback, masked
from photodup.core.errors import PhotodupError
from photodup.core.settings import header_text, variable
from photodup.embedding.wire.http import AnswerError, read_json_answer
from photodup.embedding.wire.kserve import about_model, grpc_channel

if TYPE_CHECKING:
    import grpc

PROTOCOLS = ("multipart", "base64", "openai", "kserve-http", "kserve-grpc", "post")
_USUAL_PATH = {"multipart": "/embed", "base64": "/embed/base64", "openai": "/v1/embeddings"}
_MODEL_PATH = re.compile(r"(?P<base>.*)/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?(/infer)?/?")


@dataclass(frozen=True)
class Security:
    """Headers and TLS of a server. Values of headers are never printed and never written."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: bool = True
    ca: Path | None = None
    certificate: Path | None = None
    private_key_file: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return what a TLS connection is made with.

        Raises:
            PhotodupError: a file that cannot be read.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.private_key_file)
        except (OSError, ssl.SSLError) as error:
            raise PhotodupError(f"The certificate files cannot be used: {error}.") from None
        if not self.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def grpc_credentials(self) -> "grpc.ChannelCredentials":
        """Return what a gRPC channel over TLS is made with; raises as `context` does."""
        import grpc

        if not self.verify:
            raise PhotodupError("gRPC always checks the server's certificate: name its authority with --ca.")
        try:
            files = self.ca, self.private_key_file, self.certificate
            parts = [path.read_bytes() if path else None for path in files]
        except OSError as error:
            raise PhotodupError(f"A certificate file cannot be read: {error}.") from None
        return grpc.ssl_channel_credentials(*parts)


@dataclass(frozen=True)
class Target:
    """One server and how it is asked.

    Attributes:
        base: `http://host:port`, or `host:port` for gRPC.
        path: what is posted to; for KServe that of the model, or of its version.
        query: sent with every request; its values, which may be a key, are never printed and never written.
        model: KServe: the model; OpenAI: what the request names.
        version: KServe: of the model; the server's choice if empty.
        takes: `images` where the server is photodup's own, whose OpenAI form takes images.
        method: of a plain request (`post`).
        metrics: page of the server's counters where it was named.
    """

    base: str
    path: str
    protocol: str
    model: str = ""
    is_tls: bool = False
    security: Security = field(default_factory=Security)
    timeout_s: float = 60.0
    takes: str = ""
    method: str = "POST"
    metrics: str = ""
    query: str = ""
    version: str = ""

    @property
    def url(self) -> str:
        """Host and port as a URL."""
        return self.base if "//" in self.base else f"http://{self.base}"

    @property
    def name(self) -> str:
        """The name in messages and results."""
        return f"{self.base}{self.path}" + (masked(f"?{self.query}") if self.query else "")

    @property
    def is_local(self) -> bool:
        """The address is one of this machine."""
        return is_loopback(self.base)

    def connection(self, most_bytes: int | None = None) -> HttpConnection:
        url = f"{self.base}?{self.query}" if self.query else self.base
        tls = self.security.context() if self.is_tls else None
        texts = [text.rpartition(" ")[2] for text in self.security.headers.values()]
        texts += [unquote(text.rpartition("=")[2]) for text in self.query.split("&")]
        secrets = [text for text in texts if len(text) > 4]  # shorter ones are parts of any sentence
        return HttpConnection(
            url, timeout_s=self.timeout_s, tls=tls, reopen=True, most_bytes=most_bytes, secrets=secrets
        )

    def channel(self) -> "grpc.Channel":
        """Return a gRPC channel with a TCP connection of its own.

        Raises:
            PhotodupError: a certificate file cannot be read, or the check of certificates is to be left out.
        """
        host = next((text for name, text in self.security.headers.items() if name.lower() == "host"), "")
        credentials = self.security.grpc_credentials() if self.is_tls else None
        return grpc_channel(self.base, credentials, host)

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """The headers as gRPC sends them; the host is the channel's."""
        fields = {name.lower(): text for name, text in self.security.headers.items()}
        fields.pop("host", None)
        return list(fields.items())

    def get(self, path: str, method: str = "GET", *, is_needed: bool = False) -> Any:
        """Return the JSON answer to a GET or an empty POST; None for another error status, or an answer that is no JSON.

        Raises:
            PhotodupError: nothing answers there, the key is refused, or (`is_needed`) the server is not ready.
        """
        try:
            with contextlib.closing(self.connection(MOST_METADATA_BYTES)) as connection:
                _, body = connection.request(connection.head(method, path, 0, self.security.headers))
            return read_json_answer(body)
        except HttpError as error:
            if error.status in (401, 403):
                raise PhotodupError(
                    f"{self.base} refuses {method} {path}: {error} Give a key with --api-key."
                ) from None
            if is_needed and error.status == 503:
                raise PhotodupError(f"{self.base} is not ready: {error} Wait, and try again.") from None
            if error.status == 0:
                raise PhotodupError(f"{self.base} does not answer in HTTP as asked: {error}") from None
            return None
        except AnswerError:
            return None
        except OSError as error:
            raise unreachable(self.base, error) from None

    def about(self, kind: str, model: str, version: str = "") -> dict[str, Any] | None:
        """Return `about_model`'s description over gRPC; None where the server knows no such model or call.

        Raises:
            PhotodupError: nothing answers there; one sentence.
        """
        with self.channel() as channel:
            import grpc

            options = {"timeout": min(self.timeout_s, 10.0), "metadata": self.metadata}
            try:
                return about_model(channel, kind, model, version, **options)
            except grpc.RpcError as error:
                code, details = error.code().name, " ".join((error.details() or "").split())[:200]
                if code in ("NOT_FOUND", "INVALID_ARGUMENT", "UNIMPLEMENTED"):
                    return None
                raise unreachable(self.base, Exception(f"gRPC {code}: {details}")) from None

    def columns(self) -> dict[str, str | None]:
        """Return the target as columns of a result; no header and no key."""
        return {"url": self.name, "protocol": self.protocol, "model": self.model or None}


def unreachable(base: str, error: BaseException) -> PhotodupError:
    """Return the error for a server that gave no answer, with its likely cause."""
    if isinstance(error, TimeoutError) or "DEADLINE_EXCEEDED" in str(error):
        return PhotodupError(
            f"{base} did not answer in time: is it busy or still starting? --timeout allows it more seconds."
        )
    cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return PhotodupError(
            f"{base} ended the connection ({cause}): does it speak what is asked, and does it take so large a request?"
        )
    return PhotodupError(
        f"Nothing answers at {base} ({cause}): is the server running, and is the port right?"
    )


def target_of(
    url: str,
    *,
    protocol: str | None = None,
    model: str = "",
    security: Security | None = None,
    timeout_s: float = 60.0,
    method: str = "POST",
) -> Target:
    """Read a URL: its scheme and path say what it speaks, or the server is asked.

    Raises:
        PhotodupError: no address, nothing answers, or the protocol cannot be found out.
    """
    if protocol and protocol not in PROTOCOLS:
        raise PhotodupError(f"There is no protocol {protocol!r}: choose of {', '.join(PROTOCOLS)}.")
    url = url if "://" in url else f"http://{url}"
    is_grpc = url.lower().startswith(("grpc://", "grpcs://")) or protocol == "kserve-grpc"
    http_address(re.sub("^grpcs?:", "http:", url, flags=re.IGNORECASE), "gRPC" if is_grpc else "")
    parts, security = urlsplit(url), security or Security()
    path, query = (quote(text, safe=string.punctuation) for text in (parts.path.rstrip("/"), parts.query))
    user, _, netloc = parts.netloc.rpartition("@")
    if user:
        basic = f"Basic {base64.b64encode(unquote(user).encode()).decode()}"
        security = replace(security, headers={"Authorization": basic, **security.headers})
    base, is_tls = netloc if is_grpc else f"{parts.scheme}://{netloc}", parts.scheme in ("grpcs", "https")
    target = Target(base, path, "", model, is_tls, security, timeout_s, method=method, query=query)
    if is_grpc:
        return _kserve(target, "kserve-grpc")
    spoken = protocol or ("post" if method != "POST" else _by_path(path)) or _by_asking(target)
    if spoken == "kserve-http":
        return _kserve(target, spoken)
    if not path or (spoken == "openai" and path == "/v1"):
        target = replace(target, path=_USUAL_PATH.get(spoken, "/"))
    target = replace(target, protocol=spoken)
    if spoken != "openai":
        return target
    target = replace(target, model=model or _openai_model(target))
    return replace(target, takes="images") if _is_ours(target) else target


def _by_path(path: str) -> str:
    if _MODEL_PATH.fullmatch(path):
        return "kserve-http"
    endings = {"/embeddings": "openai", "/embed/base64": "base64", "/embed": "multipart"}
    if match := next((protocol for end, protocol in endings.items() if path.endswith(end)), ""):
        return match
    return "post" if path.strip("/") not in ("", "v1") else ""


def _by_asking(target: Target) -> str:
    metadata = target.get("/v2")
    if isinstance(metadata, dict) and "extensions" in metadata:
        return "kserve-http"
    if _is_ours(target):
        return "multipart"
    for path in ("/v1/models", "/models"):
        models = target.get(path)
        if isinstance(models, dict) and isinstance(models.get("data"), list):
            return "openai"
    target.get("/info", is_needed=True)  # our service while it loads its model
    raise PhotodupError(
        f"{target.base} answers, but does not say what it speaks: add its path to the URL, or --protocol "
        f"({', '.join(PROTOCOLS)})."
    )


def _is_ours(target: Target) -> bool:
    """Return True where photodup's own service answers."""
    info = target.get("/info")
    return isinstance(info, dict) and "limits" in info and "digest" in info


def _kserve(target: Target, protocol: str) -> Target:
    """Read the model from the path, which may begin with the server's own; over gRPC the model's name alone is enough."""
    is_grpc, path = protocol == "kserve-grpc", target.path
    target = replace(target, protocol=protocol)
    if is_grpc and path:
        path = f"/v2/models/{path.strip('/').removeprefix('v2/models/')}"
    if match := _MODEL_PATH.fullmatch(path):
        model, version = target.model or match["model"], match["version"] or ""
        target = replace(target, base=target.base + match["base"], model=model, version=version)
    elif not is_grpc:
        target = replace(target, base=target.base + path)
    if not target.model:
        names = _ready_models(target)
        form = f"grpc://{target.base}/MODEL" if is_grpc else f"{target.base}/v2/models/MODEL"
        which = f"it has {', '.join(names)}" if names else "it tells nobody without a key which it has"
        raise PhotodupError(f"{target.base} serves models: name one, as {form}; {which}.")
    version = target.version and f"/versions/{target.version}"
    return replace(target, path=f"{'' if is_grpc else '/v2/models'}/{target.model}{version}")


def _ready_models(target: Target) -> list[str]:
    """Return the models that a KServe server lists, by extensions of Triton's, which may be restricted."""
    ways = [partial(target.get, "/v2/repository/index", "POST"), partial(target.get, "/v2/models/stats")]
    if target.protocol == "kserve-grpc":
        ways = [partial(target.about, "ModelStatistics", "")]
    for way in ways:
        with contextlib.suppress(PhotodupError):
            listed = way()
            rows = listed.get("model_stats") if isinstance(listed, dict) else listed
            rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
            if names := {
                str(row["name"]) for row in rows if row.get("state", "READY") == "READY" and "name" in row
            }:
                return sorted(names)
    return []


def _openai_model(target: Target) -> str:
    listed = target.get(target.path.removesuffix("embeddings") + "models")
    models = listed.get("data") if isinstance(listed, dict) else None
    models = models if isinstance(models, list) else []
    names = [str(m["id"]) for m in models if isinstance(m, dict) and m.get("id")]
    if not names:
        raise PhotodupError(f"{target.base} lists no models: name the one to ask for with --model.")
    return names[0]


def header_values(lines: Sequence[str], api_key: str | None) -> dict[str, str]:
    """Read `Name: value`; a value or a key written `env:NAME` is read from the environment.

    Raises:
        PhotodupError: no header, or a variable that is not set; the value is never part of the sentence.
    """
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name.strip()):
            raise PhotodupError(f"A header is written 'Name: value', not {name.strip()[:40]!r}.")
        headers[name.strip()] = _header_value(value.strip(), name.strip())
    if api_key:
        headers["Authorization"] = f"Bearer {_header_value(api_key, '--api-key')}"
    return headers


def _header_value(value: str, label: str) -> str:
    name = value.removeprefix("env:")
    if name != value and not (value := variable(name)):
        raise PhotodupError(f"{label} is to be read from the environment variable {name}: set it.")
    return header_text(value, label)
