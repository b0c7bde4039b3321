"""A "rented machine" on this one: what the images start, in a network namespace of its own, behind an emulated link.

Its servers listen at an address that is not loopback, on the published ports, and nothing of this machine's own
loopback reaches them. Triton is started by docker/start-triton.sh, the service by the command of its image; both are
rendered for a CPU, since that is what there is here. Processor and memory are shared with the client, which no
rented machine does: figures measured on it are no results.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.shipped import start_shipped

from photodup.bench.link.emulate import Link
from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir
from photodup.serving.embedded import MODELS
from photodup.serving.endpoints import NO_GPU, Endpoints, from_ports
from photodup.serving.process.server_process import ServerProcess, is_answering
from photodup.serving.service.start import command as service_command
from photodup.serving.service.start import is_ready, patient_environment
from photodup.serving.triton.control_key import new_key

PORTS = {"fastapi": 8002, "http": 8003, "grpc": 8004, "metrics": 8005}
"""As published, as docker/compose.yaml and the all-in-one image have them."""

WITHOUT = {
    "control": "Triton is started without a key: nobody can change its models",
    "metrics": "no metrics page is listed, and Triton has none",
    "fastapi": "there is no FastAPI service",
    "triton": "there is no Triton",
    "openvino": "Triton lacks the OpenVINO model",
    "jpeg": "Triton lacks the model that takes JPEG files",
}
"""What a machine can lack -> what that means."""

LINK = "us-east"


@dataclass(frozen=True)
class Rented:
    """A machine that is up.

    Attributes:
        endpoints: what an endpoints file of it says, with the control key.
        key: the control key; "" where the machine is without control.
        way: the link in front of it, up and measured.
    """

    endpoints: Endpoints
    address: str
    key: str = field(repr=False)
    way: Link = field(repr=False)


@contextlib.contextmanager
def rented_machine(
    *,
    without: Collection[str] = (),
    link: str = LINK,
    repository: Path,
    service_env: dict[str, str] | None = None,
) -> Iterator[Rented]:
    """Start such a machine for the length of a `with` block.

    Args:
        without: what it lacks, of `WITHOUT`.
        link: preset of the link in front of it.
        repository: a rendered model repository.
        service_env: settings of the FastAPI service beside those of the image.

    Raises:
        PhotodupError: no right to make a namespace, no Triton here, an unknown word in `without`, a server that does
            not start.
    """
    if unknown := sorted(set(without) - set(WITHOUT)):
        raise PhotodupError(f"A machine without {', '.join(unknown)}: it can lack {', '.join(WITHOUT)}.")
    if {"fastapi", "triton"} <= set(without):
        raise PhotodupError("A machine with neither FastAPI nor Triton answers nothing: leave one of them.")
    models = () if "triton" in without else _models(without)
    key = "" if {"control", "triton"} & set(without) else new_key()
    with Link(link, servers_far=True) as way, contextlib.ExitStack() as stack:
        # As in docs/gpu.md, where every shell has the service's key.
        service_env = {**(service_env or {}), "API_KEY": new_key()}
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("PHOTODUP_API_KEY", service_env["API_KEY"])
        address = way.client_address
        with way.client_namespace():  # processes are born in the namespace of the thread that starts them
            started = _start(stack, address, without, repository, key, service_env)
        for process, is_up in started:
            process.wait_ready(is_up, 300)
        absent = {*without, *(() if models else ("http", "grpc", "metrics"))}
        found = from_ports(
            address,
            *(0 if name in absent else port for name, port in PORTS.items()),
            name="rented",
            gpu=NO_GPU,
            models=models,
            location=f"a namespace of this machine, behind an emulated link ({link})",
            triton_control_key=key or None,
        )
        if "metrics" in without:
            found = found.model_copy(update={"metrics": {}})
        yield Rented(found, address, key, way)


def _models(without: Collection[str]) -> tuple[str, ...]:
    lacking = tuple(f"_{word}" for word in ("openvino", "jpeg") if word in without)
    return tuple(name for name in MODELS if not (lacking and name.endswith(lacking)))


def _start(
    stack: contextlib.ExitStack,
    address: str,
    without: Collection[str],
    repository: Path,
    key: str,
    service_env: dict[str, str],
) -> list[tuple[ServerProcess, Callable[[], bool]]]:
    """Start what the machine has; return each server and what says that it is ready."""
    started: list[tuple[ServerProcess, Callable[[], bool]]] = []
    if "fastapi" not in without:
        # As in the image, but requests wait: on a CPU that the client shares, two seconds of queue are soon there.
        settings = patient_environment({**service_env, "HOST": "0.0.0.0", "PORT": str(PORTS["fastapi"])})
        log = build_dir() / "logs" / "rented-fastapi.log"
        service = stack.enter_context(ServerProcess("FastAPI", service_command(), log, settings))
        started.append((service, functools.partial(is_ready, f"http://{address}:{PORTS['fastapi']}")))
    if "triton" not in without:
        # The command of docker/start-all.sh and of the Triton image.
        arguments = ["--exit-on-error=false", *(f"--{name}-port={PORTS[name]}" for name in ("http", "grpc"))]
        metrics = "--allow-metrics=false" if "metrics" in without else f"--metrics-port={PORTS['metrics']}"
        triton = start_shipped(repository, key=key, arguments=[*arguments, metrics], log="rented-triton")
        is_up = functools.partial(is_answering, f"http://{address}:{PORTS['http']}/v2/health/ready")
        started.append((stack.enter_context(triton), is_up))
    return started
