"""mosec, with a stage that decodes and a stage that computes batches, as its documentation shows it; bytes in, JSON out."""

import json
import os

from model import Model
from mosec import Server, Worker


class Decode(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def deserialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: bytes):
        return self.model.prepare(data)


class Compute(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def forward(self, data: list) -> list:
        return [{"embeddings": [row]} for row in self.model.embed(data)]

    def serialize(self, data: dict) -> bytes:
        return json.dumps(data).encode()


if __name__ == "__main__":
    server = Server()
    server.append_worker(Decode, num=int(os.environ.get("PEER_DECODERS", "1")), timeout=60)
    server.append_worker(Compute, num=1, max_batch_size=32, max_wait_time=5, timeout=60)
    server.run()
