"""Several emulated devices behind one address, arranged in the two ways a deployment can arrange GPUs.

`instances`: one Triton whose instance group has k instances, one queue for all. `servers`: k Tritons with one device each
behind nginx, k queues. Everything but the devices' compute is real.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from photodup.bench.stats.facts import Load
from photodup.core.errors import PhotodupError
from photodup.core.paths import build_dir
from photodup.embedding.backends import parse_backend
from photodup.study.notebook.points import Spec

if TYPE_CHECKING:
    from photodup.serving.triton.server import EmbeddedTriton

ARRANGEMENTS = ("instances", "servers")


class DevicePool(contextlib.ExitStack):
    """Emulated devices; their servers start at the first arrangement and stop with the block.

    No request is batched, so that one device's throughput is 1 ÷ its compute time.

    Args:
        backend: of an emulated engine over HTTP, such as `triton-emulated-4080-fp32-http-uint8`.
        compute_ms: time of one execution with one image, in place of the preset's.
    """

    def __init__(self, backend: str, *, compute_ms: float | None = None) -> None:
        super().__init__()
        self.backend, self.compute_ms = parse_backend(backend), compute_ms
        self.model = self.backend.triton_model
        self._servers: list[EmbeddedTriton] = []

    def spec(self, arrangement: str, devices: int, load: Load) -> Spec:
        """Return a spec of `devices` devices under a load, with the columns `arrangement` and `devices`."""
        columns = {"arrangement": arrangement, "devices": devices}
        return Spec(
            self.backend.name,
            load,
            label=f"{arrangement}-{devices}",
            server=partial(self.arranged, arrangement, devices),
            config={"compute_ms": self.compute_ms},
            columns=columns,
        )

    @contextlib.contextmanager
    def arranged(self, arrangement: str, devices: int) -> Iterator[str]:
        """Make `devices` of them answer at one address, and yield it.

        Raises:
            PhotodupError: no Triton or nginx here.
        """
        is_one = arrangement == "instances"
        servers = self._started(1 if is_one else devices)
        for server in servers:
            self._configure(server, devices if is_one else 1)
        if is_one:
            yield servers[0].http_url
        else:
            with balancer([server.http_port for server in servers]) as address:
                yield address

    def _started(self, count: int) -> "list[EmbeddedTriton]":
        from photodup.serving.triton.repository import render_repository
        from photodup.serving.triton.server import EmbeddedTriton

        if not self._servers:
            scratch = self.enter_context(tempfile.TemporaryDirectory(prefix="photodup-devices-"))
            self._repository = render_repository("cpu-embedded", Path(scratch), {}, models=(self.model,))
        while len(self._servers) < count:
            server = EmbeddedTriton(self._repository, (self.model,))
            self._servers.append(self.enter_context(server))
        return self._servers[:count]

    def _configure(self, server: "EmbeddedTriton", instances: int) -> None:
        from photodup.serving.triton.config import read_config

        config = read_config(self._repository / self.model / "config.pbtxt")
        config.instance_group[0].count = instances
        config.ClearField("dynamic_batching")
        parameters = config.parameters
        if self.compute_ms is not None:
            per_image_ms = float(parameters["per_image_ms"].string_value)
            parameters["base_ms"].string_value = repr(self.compute_ms - per_image_ms)
        server.load(self.model, config)


@contextlib.contextmanager
def balancer(ports: Sequence[int]) -> Iterator[str]:
    """Run nginx in front of servers on loopback, least connections first; yields its address.

    Bodies stay in memory and connections to the servers are kept, so that nginx adds one hop and nothing else.

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
        os.chmod(scratch, 0o755)  # nginx's workers give up root
        config = Path(scratch) / "nginx.conf"
        config.write_text(balancer_config(port, ports, scratch))
        command = [program, "-p", scratch, "-c", str(config), "-e", "stderr"]
        with ServerProcess("nginx", command, build_dir() / "logs" / f"nginx-{port}.log") as server:
            server.wait_ready(lambda: answers(f"http://127.0.0.1:{port}/v2/health/ready"), 20.0)
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
