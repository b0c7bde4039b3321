"""What is read is read right; what cannot be read says why."""

import io
import resource

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from support.command import run_python
from support.images import bomb, photo

from photodup.embedding import imaging
from photodup.embedding.engines.weights import import_open_clip
from photodup.embedding.imaging import ImageError, decode, encode, normalize, to_uint8


def difference(a: Image.Image, b: Image.Image) -> float:
    assert a.size == b.size
    return float(np.abs(np.asarray(a, np.int16) - np.asarray(b, np.int16)).mean())


@pytest.mark.parametrize("fmt", ["PNG", "WEBP", "TIFF", "BMP", "JPEG", "AVIF", "HEIF"])
def test_every_format_gives_the_same_picture(fmt):
    lossless = fmt in ("PNG", "TIFF", "BMP")
    image = decode(encode(photo(), fmt, **({"quality": 95} if not lossless else {})))
    assert image.mode == "RGB"
    assert difference(image, photo()) <= (0 if lossless else 8)


def test_a_refusal_is_one_line_whatever_the_decoder_wrote():
    """libheif ends its messages with a newline."""
    heic = encode(photo(96, 64), "HEIF")
    with pytest.raises(ImageError) as caught:
        decode(heic[: len(heic) // 2])
    assert "cannot be decoded: " in str(caught.value) and "\n" not in str(caught.value)


def test_heic_is_registered_lazily(tmp_path):
    path = tmp_path / "photo.heic"
    path.write_bytes(encode(photo(), "HEIF", quality=95))
    code = (
        "import sys, pathlib; from photodup.embedding.imaging import decode; "
        "assert 'pillow_heif' not in sys.modules and 'torch' not in sys.modules; "
        f"print(decode(pathlib.Path({str(path)!r})).size)"
    )
    done = run_python(code, check=True)
    assert done.stdout.strip() == "(320, 240)"


@pytest.mark.parametrize(("fmt", "mode", "dtype", "full", "most"), [
    ("PNG", "I;16", np.uint16, 65535, 0.5), ("TIFF", "I;16", np.uint16, 65535, 0.5), ("TIFF", "I", np.int32, 65535, 0.51),
    ("TIFF", "F", np.float32, 1.0, 0.51), ("TIFF", "F", np.float32, 255.0, 0.51),
])  # fmt: skip
def test_deep_grey_is_scaled_by_its_range_not_clipped(fmt, mode, dtype, full, most):
    ramp = np.linspace(0, full, 64 * 64).astype(dtype).reshape(64, 64)
    image = Image.fromarray(ramp)
    assert image.mode == mode
    grey = np.asarray(decode(encode(image, fmt)))[..., 0].astype(float)
    assert np.abs(grey - ramp / full * 255).max() <= most


def test_cmyk_jpeg_has_the_right_colours():
    red = Image.new("RGB", (64, 64), (220, 30, 30))
    image = decode(encode(red.convert("CMYK"), "JPEG", quality=95))
    assert difference(image, red) < 4


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_laid_over_white(mode):
    image = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
    image.paste((40, 40, 40, 255), (0, 0, 16, 32))
    data = encode(image, "GIF") if mode == "P" else encode(image.convert(mode), "PNG")
    pixels = np.asarray(decode(data))
    assert (pixels[:, 16:] == 255).all()
    assert np.abs(pixels[:, :16].astype(int) - 40).max() <= 4


def test_png_with_a_transparent_colour_is_laid_over_white():
    image = Image.new("RGB", (8, 8), (1, 2, 3))
    image.paste((9, 9, 9), (0, 0, 4, 8))
    pixels = np.asarray(decode(encode(image, "PNG", transparency=(1, 2, 3))))
    assert (pixels[:, 4:] == 255).all() and (pixels[:, :4] == 9).all()


@pytest.mark.parametrize("fmt", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_read(fmt):
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "lime", "blue")]
    data = encode(frames[0], fmt, save_all=True, append_images=frames[1:], duration=40)
    assert difference(decode(data), frames[0]) < 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(photo(64, 48), "PNG", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert expected.size == ((64, 48) if orientation < 5 else (48, 64))
    assert difference(decode(data), expected) == 0


def test_palette_grey_bilevel_and_one_pixel():
    assert decode(encode(photo().convert("P"), "PNG")).mode == "RGB"
    assert decode(encode(photo().convert("L"), "JPEG")).mode == "RGB"
    assert decode(encode(photo().convert("1"), "TIFF")).mode == "RGB"
    assert to_uint8(decode(encode(Image.new("RGB", (1, 1), "red"), "PNG"))).shape == (3, 224, 224)


JPEG = encode(photo(), "JPEG")


@pytest.mark.parametrize(("data", "word"), [
    (b"", "empty"),
    (b"just a text file, renamed to .jpg", "format"),
    (b"\x00" * 4096, "format"),
    (JPEG[: len(JPEG) // 2], "truncated"),
    (encode(photo(), "PNG")[:2000], "decoded"),
    (encode(photo(), "WEBP")[:200], "format|decoded"),
    (b"\xff\xd8\xff\xe0" + b"\x01" * 100, "format|decoded"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n", "format"),
])  # fmt: skip
def test_what_cannot_be_read_says_why(data, word):
    with pytest.raises(ImageError, match=word):
        decode(data)


@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"restart_marker_blocks": 7}],
    ids=["baseline", "progressive", "restarts"],
)
def test_a_jpeg_that_is_cut_anywhere_is_not_read(options):
    data = encode(photo(), "JPEG", quality=95, **options)
    last_scan, last_restart = (
        data.rindex(b"\xff\xda"),
        max(data.rfind(bytes([0xFF, 0xD0 + i])) for i in range(8)),
    )
    for end in (*range(len(data) - 60, len(data)), last_scan, last_scan + 10, last_restart):
        with pytest.raises(ImageError, match="cannot be decoded"):
            decode(data[:end])


def test_a_file_is_named_in_the_error(tmp_path):
    with pytest.raises(ImageError, match=r"gone\.jpg.*No such file"):
        decode(tmp_path / "gone.jpg")
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(ImageError, match=r"empty\.jpg: the file is empty"):
        decode(tmp_path / "empty.jpg")


def test_a_bomb_is_refused_by_its_header(figure):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ImageError, match="1,600 megapixels, more than the limit of 250"):
        decode(bomb())
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    figure(grown_kib < 50_000, grown_kib)
    with pytest.raises(ImageError, match=r"limit of 0\.01"):
        decode(JPEG, max_pixels=10_000)


def test_pillows_own_limit_is_untouched_and_does_not_stop_large_photos():
    limit = Image.MAX_IMAGE_PIXELS
    with pytest.raises(ImageError, match=r"truncated|decoded"):  # 196 MP: past Pillow's limit, within ours
        decode(bomb(14_000, 14_000))
    assert limit == Image.MAX_IMAGE_PIXELS


def test_draft_shrinks_a_jpeg_but_not_below_the_asked_size():
    large = encode(photo(1600, 1200), "JPEG")
    assert decode(large, draft_size=300).size == (400, 300)
    assert decode(large).size == (1600, 1200)
    assert decode(encode(photo(), "PNG"), draft_size=64).size == (320, 240)


@pytest.fixture(scope="module")
def reference():
    """open_clip's validation transform."""
    return import_open_clip().image_transform(224, is_train=False)


@settings(max_examples=40)
@given(width=st.integers(1, 700), height=st.integers(1, 700), seed=st.integers(0, 9))
def test_pixels_are_those_of_open_clip_bit_for_bit(reference, width, height, seed):
    if max(width, height) > 50 * min(width, height):
        return
    image = photo(width, height, seed)
    assert np.array_equal(normalize(to_uint8(image)), reference(image).numpy())


def test_a_hair_thin_image_is_resized_in_bounded_memory(reference, figure):
    image = photo(8, 500)  # 62.5:1, small enough to be resized in full as well
    off = np.abs(normalize(to_uint8(image)) - reference(image).numpy()) * imaging.STD.reshape(3, 1, 1) * 255
    assert off.mean() < 0.5 and off.max() < 10  # of 255; Pillow rounds between its two passes
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert to_uint8(Image.new("RGB", (1, 65_535), "red")).shape == (3, 224, 224)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    figure(grown_kib < 100_000, grown_kib)  # in full it is 10 GB


def test_client_jpeg_is_small_and_keeps_the_picture():
    data = imaging.client_jpeg(JPEG)
    assert decode(data).size == (224, 224)
    assert 2_000 < len(data) < 40_000
    mean = np.abs(to_uint8(decode(data)).astype(int) - to_uint8(photo()).astype(int)).mean()
    assert mean < 6
