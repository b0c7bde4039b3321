"""Edits of a picture, and pictures that only look alike: what a copy finder has to see through, and what it must not.

Copydays (Douze et al. 2009) has JPEG, crops and "strong" hand-made edits; here every edit is code, so anyone can repeat
the measurement on their own photographs. This is the only list of edits: the measurements, the notebooks and the tests
take theirs from it.
"""

import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from photodup.embedding.imaging import to_jpeg

# What an edit is beside its original: less of the same; the same pixels; the whole of it at full size, so that which came
# first is not seen; somebody's work; with something that the original does not show; or no copy but another picture.
LESSER, EQUAL, TWIN, WORK, MORE, LOOK_ALIKE = "lesser", "equal", "twin", "work", "more", "look-alike"
# Nobody misses such a copy beside its original. A twin is neither: it may be the one that its owner wants, and no equal.
HARMLESS = frozenset({LESSER, EQUAL})
ORIGINAL = "original"


@dataclass(frozen=True)
class Transform:
    """One edit. `kind` groups the strengths of one edit; `result` is what it makes, `format` how it is saved.

    `ground` makes the picture that is edited out of a photograph; None: that is the photograph itself.
    """

    name: str
    kind: str
    apply: Callable[[Image.Image], Image.Image]
    result: str = LESSER
    format: str = "JPEG"
    ground: Callable[[Image.Image], Image.Image] | None = None

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the edited RGB picture; the original is left alone."""
        return self.apply(image)


def _resize(factor: float) -> Callable:
    def apply(image: Image.Image) -> Image.Image:
        width, height = (max(1, round(side * factor)) for side in image.size)
        return image.resize((width, height), Image.Resampling.LANCZOS)

    return apply


def _jpeg(quality: int) -> Callable:
    return lambda image: Image.open(io.BytesIO(to_jpeg(image, quality))).convert("RGB")


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


def _written(text: str, x: float, y: float, size: float, colour: Any) -> Callable:
    """Write over the picture, at shares of its width and height; the size is a share of the width."""

    def apply(image: Image.Image) -> Image.Image:
        at, height = (round(x * image.width), round(y * image.height)), max(8, round(size * image.width))
        drawn = image.copy()
        ImageDraw.Draw(drawn, "RGBA").text(at, text, fill=colour, font_size=height)
        return drawn

    return apply


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


def _warm(image: Image.Image) -> Image.Image:
    """A colour filter: more red, less blue, a little more contrast."""
    values = np.asarray(image, np.float32) * np.array([1.15, 1.0, 0.8], np.float32)
    return ImageEnhance.Contrast(Image.fromarray(values.clip(0, 255).astype(np.uint8))).enhance(1.1)


def _stretch(factor: float) -> Callable:
    return lambda image: image.resize((max(1, round(image.width * factor)), image.height))


def _picture(values: np.ndarray) -> Image.Image:
    return Image.fromarray(values.clip(0, 255).round().astype(np.uint8))


def _distance(image: Image.Image) -> np.ndarray:
    """Return float[h, w]: how far each pixel lies from the centre, 1 in the middle of the sides."""
    y, x = np.mgrid[-1 : 1 : image.height * 1j, -1 : 1 : image.width * 1j]
    return np.hypot(x, y)


def _vignette(image: Image.Image) -> Image.Image:
    return _picture(np.asarray(image, float) * (1 - 0.35 * _distance(image)[..., None].clip(0.3, 1.4)))


def _portrait(image: Image.Image) -> Image.Image:
    sharp = _picture(255 * (1.6 - 2 * _distance(image)))
    return Image.composite(image, _blur(2.5)(image), sharp)


def _screen(width: float, height: float, share: float, colour: str, text: str, ink: str) -> Callable:
    """Show the picture on a screen of so many times its longer side, in a share of the width, below a line of text."""

    def apply(image: Image.Image) -> Image.Image:
        side = max(image.size)
        screen = Image.new("RGB", (round(width * side), round(height * side)), colour)
        shown = ImageOps.contain(image, (round(share * screen.width), round(0.8 * screen.height)))
        screen.paste(shown, ((screen.width - shown.width) // 2, (screen.height - shown.height) // 2))
        return _written(text, 0.03, 0.01, 0.04, ink)(screen)

    return apply


def _story(image: Image.Image) -> Image.Image:
    """Fill 9 to 16 with a blurred enlargement, and the picture before it."""
    width = image.width
    frame = _blur(3)(ImageOps.fit(image, (width, width * 16 // 9)))
    frame.paste(image, (0, (frame.height - image.height) // 2))
    return _written("my holiday", 0.3, 0.06, 0.08, "white")(frame)


def _of_a_screen(image: Image.Image) -> Image.Image:
    """A photograph of a screen: aslant, with its lines, soft, in another light and with noise."""
    width, height = image.size
    values = np.asarray(image, np.float32) * (0.9 + 0.1 * (np.arange(height) % 3 > 0))[:, None, None]
    slant = (1.04, 0.03, -0.03 * width, 0.01, 1.05, -0.03 * height, 0.02 / width, 0.03 / height)
    dim, bicubic = _picture(12 + 0.9 * values), Image.Resampling.BICUBIC
    return _noisy(_blur(0.08)(dim.transform(image.size, Image.Transform.PERSPECTIVE, slant, bicubic)), 3)


def _rescan(image: Image.Image) -> Image.Image:
    """A print on a scanner: a little aslant, paler, with grain."""
    return _noisy(_crop(94)(ImageEnhance.Color(_rotate(0.8)(image)).enhance(0.85)), 3)


def _noisy(image: Image.Image, sigma: float, seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).normal(0, sigma, (image.height, image.width, 3))
    return _picture(np.asarray(image, float) + noise)


def _emoji(image: Image.Image) -> Image.Image:
    side, x, y, drawn = min(image.size) // 6, image.width * 2 // 3, image.height // 8, image.copy()
    ImageDraw.Draw(drawn).ellipse((x, y, x + side, y + side), fill="gold")
    return _written(
        ":-)", (x + side / 5) / image.width, (y + side / 4) / image.height, side / 2 / image.width, "black"
    )(drawn)


def _retouch(image: Image.Image) -> Image.Image:
    """Something in the middle third is taken out, and what lies around it put there."""
    import cv2

    rgb = np.array(image)
    height, width = rgb.shape[:2]
    mask = np.zeros((height, width), np.uint8)
    cv2.ellipse(mask, (width // 2, height * 3 // 5), (width // 14, height // 9), 0, 0, 360, 255, -1)
    return Image.fromarray(cv2.inpaint(rgb, mask, 5, cv2.INPAINT_TELEA))


def _collage(image: Image.Image) -> Image.Image:
    """The picture beside two others; what those show is made of its own parts, turned over."""
    width, height = image.size
    others = [ImageOps.flip(_crop(share)(image)).resize((width // 2, height // 2)) for share in (20, 35)]
    canvas = Image.new("RGB", (width * 3 // 2, height), "white")
    for part, at in zip((image, *others), ((0, 0), (width, 0), (width, height // 2)), strict=True):
        canvas.paste(part, at)
    return canvas


def _inset(image: Image.Image) -> Image.Image:
    """Another small picture in a corner: of the one who took it."""
    drawn = image.copy()
    small = ImageOps.invert(ImageOps.flip(_crop(15)(image))).resize((image.width // 4, image.height // 4))
    drawn.paste(ImageOps.expand(small, 3, "white"), (image.width // 20, image.height // 20))
    return drawn


def _shot(image: Image.Image) -> Image.Image:
    """Return the first of two shots, with noise of its own."""
    return _noisy(image, 3, 1)


def _moved(most: float) -> Callable:
    """Seen from beside, with noise of its own: rows lie displaced by up to a share of the width, as things near and far."""

    def apply(image: Image.Image) -> Image.Image:
        import cv2

        y, x = np.mgrid[: image.height, : image.width].astype(np.float32)
        wave = most * image.width * np.sin(6 * y / image.height) * np.cos(5 * x / image.width)
        rgb = cv2.remap(np.array(image), x + wave, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)
        return _noisy(Image.fromarray(rgb), 3)

    return apply


def _subject(image: Image.Image) -> Image.Image:
    """Somebody has come into the picture of a fixed camera: a tenth of its width."""
    width, x, y, drawn = image.width // 10, image.width // 5, image.height // 2, image.copy()
    draw = ImageDraw.Draw(drawn)
    draw.ellipse((x + width // 3, y, x + 2 * width // 3, y + width // 3), fill=(200, 160, 135))
    draw.rounded_rectangle((x + width // 6, y + width // 3, x + 5 * width // 6, y + width), 4, (60, 80, 120))
    return _noisy(drawn, 3)


def _panned(image: Image.Image) -> Image.Image:
    """The next shot of a panorama: two thirds of the first, and what lies beside them (its mirror image serves)."""
    shift = image.width // 3
    return Image.fromarray(np.pad(np.array(image), ((0, 0), (0, shift), (0, 0)), "symmetric")[:, shift:])


def _sky(image: Image.Image) -> Image.Image:
    """Return a plain sky in the colours of the photograph's upper edge."""
    top = image.resize((1, 8)).crop((0, 0, 1, 2))
    # Noise of its own: two white skies would be the same bytes.
    return _noisy(top.resize((600, 400), Image.Resampling.BILINEAR), 3, zlib.crc32(image.tobytes()))


