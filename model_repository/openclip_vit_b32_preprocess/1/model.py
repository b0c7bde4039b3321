"""Triton Python-backend model: encoded photographs in, 224-pixel RGB out, as open_clip prepares them.

`imaging.py` beside this file is the photodup library's own module, put here when the repository is rendered
(`photodup render`), so server and client cannot disagree about a pixel. Needs Pillow and NumPy in Triton's Python.
"""

import json
import re

import numpy as np
import triton_python_backend_utils as pb_utils
from imaging import IMAGE_SIZE, decode, to_uint8

# First bytes of formats with unbounded decoding time, which nothing here can stop: TIFF, HEIC and AVIF.
UNBOUNDED = re.compile(rb"II[*+]|MM\0[*+]|....ftyp", re.DOTALL)


class TritonPythonModel:
    """Decodes image by image. An image that cannot be read fails its own request and no other."""

    def initialize(self, args):
        """Read the limits and the decoder's name from the model's parameters."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.max_pixels = int(parameters["max_pixels"])
        self.max_bytes = int(parameters["max_bytes"])
        self.max_request_pixels = int(parameters.get("max_request_pixels", 5 * self.max_pixels))
        self.draft_size = {"pil": None, "draft": 2 * IMAGE_SIZE}[parameters["decoder"]]

    def execute(self, requests):
        """Answer each request with uint8 [n, 3, 224, 224] or with the reason it failed."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        try:
            encoded = pb_utils.get_input_tensor_by_name(request, "encoded").as_numpy().reshape(-1)
            pixels = np.empty((len(encoded), 3, IMAGE_SIZE, IMAGE_SIZE), dtype=np.uint8)
            n_pixels = 0
            for index, data in enumerate(encoded):
                try:
                    if len(data) > self.max_bytes:
                        raise ValueError(f"{len(data):,} bytes, more than the limit of {self.max_bytes:,}")
                    if UNBOUNDED.match(data):
                        raise ValueError(
                            "not JPEG, PNG, WebP, GIF or BMP: convert it, or use the FastAPI service"
                        )
                    image = decode(data, max_pixels=self.max_pixels, draft_size=self.draft_size)
                    n_pixels += image.width * image.height
                    if n_pixels > self.max_request_pixels:
                        limit = f"{self.max_request_pixels / 1e6:,.4g} megapixels in one request"
                        raise ValueError(f"more than the limit of {limit}: send fewer images at a time")
                    pixels[index] = to_uint8(image)
                except Exception as error:
                    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
                    raise ValueError(f"image {index}: {reason}") from error
            return pb_utils.InferenceResponse([pb_utils.Tensor("image", pixels)])
        except Exception as error:
            # An image that cannot be read is the client's fault, 400; Triton's default says that the server failed, 500.
            code = (
                pb_utils.TritonError.INVALID_ARG
                if isinstance(error, ValueError)
                else pb_utils.TritonError.INTERNAL
            )
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))
