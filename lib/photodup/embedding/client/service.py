"""How a batch travels to the FastAPI service and back."""

import base64

import httpx
import numpy as np

from photodup.embedding.backends import Backend
from photodup.embedding.client.answers import Patience, Remote, ServerError
from photodup.embedding.client.http import Http, bad_image, sentence
from photodup.embedding.client.which_server import FASTAPI
from photodup.embedding.imaging import ImageError
from photodup.embedding.vectors import BrokenEmbedding
from photodup.settings import environment


class PyTorchHttp:
    """The FastAPI service: `jpeg` sends files in a form, `base64` sends them in JSON."""

    def __init__(self, url: str, backend: Backend, patience: Patience) -> None:
        key = environment().api_key
        self._http = Http(url, patience, {"X-API-Key": key} if key else None)
        self._json = backend.wire == "base64"
        self.url = self._http.url

    def describe(self) -> Remote:
        response = self._http.call("GET", "/info")
        try:
            info = response.raise_for_status().json()
            return Remote(
                digest=info["digest"],
                name=info["name"],
                pretrained=info["pretrained"],
                dim=info["dim"],
                precision=info.get("precision"),
                gate=info.get("gate"),
                max_images=info["limits"]["max_images"],
                # base64 adds a third; the form's headers add about 150 bytes an image
                max_bytes=int(info["limits"]["max_body_bytes"] * 0.7),
            )
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            if response.status_code == 404 and self._http.call("GET", "/healthz").status_code == 200:
                return Remote(max_images=8)  # a service like the published one, which says nothing of itself
            raise self._http.explain(response, FASTAPI) from None

    def infer(self, images: list[bytes]) -> np.ndarray:
        query = {"encoding": "base64"}
        if self._json:
            body = {"images": [base64.b64encode(image).decode("ascii") for image in images]}
            response = self._http.call("POST", "/embed/base64", params=query, json=body)
        else:
            files = [("files", ("image.jpg", image, "image/jpeg")) for image in images]
            response = self._http.call("POST", "/embed", params=query, files=files)
        if response.status_code == 400:
            raise bad_image(response)
        if response.status_code == 413 and len(images) > 1:  # too many pixels together, say
            return self._halves(images)
        if response.status_code == 500 and (rows := _broken(response)):
            raise BrokenEmbedding(f"{self.url}: {sentence(response)}", rows)
        if response.status_code in (413, 422):
            raise ServerError(f"{self.url} refuses the request: {sentence(response)}")
        try:
            rows = response.raise_for_status().json()["embeddings"]
        except (httpx.HTTPError, ValueError, KeyError):
            raise self._http.explain(response, FASTAPI) from None
        if rows and isinstance(rows[0], str):
            return np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in rows]).astype(np.float32)
        return np.asarray(rows, dtype=np.float32)

    def _halves(self, images: list[bytes]) -> np.ndarray:
        middle = len(images) // 2
        first = self.infer(images[:middle])
        try:
            return np.concatenate([first, self.infer(images[middle:])])
        except ImageError as error:
            if error.index is not None:
                error.index += middle
            raise
        except BrokenEmbedding as error:
            error.rows = [row + middle for row in error.rows]
            raise

    def close(self) -> None:
        self._http.close()


def _broken(response: httpx.Response) -> list[int]:
    """Return the images to which the service's model had no sound answer, as an error 500 lists them."""
    try:
        return [int(problem["index"]) for problem in response.json()["errors"]]
    except (ValueError, KeyError, TypeError):
        return []
