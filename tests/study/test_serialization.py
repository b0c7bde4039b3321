"""Encoding and decoding give back what went in, and the measures see what they claim to measure."""

import json
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from photodup.bench.backends.adapters import adapter
from photodup.embedding.imaging import normalize, to_jpeg
from photodup.embedding.wire.wires import tensor
from photodup.study.profiling import serialization
from photodup.study.profiling.serialization import cpu_ms, decode_body, encode_body, peak_mb, wire_forms

LOSSLESS = ("fp32", "fp32+deflate", "uint8", "PNG")


def photograph(size: int = 224) -> np.ndarray:
    """Smooth shapes and a little noise: what compressors are made for, unlike pure noise."""
    y, x = np.mgrid[0:size, 0:size] / size
    picture = np.stack([np.sin(3 * x + y), np.cos(2 * y), x * y]) * 100 + 120
    noise = np.random.default_rng(0).normal(0, 3, picture.shape)
    return np.clip(picture + noise, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("form", serialization.BODIES)
@given(n=st.integers(1, 3), side=st.integers(1, 6), seed=st.integers(0, 9))
@settings(max_examples=15)
def test_a_body_gives_back_every_bit(form, n, side, seed):
    images = np.random.default_rng(seed).normal(size=(n, 3, side, side)).astype(np.float32)
    again = decode_body(encode_body(images, form), form)
    np.testing.assert_array_equal(again, images)
    assert again.flags.writeable, "a view into the body, not an array of its own"


def test_the_binary_body_is_what_the_triton_adapter_sends():
    jpeg = to_jpeg(Image.fromarray(photograph().transpose(1, 2, 0)))
    images = tensor([jpeg], "fp32")
    for wire, form in (("fp32", "binary"), ("json", "json")):
        sent = adapter(f"triton-onnx-fp32-http-{wire}", "http://127.0.0.1:1").prepare([jpeg])[1]
        assert len(sent) == len(encode_body(images, form))
        np.testing.assert_array_equal(decode_body(sent, form), images)


@pytest.mark.parametrize("name", wire_forms())
def test_every_rung_ends_in_the_model_input(name):
    pixels = photograph()
    exact, form = normalize(pixels), wire_forms()[name]
    decoded = form.decode(form.encode(pixels), pixels.shape)
    assert decoded.shape == exact.shape and decoded.dtype == np.float32
    if name in LOSSLESS:
        np.testing.assert_array_equal(decoded, exact)
    else:
        assert not np.array_equal(decoded, exact)
        assert np.abs(decoded - exact).mean() < (1e-3 if name == "fp16" else 0.1)


def test_rungs_have_the_sizes_that_arithmetic_gives():
    pixels = photograph()
    size = {name: len(form.encode(pixels)) for name, form in wire_forms().items()}
    assert (size["fp32"], size["fp16"], size["uint8"]) == (602_112, 301_056, 150_528)
    assert size["fp32"] > size["fp32+deflate"] and size["uint8"] > size["PNG"]
    assert size["PNG"] > size["JPEG q95"] > size["JPEG q90"] > size["JPEG q75"]


def test_cpu_time_is_not_wall_time(figure):
    asleep = cpu_ms(lambda: time.sleep(0.02), min_s=0.05)
    assert asleep["n"] >= 3
    assert asleep["wall_ms"] >= 20 and asleep["wall_ms"] > asleep["cpu_ms"]
    figure(asleep["cpu_ms"] < 10, asleep)
    busy = cpu_ms(lambda: sum(range(200_000)), min_s=0.05)
    assert busy["cpu_ms"] > 0
    figure(busy["cpu_ms"] > 0.2 * asleep["cpu_ms"] and busy["cpu_ms"] > 0.1, busy)


def test_peak_memory_counts_what_is_held_and_nothing_from_before():
    keep = bytearray(50_000_000)
    assert peak_mb(lambda: bytearray(8_000_000)) == pytest.approx(8, rel=0.05)
    assert peak_mb(lambda: np.zeros(1_000_000)) == pytest.approx(8, rel=0.05)
    assert peak_mb(lambda: None) < 0.1
    assert len(keep) and not tracemalloc.is_tracing()


def test_json_costs_memory_in_proportion_to_numbers_not_to_bytes():
    images = np.random.default_rng(0).normal(size=(1, 3, 64, 64)).astype(np.float32)
    text, binary = (peak_mb(lambda form=form: encode_body(images, form)) for form in ("json", "binary"))
    assert text > 10 * images.nbytes / 1e6
    assert binary < 3 * images.nbytes / 1e6
    assert len(json.dumps(images.tolist())) > 4 * images.nbytes
