"""Settings that can be tried: server × engine × precision × wire × instances and threads × waiting for a batch."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from photodup.bench.pairs.declared import Side
from photodup.bench.record.json_files import slug
from photodup.embedding.backends import Backend
from photodup.embedding.engines.model import can_compute

TRITON_WAITS_US = (0, 2000)
FASTAPI_WAITS_US = (0, 5000)
TRITON_ENGINES = (("onnx", "fp32"), ("openvino", "fp32"), ("openvino", "bf16"), ("openvino", "int8"))
FASTAPI_ENGINES = (("pytorch", "fp32"), *TRITON_ENGINES)


@dataclass(frozen=True)
class Setting:
    """One way of serving the embedding.

    Attributes:
        server, engine, precision, wire: of a `Backend` over HTTP.
        instances: executions at the same time.
        threads: of each.
        wait_us: how long a request may wait for others to be computed with, microseconds.
    """

    server: str
    engine: str
    precision: str
    wire: str
    instances: int
    threads: int
    wait_us: int

    @property
    def backend(self) -> Backend:
        return Backend(self.server, self.engine, self.precision, "http", self.wire)

    @property
    def name(self) -> str:
        """In words; unique among settings."""
        shape = f"{self.instances} × {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.server} {self.engine} {self.precision}, {self.wire}, {shape}, wait {self.wait_us / 1000:g} ms"

    @property
    def side(self) -> Side:
        """Triton's model with these settings."""
        settings = {"instances": self.instances, "threads": self.threads, "delay_us": self.wait_us}
        # a copy of the model is called after its name
        return Side(slug(self.name), self.name, self.backend, settings=tuple(sorted(settings.items())))

    @property
    def environment(self) -> dict[str, str]:
        """The FastAPI service's variables. Its threads are shared by its streams."""
        return {
            "ENGINE": self.engine,
            "PRECISION": self.precision,
            "STREAMS": str(self.instances),
            "THREADS": str(self.instances * self.threads),
            "BATCH_DELAY_MS": f"{self.wait_us / 1000:g}",
        }

    def as_record(self) -> dict[str, Any]:
        return {
            **self.backend.columns(),
            "instances": self.instances,
            "threads": self.threads,
            "wait_us": self.wait_us,
        }


def candidates(
    cores: int, *, int8: bool = True, servers: Iterable[str] = ("fastapi", "triton")
) -> list[Setting]:
    """Return every setting worth a trial on a CPU with so many cores.

    Args:
        int8: whether there is a quantised file.
        servers: `fastapi`, `triton` or both.
    """
    shapes = dict.fromkeys([(1, cores), (cores, 1)] + ([(cores // 2, 2)] if cores >= 4 else []))
    found = []
    for server in servers:
        engines = FASTAPI_ENGINES if server == "fastapi" else TRITON_ENGINES
        wires, waits = (
            (("jpeg",), FASTAPI_WAITS_US) if server == "fastapi" else (("jpeg", "uint8"), TRITON_WAITS_US)
        )
        for engine, precision in engines:
            if not can_compute(precision) or (precision == "int8" and not int8):
                continue
            # The service has streams for OpenVINO alone.
            own = shapes if server == "triton" or engine == "openvino" else [(1, cores)]
            found += [
                Setting(server, engine, precision, wire, *shape, wait)
                for wire in wires
                for shape in own
                for wait in waits
            ]
    return found
