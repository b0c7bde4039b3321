"""The machine of a run, as its `environment.json` describes it."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from photodup.bench.record import environment
from photodup.bench.record.json_files import read_json, reading
from photodup.serving.endpoints import NO_GPU, UNKNOWN_GPU


class Gpu(BaseModel):
    """One GPU of the measuring machine."""

    model_config = ConfigDict(extra="allow")
    name: str


class Weights(BaseModel):
    """The weights of a run; `digest` is None until they are loaded."""

    model_config = ConfigDict(extra="allow")
    pretrained: str = "not recorded"
    digest: str | None = None

    def __str__(self) -> str:
        is_random = self.pretrained.startswith("random")
        return self.pretrained + " (random weights: timings stand, similarities mean nothing)" * is_random


class Servers(BaseModel):
    """A machine elsewhere whose servers are measured, or a GPU behind a tunnel."""

    gpu: str = UNKNOWN_GPU
    gpus: int = 1
    price_per_hour_usd: float | None = None
    location: str = ""

    @property
    def device(self) -> str:
        return "cpu" if self.gpu == NO_GPU else self.gpu

    def __str__(self) -> str:
        words = {NO_GPU: "no GPU", UNKNOWN_GPU: "unknown whether on a GPU"}
        price = "" if self.price_per_hour_usd is None else f"{self.price_per_hour_usd:g} USD an hour"
        parts = words.get(self.gpu, f"{self.gpus} × {self.gpu}"), price, self.location
        return ", ".join(filter(None, parts))


class Machine(BaseModel):
    """Hardware and software of a measurement; `cpu` is empty where none was recorded."""

    model_config = ConfigDict(extra="allow")
    cpu: str = ""
    vector_instructions: list[str] = []
    cores: int = 0
    memory_gib: float = 0.0
    gpus: list[Gpu] = []
    packages: dict[str, object] = {}
    model: Weights = Weights()
    servers: Servers | None = None

    @property
    def client(self) -> str:
        """Return the measuring machine in a few words."""
        amx = " with AMX" if any(flag.startswith("amx") for flag in self.vector_instructions) else ""
        gpus = ", ".join(gpu.name for gpu in self.gpus) or "no GPU"
        return f"{self.cpu}{amx}, {self.cores} cores, {self.memory_gib:.0f} GiB, {gpus}" if self.cpu else ""

    def __str__(self) -> str:
        return f"servers: {self.servers}; client: {self.client}" if self.servers else self.client

    @property
    def device(self) -> str | None:
        """Return what computed for the servers: `cpu`, a GPU's model or "unknown"; None where it is not recorded."""
        if self.servers:
            return self.servers.device
        return "cpu" if self.cpu and not self.gpus else None


def this_machine(model: Mapping[str, str | None] | None = None) -> Machine:
    """Return this machine; `model` as `environment.describe` takes it."""
    return Machine.model_validate(environment.describe(model))


def read_machine(directory: Path) -> Machine:
    """Return what `environment.json` of a run's directory describes, which need not be there.

    Raises:
        RecordError: it is damaged; names the file.
    """
    path = directory / "environment.json"
    with reading(path):
        return Machine.model_validate(read_json(path, {}))
