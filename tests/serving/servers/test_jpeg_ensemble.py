"""Encoded photographs into Triton: the library's own pixels, and bad images that fail alone."""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.hostile_images import flat_png, grain, many_scans
from support.images import png
from support.review_library import photo
from support.triton import executions, infer, load, loaded, tiny_embedding

from photodup.embedding.client.embedder import connect
from photodup.embedding.imaging import IMAGE_SIZE, ImageError, decode, encode, to_uint8
from photodup.serving.triton.config import read_config, set_batching, set_parameter
from photodup.serving.triton.models.emulation import emulated_embedding

LIMIT = 100_000_000
DECODERS = {"pil": None, "draft": 2 * IMAGE_SIZE}  # as in the preprocessing model: name → `draft_size`


@functools.cache
def _good() -> dict[str, bytes]:
    astronaut, turned = photo("astronaut"), Image.Exif()
    turned[0x0112] = 6
    grey16 = Image.fromarray(np.asarray(astronaut.convert("L")).astype(np.uint16) * 257)
    return {
        "jpeg": encode(astronaut, "JPEG", quality=90),
        "jpeg rotated by EXIF": encode(astronaut.crop((0, 0, 512, 300)), "JPEG", quality=90, exif=turned),
        "jpeg CMYK": encode(astronaut.convert("CMYK"), "JPEG"),
        "jpeg grey": encode(astronaut.convert("L"), "JPEG"),
        "png": encode(astronaut, "PNG"),
        "png 16 bit": encode(grey16, "PNG"),
        "png palette": encode(astronaut.quantize(64), "PNG"),
        "webp": encode(astronaut, "WEBP", quality=80),
        "one pixel": encode(astronaut.resize((1, 1)), "PNG"),
        "large": encode(astronaut.resize((3000, 2000)), "JPEG", quality=85),
    }


