"""The pictures that `verify` sends, drawn from fixed seeds, and how a server with a known deviation would see them.

The right view of a picture is what this library's own decoder gives (`embedding.imaging`), which is open_clip's but for
EXIF orientation, 16 bits, transparency and palettes. An answer that lies nearer to the embedding of a deviating view
deviates so.
"""

import functools
import io
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageChops, ImageCms

from photodup.bench.anyurl.payloads import picture
from photodup.embedding import imaging

SIDE = imaging.IMAGE_SIZE
MANY_SCANS = "a JPEG of 600 scans"
N_PHOTOS = 12
N_DEVIATING = 6  # of them: what each deviation gives is computed for so many
_SIZES = ((400, 300), (300, 400), (480, 270), (320, 320))
_Resampling = Image.Resampling

Views = Sequence[np.ndarray]  # float32 [3, 224, 224] each, normalised


@dataclass(frozen=True)
class PictureCheck:
    """Pictures that ask one question.

    Attributes:
        wrong: views of the pictures, or of the first of them, under each fault; the fault's words follow "as if".
        tolerated: the same for deviations that a server may have.
        may_refuse: with a status of 4xx, as a kind of image that it does not take.
    """

    name: str
    files: tuple[bytes, ...]
    wrong: Mapping[str, Views] = field(default_factory=dict)
    tolerated: Mapping[str, Views] = field(default_factory=dict)
    may_refuse: bool = True


def inputs(images: Iterable[Image.Image]) -> list[np.ndarray]:
    """Return what the model sees of upright pictures."""
    return [imaging.normalize(imaging.to_uint8(image)) for image in images]


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    return imaging.encode(
        image, kind, **({"quality": 95, "subsampling": 0} if kind == "JPEG" else {}) | options
    )


