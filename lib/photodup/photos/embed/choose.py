"""Which server embeds a library: what is known, what answers, and which one `photodup embed` takes."""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from photodup.embedding.backends import parse_backend
from photodup.embedding.engines.reduced import may_decide, why_not
from photodup.embedding.vectors import is_among
from photodup.errors import PhotodupError
from photodup.photos.library.settings import AUTO, Settings
from photodup.settings import environment

if TYPE_CHECKING:
    from photodup.embedding.client.client import Embedder

LOCAL, _SERVICE = "local-pytorch-fp32", "fastapi-pytorch-fp32-http-jpeg"
# Name and default address, as the documented port map has them.
KNOWN = {
    _SERVICE: "http://127.0.0.1:8002",
    "triton-onnx-fp32-http-fp32": "http://127.0.0.1:8003",
    "triton-onnx-fp32-grpc-fp32": "127.0.0.1:8004",
}


@dataclass(frozen=True)
class State:
    """Whether one backend answers and what it serves; `problem` is a sentence where it does not."""

    name: str
    url: str
    answers: bool
    model: str | None = None
    digest: str | None = None
    is_random: bool | None = None
    precision: str = "fp32"
    gate: str = "not needed"
    problem: str = ""

    @property
    def is_fit(self) -> bool:
        """Whether decisions may rest on it: trained weights that the server names, at a precision that passed."""
        is_trained = self.answers and self.digest is not None and self.is_random is False
        return is_trained and may_decide(self.precision, self.gate)


@dataclass(frozen=True)
class Choice:
    """What to connect to, and why in words. Without a backend: the model in this process.

    `weights` are those of the model in this process; None for MODEL_PRETRAINED. `is_drafted`: JPEGs are decoded at a
    reduced scale.
    """

    backend: str | None
    url: str | None
    mode: str | None
    why: str
    weights: str | None = None
    is_drafted: bool = False

    def connect(self) -> "Embedder":
        """Connect as chosen."""
        from photodup.embedding.client.client import connect

        local = {"pretrained": self.weights} if self.weights else {}
        embedder = connect(self.url, self.backend, mode=self.mode, **local)  # type: ignore[arg-type]
        if self.is_drafted:
            embedder.at_reduced_scale()
        return embedder


def known_backends(settings: Settings, endpoints: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Return (name, address) of every server worth asking: stored, environment, endpoints file, port map."""
    wanted: dict[tuple[str, str], None] = {}
    if settings.backend != AUTO and settings.url:
        wanted[settings.backend, settings.url] = None
    here = environment()
    if here.service_url:
        wanted[here.service_backend or _SERVICE, here.service_url] = None
    for entry in (endpoints or {}).items():
        wanted[entry] = None
    for entry in KNOWN.items():
        wanted[entry] = None
    return list(wanted)


def probe(wanted: Collection[tuple[str, str]]) -> list[State]:
    """Ask each server once, all at the same time; one that is silent costs a few seconds, not an error."""
    if not wanted:
        return []
    with ThreadPoolExecutor(min(8, len(wanted)), thread_name_prefix="probe") as pool:
        return list(pool.map(lambda entry: _ask(*entry), wanted))


def _ask(name: str, url: str) -> State:
    from photodup.embedding.client.answers import Patience
    from photodup.embedding.client.client import connect

    patience = Patience(connect_s=1.0, request_s=3.0, attempts=1)
    try:
        with connect(url, name, mode="remote", patience=patience) as found:
            about = found.model_name, found.model_digest, found.is_random, found.precision, found.gate
            return State(name, url, True, *about)
    except PhotodupError as error:
        return State(name, url, False, problem=str(error))


def choose(
    settings: Settings,
    *,
    backend: str | None = None,
    url: str | None = None,
    weights: str | None = None,
    digests: Collection[str] = (),
    endpoints: Mapping[str, str] | None = None,
) -> Choice:
    """Decide who embeds: flag before environment before the page's settings before `auto`.

    `auto` takes a server that answers now and serves trained weights, best the model that this library's
    embeddings come from already; else the model in this process. It never takes random weights, and where
    MODEL_PRETRAINED names weights for this machine it looks no further. A server that was named and does
    not answer is an error: half a library from each of two models would be hard to explain.

    Args:
        settings: what the page stored.
        backend: what the command line said.
        url: what it said of the server's address.
        weights: what it said too, as for MODEL_PRETRAINED; then it is this machine that embeds.
        digests: models that have embeddings here.
        endpoints: more servers that `auto` may ask, by backend.

    Raises:
        PhotodupError: weights together with a server.
    """
    if backend and backend != AUTO:
        backend = parse_backend(backend).name
    if weights:
        if url or backend == AUTO or not parse_backend(backend or LOCAL).is_local:
            raise PhotodupError("Weights are for the model in this process: leave the server out.")
        choice = Choice(backend or LOCAL, None, "local", "as the command line says", weights)
        return choice if backend else _fastest(choice, digests)
    here = environment()
    if backend == AUTO:
        return _auto(settings, url, digests, endpoints)
    if backend or url:
        if backend == settings.backend and not url:
            url = here.service_url or settings.url
        return Choice(backend, url, None, "as the command line says")
    if here.service_backend == AUTO:
        return _auto(settings, here.service_url, digests, endpoints)
    if here.service_backend or here.service_url:
        return Choice(here.service_backend or None, here.service_url or None, None, "as the environment says")
    if settings.backend != AUTO:
        return Choice(settings.backend, settings.url, None, "as the settings of this library say")
    return _auto(settings, None, digests, endpoints)


def _auto(
    settings: Settings, url: str | None, digests: Collection[str], endpoints: Mapping[str, str] | None
) -> Choice:
    if url:
        return Choice(_SERVICE, url, "auto", "that server if it answers, else this machine")
    if weights := environment().model_pretrained:
        choice = Choice(LOCAL, None, "local", f"MODEL_PRETRAINED names weights here: {weights}")
        return _fastest(choice, digests)
    states = probe(known_backends(Settings(), endpoints))
    fit = sorted((s for s in states if s.is_fit), key=lambda state: not is_among(state.digest, digests))
    if fit:
        same = ", the model of this library's embeddings" if is_among(fit[0].digest, digests) else ""
        return Choice(fit[0].name, fit[0].url, "remote", f"it answers and serves {fit[0].model}{same}")
    ungated = [s for s in states if s.answers and s.is_random is False and s.digest and not s.is_fit]
    silent = "no server has trained weights" if any(s.answers for s in states) else "no server answers"
    if ungated:
        silent = f"{ungated[0].name} {why_not(ungated[0].precision, ungated[0].gate)}"
    return _fastest(Choice(LOCAL, None, "local", f"{silent}: the model in this process"), digests)


def _fastest(choice: Choice, digests: Collection[str]) -> Choice:
    """Take the fastest precision that passed the gate for the model in this process."""
    from photodup.photos.embed.fastest import fastest

    if found := fastest(choice.weights, digests):
        backend, why = found
        return replace(choice, backend=backend, why=f"{choice.why}; {backend.split('-')[-1]}, {why}")
    return choice
