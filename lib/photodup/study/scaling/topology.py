"""Several emulated devices behind one address, arranged in the three ways a deployment can arrange GPUs.

`instances`: one Triton whose instance group has k instances, one queue for all. `servers`: k Tritons with one
device each behind nginx, k queues. `services`: a FastAPI service before each of these, which decodes, and nginx before
the services. Everything but the devices' compute is real.
"""

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from photodup.bench.link.way import LOOPBACK
from photodup.bench.load.plan import Stopping
from photodup.bench.stats.facts import Load
from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir
from photodup.embedding.backends import Backend, emulated_engine, parse_backend
from photodup.serving.triton.emulated import parse_emulated

if TYPE_CHECKING:
    from photodup.serving.triton.server import EmbeddedTriton
    from photodup.study.notebook.run import Run

ARRANGEMENTS = ("instances", "servers", "services")
SERVICE = "fastapi-triton-fp32-http-jpeg"
"""The backend that `services` are asked as."""
N_PHOTOS = 32


class DevicePool:
    """Up to `most` emulated devices; its servers start at the first `arrange` and stop with the block.

    Args:
        models: emulated Triton models to have, such as `emulated_4080_uint8`; all of the same device count. Services
            stand before the first, which takes pixels.
        most: the largest number of devices that will be asked for.
        compute_ms: time of one execution with one image, in place of the preset's. A model that waits for
            nothing (`emulated_zero`) keeps its nothing.
    """

    def __init__(self, models: tuple[str, ...], most: int, *, compute_ms: float | None = None) -> None:
        preset, wire = parse_emulated(models[0])
        self.device, self.wire = preset.name, wire.removeprefix("_") or "fp32"
        self.models, self.most, self.compute_ms = models, most, compute_ms
        self.address = ""
        self._pages: Sequence[str] = ()
        self._servers: list[EmbeddedTriton] = []
        self._used: list[EmbeddedTriton] = []
        self._arranged: tuple | None = None
        self._stack, self._front = contextlib.ExitStack(), contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._front.close()
        self._stack.close()
        self._arranged, self._servers = None, []

    def arrange(self, arrangement: str, devices: int, *, batching: bool) -> str:
        """Make `devices` of them answer at one address, and return it; nothing if they do already.

        Args:
            arrangement: one of `ARRANGEMENTS`.
            devices: 1 to `most`.
            batching: False runs every request alone, so that one device's throughput is 1 ÷ its compute time.

        Raises:
            PhotodupError: no such arrangement or number, no Triton or nginx here.
        """
        wanted = (arrangement, devices, batching)
        if arrangement not in ARRANGEMENTS or not 1 <= devices <= self.most:
            raise PhotodupError(
                f"{devices} devices as {arrangement!r}: choose 1 to {self.most} as {', '.join(ARRANGEMENTS)}."
            )
        if wanted == self._arranged:
            return self.address
        self._front.close()
        self._arranged = None
        alone = arrangement == "instances"
        self._used = self._started(1 if alone else devices)
        for server in self._used:
            for model in self.models:
                self._configure(server, model, devices if alone else 1, batching)
        ports, self._pages = zip(*((s.http_port, s.metrics_url) for s in self._used), strict=True)
        if arrangement == "services":
            ports, self._pages = zip(*(self._service(server, batching) for server in self._used), strict=True)
        health = "/readyz" if arrangement == "services" else "/v2/health/ready"
        self.address = self._used[0].http_url if alone else self._front.enter_context(balancer(ports, health))
        self._arranged = wanted
        return self.address

    def probe(
        self, account: Callable[[dict, dict], Mapping[str, Any]]
    ) -> Callable[[], contextlib.AbstractContextManager[dict[str, Any]]]:
        """Return what `load.measure(probe=…)` wants, with the counters of all arranged servers added up."""

        @contextlib.contextmanager
        def around() -> Iterator[dict[str, Any]]:
            columns: dict[str, Any] = {}
            before = self._counted()
            yield columns
            columns.update(account(before, self._counted()))

        return around

    def _counted(self) -> dict:
        from photodup.bench.load import counters

        added: Counter = Counter()
        for page in self._pages:
            added.update(counters.read(page))
        return dict(added)

    def _started(self, count: int) -> "list[EmbeddedTriton]":
        from photodup.serving.triton.repository import render_repository
        from photodup.serving.triton.server import EmbeddedTriton

        if not self._servers:
            self._stack = contextlib.ExitStack()
            scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="photodup-devices-"))
            self._repository = render_repository("cpu-embedded", Path(scratch), {}, models=self.models)
        while len(self._servers) < count:
            server = EmbeddedTriton(self._repository, self.models)
            self._servers.append(self._stack.enter_context(server))
        return self._servers[:count]

    def _service(self, triton: "EmbeddedTriton", batching: bool) -> tuple[int, str]:
        """Start a FastAPI service in front of one device; return its port and its metrics page."""
        from photodup.serving.service.start import ServiceProcess

        settings = {
            "ENGINE": "triton",
            "TRITON_GRPC_URL": triton.grpc_url,
            "INFERENCE_BACKEND": f"triton-{emulated_engine(self.models[0])}-fp32-grpc-{self.wire}",
            "BATCH_MAX": "32" if batching else "1",
        }
        service = self._front.enter_context(ServiceProcess(settings=settings))
        return service.port, f"{service.url}/metrics"

    def _configure(self, server: "EmbeddedTriton", model: str, instances: int, batching: bool) -> None:
        from photodup.serving.triton.config import read_config

        config = read_config(self._repository / model / "config.pbtxt")
        config.instance_group[0].count = instances
        if not batching:
            config.ClearField("dynamic_batching")
        value = config.parameters
        per_image_ms = float(value["per_image_ms"].string_value)
        if self.compute_ms is not None and per_image_ms:
            value["base_ms"].string_value = repr(self.compute_ms - per_image_ms)
        server.load(model, config)


