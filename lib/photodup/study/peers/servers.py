"""The servers of notebook 13: where they are installed, how they are started, and how they are asked.

Every one gets the same JPEGs by HTTP in the form that its own documentation shows, prepared before they are sent, and has to
answer the same embeddings. The peers' environments and servers are in tools/peers.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from photodup.bench.anyurl.measure import LoadTarget
from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.anyurl.target import Target
from photodup.bench.backends.adapters import Adapter, check_embeddings
from photodup.bench.load.usage import cpu_s
from photodup.bench.pairs.alternate import LiveSide
from photodup.bench.pairs.declared import Declarations, PeerServer, Side, declarations
from photodup.core import settings
from photodup.core.errors import PhotodupError
from photodup.core.files import available_cores
from photodup.core.paths import build_dir, project_root
from photodup.embedding.backends import Backend
from photodup.embedding.wire import wires
from photodup.serving.process.ports import claim_ports
from photodup.serving.process.server_process import ServerProcess, is_answering
from photodup.serving.service.start import ServiceProcess
from photodup.study.notebook.benchmark import run_module
from photodup.study.notebook.run import Run, open_run, read_run, was_measured_elsewhere
from photodup.study.notebook.weights import choose_weights, payload_photos

if TYPE_CHECKING:
    import numpy as np

MIN_COSINE = {"fp32": 0.9999}  # of embeddings to ours in FP32, before anything is timed
MIN_COSINE_REDUCED = 0.98
START_S = 240.0  # longest wait until a server is ready
N_PHOTOS = 64
TOOLS = "tools/peers"
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def declared() -> Declarations:
    """Return what `notebooks/peers.yaml` declares."""
    return declarations(project_root() / "notebooks" / "peers.yaml")


def fp32_sides() -> list[Side]:
    """Return the side in FP32 of each server: every server has one."""
    return [side for side in declared().sides.values() if side.backend.precision == "fp32"]


def peer_of(side: Side) -> PeerServer:
    """Return the server of a side of `notebooks/peers.yaml`: each has one."""
    assert side.server is not None
    return side.server


def _folder(server: PeerServer) -> Path:
    return build_dir() / "peers" / server.name


def absence(server: PeerServer) -> str:
    """Return why a server cannot be started here, in a clause; empty where it can."""
    if not server.command or (_folder(server) / "made").is_file():
        return ""
    log = _folder(server).with_suffix(".error")
    error = log.read_text(encoding="utf-8").strip() if log.is_file() else ""
    return f"{server.label} is not installed here" + (f" ({error})" if error else "")


def version(server: PeerServer) -> str:
    """Return the pinned version of a peer; empty for ours."""
    lock = project_root() / TOOLS / f"{server.name}.txt"
    pinned = rf"(?im)^{server.name}(?:[-_]emb)?==(\S+)$"
    match = server.command and re.search(pinned, lock.read_text(encoding="utf-8"))
    return match[1] if match else ""


def open_peers(name: str) -> Run:
    """Open the run of the peers: for reading only where no peer is installed, or another machine began the run.

    It prints which peers are missing.
    """
    run, servers = open_run(name), map(peer_of, fp32_sides())
    peers = [server for server in servers if server.command]
    clauses = list(filter(None, map(absence, peers)))
    if settings.environment().may_measure and clauses:
        print(f"{'; '.join(clauses)}: `python3.11 {TOOLS}/make.py` installs them.")
    is_filled = len(clauses) < len(peers) and not was_measured_elsewhere(run)
    return run if is_filled else read_run(run.directory)


@cache
def payloads() -> Payloads:
    """Return the photographs that every server gets."""
    jpegs = wires.jpegs(payload_photos(N_PHOTOS))
    return Payloads("images", tuple(jpegs), f"{N_PHOTOS} photographs of 224 × 224 pixels", "image/jpeg")


@cache
def reference() -> np.ndarray:
    """Return our own embeddings of `payloads`, float32 [n, dim] of length 1: what every server has to answer."""
    from photodup.embedding.engines.encoder import load_model

    return load_model(pretrained=choose_weights(), device="cpu").embed_pixels(wires.pixels(payloads().items))


@dataclass(frozen=True)
class LiveServer:
    """A running server: its address, the seconds until it was ready, and the root of its processes."""

    side: Side
    base: str
    ready_s: float
    pid: int

    @property
    def target(self) -> Target:
        server, model = peer_of(self.side), triton_model(self.side)
        if server.protocol.startswith("kserve"):
            return Target(self.base, f"/v2/models/{model}", server.protocol, model)
        return Target(self.base, server.path, server.protocol, server.model)

    def adapter(self) -> Adapter:
        """Return a client for the load generator."""
        return LoadTarget(self.target, payloads(), is_embedded=True).adapter()

    def check(self) -> float:
        """Return the lowest cosine to our own embeddings.

        Raises:
            PhotodupError: the server embeds something else, so its times mean nothing.
        """
        least = MIN_COSINE.get(self.side.backend.precision, MIN_COSINE_REDUCED)
        return check_embeddings(self.adapter(), payloads().items, reference(), least, name=self.side.label)


def triton_model(side: Side) -> str:
    """Return the model that our Triton serves with this side's engine and precision, from JPEGs."""
    return Backend("triton", side.backend.engine, side.backend.precision, "http", "jpeg").triton_model


