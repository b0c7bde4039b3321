"""The servers of the comparison: how each is started, when it is ready, and how it receives a request.

Every one gets the same JPEGs by HTTP in the form that its own documentation shows, prepared before it is sent, and has
to answer the same embeddings. The peers' environments and servers are in tools/peers/.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from photodup.bench.anyurl.measure import Request
from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.anyurl.target import Target
from photodup.bench.load.usage import family
from photodup.bench.verify.asking import MOST
from photodup.core.errors import PhotodupError
from photodup.core.files import available_cores
from photodup.core.paths import build_dir, project_root
from photodup.core.settings import inherited
from photodup.embedding.backends import Backend
from photodup.embedding.engines.model import can_compute
from photodup.serving.process.ports import claim_ports
from photodup.serving.process.server_process import ServerProcess, answers
from photodup.serving.service.start import command as service_command
from photodup.study.peers.weights import checkpoint, hugging_face

MIN_COSINE = 0.9999  # of a peer's embeddings to ours, before anything is timed
START_S = 240.0  # longest
TOOLS = "tools/peers"


@dataclass(frozen=True)
class Server:
    """One server of the comparison.

    Attributes:
        name: key of its records.
        label: what a sentence calls it.
        engine: what runs the graph.
        protocol, path: how it is asked (see `bench.anyurl.target`).
        command: program and arguments, from a port and the weights; None for ours, which start otherwise.
        environment: from the same, what the process gets beside ours.
        ready: path that answers 200 when it embeds.
        how: one sentence on how it is configured, and by which of its documents.
        precision: asked for, such as `bf16`.
        keeps_fp32: on a CPU it computes in FP32 whatever precision is asked for.
        most: images in a request, at most.
    """

    name: str
    label: str
    how: str
    engine: str = "pytorch"
    protocol: str = "multipart"
    path: str = "/embed"
    ready: str = "/readyz"
    command: Callable[[int, str], list[str]] | None = None
    environment: Callable[[int, str], dict[str, str]] = field(default=lambda port, weights: {})
    precision: str = "fp32"
    keeps_fp32: bool = False
    most: int = MOST

    @property
    def computed(self) -> str:
        """The precision that it computes in."""
        return "fp32" if self.keeps_fp32 else self.precision

    @property
    def is_ours(self) -> bool:
        return self.command is None

    @property
    def missing(self) -> str:
        """One sentence why it cannot be started here; empty where it can."""
        if self.is_ours or (_folder(self.name) / "made").is_file():
            return ""
        said = _folder(self.name).with_suffix(".error")
        why = said.read_text(encoding="utf-8").strip() if said.is_file() else ""
        because = f" ({why})" if why else ""
        return f"{self.label} is not installed here{because}: python3.11 {TOOLS}/make.py {self.name}"

    @property
    def version(self) -> str:
        """The pinned version of a peer; empty for ours."""
        if self.is_ours:
            return ""
        package = {"infinity": "infinity-emb"}.get(self.name, self.name)
        lock = (project_root() / TOOLS / f"{self.name}.txt").read_text(encoding="utf-8")
        found = re.search(rf"^{package.replace('-', '[-_]')}==(\S+)$", lock, re.MULTILINE | re.IGNORECASE)
        return found[1] if found else ""


def _folder(name: str) -> Path:
    return build_dir() / "peers" / name


def _python(name: str, *arguments: str) -> list[str]:
    return [str(_folder(name) / "bin" / "python"), *arguments]


def _script(name: str) -> Callable[[int, str], list[str]]:
    return lambda port, weights: _python(name, str(project_root() / TOOLS / f"{name}_server.py"))


# What our scripts for the peers read, and what Infinity does.
_TORCH_DTYPE = {
    precision: {"PEER_DTYPE": dtype, "INFINITY_DTYPE": dtype}
    for precision, dtype in (("fp32", "float32"), ("bf16", "bfloat16"))
}


def _usual(port: int, weights: str) -> dict[str, str]:
    return {
        "PORT": str(port),
        "PEER_WEIGHTS": str(checkpoint(weights)),
        "PEER_THREADS": str(available_cores()),
    }


def _mosec(port: int, weights: str) -> list[str]:
    options = f"--port {port} --address 127.0.0.1 --timeout 60000".split()
    return [*_script("mosec")(port, weights), *options]


def _infinity(port: int, weights: str) -> list[str]:
    # Results of inputs seen before would be read from a disk otherwise, and the same photographs are sent again.
    options = ["--no-vector-disk-cache", "--engine", "torch", "--device", "cpu"]
    options += ["--batch-size", "32", "--no-bettertransformer", "--no-compile", "--host", "127.0.0.1"]
    where = ["--model-id", str(hugging_face(weights)), "--served-model-name", "clip", "--port", str(port)]
    return [str(_folder("infinity") / "bin" / "infinity_emb"), "v2", *where, *options]


def _bentoml(port: int, weights: str) -> list[str]:
    where = ["--working-dir", str(project_root() / TOOLS), "--host", "127.0.0.1", "--port", str(port)]
    return _python("bentoml", "-m", "bentoml", "serve", "bentoml_server:Embedder", *where)


SERVERS = {
    server.name: server
    for server in (
        Server("fastapi", "FastAPI (ours)", "as `photodup serve` starts it"),
        Server(
            "triton",
            "Triton (ours)",
            "the embedded server, ONNX Runtime, JPEG to an ensemble",
            engine="onnx",
            protocol="kserve-http",
            path="",
        ),
        Server(
            "infinity",
            "Infinity",
            "`infinity_emb v2 --engine torch --device cpu --dtype float32`, its cache of answers off; its ONNX engine "
            "takes no CLIP",
            protocol="openai",
            path="/embeddings",
            ready="/health",
            command=_infinity,
            environment=lambda port, weights: {
                "HF_HUB_OFFLINE": "1",
                "DO_NOT_TRACK": "1",
                "INFINITY_ANONYMOUS_USAGE_STATS": "0",
            },
            keeps_fp32=True,  # its vision models take another `--dtype` on CUDA alone
        ),
        Server(
            "litserve",
            "LitServe",
            "one worker, `max_batch_size=32`, `batch_timeout=0.005`",
            ready="/health",
            command=_script("litserve"),
            environment=_usual,
            most=1,  # as its documentation shows it; it makes batches of requests
        ),
        Server(
            "bentoml",
            "BentoML",
            "one worker, `batchable=True`, `max_batch_size=32`",
            command=_bentoml,
            environment=lambda port, weights: {**_usual(port, weights), "BENTOML_DO_NOT_TRACK": "True"},
        ),
        Server(
            "mosec",
            "mosec",
            "one process decodes, one computes, `max_batch_size=32`, `max_wait_time=5`",
            protocol="post",
            path="/inference",
            ready="/metrics",
            command=_mosec,
            environment=_usual,
        ),
        Server(
            "ray",
            "Ray Serve",
            "one replica, `serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)`",
            protocol="post",
            ready="/-/healthz",
            command=_script("ray"),
            environment=lambda port, weights: {**_usual(port, weights), "RAY_USAGE_STATS_ENABLED": "0"},
        ),
    )
}
"""The servers by name; each field that is not given is our FastAPI service's."""

