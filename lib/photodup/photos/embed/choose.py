"""Choose the encoder of a library for `photodup embed`: a known server that answers, or the model in this process."""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from photodup.core.errors import PhotodupError
from photodup.core.names import escaped
from photodup.core.settings import environment
from photodup.embedding.backends import parse_backend
from photodup.embedding.engines.reduced import draft_verdict_on
from photodup.embedding.imaging import DRAFT_SIZE
from photodup.embedding.vectors import digest_drafted, is_among
from photodup.photos.library.catalogue import Catalogue

if TYPE_CHECKING:
    from photodup.embedding.client.embedder import Embedder

AUTO, LOCAL, _SERVICE = "auto", "local-pytorch-fp32", "fastapi-pytorch-fp32-http-jpeg"
# Name and default address, as the documented port map has them.
KNOWN = {
    _SERVICE: "http://127.0.0.1:8002",
    "triton-onnx-fp32-http-fp32": "http://127.0.0.1:8003",
    "triton-onnx-fp32-grpc-fp32": "127.0.0.1:8004",
}


@dataclass(frozen=True)
class EncoderRequest:
    """The encoder that the command line requests.

    Attributes:
        backend: its name, or `auto`.
        url: the server's address.
        weights: for the model in this process, as MODEL_PRETRAINED takes them; excludes a server.
    """

    backend: str | None = None
    url: str | None = None
    weights: str | None = None


@dataclass(frozen=True)
class ServerState:
    """Whether one backend answers and what it serves; `problem` is a sentence where it does not."""

    name: str
    url: str
    answers: bool
    model: str | None = None
    digest: str | None = None
    is_random: bool | None = None
    precision: str = "fp32"
    problem: str = ""

    @property
    def fits_grouping(self) -> bool:
        """Whether grouping may use its embeddings: the server names trained weights and computes in FP32."""
        is_trained = self.answers and self.digest is not None and self.is_random is False
        return is_trained and self.precision == "fp32"


@dataclass(frozen=True)
class ChosenEncoder:
    """What to connect to (`backend`, `url` and `mode` as of `connect`), and why in words.

    `weights` are those of the model in this process; None for MODEL_PRETRAINED.
    """

    backend: str | None
    url: str | None
    mode: str | None
    reason: str
    weights: str | None = None

    def connect(self) -> "Embedder":
        """Connect as chosen."""
        from photodup.embedding.client.embedder import connect

        return connect(self.url, self.backend, mode=self.mode, pretrained=self.weights)  # type: ignore[arg-type]


def known_backends() -> list[tuple[str, str]]:
    """Return (name, address) of every server worth asking: environment, port map."""
    here = environment()
    chosen = [(here.service_backend or _SERVICE, here.service_url)] if here.service_url else []
    return list(dict.fromkeys([*chosen, *KNOWN.items()]))


def probe_servers(servers: Collection[tuple[str, str]]) -> list[ServerState]:
    """Ask each server once, all at the same time; one that is silent costs a few seconds, not an error."""
    with ThreadPoolExecutor(8, thread_name_prefix="probe") as pool:
        return list(pool.map(lambda entry: _ask(*entry), servers))


def _ask(name: str, url: str) -> ServerState:
    from photodup.embedding.client.embedder import connect
    from photodup.embedding.client.http import Patience

    patience = Patience(connect_s=1.0, request_s=3.0, attempts=1)
    try:
        with connect(url, name, mode="remote", patience=patience) as embedder:
            facts = embedder.model_name, embedder.model_digest, embedder.is_random, embedder.precision
            return ServerState(name, url, True, *facts)
    except PhotodupError as error:
        return ServerState(name, url, False, problem=str(error))


