"""Triton Python-backend model: photodup's own encoder in PyTorch, on a GPU or a CPU, in a precision of choice.

Needs in Triton's Python: torch, open_clip and photodup's library (the parameter `library`, or installed). The pixels
are normalised on the device in float32, so a quarter of the bytes travels to it.
"""

import json
import sys
import warnings

import numpy as np
import triton_python_backend_utils as pb_utils

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


class TritonPythonModel:
    """One copy of the weights per instance. All requests of one execution are computed as one batch."""

    def initialize(self, args):
        """Load the weights that the parameters name and put them where and as they say.

        Args:
            args: Triton's strings. Read from the model's parameters: `precision`, `device`, `library`, `pretrained`.
        """
        config = json.loads(args["model_config"])
        value = {key: entry["string_value"] for key, entry in config["parameters"].items()}
        if value["precision"] not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise pb_utils.TritonModelException(f"precision {value['precision']!r} is none of {known}")
        if value.get("library"):
            sys.path.insert(0, value["library"])
        import torch

        from photodup.embedding.engines.encoder import load_model
        from photodup.embedding.imaging import MEAN, STD

        if value["device"] == "cuda":
            # Where the instance is counted on the CPU, Triton names no GPU: the first one then.
            kind_gpu = args["model_instance_kind"] == "GPU"
            self.device = f"cuda:{args['model_instance_device_id']}" if kind_gpu else "cuda"
        else:
            self.device = "cpu"
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # newer versions of PyTorch announce a successor of these two switches
            tf32 = value["precision"] == "tf32"
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = tf32
        pretrained = value["pretrained"]
        model = load_model(pretrained=None if pretrained == "unset" else pretrained, device=self.device)
        self.dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(value["precision"], torch.float32)
        self.visual = model.visual.to(self.dtype)
        self.mean, self.std = (torch.from_numpy(a[:, None, None].copy()).to(self.device) for a in (MEAN, STD))
        self.shape = tuple(int(size) for size in config["input"][0]["dims"])
        self.torch = torch

    def execute(self, requests):
        """Answer the good requests from one batch of all their images, the bad ones with a reason."""
        responses = [None] * len(requests)
        arrays, owners = [], []
        for index, request in enumerate(requests):
            array = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
            if array.dtype != np.uint8 or array.shape[1:] != self.shape:
                reason = f"image must be uint8{['n', *self.shape]}, got {array.dtype}{list(array.shape)}"
                responses[index] = _failure(reason)
                continue
            arrays.append(array)
            owners.append(index)
        if not arrays:
            return responses
        try:
            embedding = self._embed(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
        except Exception as error:  # out of memory, say: these requests fail, the next are served
            for index in owners:
                responses[index] = _failure(f"{type(error).__name__}: {error}")
            return responses
        start = 0
        for index, array in zip(owners, arrays, strict=True):
            part = np.ascontiguousarray(embedding[start : start + len(array)])
            responses[index] = pb_utils.InferenceResponse([pb_utils.Tensor("embedding", part)])
            start += len(array)
        return responses

    def _embed(self, pixels):
        torch = self.torch
        with torch.inference_mode():
            images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device).float()
            images = images.div_(255).sub_(self.mean).div_(self.std).to(self.dtype)
            return torch.nn.functional.normalize(self.visual(images).float(), dim=-1).cpu().numpy()


def _failure(reason):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(reason))