@contextlib.contextmanager
def started(side: Side, **settings_of_ours: str) -> Iterator[LiveServer]:
    """Run a server for the length of a `with` block.

    Args:
        settings_of_ours: more environment variables of our FastAPI service; other servers do not get them.

    Raises:
        PhotodupError: it is not installed, or does not start; quotes its log.
    """
    server, backend = peer_of(side), side.backend
    if clause := absence(server):
        raise PhotodupError(f"{clause}.")
    if server.protocol == "kserve-http":
        with _triton(side) as triton:
            yield triton
    elif not server.command:
        options = {"MODEL_PRETRAINED": choose_weights(), "ENGINE": backend.engine}
        options |= {"PRECISION": backend.precision, **settings_of_ours}
        with ServiceProcess(settings=options) as service:
            yield LiveServer(side, service.url, service.ready_s, service.pid)
    else:
        port = claim_ports("127.0.0.1", {server.label: 0})[server.label]
        base, log = f"http://127.0.0.1:{port}", build_dir() / "logs" / f"{server.name}-{port}.log"
        command, variables = command_of(side, port)
        inherited = {k: v for k, v in settings.inherited().items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        with ServerProcess(server.label, command, log, inherited | variables) as process:
            ready_s = process.wait_ready(lambda: is_answering(base + server.ready), START_S)
            yield LiveServer(side, base, ready_s, process.pid)


@cache
def weights_in(form: str) -> str:
    """Return where the weights lie, as a `checkpoint` of open_clip or in the layout of `hugging-face`."""
    return run_module("tools.peers.weights", form, choose_weights())


def command_of(side: Side, port: int) -> tuple[list[str], dict[str, str]]:
    """Return the program and arguments that start a peer, and the variables that it gets."""
    server, dtype = peer_of(side), TORCH_DTYPES[side.backend.precision]
    places = {"bin": _folder(server) / "bin", "tools": project_root() / TOOLS, "port": port}
    if "{weights}" in server.command:
        places["weights"] = weights_in("hugging-face")
    variables = {
        "PORT": port,
        "PEER_WEIGHTS": weights_in("checkpoint"),
        "PEER_THREADS": available_cores(),
        "PEER_DTYPE": dtype,
        **dict(server.environment),
    }
    words = [word.format(**places) for word in server.command.split()]
    return words, {name: str(variable) for name, variable in variables.items()}


@contextlib.contextmanager
def _triton(side: Side) -> Iterator[LiveServer]:
    from photodup.serving.embedded import export_models
    from photodup.serving.triton.repository import render_repository, with_steps
    from photodup.serving.triton.server import EmbeddedTriton

    models = with_steps([triton_model(side)])
    exported = export_models({"MODEL_PRETRAINED": choose_weights()})
    repository = render_repository("cpu-embedded", build_dir() / "triton" / "peers", exported, models=models)
    with EmbeddedTriton(repository, models) as triton:
        yield LiveServer(side, triton.http_url, triton.ready_s, triton.pid)


class ServerPair:
    """The two servers that are up; others take their place when the next visit asks for them."""

    def __init__(self) -> None:
        self._stack, self._up = contextlib.ExitStack(), list[LiveServer]()
        self._key: tuple[Side, Side, int] | None = None

    @contextlib.contextmanager
    def sides(self, a: Side, b: Side, visit: int) -> Iterator[list[LiveSide]]:
        """Yield two sides, started for each visit; its loads share the start, unless the block fails.

        Raises:
            PhotodupError: one does not start, or embeds otherwise.
        """
        try:
            if self._key != (a, b, visit):
                self.close()
                for side in (a, b):
                    self._up.append(self._stack.enter_context(started(side)))
                    self._up[-1].check()
                self._key = (a, b, visit)
            yield [
                LiveSide(server.adapter(), partial(cpu_s, server.pid), payloads().items)
                for server in self._up
            ]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End both servers."""
        self._stack.close()
        self._key, self._up = None, []