def choose(request: EncoderRequest, digests: Collection[str] = ()) -> ChosenEncoder:
    """Choose the encoder: flags or the page before environment before `auto`.

    `auto` takes a server that answers now and serves trained weights, best the model that this library's
    embeddings come from already; else the model in this process. It never takes random weights, and where
    MODEL_PRETRAINED names weights for this machine it looks no further. A server that was named and does
    not answer is an error: half a library from each of two models would be hard to explain.

    Args:
        request: what the command line or the page said.
        digests: models that have embeddings here.

    Raises:
        PhotodupError: weights together with a server, or with an unknown backend.
    """
    backend, url, weights = request.backend, request.url, request.weights
    if weights:
        if url or backend == AUTO or not parse_backend(backend or LOCAL).is_local:
            raise PhotodupError("Weights are for the model in this process: leave the server out.")
        return ChosenEncoder(backend or LOCAL, None, "local", "as the command line says", weights)
    here, reason = environment(), "as the command line says"
    if not backend and not url:
        backend, url, reason = here.service_backend, here.service_url, "as the environment says"
    if backend == AUTO or not (backend or url):
        return _auto(url, digests)
    return ChosenEncoder(backend or None, url or None, None, reason)


def _auto(url: str | None, digests: Collection[str]) -> ChosenEncoder:
    if url:
        return ChosenEncoder(_SERVICE, url, "auto", "that server if it answers, else this machine")
    if weights := environment().model_pretrained:
        return ChosenEncoder(LOCAL, None, "local", f"MODEL_PRETRAINED names weights here: {weights}")
    states = probe_servers(known_backends())
    fit = sorted(
        (s for s in states if s.fits_grouping), key=lambda state: not is_among(state.digest, digests)
    )
    if fit:
        same = ", the model of this library's embeddings" if is_among(fit[0].digest, digests) else ""
        return ChosenEncoder(fit[0].name, fit[0].url, "remote", f"it answers and serves {fit[0].model}{same}")
    reduced = [s for s in states if s.answers and s.is_random is False and s.digest and not s.fits_grouping]
    silent = "no server has trained weights" if any(s.answers for s in states) else "no server answers"
    if reduced:
        silent = f"{reduced[0].name} computes in {reduced[0].precision}"
    return ChosenEncoder(LOCAL, None, "local", f"{silent}: the model in this process")


@contextmanager
def connect_encoder(catalogue: Catalogue, request: EncoderRequest) -> Iterator[tuple["Embedder", str]]:
    """Connect to the encoder of a library, decoding as for its embeddings; yield it and a description."""
    digests = [model.digest for model in catalogue.models() if model.n_embeddings]
    choice = choose(request, digests)
    with choice.connect() as embedder:
        is_drafted, decoding = choose_reduced_scale(embedder, digests)
        if is_drafted:
            embedder.at_reduced_scale()
        where = f" at {choice.url}" if choice.url else ""
        digest = (embedder.model_digest or "no digest")[:12]
        reason = "; ".join(part for part in (choice.reason, decoding) if part)
        # A server may call itself anything.
        yield embedder, escaped(f"{embedder.backend}{where}: {embedder.model_name} {digest} ({reason})")


def choose_reduced_scale(embedder: "Embedder", digests: Sequence[str]) -> tuple[bool, str]:
    """Return whether to decode at a reduced scale, and why in words (empty if there is no choice).

    Args:
        embedder: connected, and decoding whole so far.
        digests: models that have embeddings in the library, the one with most of them first.
    """
    drafted = digest_drafted(embedder.model_digest or "")
    began = next((digest for digest in digests if digest in (embedder.model_digest, drafted)), None)
    if began:
        is_drafted = began == drafted
        return is_drafted, f"{_how(is_drafted)}, as this library's embeddings began"
    model = getattr(embedder, "model", None)  # a server has none here
    if model is None:
        return False, ""
    verdict = draft_verdict_on(model)
    finding = {
        "passed": "which passed its accuracy check",
        "refused": "since the accuracy check refused a reduced scale",
        "undecided": "since the accuracy check could not decide about a reduced scale",
    }.get(verdict, "`photodup export --precision fp32 --draft` asks whether a reduced scale would do")
    return verdict == "passed", f"{_how(verdict == 'passed')}, {finding}"


def _how(is_drafted: bool) -> str:
    return f"JPEGs decoded at {DRAFT_SIZE} pixels or more a side" if is_drafted else "JPEGs decoded whole"