@functools.cache
def _bad() -> dict[str, tuple[bytes, str]]:
    jpeg = encode(photo("astronaut"), "JPEG")
    return {
        "text": (b"not an image at all", "not an image"),
        "empty": (b"", "empty"),
        "truncated": (jpeg[: len(jpeg) // 2], "truncated"),
        "bomb": (png(40_000, 40_000), "1,600 megapixels"),
        "too many bytes": (jpeg + b"\0" * 2_000_000, "more than the limit of 1,000,000"),
    }


def _encoded(*images: bytes) -> np.ndarray:
    return np.array([[image] for image in images], dtype=object)


@pytest.mark.parametrize("name", _good())
def test_triton_sees_the_librarys_own_pixels(name: str, tiny_triton) -> None:
    """Bit for bit, for each kind of file; both environments hold the same Pillow."""
    data = _good()[name]
    expected = to_uint8(decode(data))[None]
    answer = infer(tiny_triton, "openclip_vit_b32_preprocess", _encoded(data), output="image")
    np.testing.assert_array_equal(answer, expected)


def test_bad_images_fail_alone_in_a_shared_batch_each_with_its_reason(tiny_triton) -> None:
    """Nine requests in one execution of one instance: four good ones answered, five bad ones explained."""
    server = tiny_triton
    model = "openclip_vit_b32_preprocess"
    config = read_config(server.repository / model / "config.pbtxt")
    config.instance_group[0].count = 1
    set_batching(
        config, "dynamic_batching { preferred_batch_size: [9] max_queue_delay_microseconds: 2000000 }"
    )
    set_parameter(config, max_bytes=1_000_000)
    good = [_good()[name] for name in ("jpeg", "png", "webp", "jpeg CMYK")]
    bad = _bad()
    jobs = [(data, None) for data in good] + list(bad.values())

    def ask(job: tuple) -> Any:
        try:
            return infer(server, model, _encoded(job[0]), "grpc", "image")
        except Exception as error:
            return str(error)

    load(server, model, config)
    try:
        before = executions(server, model)
        with ThreadPoolExecutor(len(jobs)) as pool:
            outcome = list(pool.map(ask, jobs))
        after = executions(server, model)
    finally:
        load(server, model)
    for (data, reason), answer in zip(jobs, outcome, strict=True):
        if reason is None:
            np.testing.assert_array_equal(answer, to_uint8(decode(data))[None])
        else:
            assert isinstance(answer, str), reason
            assert "image 0: " in answer
            assert reason in answer
    assert after[1] - before[1] == 1, "they were meant to share one execution"


def test_the_index_of_the_bad_image_is_named_and_the_ensemble_lives_on(tiny_triton) -> None:
    from tritonclient.utils import InferenceServerException

    jpeg = _good()["jpeg"]
    for name in ("text", "empty", "truncated", "bomb"):
        data, reason = _bad()[name]
        with pytest.raises(InferenceServerException, match=rf"image 1: .*{reason}"):
            infer(tiny_triton, "openclip_vit_b32_jpeg", _encoded(jpeg, data, jpeg))
    assert infer(tiny_triton, "openclip_vit_b32_jpeg", _encoded(jpeg)).shape == (1, 512)
    for url, protocol in ((tiny_triton.http_url, "http"), (tiny_triton.grpc_url, "grpc")):  # a 400
        with (
            connect(url, f"triton-onnx-fp32-{protocol}-jpeg", jpeg_quality=None) as embedder,
            pytest.raises(ImageError, match=r"image 1: .*truncated"),
        ):
            embedder.embed([jpeg, _bad()["truncated"][0]])


def test_the_emulated_ensemble_answers_for_the_photo_it_got(tiny_triton) -> None:
    photos = [_good()["jpeg"], _good()["jpeg rotated by EXIF"]]
    pixels = np.stack([to_uint8(decode(photo)) for photo in photos])
    with loaded(tiny_triton, "emulated_a100_uint8", "emulated_a100_jpeg"):
        answer = infer(tiny_triton, "emulated_a100_jpeg", _encoded(*photos))
    np.testing.assert_allclose(answer, emulated_embedding(pixels), atol=1e-6)


@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_shows_the_same_picture(name: str) -> None:
    for kind, data in _good().items():
        exact = to_uint8(decode(data)).astype(int)
        seen = to_uint8(decode(data, draft_size=DECODERS[name])).astype(int)
        if name == "pil" or not kind.startswith(("jpeg", "large")):
            np.testing.assert_array_equal(seen, exact, err_msg=kind)
        # A picture turned or flipped differs by 40 and more; scaled decoding by 2 or 3.
        assert np.abs(seen - exact).mean() < 4, kind


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("kind", ["text", "empty", "truncated", "bomb"])
def test_every_decoder_refuses_a_bad_image(name: str, kind: str) -> None:
    with pytest.raises(ImageError):
        decode(_bad()[kind][0], max_pixels=LIMIT, draft_size=DECODERS[name])


def test_a_large_jpeg_is_refused_by_its_header() -> None:
    with pytest.raises(ImageError, match="megapixels"):
        decode(_good()["large"], max_pixels=1_000_000, draft_size=448)


def test_scaled_decoding_moves_pixels_and_hardly_the_embedding() -> None:
    data = _good()["large"]
    exact, scaled = (to_uint8(decode(data, draft_size=size))[None] for size in DECODERS.values())
    assert np.abs(exact.astype(int) - scaled).max() > 0
    assert 0.99 < (tiny_embedding(exact) * tiny_embedding(scaled)).sum() <= 1.00001


def test_triton_refuses_what_it_could_not_stop(tiny_triton) -> None:
    """Its Python has no processes to kill: what has no bound on its cost is refused, and the request's pixels count."""
    import pillow_heif

    pillow_heif.register_heif_opener()
    small = grain(32, 32)
    refused = {
        "more than 100 scans": _encoded(many_scans()),
        "not JPEG, PNG, WebP, GIF or BMP": _encoded(encode(small, "TIFF")),
        "image 0: not JPEG, PNG, WebP, GIF or BMP: convert it, or use the": _encoded(encode(small, "HEIF")),
        "more than the limit of": _encoded(*[flat_png()] * 16),
    }
    for words, images in refused.items():
        with pytest.raises(Exception, match=words):
            infer(tiny_triton, "openclip_vit_b32_preprocess", images, output="image")
    infer(tiny_triton, "openclip_vit_b32_preprocess", _encoded(encode(small, "PNG")), output="image")
