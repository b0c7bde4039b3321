"""LitServe, with its dynamic batching as its documentation shows it; a file of a form in, JSON out."""

import os

import litserve as ls
from fastapi import Request
from model import Model


class ClipApi(ls.LitAPI):
    def setup(self, device):
        self.model = Model()

    def decode_request(self, request: Request):
        return self.model.prepare(request["files"].file.read())

    def predict(self, images):
        return self.model.embed(images)

    def batch(self, inputs):
        return inputs

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return {"embeddings": [output]}


if __name__ == "__main__":
    api = ClipApi(max_batch_size=32, batch_timeout=0.005, api_path="/embed")
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(host="127.0.0.1", port=int(os.environ["PORT"]), generate_client_file=False, num_api_servers=1)
