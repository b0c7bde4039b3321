"""From encoded bytes to the model's input pixels. All images are decoded here.

Only Pillow and NumPy. `to_uint8` gives exactly the pixels of open_clip's validation transform, so PyTorch, ONNX Runtime
and Triton start from the same input.
"""

import io
import os
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin, UnidentifiedImageError

from photodup.core.errors import PhotodupError
from photodup.embedding import jpeg_scans

IMAGE_SIZE = 224
# Shortest side of a JPEG that is decoded at a reduced scale for an encoder.
DRAFT_SIZE = 2 * IMAGE_SIZE
# CLIP's normalisation (OPENAI_DATASET_MEAN / _STD in open_clip), per RGB channel, for pixels in 0..1.
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float32)

# Phones take 200-megapixel photographs (16320 × 12240), more than Pillow's own limit of 179. 250 megapixels
# take 1 GB (Pillow keeps 4 bytes a pixel); a server should set a lower limit.
MAX_PIXELS = 250_000_000

# Left out: readers that run another program (EPS), and containers with a second image inside (ICO, ICNS), whose size
# the header does not tell.
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "HEIF", "AVIF")
# Formats of the extra `photos-more`. RAW goes first: most RAW files begin like a TIFF.
_MORE = ("RAW", "JXL")
_MAY_BE_RAW = (b"II", b"MM", b"FU", b"FO", b"\0M")

# Pillow limits each unpacked text and profile of a PNG to 1 MB; workflows and printers' profiles are larger.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY

# Beyond this aspect ratio the centre is cut out before resizing: 1 × 65,535 pixels resized in full would need 10 GB.
_MAX_FULL_RESIZE_RATIO = 50

_open_lock = threading.Lock()


class ImageError(PhotodupError):
    """An image that cannot be read.

    Attributes:
        reason: a clause for a report: "the file is empty".
        index: position in the list of images; None for a single image.
    """

    index: int | None = None

    def __init__(self, reason: str, source: str | None = None) -> None:
        super().__init__(f"{source}: {reason}" if source else reason)
        self.reason = reason


def decode(
    source: bytes | Path, *, max_pixels: int = MAX_PIXELS, draft_size: int | None = None
) -> Image.Image:
    """Read an image as upright 8-bit RGB.

    The size in the header, and a JPEG's number of scans, are checked before decoding. This bounds the time
    for JPEG only, so decode untrusted files of other formats in a `decode_pool.DecodePool`, which has a
    deadline. 16-bit greys and floats are scaled, not clipped. Transparent images are laid over white.
    The first frame of an animation is read. EXIF orientation is applied. Colour profiles are ignored, as by
    open_clip.

    Args:
        source: encoded bytes, or a file.
        max_pixels: refuse an image with more (width × height) than this.
        draft_size: JPEG only: let the decoder shrink by 2, 4 or 8 while both sides stay at least this
            long. About four times faster for a 12-megapixel photograph, but the pixels differ: use it for
            hashes and thumbnails, and for embeddings whose digest says so (`vectors.digest_drafted`). HEIC
            is decoded whole, because its decoder would return the embedded thumbnail instead.

    Raises:
        ImageError: unreadable, empty, truncated, too large or not an image.
    """
    name = None if isinstance(source, bytes | bytearray | memoryview) else os.fspath(source)
    try:
        data = source if not isinstance(source, str | os.PathLike) else Path(source).read_bytes()
        if not len(data):
            raise ImageError("the file is empty", name)
        if jpeg_scans.is_jpeg(data) and (problem := jpeg_scans.read_layout(data).problem):
            raise ImageError(problem, name)
        with open_image(data) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise ImageError(
                    f"{width} × {height} is {width * height / 1e6:,.0f} megapixels, "
                    f"more than the limit of {max_pixels / 1e6:,.4g}",
                    name,
                )
            if draft_size and jpeg_scans.is_jpeg(data):
                image.draft(image.mode, (draft_size, draft_size))
            image.load()
            return _to_rgb(_upright(image))
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"not an image in a format that is read here ({', '.join(FORMATS)})", name) from None
    except MemoryError:
        raise ImageError("not enough memory to decode it", name) from None
    except Exception as error:  # Decoders raise nearly anything on hostile bytes; the caller needs one kind.
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
        raise ImageError(f"cannot be decoded: {reason}", name) from error


def is_bounded(data: bytes) -> bool:
    """Tell whether decoding surely takes at most about a second; True only for ordinary JPEGs."""
    return jpeg_scans.is_jpeg(data) and jpeg_scans.read_layout(data).is_bounded


def to_uint8(image: Image.Image) -> np.ndarray:
    """Resize the shorter side to 224 pixels (bicubic), cut the centre square, return uint8 [3, 224, 224].

    Bit for bit what open_clip's validation transform does before scaling to 0..1, up to an aspect
    ratio of 50; beyond that a pixel may differ by a few levels, so that memory stays bounded.
    """
    return np.ascontiguousarray(np.asarray(_resize_and_crop(image)).transpose(2, 0, 1))


def model_input(
    data: bytes, *, max_pixels: int = MAX_PIXELS, draft_size: int | None = None
) -> tuple[int, np.ndarray]:
    """Decode an image like `decode`; return its number of pixels (width × height) and the array of `to_uint8`."""
    image = decode(data, max_pixels=max_pixels, draft_size=draft_size)
    return image.width * image.height, to_uint8(image)


