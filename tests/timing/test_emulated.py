"""The emulated accelerator: its arithmetic, its sources, and its time as the real Triton counts it."""

import csv
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.triton import executions, infer, needs_triton

from photodup.errors import PhotodupError
from photodup.serving.triton.emulated import emulated_embedding, emulated_models, parse_emulated, presets
from photodup.serving.triton.emulated_calibration import TOLERANCE, calibrate, compute_samples_ms
from photodup.serving.triton.models.emulation import compute_ms, parse_overhead, wait_until

pytestmark = pytest.mark.quiet


def test_presets_are_the_published_times_and_say_what_is_assumed(root: Path) -> None:
    with (root / "results/published/devices.csv").open() as file:
        peaks = {row["device"]: row for row in csv.DictReader(file)}
    published = {"4080": 5.7, "4080trt": 2.0, "4090": 4.41, "4090trt": 2.68, "a100": 4.04, "a100trt": 3.63}
    assert set(presets()) == {*published, "zero"}
    for name, batch_1_ms in published.items():
        preset = presets()[name]
        assert preset.compute_ms(1) == pytest.approx(batch_1_ms)
        assert "published study, step" in preset.source
        assert "assumed" in preset.assumption
        precision = "fp16_tflops" if name.endswith("trt") else "tf32_tflops"
        peak = float(peaks[preset.gpu][precision])
        assert preset.per_image_ms == pytest.approx(8.82 / (0.4 * peak))
        assert preset.base_ms > 0
    assert presets()["zero"].compute_ms(32) == 0


def test_model_names_are_taken_apart_and_wrong_ones_refused() -> None:
    assert [parse_emulated(name)[1] for name in emulated_models("a100")] == ["", "_fp16", "_uint8", "_jpeg"]
    for wrong in ("emulated_h900", "emulated_a100_png", "emulated_a100_fp16_jpeg"):
        with pytest.raises(PhotodupError, match="no emulated model"):
            parse_emulated(wrong)


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


@given(st.dictionaries(st.integers(1, 32), st.floats(0, 9, allow_nan=False), max_size=5))
def test_overhead_reads_back(pairs: dict[int, float]) -> None:
    images, milliseconds = parse_overhead(" ".join(f"{n}:{ms!r}" for n, ms in pairs.items()))
    assert dict(zip(images, milliseconds, strict=True)) == (pairs or {1.0: 0.0})


def test_the_wait_is_never_short() -> None:
    for milliseconds in (0.0, 0.1, 1.0, 3.0):
        deadline = time.perf_counter() + milliseconds / 1000
        wait_until(deadline)
        assert time.perf_counter() >= deadline
    assert compute_ms(8, 4.0, 0.5) == 8.0


@needs_triton()
def test_an_answer_proves_which_image_was_sent(tiny_triton) -> None:
    server = tiny_triton
    server.load("emulated_zero")
    try:
        images = np.random.default_rng(3).normal(size=(5, 3, 224, 224)).astype(np.float32)
        for protocol in ("http", "grpc"):
            answer = infer(server, "emulated_zero", images, protocol)
            np.testing.assert_allclose(answer, emulated_embedding(images), atol=1e-6)
            assert not np.allclose(answer, emulated_embedding(images[::-1]), atol=1e-3)
    finally:
        server.unload("emulated_zero")


@needs_triton()
def test_compute_is_the_preset_by_tritons_own_counter(tiny_triton) -> None:
    """Within 2 %, as everything that is said about an emulated GPU rests on it; retried on a busy machine."""
    server = tiny_triton
    server.load("emulated_4080trt")
    try:
        for _attempt in range(6):
            rows = calibrate(server, "emulated_4080trt", batches=(1, 4), requests=25)
            if all(row["within"] for row in rows):
                break
        assert all(row["within"] for row in rows), rows
        # The same check sees a device that is 8 % slower than it says.
        slow = [r["preset_ms"] * 1.08 for r in rows]
        assert not any(abs(r["compute_ms_p50"] / s - 1) <= TOLERANCE for r, s in zip(rows, slow, strict=True))
        # And the wait can never be shorter than the preset less its overhead.
        assert compute_samples_ms(server, "emulated_4080trt", 1, 10).min() > 1.5
    finally:
        server.unload("emulated_4080trt")


@needs_triton()
def test_two_instances_are_two_devices(tiny_triton) -> None:
    """Eight requests at once, batcher off: two instances need about half of the time one needs."""
    from concurrent.futures import ThreadPoolExecutor

    from photodup.serving.triton.config import read_config, set_batching, set_parameter

    server = tiny_triton
    config = read_config(server.repository / "emulated_4080trt" / "config.pbtxt")
    set_batching(config, "off")
    set_parameter(config, base_ms=100)
    image = np.zeros((1, 3, 224, 224), np.float32)
    took = {}
    try:
        for count in (1, 2):
            config.instance_group[0].count = count
            server.load("emulated_4080trt", config)
            infer(server, "emulated_4080trt", image)
            before = executions(server, "emulated_4080trt")[1]
            started = time.monotonic()
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda _: infer(server, "emulated_4080trt", image), range(8)))
            took[count] = time.monotonic() - started
            assert executions(server, "emulated_4080trt")[1] - before == 8
    finally:
        server.unload("emulated_4080trt")
    # One at a time per instance is a lower bound that no load on the machine can break.
    assert took[1] >= 0.8
    assert 0.4 <= took[2] < 0.75
