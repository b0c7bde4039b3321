"""FastAPI and Triton on this machine, started and stopped together."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from photodup.core.paths import build_dir
from photodup.core.settings import inherited
from photodup.embedding.engines.export import VARIANTS, export_apart
from photodup.embedding.engines.reduced import INT8_SUFFIXES, reduced_path, source_of
from photodup.serving.check import service_engine
from photodup.serving.endpoints import NO_GPU, USUAL_SERVICE, Endpoints, from_ports
from photodup.serving.process.ports import claim_ports, key_warning, reachable_host
from photodup.serving.service.start import ServiceProcess
from photodup.serving.triton.repository import render_repository
from photodup.serving.triton.server import PORTS, EmbeddedTriton

MODELS = (
    "openclip_vit_b32",
    "openclip_vit_b32_openvino",
    "openclip_vit_b32_uint8",
    "openclip_vit_b32_fp16",
    "openclip_vit_b32_jpeg",
)
"""The models of the study. Each encoder loads its own copy of the weights, about 350 MB."""


def export_models(env: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Export the model that `MODEL_NAME` and `MODEL_PRETRAINED` choose, in a process of its own.

    Returns:
        The file of each variant, with the INT8 files that `photodup export --precision int8` made.
    """
    files = export_apart(VARIANTS, env=env)
    return files | int8_files(files["fp32"])


def int8_files(fp32: Path) -> dict[str, Path]:
    """Return the existing INT8 files of an export, as `<engine>-int8` -> path."""
    source = source_of(fp32)
    files = {f"{engine}-int8": reduced_path(source, engine, "int8") for engine in INT8_SUFFIXES}
    return {name: path for name, path in files.items() if path.is_file()}


@contextlib.contextmanager
def embedded_servers(
    *,
    fastapi_port: int = 0,
    triton_ports: Sequence[int] = (0, 0, 0),
    host: str = "127.0.0.1",
    models: Sequence[str] = MODELS,
    service: bool = True,
    engines: Sequence[tuple[str, str]] = (),
    exported: Mapping[str, Path] | None = None,
    timeout_s: float = 180.0,
    triton_first: bool = False,
    progress: Callable[[str], None] | None = None,
    **render: Any,
) -> Iterator[Endpoints]:
    """Run FastAPI and Triton during a `with` block and yield their endpoints.

    Both end with the block and with this process, however it ends.

    Args:
        fastapi_port: of the FastAPI service; 0 takes a free port.
        triton_ports: of HTTP, gRPC and the metrics; 0 takes a free port.
        models: Triton models to load; an empty list starts no Triton.
        service: False leaves the FastAPI service out.
        engines: (engine, precision) of further FastAPI services, each on a free port.
        exported: return value of an earlier `export_models`, to save its ten seconds.
        timeout_s: longest wait for each server.
        triton_first: start Triton before the FastAPI services, not after them.
        progress: called with a line of text now and then.
        **render: options of `render_repository`: `variant`, `instances`, …

    Raises:
        PhotodupError: a port in use, no Triton here, a server that does not start (its log is quoted).
    """
    say = progress or (lambda text: None)
    requested = {"FastAPI": fastapi_port} if service else {}
    if models:
        requested |= dict(zip(PORTS, triton_ports, strict=True))
    claimed = claim_ports(host, requested)  # before the minutes that an export may take
    ports = [claimed.get(name, 0) for name in PORTS]
    if not inherited().get("API_KEY") and (warning := key_warning(host, "FastAPI", "API_KEY")):
        say(f"warning: {warning}")
    repository = build_dir() / "triton" / "cpu-embedded"
    if models:
        if exported is None and not all(name.startswith("emulated_") for name in models):
            say("Exporting the model (kept for the next time)")
            exported = export_models()
        render_repository("cpu-embedded", repository, exported or {}, models=models, **render)
    with contextlib.ExitStack() as stack:
        fastapi, services = None, {}

        def start_triton() -> None:
            if models:
                triton = EmbeddedTriton(
                    repository, models, ports=ports, host=host, timeout_s=timeout_s, progress=progress
                )
                stack.enter_context(triton)

        if triton_first:
            start_triton()
        if service:
            fastapi = ServiceProcess(host=host, port=claimed["FastAPI"])
            stack.callback(fastapi.stop)
        for engine, precision in engines:  # one after the other: each loads the model while it starts
            process = ServiceProcess(host=host, settings={"ENGINE": engine, "PRECISION": precision})
            stack.callback(process.stop)
            process.wait_until_ready(timeout_s, progress)
            services[engine, precision] = process.url
        if not triton_first:
            start_triton()
        if fastapi:
            fastapi.wait_until_ready(timeout_s, progress)
        yield from_ports(
            reachable_host(host),
            claimed.get("FastAPI", 0),
            *ports,
            models=models,
            more_services=services,
            name="embedded",
            service=service_engine(fastapi.url) if fastapi else USUAL_SERVICE,
            gpu=NO_GPU,
            location="this machine",
        )
