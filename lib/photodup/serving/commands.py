"""The commands `serve`, `endpoints` and `render`."""

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from photodup.core.errors import PhotodupError
from photodup.core.settings import inherited

endpoints = typer.Typer(no_args_is_help=True, help="Files that say where servers are.")

_Variant = Annotated[str, typer.Option(help="batching: default, published, published-early, single, off")]


def serve(
    embedded: Annotated[bool, typer.Option("--embedded", help="also run Triton, on this machine")] = False,
    host: Annotated[str | None, typer.Option(help="address to listen on; default 127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="port of FastAPI; 0 for a free one; default 8002")] = None,
    triton_http_port: int = 8003,
    triton_grpc_port: int = 8004,
    triton_metrics_port: int = 8005,
    model: Annotated[list[str] | None, typer.Option(help="Triton model to load; repeat for more")] = None,
    variant: _Variant = "default",
    save: Annotated[Path | None, typer.Option(help="write the addresses as an endpoints file")] = None,
) -> None:
    """Serve embeddings until Ctrl-C: FastAPI alone, or with a real Triton beside it."""
    if not embedded:
        from photodup.serving.service.start import command

        if model or save or variant != "default":
            raise PhotodupError("--model, --variant and --save are about Triton: add --embedded.")
        options = {"HOST": host, "PORT": port}  # the service reads all else from the environment
        variables = {name: str(value) for name, value in options.items() if value is not None}
        sys.stdout.flush()
        os.execve(sys.executable, command(), inherited(**variables))
    from photodup.serving.embedded import MODELS, embedded_servers

    with (
        contextlib.suppress(KeyboardInterrupt),
        embedded_servers(
            fastapi_port=8002 if port is None else port,
            triton_ports=(triton_http_port, triton_grpc_port, triton_metrics_port),
            host=host or "127.0.0.1",
            models=model or MODELS,
            variant=variant,
            progress=lambda text: print(text, flush=True),
        ) as servers,
    ):
        from photodup.serving.endpoints import save_endpoints

        if save:
            save_endpoints(servers, save)
        addresses = servers.backends | {f"{name} metrics": url for name, url in servers.metrics.items()}
        width = max(map(len, addresses))
        for name, url in addresses.items():
            print(f"  {name:<{width}}  {url}")
        fastapi = next(url for name, url in servers.backends.items() if name.startswith("fastapi"))
        print(f"Try it:  curl -s {fastapi}/embed -F files=@photo.jpg | head -c 200")
        print("Ctrl-C stops both.", flush=True)
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        stop.wait()  # Ctrl-C and SIGTERM end the servers through the `with` block


@endpoints.command("check")
def endpoints_check(
    file: Annotated[Path, typer.Argument(help="YAML file, such as notebooks/endpoints/embedded.yaml")],
    timeout: Annotated[float, typer.Option(help="seconds to wait for each answer")] = 3.0,
) -> None:
    """Ask every server in FILE whether it is ready; name the fault and exit 1 if one is not."""
    from photodup.serving.check import check_all, render_check
    from photodup.serving.endpoints import load_endpoints

    checks = check_all(load_endpoints(file), timeout)
    print(render_check(checks))
    if not all(check.is_ready for check in checks):
        raise typer.Exit(1)


def render(
    target: Annotated[Literal["cpu-embedded", "cpu", "cuda", "tensorrt"], typer.Argument(help="server")],
    out: Annotated[Path, typer.Option(help="folder for the repository")] = Path("build/triton/rendered"),
    model: Annotated[
        list[str] | None, typer.Option(help="model to render; repeat for more; default all")
    ] = None,
    variant: _Variant = "default",
    instances: Annotated[int, typer.Option(help="encoder instances (per GPU on GPU targets)")] = 1,
    decoders: Annotated[int, typer.Option(help="processes that decode images for the JPEG models")] = 2,
) -> None:
    """Export the model and write a Triton model repository with weights, ready to be mounted at /models."""
    from photodup.serving.embedded import export_models
    from photodup.serving.triton.repository import render_repository

    options: dict[str, Any] = {"variant": variant, "instances": instances, "preprocess_instances": decoders}
    print(render_repository(target, out, export_models(), models=model, **options))
