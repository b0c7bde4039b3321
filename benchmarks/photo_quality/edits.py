"""Edits of a picture, and pictures that only look alike: what a copy finder has to see through, and what it must not.

Copydays (Douze et al. 2009) has JPEG, crops and "strong" hand-made edits; here every edit is code, so anyone can repeat
the measurement on their own photographs. Measurements and tests take their edits from this list.
"""

import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import to_jpeg


@dataclass(frozen=True)
class Transform:
    """One edit.

    `ground` makes the picture that is edited out of a photograph; None: that is the photograph itself.
    """

    name: str
    apply: Callable[[Image.Image], Image.Image]
    ground: Callable[[Image.Image], Image.Image] | None = None

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the edited RGB picture; the original is left alone."""
        return self.apply(image)


def _resize(image: Image.Image, factor: float) -> Image.Image:
    width, height = (max(1, round(side * factor)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _jpeg(image: Image.Image, quality: int) -> Image.Image:
    return Image.open(io.BytesIO(to_jpeg(image, quality))).convert("RGB")


def _crop(image: Image.Image, percent: float) -> Image.Image:
    """Keep this share of the area, off centre (a third of what is cut goes on the left and top)."""
    width, height = (max(1, round(side * (percent / 100) ** 0.5)) for side in image.size)
    left, top = (image.width - width) // 3, (image.height - height) // 3
    return image.crop((left, top, left + width, top + height))


def _brightness(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(factor)


def _contrast(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Contrast(image).enhance(factor)


def _rotate(image: Image.Image, degrees: float) -> Image.Image:
    """Turn counter-clockwise. Small angles keep the frame (black corners); quarter turns swap sides."""
    return image.rotate(degrees, Image.Resampling.BICUBIC, expand=degrees % 90 == 0)


def _blur(image: Image.Image, percent: float) -> Image.Image:
    """Blur with a Gaussian whose standard deviation is in percent of the longer side."""
    return image.filter(ImageFilter.GaussianBlur(max(image.size) * percent / 100))


def _write(image: Image.Image, text: str, x: float, y: float, size: float, colour: Any) -> Image.Image:
    """Write over the picture, at shares of its width and height; the size is a share of the width."""
    place, height = (round(x * image.width), round(y * image.height)), max(8, round(size * image.width))
    drawn = image.copy()
    ImageDraw.Draw(drawn, "RGBA").text(place, text, fill=colour, font_size=height)
    return drawn


def _border_with_text(image: Image.Image, percent: float) -> Image.Image:
    """Add a white border of this share of the longer side, and a caption over the picture."""
    width = max(1, round(max(image.size) * percent / 100))
    framed = ImageOps.expand(image, border=width, fill="white")
    place = (framed.width // 8, framed.height - 2 * width - framed.height // 12)
    size = max(8, framed.width // 14)
    ImageDraw.Draw(framed).text(place, "greetings from the sea", fill="yellow", font_size=size)
    return framed


def _stretch(image: Image.Image, factor: float) -> Image.Image:
    return image.resize((max(1, round(image.width * factor)), image.height))


def _noisy(image: Image.Image, seed: int = 0) -> Image.Image:
    values = np.asarray(image) + np.random.default_rng(seed).normal(0, 3, (image.height, image.width, 3))
    return Image.fromarray(values.clip(0, 255).round().astype(np.uint8))


def _screenshot(image: Image.Image) -> Image.Image:
    """Show the picture in a window, below a line of text."""
    side = max(image.size)
    screen = Image.new("RGB", (round(1.4 * side), side), "#ddd")
    shown = ImageOps.contain(image, (round(0.7 * screen.width), round(0.8 * screen.height)))
    screen.paste(shown, ((screen.width - shown.width) // 2, (screen.height - shown.height) // 2))
    return _write(screen, "File  Edit", 0.03, 0.01, 0.04, "black")


def _retouch(image: Image.Image) -> Image.Image:
    """Take something in the middle third out, and put there what lies around it."""
    import cv2

    rgb = np.array(image)
    height, width = rgb.shape[:2]
    mask = np.zeros((height, width), np.uint8)
    cv2.ellipse(mask, (width // 2, height * 3 // 5), (width // 14, height // 9), 0, 0, 360, 255, -1)
    return Image.fromarray(cv2.inpaint(rgb, mask, 5, cv2.INPAINT_TELEA))


def _collage(image: Image.Image) -> Image.Image:
    """Put the picture beside two others; what those show is made of its own parts, turned over."""
    width, height = image.size
    canvas = Image.new("RGB", (width * 3 // 2, height), "white")
    canvas.paste(image)
    for share, top in ((20, 0), (35, height // 2)):
        canvas.paste(ImageOps.flip(_crop(image, share)).resize((width // 2, height // 2)), (width, top))
    return canvas


def _shot(image: Image.Image) -> Image.Image:
    """Return the first of two shots, with noise of its own."""
    return _noisy(image, seed=1)


def _moved(image: Image.Image, most: float) -> Image.Image:
    """Look from beside, with noise of its own: rows lie displaced by up to a share of the width, as things near and far."""
    import cv2

    y, x = np.mgrid[: image.height, : image.width].astype(np.float32)
    wave = most * image.width * np.sin(6 * y / image.height) * np.cos(5 * x / image.width)
    return _noisy(
        Image.fromarray(
            cv2.remap(np.array(image), x + wave, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)
        )
    )


def _subject(image: Image.Image) -> Image.Image:
    """Let somebody come into the picture of a fixed camera: a tenth of its width."""
    width, x, y, drawn = image.width // 10, image.width // 5, image.height // 2, image.copy()
    draw = ImageDraw.Draw(drawn)
    draw.ellipse((x + width // 3, y, x + 2 * width // 3, y + width // 3), fill=(200, 160, 135))
    draw.rounded_rectangle((x + width // 6, y + width // 3, x + 5 * width // 6, y + width), 4, (60, 80, 120))
    return _noisy(drawn)


def _panned(image: Image.Image) -> Image.Image:
    """Take the next shot of a panorama: two thirds of the first, and what lies beside them (its mirror image serves)."""
    shift = image.width // 3
    return Image.fromarray(np.pad(np.array(image), ((0, 0), (0, shift), (0, 0)), "symmetric")[:, shift:])


def _sky(image: Image.Image) -> Image.Image:
    """Return a plain sky in the colours of the photograph's upper edge; its noise keeps two from being the same bytes."""
    top = image.resize((1, 8)).crop((0, 0, 1, 2)).resize((600, 400), Image.Resampling.BILINEAR)
    return _noisy(top, seed=zlib.crc32(image.tobytes()))