@contextlib.contextmanager
def balancer(ports: Sequence[int], health: str = "/v2/health/ready") -> Iterator[str]:
    """Run nginx in front of servers on loopback, least connections first; yields its address.

    `health` is the path that answers 200 when a server is ready. Bodies stay in memory and connections to the servers
    are kept, so that nginx adds one hop and nothing else.

    Raises:
        PhotodupError: there is no nginx, or it does not start.
    """
    from photodup.serving.process.ports import claim_ports
    from photodup.serving.process.server_process import ServerProcess, answers

    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise PhotodupError("There is no nginx to put in front of several servers: apt-get install nginx.")
    port = claim_ports("127.0.0.1", {"nginx": 0})["nginx"]
    with tempfile.TemporaryDirectory(prefix="photodup-nginx-") as scratch:
        os.chmod(scratch, 0o755)  # its workers give up root
        config = Path(scratch) / "nginx.conf"
        config.write_text(balancer_config(port, ports, scratch))
        command = [program, "-p", scratch, "-c", str(config), "-e", "stderr"]
        with ServerProcess("nginx", command, build_dir() / "logs" / f"nginx-{port}.log") as server:
            server.wait_ready(lambda: answers(f"http://127.0.0.1:{port}{health}"), 20.0)
            yield f"http://127.0.0.1:{port}"


def balancer_config(port: int, ports: Sequence[int], scratch: str) -> str:
    """Return nginx's configuration for one front port and several servers."""
    servers = "\n    ".join(f"server 127.0.0.1:{p} max_fails=0;" for p in ports)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "\n  ".join(f"{kind}_temp_path {scratch}/{kind};" for kind in kinds)
    return f"""daemon off;
worker_processes 1;
pid {scratch}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 2048; }}
http {{
  access_log off;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  keepalive_requests 1000000;
  {folders}
  upstream devices {{
    least_conn;
    {servers}
    keepalive 256;
    keepalive_requests 1000000;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://devices;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
}}
"""


def measure_devices(
    run: "Run",
    pool: DevicePool,
    backend: str | Backend,
    load: Load,
    stopping: Stopping,
    *,
    arrangement: str,
    devices: int,
    batching: bool,
    repeat: int = 0,
) -> dict[str, Any]:
    """Return one point of emulated devices, measured now unless the run has it; a failure is a gap.

    Args:
        backend: of an emulated engine over HTTP; its model must be one of the pool's. `SERVICE` for `services`.
        repeat: 0 for the first measurement of this point, then 1, 2, ….
    """
    asked = parse_backend(backend)
    what: dict[str, Any] = {"arrangement": arrangement, "devices": devices, "batching": batching}
    what |= {"label": "", "repeat": repeat}
    key = f"devices-{asked}-{arrangement}-{devices}-{'batched' if batching else 'alone'}"
    key += f"-{load.scenario}-b{load.batch}-c{load.concurrency}" + (f"-repeat-{repeat}" if repeat else "")
    # Also behind a service, whose own engine is a Triton, it is an emulated device that waits.
    emulated = {"engine": emulated_engine(pool.models[0]) if asked.name == SERVICE else asked.engine}
    emulated |= {"device": pool.device if asked.name == SERVICE else asked.emulated_device}
    facts = {**asked.columns(), **LOOPBACK.columns(), **load.columns(), **what, **emulated}

    def measure_now() -> dict[str, Any]:
        from photodup.bench.backends.adapters import adapter
        from photodup.bench.load import counters
        from photodup.bench.load.load import measure
        from photodup.study.notebook.weights import payload_photos

        address = pool.arrange(arrangement, devices, batching=batching)
        probe = pool.probe(counters.account_of(asked))
        point = measure(adapter(asked, address), payload_photos(N_PHOTOS), load, stopping, probe=probe)
        return {**facts, **point, **emulated, "compute_ms": pool.compute_ms}

    config = {**asdict(load), **what, "backend": asked.name, "compute_ms": pool.compute_ms}
    config |= {"stopping": stopping.as_config()}
    point = run.measure_or_load(key, measure_now, config=config, kind="point", may_fail=True)
    return type(point)({**facts, **point})  # a gap still says which point it is
