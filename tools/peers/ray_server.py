"""Ray Serve, one replica with `serve.batch` as its documentation shows it; the bytes of a JPEG in, JSON out."""

import os
import signal

import ray
from model import Model
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 1})
class Embedder:
    def __init__(self) -> None:
        import torch

        torch.set_num_threads(int(os.environ["PEER_THREADS"]))  # Ray gives an actor one; the machine has more
        self.model = Model()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)
    async def embed(self, images: list) -> list:
        return self.model.embed(images)

    async def __call__(self, request: Request) -> dict:
        image = self.model.prepare(await request.body())
        return {"embeddings": [await self.embed(image)]}


if __name__ == "__main__":
    ray.init(include_dashboard=False, configure_logging=False, _temp_dir=os.environ.get("PEER_RAY_FOLDER"))
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["PORT"])})
    serve.run(Embedder.bind(), name="clip", route_prefix="/embed")
    signal.pause()
