"""Edits of a picture at graded strength, as in Copydays: what a copy finder has to see through.

Copydays (Douze et al. 2009) has JPEG, crops and "strong" hand-made edits; here every edit is code, so
anyone can repeat the measurement on their own photographs.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps


@dataclass(frozen=True)
class Transform:
    """One edit. `kind` groups the strengths of one edit."""

    name: str
    kind: str
    apply: Callable[[Image.Image], Image.Image]

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the edited RGB picture; the original is left alone."""
        return self.apply(image)


def _resize(factor: float) -> Callable:
    def apply(image: Image.Image) -> Image.Image:
        width, height = (max(1, round(side * factor)) for side in image.size)
        return image.resize((width, height), Image.Resampling.LANCZOS)

    return apply


def _jpeg(quality: int) -> Callable:
    def apply(image: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer).convert("RGB")

    return apply


def _crop(percent: float) -> Callable:
    """Keep this share of the area, off centre (a third of what is cut goes on the left and top)."""

    def apply(image: Image.Image) -> Image.Image:
        side = (percent / 100) ** 0.5
        width, height = (max(1, round(s * side)) for s in image.size)
        left, top = (image.width - width) // 3, (image.height - height) // 3
        return image.crop((left, top, left + width, top + height))

    return apply


def _enhance(kind: Callable) -> Callable:
    return lambda factor: lambda image: kind(image).enhance(factor)


def _rotate(degrees: float) -> Callable:
    """Turn counter-clockwise. Small angles keep the frame (black corners); quarter turns swap sides."""
    return lambda image: image.rotate(degrees, Image.Resampling.BICUBIC, expand=degrees % 90 == 0)


def _blur(percent: float) -> Callable:
    """Gaussian blur with a standard deviation in percent of the longer side."""
    return lambda image: image.filter(ImageFilter.GaussianBlur(max(image.size) * percent / 100))


def _border_with_text(percent: float) -> Callable:
    """Add a white border of this share of the longer side, and a caption over the picture."""

    def apply(image: Image.Image) -> Image.Image:
        width = max(1, round(max(image.size) * percent / 100))
        framed = ImageOps.expand(image, border=width, fill="white")
        draw = ImageDraw.Draw(framed)
        position = (framed.width // 8, framed.height - 2 * width - framed.height // 12)
        draw.text(position, "greetings from the sea", fill="yellow", font_size=max(8, framed.width // 14))
        return framed

    return apply


def _grey(image: Image.Image) -> Image.Image:
    return image.convert("L").convert("RGB")


def _warm(image: Image.Image) -> Image.Image:
    """A colour filter: more red, less blue, a little more contrast."""
    values = np.asarray(image, np.float32) * np.array([1.15, 1.0, 0.8], np.float32)
    return ImageEnhance.Contrast(Image.fromarray(values.clip(0, 255).astype(np.uint8))).enhance(1.1)


def _stretch(factor: float) -> Callable:
    return lambda image: image.resize((max(1, round(image.width * factor)), image.height))


def _graded(kind: str, unit: str, make: Callable, strengths: list[float]) -> list[Transform]:
    return [Transform(f"{kind} {s:g}{unit}", kind, make(s)) for s in strengths]


TRANSFORMS: tuple[Transform, ...] = (
    *_graded("resize", "x", _resize, [0.5, 0.25, 0.125]),
    *_graded("jpeg q", "", _jpeg, [75, 30, 10]),
    *_graded("crop", "%", _crop, [90, 80, 70, 50]),
    *_graded("brightness", "x", _enhance(ImageEnhance.Brightness), [0.6, 1.4]),
    *_graded("contrast", "x", _enhance(ImageEnhance.Contrast), [0.6, 1.5]),
    *_graded("rotate", "°", _rotate, [2, 5, 15, 90]),
    Transform("mirror", "mirror", ImageOps.mirror),
    *_graded("blur", "%", _blur, [0.25, 0.5, 1]),
    *_graded("border with text", "%", _border_with_text, [5]),
    Transform("grey", "grey", _grey),
    Transform("warm filter", "colour", _warm),
    *_graded("stretch", "x", _stretch, [1.2]),
)

# The ten edits of the reference measurement that the goals are stated in.
REFERENCE: tuple[str, ...] = (
    "resize 0.5x",
    "jpeg q 30",
    "crop 90%",
    "crop 80%",
    "crop 70%",
    "brightness 1.4x",
    "rotate 5°",
    "mirror",
    "blur 0.5%",
    "border with text 5%",
)


def named(names: Sequence[str] | None = None) -> list[Transform]:
    """Return the transforms with these names, in this order; all of them by default."""
    by_name = {transform.name: transform for transform in TRANSFORMS}
    return [by_name[name] for name in (names or by_name)]