def _page(title: str, paper: str) -> Callable:
    """Return a page of twenty lines; numbers out of the photograph fill them."""

    def apply(image: Image.Image) -> Image.Image:
        numbers = np.asarray(image.convert("L").resize((20, 2)), int)
        page = Image.new("RGB", (700, 1000), paper)
        for row, (first, second) in enumerate(numbers.T):
            line = f"{title} {first}   {second / 10:.2f}"
            page = _written(line, 0.07, 0.04 + 0.045 * row, 0.035, "black")(page)
        return page

    return apply


def _rewritten(text: str, y: float) -> Callable:
    """Write another line over one of a page."""

    def apply(page: Image.Image) -> Image.Image:
        blank = page.copy()
        blank.paste(page.crop((0, 0, 640, 36)), (30, round(y * page.height)))  # above the first line is paper
        return _written(text, 0.07, y, 0.035, "black")(blank)

    return apply


def _graded(kind: str, unit: str, make: Callable, strengths: list[float], **more: Any) -> list[Transform]:
    return [Transform(f"{kind} {s:g}{unit}", kind, make(s), **more) for s in strengths]


TRANSFORMS: tuple[Transform, ...] = (
    *_graded("resize", "x", _resize, [0.5, 0.25, 0.125]),
    *_graded("jpeg q", "", _jpeg, [75, 30, 10]),
    *_graded("crop", "%", _crop, [90, 80, 70, 60, 50]),
    *_graded("brightness", "x", _enhance(ImageEnhance.Brightness), [0.6, 1.4], result=TWIN),
    *_graded("contrast", "x", _enhance(ImageEnhance.Contrast), [0.6, 1.5], result=TWIN),
    *_graded("rotate", "°", _rotate, [2, 5, 15]),
    *_graded("rotate", "°", _rotate, [90, 180, 270], result=TWIN),
    Transform("mirror", "mirror", ImageOps.mirror, TWIN),
    Transform("mirror and turn", "mirror", lambda image: ImageOps.mirror(image).rotate(90, expand=True), TWIN),
    *_graded("blur", "%", _blur, [0.25, 0.5, 1]),
    *_graded("border with text", "%", _border_with_text, [5]),
    Transform("grey", "grey", lambda image: image.convert("L").convert("RGB"), WORK),
    Transform("warm filter", "colour", _warm, TWIN),
    *_graded("stretch", "x", _stretch, [1.2]),
    Transform("sepia", "grey", lambda image: ImageOps.colorize(image.convert("L"), "#140c04", "#ffeccb"), WORK),
    Transform("vignette", "vignette", _vignette, WORK),
    Transform("portrait blur", "portrait blur", _portrait, WORK),
    Transform("retouch", "retouch", _retouch, WORK),
    Transform("messenger", "messenger", lambda image: _jpeg(60)(_resize(0.6)(image))),
    Transform("thumbnail", "resize", lambda image: ImageOps.contain(image, (256, 256))),
    Transform("enlargement 2x", "resize", _resize(2)),
    Transform("phone screenshot", "screenshot", _screen(0.8, 1.7, 1, "black", "12:41", "white"), format="PNG"),
    Transform("desktop screenshot", "screenshot", _screen(1.4, 1, 0.7, "#ddd", "File  Edit", "black"), format="PNG"),
    Transform("square pad", "frame", lambda image: ImageOps.pad(image, (max(image.size) * 9 // 8,) * 2, color="white")),
    Transform("story frame", "frame", _story),
    Transform("photo of a screen", "rescan", _of_a_screen),
    Transform("rescan", "rescan", _rescan),
    Transform("watermark", "writing", _written("© studio", 0.3, 0.45, 0.1, (255, 255, 255, 90))),
    Transform("caption", "writing", _written("what a day this was", 0.1, 0.85, 0.07, "white")),
    Transform("date stamp", "writing", _written("12 08 '24", 0.7, 0.92, 0.05, (255, 140, 30))),
    Transform("emoji", "emoji", _emoji, WORK),
    Transform("collage", "collage", _collage, MORE),
    Transform("inset", "collage", _inset, MORE),
    *(Transform(name, "transcode", Image.Image.copy, format=name) for name in ("HEIF", "AVIF", "WEBP")),
    *(Transform(name, "transcode", Image.Image.copy, EQUAL, name) for name in ("PNG", "TIFF")),
)  # fmt: skip


def _look_alike(name: str, apply: Callable, ground: Callable | None = None) -> Transform:
    return Transform(name, LOOK_ALIKE, apply, LOOK_ALIKE, ground=ground)


# Pairs that only look alike: two shots of one thing, or two pages of one form.
LOOK_ALIKES: tuple[Transform, ...] = (
    _look_alike("burst", _moved(0.006), _shot),
    _look_alike("bracket", lambda image: _noisy(ImageEnhance.Brightness(image).enhance(1.6), 3), _shot),
    _look_alike("stereo", _moved(0.03), _shot),
    _look_alike("panorama", _panned),
    _look_alike("subject", _subject, _shot),
    _look_alike("video frame", lambda image: _moved(0.002)(_subject(image)), _shot),
    _look_alike("sky", _sky, _sky),
    _look_alike(
        "document", _rewritten("Mr Example, 12 Mill Lane", 0.085), _page("Item of the contract", "white")
    ),
    _look_alike("receipt", _rewritten("TOTAL 418.50", 0.895), _page("Coffee and cake", "#f4f1e8")),
    _look_alike("chat", _rewritten("are you there at nine?", 0.4), _page("see you on day", "#e5ddd5")),
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


# Copies of which the whole light is another: they are harmless, and the rules hold them back like any other exposure.
RETONED = frozenset(one.name for one in TRANSFORMS if one.kind == "rescan")
_EQUALS = frozenset(one.name for one in TRANSFORMS if one.result == EQUAL)


def is_right(kept: str) -> bool:
    """Return whether a file that stayed, by the name of its edit, is the original or its equal: the same pixels."""
    return kept == ORIGINAL or kept in _EQUALS


def named(names: Sequence[str] | None = None) -> list[Transform]:
    """Return the transforms with these names, in this order; all edits by default."""
    by_name = {transform.name: transform for transform in TRANSFORMS}
    return [by_name[name] for name in (names or by_name)]
