"""Check the emulated accelerator against its preset by Triton's own counters, and take off what is around it.

Triton counts as compute the way to the Python process and back, with a copy of the input. A GPU has none of
that, so it is measured here and taken off the wait.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from photodup.serving.triton.config import read_config, set_parameter, write_config
from photodup.serving.triton.emulated import parse_emulated
from photodup.serving.triton.server import EmbeddedTriton

BATCHES = (1, 2, 4, 8, 16, 32)
TOLERANCE = 0.02
"""Largest relative difference between a preset and what Triton counts as compute."""


def compute_samples_ms(server: EmbeddedTriton, model: str, batch: int, requests: int) -> np.ndarray:
    """Return Triton's compute time of each of `requests` requests of `batch` images, in ms, one at a time.

    The counter is cumulative, so it is read around every request: medians then stand a noisy neighbour.
    """
    import tritonclient.grpc as client_module
    from tritonclient.utils import np_to_triton_dtype

    dtype = {"": np.float32, "_fp16": np.float16, "_uint8": np.uint8}[parse_emulated(model)[1]]
    image = np.random.default_rng(0).integers(0, 256, (batch, 3, 224, 224)).astype(dtype)
    samples = []
    with client_module.InferenceServerClient(server.grpc_url) as client:
        tensor = client_module.InferInput("image", list(image.shape), np_to_triton_dtype(image.dtype))
        tensor.set_data_from_numpy(image)

        def counted(at_least: int) -> tuple[int, int]:
            # Triton counts a request after it has answered it: wait until it has.
            while True:
                found = [
                    entry.inference_stats for entry in client.get_inference_statistics(model).model_stats
                ]
                count = sum(stats.compute_infer.count for stats in found)
                if count >= at_least:
                    return count, sum(stats.compute_infer.ns for stats in found)

        count, before = counted(0)
        for request in range(requests + 1):
            client.infer(model, [tensor])
            count, after = counted(count + 1)
            if request:  # the first warms up
                samples.append((after - before) / 1e6)
            before = after
    return np.array(samples)


def check_emulated(
    server: EmbeddedTriton, model: str, batches: Sequence[int] = BATCHES, requests: int = 30
) -> list[dict[str, Any]]:
    """Compare what Triton counts as compute with the preset.

    Returns:
        A row per batch size: `model`, `batch`, `preset_ms`, `compute_ms_p50`, `difference` (relative; None for
        the zero preset) and `within` (difference at most 2 %).
    """
    preset, _ = parse_emulated(model)
    rows = []
    for batch in batches:
        measured = float(np.median(compute_samples_ms(server, model, batch, requests)))
        expected = preset.compute_ms(batch)
        difference = measured / expected - 1 if expected else None
        rows.append(
            {
                "model": model,
                "batch": batch,
                "preset_ms": expected,
                "compute_ms_p50": measured,
                "difference": difference,
                "within": difference is not None and abs(difference) <= TOLERANCE,
            }
        )
    return rows


def calibrate(
    server: EmbeddedTriton, model: str, batches: Sequence[int] = BATCHES, requests: int = 30
) -> list[dict[str, Any]]:
    """Measure the overhead, take it off the model's wait, and return `check_emulated` of the result.

    Writes `overhead_ms` into the model's configuration in the repository and reloads the model; rendering
    again undoes it.
    """
    path = server.repository / model / "config.pbtxt"
    config = read_config(path)
    set_parameter(config, overhead_ms="")
    _reload(server, model, config, path)
    preset, _ = parse_emulated(model)
    if preset.compute_ms(1) == 0:
        return check_emulated(server, model, batches, requests)  # there is no wait to take it off
    overhead = []
    for batch in batches:
        # The lower quartile: what the way costs when no other process has the core.
        measured = np.quantile(compute_samples_ms(server, model, batch, requests), 0.25)
        overhead.append(f"{batch}:{max(0.0, measured - preset.compute_ms(batch)):.4f}")
    set_parameter(config, overhead_ms=" ".join(overhead))
    _reload(server, model, config, path)
    return check_emulated(server, model, batches, requests)


def _reload(server: EmbeddedTriton, model: str, config: Any, path: Any) -> None:
    write_config(config, path)
    server.load(model)