def _page(title: str, paper: str) -> Callable:
    """Make a page of twenty lines; numbers out of the photograph fill them."""

    def apply(image: Image.Image) -> Image.Image:
        page = Image.new("RGB", (700, 1000), paper)
        for row, (first, second) in enumerate(np.asarray(image.convert("L").resize((20, 2)), int).T):
            page = _write(
                page, f"{title} {first}   {second / 10:.2f}", 0.07, 0.04 + 0.045 * row, 0.035, "black"
            )
        return page

    return apply


def _rewritten(text: str, y: float) -> Callable:
    """Write another line over one of a page."""

    def apply(page: Image.Image) -> Image.Image:
        blank = page.copy()
        blank.paste(page.crop((0, 0, 640, 36)), (30, round(y * page.height)))  # above the first line is paper
        return _write(blank, text, 0.07, y, 0.035, "black")

    return apply


def _graded(name: str, unit: str, edit: Callable, strengths: list[float]) -> list[Transform]:
    def at(strength: float) -> Callable:
        return lambda image: edit(image, strength)

    return [Transform(f"{name} {each:g}{unit}", at(each)) for each in strengths]


TRANSFORMS: tuple[Transform, ...] = (
    *_graded("resize", "x", _resize, [0.5, 0.25, 0.125]),
    *_graded("jpeg q", "", _jpeg, [75, 30, 10]),
    *_graded("crop", "%", _crop, [90, 80, 70, 60, 50]),
    *_graded("brightness", "x", _brightness, [0.6, 1.4]),
    *_graded("contrast", "x", _contrast, [0.6, 1.5]),
    *_graded("rotate", "°", _rotate, [2, 5, 15, 90, 180, 270]),
    Transform("mirror", ImageOps.mirror),
    *_graded("blur", "%", _blur, [0.25, 0.5, 1]),
    *_graded("border with text", "%", _border_with_text, [5]),
    *_graded("stretch", "x", _stretch, [1.2]),
    Transform("grey", lambda image: image.convert("L").convert("RGB")),
    Transform("retouch", _retouch),
    Transform("messenger", lambda image: _jpeg(_resize(image, 0.6), 60)),
    Transform("thumbnail", lambda image: ImageOps.contain(image, (256, 256))),
    Transform("desktop screenshot", _screenshot),
    Transform("caption", lambda image: _write(image, "what a day this was", 0.1, 0.85, 0.07, "white")),
    Transform("collage", _collage),
)

# Pairs that only look alike: two shots of one thing, or two pages of one form. The last column makes the first of the pair.
LOOK_ALIKES: tuple[Transform, ...] = tuple(
    Transform(name, edit, ground)
    for name, edit, ground in (
        ("burst", lambda image: _moved(image, 0.006), _shot),
        ("bracket", lambda image: _noisy(_brightness(image, 1.6)), _shot),
        ("stereo", lambda image: _moved(image, 0.03), _shot),
        ("panorama", _panned, None),
        ("subject", _subject, _shot),
        ("video frame", lambda image: _moved(_subject(image), 0.002), _shot),
        ("sky", _sky, _sky),
        ("document", _rewritten("Mr Example, 12 Mill Lane", 0.085), _page("Item of the contract", "white")),
        ("receipt", _rewritten("TOTAL 418.50", 0.895), _page("Coffee and cake", "#f4f1e8")),
        ("chat", _rewritten("are you there at nine?", 0.4), _page("see you on day", "#e5ddd5")),
    )
)  # fmt: skip

# The ten edits of the reference measurement that the goals are stated in.
REFERENCE = (
    "resize 0.5x", "jpeg q 30", "crop 90%", "crop 80%", "crop 70%", "brightness 1.4x", "rotate 5°", "mirror", "blur 0.5%",
    "border with text 5%",
)  # fmt: skip


def named(names: Sequence[str]) -> list[Transform]:
    """Return the transforms with these names, in this order.

    Raises:
        PhotodupError: a name that no transform has.
    """
    by_name = {transform.name: transform for transform in TRANSFORMS}
    if unknown := [name for name in names if name not in by_name]:
        raise PhotodupError(f"There is no edit {unknown[0]!r}: choose of {', '.join(by_name)}.")
    return [by_name[name] for name in names]