FASTEST_OF_OURS = ("openvino", "int8")
FASTEST_OF_PEERS = "bf16"  # PyTorch's; FP32 where the processor has no instructions for it


def fastest(server: Server) -> Server:
    """Return a server at the fastest precision that it supports on this CPU; its engine may be another then."""
    if server.is_ours:
        engine, precision = FASTEST_OF_OURS
        return replace(server, engine=engine, precision=precision)
    return replace(server, precision=FASTEST_OF_PEERS) if can_compute(FASTEST_OF_PEERS) else server


def triton_model(server: Server) -> str:
    """Return the model that our Triton serves with this server's engine and precision, from JPEGs."""
    return Backend("triton", server.engine, server.precision, "http", "jpeg").triton_model


def target(server: Server, base: str) -> Target:
    """Return how this server is asked at an address."""
    path = server.path or f"/v2/models/{triton_model(server)}"
    model = {"triton": triton_model(server), "infinity": "clip"}.get(server.name, "")
    return Target(base, path, server.protocol, model)


@dataclass(frozen=True)
class Started:
    """A running server: its address, how long it took, and the process that holds all of it."""

    server: Server
    base: str
    ready_s: float
    pid: int

    def pids(self) -> tuple[int, ...]:
        """Return all processes of it that run now."""
        import psutil

        with contextlib.suppress(psutil.Error):
            return tuple(process.pid for process in family(self.pid))
        return ()

    def adapter(self, payloads: Payloads) -> Any:
        """Return a client for the load generator."""
        return Request(target(self.server, self.base), payloads, is_embedded=True).adapter()


@contextlib.contextmanager
def started(server: Server, weights: str, *, settings: Mapping[str, str] | None = None) -> Iterator[Started]:
    """Run a server for the length of a `with` block.

    Args:
        settings: for our FastAPI service, beside the usual.

    Raises:
        PhotodupError: it is not installed, or does not start; quotes its log.
    """
    if server.missing:
        raise PhotodupError(server.missing + ".")
    if server.name == "triton":
        with _triton(server, weights) as triton:
            yield triton
        return
    port = claim_ports("127.0.0.1", {server.label: 0})[server.label]
    log = build_dir() / "logs" / f"{server.name}-{port}.log"
    if server.command is None:
        command = service_command()
        own = {"MODEL_PRETRAINED": weights, "PORT": str(port), "HOST": "127.0.0.1", **(settings or {})}
        if server.precision != "fp32":
            own |= {"ENGINE": server.engine, "PRECISION": server.precision}
    else:
        command = server.command(port, weights)
        own = server.environment(port, weights) | _TORCH_DTYPE[server.precision]
    environment = {
        k: v for k, v in inherited().items() if k not in ("PYTHONPATH", "VIRTUAL_ENV") or server.is_ours
    }
    base = f"http://127.0.0.1:{port}"
    with ServerProcess(server.label, command, log, environment | own) as process:
        ready_s = process.wait_ready(lambda: answers(base + server.ready), START_S)
        yield Started(server, base, ready_s, process.pid)


@contextlib.contextmanager
def _triton(server: Server, weights: str) -> Iterator[Started]:
    from photodup.serving.embedded import export_models, render_exported
    from photodup.serving.triton.repository import with_steps
    from photodup.serving.triton.server import EmbeddedTriton

    models = with_steps([triton_model(server)])
    made = export_models({"MODEL_PRETRAINED": weights})
    folder = build_dir() / "triton" / "peers"
    repository = render_exported("cpu-embedded", folder, made, models=models)
    with EmbeddedTriton(repository, models) as triton:
        yield Started(server, triton.http_url, triton.ready_s, triton.pid)