def packed_model_input(data: bytes, *, max_pixels: int = MAX_PIXELS, draft_size: int | None = None) -> bytes:
    """Return `model_input` as bytes for a `decode_pool`: the pixel count (8 bytes, little-endian), then the array."""
    n_pixels, pixels = model_input(data, max_pixels=max_pixels, draft_size=draft_size)
    return n_pixels.to_bytes(8, "little") + pixels.tobytes()


def unpack_model_input(packed: bytes) -> tuple[int, np.ndarray]:
    """Undo `packed_model_input`."""
    pixels = np.frombuffer(packed, np.uint8, offset=8).reshape(3, IMAGE_SIZE, IMAGE_SIZE)
    return int.from_bytes(packed[:8], "little"), pixels


def normalize(batch: np.ndarray) -> np.ndarray:
    """Scale uint8 [..., 3, h, w] to CLIP's float32 input: (x / 255 - mean) / std per channel."""
    scaled = batch.astype(np.float32)
    scaled /= np.float32(255)
    scaled -= MEAN[:, None, None]
    scaled /= STD[:, None, None]
    return scaled


def denormalize(images: np.ndarray) -> np.ndarray:
    """Undo `normalize`: uint8 [n, 3, h, w]."""
    pixels = (images * STD[:, None, None] + MEAN[:, None, None]) * np.float32(255)
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def to_jpeg(image: Image.Image, quality: int = 90) -> bytes:
    """Encode as baseline JPEG (4:2:0 chroma, Pillow's default)."""
    return encode(image.convert("RGB"), "JPEG", quality=quality)


def encode(image: Image.Image, image_format: str, **options: Any) -> bytes:
    """Encode in one of Pillow's formats or HEIF; `options` go to `Image.save`."""
    if image_format == "HEIF":
        _register_heif()
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def client_jpeg(source: bytes | Path | Image.Image, quality: int = 90) -> bytes:
    """Shrink to the model's input and encode as JPEG: the ~10 KB payload of the published study.

    The server has nothing to resize, but its pixels went through JPEG twice, so the embedding drifts a little. State
    this drift with any latency measured on this payload.
    """
    image = source if isinstance(source, Image.Image) else decode(source)
    return to_jpeg(_resize_and_crop(image), quality)


@cache
def _register_heif() -> None:
    import pillow_heif

    pillow_heif.register_heif_opener()


def open_image(data: bytes) -> Image.Image:
    """Open an image of one of `FORMATS`; only its header is read."""
    if bytes(data[4:8]) == b"ftyp":
        _register_heif()
    with suppress(ImportError):  # the extra is not installed
        if bytes(data[:2]) == b"\xff\x0a" or bytes(data[4:8]) == b"JXL ":
            import pillow_jxl  # noqa: F401
        elif bytes(data[:2]) in _MAY_BE_RAW or bytes(data[4:12]) == b"ftypcrx ":
            import photodup.embedding.raw_image  # noqa: F401
    # The plugins of Pillow itself register on init(); asking for one that is not there is a KeyError.
    Image.init()
    formats = [name for name in (*_MORE, *FORMATS) if name in Image.OPEN]
    # Pillow's pixel limit is global and applies inside open(). Lift it there; `decode` applies the caller's limit.
    with _open_lock:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(io.BytesIO(data), formats=formats)
        finally:
            Image.MAX_IMAGE_PIXELS = limit


_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


# The size of one JPEG segment. In a larger Exif many entries can point to the same bytes and fill the memory.
_MAX_EXIF_BYTES = 65_535


def _upright(image: Image.Image) -> Image.Image:
    if len(image.info.get("exif") or b"") > _MAX_EXIF_BYTES:
        return image.copy()
    # Not ImageOps.exif_transpose: it rewrites the Exif, which takes seconds for a hostile one.
    try:
        turn = _UPRIGHT.get(image.getexif().get(0x0112, 1))
    except Exception:  # Broken EXIF must not cost the photograph: only its orientation is unknown.
        turn = None
    return image.copy() if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith(("I", "F")):
        return _scale_to_8_bits(image).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def _scale_to_8_bits(image: Image.Image) -> Image.Image:
    """Scale integers and floats to 0..255 by their range; `convert` would clip at 255."""
    values = np.nan_to_num(np.asarray(image).astype(np.float32))
    if image.mode.startswith("I;16"):
        full_scale = 65535.0
    else:  # 32 bits hold 0..1, 0..255 or 0..65535 by convention; the file does not say which.
        largest = float(values.max(initial=0))
        full_scale = next((s for s in (1.0, 255.0, 65535.0) if largest <= s), largest)
        if image.mode == "I" and full_scale == 1.0:
            full_scale = 255.0
    return Image.fromarray(np.clip(np.rint(values * (255.0 / full_scale)), 0, 255).astype(np.uint8))


def _resize_and_crop(image: Image.Image) -> Image.Image:
    size = IMAGE_SIZE
    image = image if image.mode == "RGB" else image.convert("RGB")
    width, height = image.size
    short, long = min(width, height), max(width, height)
    if long > short * _MAX_FULL_RESIZE_RATIO:
        left, top = (width - short) / 2, (height - short) / 2
        centre = (left, top, left + short, top + short)
        return image.resize((size, size), Image.Resampling.BICUBIC, box=centre)
    # torchvision truncates the long side and rounds the crop offset half to even; so do these lines.
    long = int(size * long / short)
    new_width, new_height = (size, long) if width <= height else (long, size)
    resized = image.resize((new_width, new_height), Image.Resampling.BICUBIC)
    left, top = round((new_width - size) / 2), round((new_height - size) / 2)
    return resized.crop((left, top, left + size, top + size))
