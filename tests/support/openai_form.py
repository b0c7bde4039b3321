"""OpenAI's form in front of our service, as Infinity has it: a real server for the client's `openai` protocol."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from support.http_server import Handler, serving

MODEL = "one-and-only"


class OpenAiForm(Handler):
    """Lists one model, and embeds images that are data URIs."""

    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": MODEL}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = request["input"]
        if request["model"] != MODEL:
            self._answer(404, {"error": {"message": f"There is no model {request['model']!r} here."}})
        elif not all(text.startswith("data:image/") for text in texts):
            self._answer(400, {"error": {"message": "Image 0: no image but text."}})
        else:
            url = f"{self.server.service}/embed/base64?encoding={request['encoding_format']}"
            rows = httpx.post(url, json={"images": texts}, timeout=60).raise_for_status().json()["embeddings"]
            data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
            self._answer(200, {"object": "list", "data": data, "model": MODEL})

    def _answer(self, status: int, content: dict) -> None:
        self.reply(json.dumps(content).encode(), status, "application/json")


@contextmanager
def openai_form(service: str) -> Iterator[str]:
    """Serve OpenAI's form of the service at this URL for the length of a block; yields the URL."""
    with serving(OpenAiForm, service=service) as server:
        yield server.url
