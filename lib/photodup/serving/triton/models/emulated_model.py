"""Triton Python-backend model that waits as long as a GPU would compute.

All else is real: protocols, serialization, queues, batching, instances. An instance runs one execution at a time, so k
instances stand for k GPUs. Two models are two devices: load one at a time.
"""

import json
import time

import triton_python_backend_utils as pb_utils
from emulation import emulated_embedding, sharpen_sleep, wait_until


class TritonPythonModel:
    """Waits `base_ms + per_image_ms × images` from the start of the execution, then answers."""

    def initialize(self, args):
        """Read the settings from the model's parameters."""
        config = json.loads(args["model_config"])
        settings = {key: entry["string_value"] for key, entry in config["parameters"].items()}
        self.base_ms, self.per_image_ms = float(settings["base_ms"]), float(settings["per_image_ms"])
        sharpen_sleep()

    def execute(self, requests):
        """Answer all requests after one wait, as for one batch on a GPU; Triton has checked their tensors."""
        started = time.perf_counter()
        responses, images = [], 0
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            images += len(array)
            output = pb_utils.Tensor("embedding", emulated_embedding(array))
            responses.append(pb_utils.InferenceResponse([output]))
        milliseconds = self.base_ms + self.per_image_ms * images
        if milliseconds:
            wait_until(started + milliseconds / 1000)
        return responses
