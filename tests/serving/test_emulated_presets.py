"""The emulated accelerator: its arithmetic, its sources, its names."""

import csv
import time
from pathlib import Path

import numpy as np
import pytest

from photodup.serving.triton.emulated import emulated_gpus
from photodup.serving.triton.models.emulation import emulated_embedding, wait_until


def test_presets_are_the_published_times_and_say_what_is_assumed(root: Path) -> None:
    with (root / "results/published/devices.csv").open() as file:
        peaks = {row["device"]: row for row in csv.DictReader(file)}
    published = {"4080": 5.7, "4080trt": 2.0, "4090": 4.41, "4090trt": 2.68, "a100": 4.04, "a100trt": 3.63}
    assert set(emulated_gpus()) == {*published, "zero"}
    for name, batch_1_ms in published.items():
        gpu = emulated_gpus()[name]
        assert gpu.base_ms + gpu.per_image_ms == pytest.approx(batch_1_ms)
        assert "published study, step" in gpu.source
        assert "assumed" in gpu.assumption
        precision = "fp16_tflops" if name.endswith("trt") else "tf32_tflops"
        peak = float(peaks[gpu.gpu][precision])
        assert gpu.per_image_ms == pytest.approx(8.82 / (0.4 * peak))
        assert gpu.base_ms > 0
    assert emulated_gpus()["zero"].base_ms == emulated_gpus()["zero"].per_image_ms == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_every_byte_of_the_image_takes_part(dtype: type) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 224, 224)).astype(dtype)
    answer = emulated_embedding(images)
    assert answer.shape == (4, 512)
    assert answer.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(answer, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(answer[2:3], emulated_embedding(images[2:3]))  # the batch does not matter
    assert np.abs(answer @ answer.T - np.eye(4)).max() < 0.2  # other images, other directions
    raw = images[:1].view(np.uint8).reshape(-1)
    rng = np.random.default_rng(1)
    for position in (0, raw.size - 1, *rng.integers(0, raw.size, 20)):
        changed = raw.copy()
        changed[position] ^= 1
        again = emulated_embedding(changed.view(dtype).reshape(1, 3, 224, 224))
        assert np.abs(again - answer[:1]).max() > 1e-4, position


def test_the_wait_is_never_short() -> None:
    for milliseconds in (0.0, 0.1, 1.0, 3.0):
        deadline = time.perf_counter() + milliseconds / 1000
        wait_until(deadline)
        assert time.perf_counter() >= deadline