def _rings(seed: int, width: int = 1200, height: int = 900) -> Image.Image:
    """Return a picture under rings that become finer outwards: each resize filter keeps different ones."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    squared = (x - random.uniform(0, width)) ** 2 + (y - random.uniform(0, height)) ** 2
    rings = np.sign(np.cos(random.uniform(0.0006, 0.002) * squared))[..., None] * random.uniform(18, 60, 3)
    return Image.fromarray(np.clip(np.asarray(picture(seed, width, height)) + rings, 0, 255).astype(np.uint8))


def _shrunk(image: Image.Image, resampling: Image.Resampling, *, smooth: bool = True) -> Image.Image:
    """Return a picture with the model's side, resized otherwise than the model asks for; its centre is still to be cut."""
    short = min(image.size)
    size, scale = (SIDE * image.width // short, SIDE * image.height // short), short / SIDE
    if smooth:
        return image.resize(size, resampling)
    return image.transform(size, Image.Transform.AFFINE, (scale, 0, 0, 0, scale, 0), resampling)


def _as_open_clip(image: Image.Image) -> list[np.ndarray]:
    """Return what open_clip sees: it resizes in the picture's own mode (palettes without a filter), then makes RGB of it."""
    return inputs([_shrunk(image, _Resampling.BICUBIC).convert("RGB")])


def _squeezed(images: Iterable[Image.Image]) -> list[np.ndarray]:
    return inputs(image.resize((SIDE, SIDE), _Resampling.BICUBIC) for image in images)


@functools.cache
def photo_check() -> PictureCheck:
    """Return the pictures that all others are measured by, with the deviations that show in any picture."""
    files = tuple(encoded(picture(seed, *_SIZES[seed % len(_SIZES)])) for seed in range(N_PHOTOS))
    images = [imaging.decode(data) for data in files[:N_DEVIATING]]

    def scaled(mean: Sequence[float], std: Sequence[float]) -> Views:
        pixels = np.stack([imaging.to_uint8(image) for image in images]).astype(np.float32) / 255
        return [*((pixels - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))).astype(np.float32)]

    wrong = {
        "red and blue were exchanged (BGR)": inputs(Image.merge("RGB", i.split()[::-1]) for i in images),
        "pixels were normalised by ImageNet's values": scaled((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "pixels were normalised by 0.5 and 0.5": scaled((0.5,) * 3, (0.5,) * 3),
        "pixels were scaled to 0..1 and not normalised": scaled((0.0,) * 3, (1.0,) * 3),
        "the whole was squeezed into the square, no centre cut out": _squeezed(images),
    }
    return PictureCheck("model and precision", files, wrong, may_refuse=False)


@functools.cache
def checks() -> tuple[PictureCheck, ...]:
    """Return the checks for a server that decodes images itself."""
    return _filters(), _orientations(), *_kinds(), *_sizes()


def _filters() -> PictureCheck:
    files = tuple(encoded(_rings(seed)) for seed in range(N_DEVIATING))
    images = [imaging.decode(data) for data in files]
    wrong = {
        f"pictures were resized by {resampling.name.lower()}, not bicubic": inputs(
            _shrunk(i, resampling) for i in images
        )
        for resampling in (_Resampling.BILINEAR, _Resampling.LANCZOS, _Resampling.NEAREST)
    }
    for resampling in (_Resampling.BICUBIC, _Resampling.BILINEAR):
        rough = inputs(_shrunk(i, resampling, smooth=False) for i in images)
        wrong[f"pictures were resized by {resampling.name.lower()} without smoothing first"] = rough
    draft = {
        "JPEGs were decoded at a reduced scale": inputs(imaging.decode(f, draft_size=2 * SIDE) for f in files)
    }
    return PictureCheck("resize filter", files, wrong, draft, may_refuse=False)


def _orientations() -> PictureCheck:
    turned, files = [imaging.decode(encoded(picture(20 + n))) for n in range(7)], []
    for n in range(7):
        exif = Image.Exif()
        exif[0x0112] = n + 2
        files.append(encoded(picture(20 + n), exif=exif))
    wrong = {"EXIF's orientation was not applied": inputs(turned)}
    return PictureCheck("EXIF orientation", tuple(files), wrong, may_refuse=False)


def _kinds() -> Iterable[PictureCheck]:
    """Yield a check for each kind of pixels."""
    cmyk = encoded(picture(30).convert("CMYK"))
    inverted = {"CMYK's inks were inverted": inputs([ImageChops.invert(imaging.decode(cmyk))])}
    yield PictureCheck("CMYK", (cmyk,), inverted)
    yield PictureCheck("greyscale", (encoded(picture(31).convert("L")),), may_refuse=False)
    deep = np.asarray(picture(32).convert("L")).astype(np.uint16) * 200 + 3000
    clipped, low = (Image.fromarray(grey.astype(np.uint8)) for grey in (np.clip(deep, 0, 255), deep & 255))
    misread = {"values above 255 were clipped": inputs([clipped]), "only low bytes were read": inputs([low])}
    yield PictureCheck("16 bits", (encoded(Image.fromarray(deep), "PNG"),), misread)
    rgba = picture(33).convert("RGBA")
    rgba.putalpha(picture(34).convert("L").point(lambda level: 0 if level < 128 else level))
    on_black = Image.alpha_composite(Image.new("RGBA", rgba.size, "black"), rgba)
    otherwise = {
        "transparency was laid over black; here over white": inputs([on_black]),
        "transparency was dropped and hidden colours shown": inputs([rgba.convert("RGB")]),
        "transparency was dropped after the resize, as open_clip does": _as_open_clip(rgba),
    }
    yield PictureCheck("transparency", (encoded(rgba, "PNG"),), tolerated=otherwise)
    palette = picture(35).quantize(48)
    as_grey = {"palette entries were read as grey levels": inputs([Image.fromarray(np.asarray(palette))])}
    by_entry = {
        "a palette's entries were resized and not its colours, as open_clip does": _as_open_clip(palette)
    }
    yield PictureCheck("palette", (encoded(palette, "PNG"),), as_grey, by_entry)
    # A profile under which red and blue are exchanged, so that applying it cannot be overlooked.
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    tags = (
        srgb.tobytes().replace(b"rXYZ", b"????", 1).replace(b"bXYZ", b"rXYZ", 1).replace(b"????", b"bXYZ", 1)
    )
    managed = ImageCms.profileToProfile(picture(36), ImageCms.ImageCmsProfile(io.BytesIO(tags)), srgb)
    assert managed is not None
    applied = {"the profile was applied; here, as in open_clip, it is not": inputs([managed])}
    yield PictureCheck("ICC profile", (encoded(picture(36), "PNG", icc_profile=tags),), tolerated=applied)


def _sizes() -> Iterable[PictureCheck]:
    """Yield a check for pictures of unusual sizes, and one for pixels at the ends of their range, where FP16 overflows."""
    small = [encoded(picture(40 + n, *size), "PNG") for n, size in enumerate(((1, 1), (3, 2), (16, 9)))]
    yield PictureCheck("very small", tuple(small))
    wide = [picture(45, 1600, 40), picture(46, 40, 1600)]
    squeezed = {"the whole was squeezed into the square": _squeezed(wide)}
    yield PictureCheck("very wide", tuple(encoded(image, "PNG") for image in wide), squeezed)
    ends = [Image.new("RGB", (SIDE, SIDE), colour) for colour in ("white", "black", "blue")]
    ends.append(Image.fromarray(np.random.default_rng(50).integers(0, 2, (SIDE, SIDE, 3), np.uint8) * 255))
    files = tuple(encoded(image, "PNG") for image in ends)
    yield PictureCheck("extreme pixels", files, may_refuse=False)


@functools.cache
def hostile() -> dict[str, bytes]:
    """Return files that no server may embed, or that are made to hurt it."""
    photo, dot = encoded(picture(60)), encoded(Image.new("L", (1, 1)), "PNG")
    huge = dot[:16] + (40_000).to_bytes(4, "big") * 2 + dot[24:29]
    plain = encoded(Image.new("RGB", (3000, 2000), "grey"), quality=50, progressive=True)
    last = plain.rindex(b"\xff\xda")
    return {
        "an empty file": b"",
        "a web page named .jpg": b"<!doctype html><title>no image</title>" * 20,
        "half of a JPEG": photo[: len(photo) // 2],
        "a PNG that promises 1,600 megapixels": huge + zlib.crc32(huge[12:]).to_bytes(4, "big") + dot[33:],
        MANY_SCANS: plain[:last] + plain[last:-2] * 600 + b"\xff\xd9",
    }
