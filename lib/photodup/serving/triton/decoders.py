"""Decoders of photographs for the encoder, exact or faster. Copied next to Triton's preprocessing model.

    pil     Pillow at full size, bit for bit like open_clip: the reference and the default.
    draft   Pillow; libjpeg shrinks by 2, 4 or 8 while decoding, to no less than twice the model's input.
    turbo   libjpeg-turbo through simplejpeg, which shrinks too (also by 3/4, 5/8 and so on).

`draft` and `turbo` change pixels, so an embedding drifts; notebook 11 puts the drift beside the speed.
"""

from collections.abc import Callable

from PIL import Image, ImageOps

from photodup.embedding import imaging, jpeg_scans

# Twice the model's input, so that the last step stays a bicubic resize.
_SCALED_SIDE = 2 * imaging.IMAGE_SIZE


def decode_pil(data: bytes, max_pixels: int) -> Image.Image:
    """Decode every pixel."""
    return imaging.decode(data, max_pixels=max_pixels)


def decode_draft(data: bytes, max_pixels: int) -> Image.Image:
    """Decode with Pillow's scaled JPEG decoding; other formats as `decode_pil`."""
    return imaging.decode(data, max_pixels=max_pixels, draft_size=_SCALED_SIDE)


def decode_turbo(data: bytes, max_pixels: int) -> Image.Image:
    """Decode with libjpeg-turbo, scaled; other formats and unusual JPEGs as `decode_pil`."""
    import io

    import simplejpeg

    if not simplejpeg.is_jpeg(data) or jpeg_scans.read_layout(data).problem:
        return decode_pil(data, max_pixels)  # it names the reason
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return decode_pil(data, max_pixels)  # it names the reason
    if colorspace not in ("YCbCr", "RGB", "Gray") or width * height > max_pixels:
        return decode_pil(data, max_pixels)
    try:
        pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=_SCALED_SIDE, min_width=_SCALED_SIDE, min_factor=1, strict=True
        )
    except ValueError as error:
        raise imaging.ImageError(f"cannot be decoded: {error}") from error
    image = Image.fromarray(pixels)
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as header:
        orientation = header.getexif().get(0x0112)
    if orientation and orientation != 1:
        image.getexif()[0x0112] = orientation
        image = ImageOps.exif_transpose(image)
    return image


DECODERS: dict[str, Callable[[bytes, int], Image.Image]] = {
    "pil": decode_pil,
    "draft": decode_draft,
    "turbo": decode_turbo,
}
