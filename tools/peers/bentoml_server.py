"""BentoML, with adaptive batching (`batchable`) as its documentation shows it; files of a form in, JSON out."""

from pathlib import Path

import bentoml
from model import Model


@bentoml.service(workers=1, traffic={"timeout": 60})
class Embedder:
    def __init__(self) -> None:
        self.model = Model()

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=60000)
    def embed(self, files: list[Path]) -> list[list[float]]:
        return self.model.embed([self.model.prepare(path.read_bytes()) for path in files])
