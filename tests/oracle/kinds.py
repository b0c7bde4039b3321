"""What owners' libraries contain: a function a kind. The first file of each holds what the kind is about."""

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, PngImagePlugin

from oracle import files
from oracle.files import film, jpeg, rated, segment, words
from oracle.library import Family, Picture, encoded, opened, photograph, resized, rounded


@dataclass(frozen=True)
class Kind:
    """A kind of family. `loses` names the parts that are gone when its first file is removed; empty for honest copies."""

    draw: Callable[[Family], None]
    loses: tuple[str, ...]
    is_small: bool


FIVE_STARS = {"rating": "rating 5"}  # what `rated` files say
KINDS: dict[str, Kind] = {}
# `kind: part` of what photodup loses today. The list may only shrink.
KNOWN_FAILURES = frozenset(yaml.safe_load((Path(__file__).parent / "known_failures.yaml").read_text()) or ())


def kind(*loses: str, small: bool = False, name: str = "") -> Callable:
    """Enter a function into the table under its name. `small` kinds are drawn in `make test`."""

    def enter(draw: Callable[[Family], None]) -> Callable[[Family], None]:
        KINDS[name or draw.__name__.replace("_", " ")] = Kind(draw, loses, small)
        return draw

    return enter


def draw(kinds: Iterable[str], n: int = 1, seed: int = 0) -> Iterator[Family]:
    """Draw n families of each kind."""
    for name in kinds:
        for number in range(n):
            family = Family(name, number, seed)
            KINDS[name].draw(family)
            yield family


# ---- honest copies: nothing is lost when all but the first go


@kind(small=True)
def messenger(family):
    master = family.photograph(1000, 668)
    family.add("Camera/IMG_1.jpg", jpeg(family, master.pixels), master)
    for side, quality in ((800, 75), (500, 70)):
        family.add(f"WA{side}/IMG-WA0001.jpg", encoded(resized(master.pixels, side), quality=quality), master)


@kind()
def thumbnail(family):
    master = family.photograph()
    family.add("Camera/IMG_1.jpg", jpeg(family, master.pixels), master)
    family.add("Thumbs/IMG_1.jpg", encoded(resized(master.pixels, 320), quality=80), master)


@kind(small=True)
def saved_again(family):
    master = family.photograph()
    family.add("Camera/IMG_1.jpg", camera := jpeg(family, master.pixels), master)
    for quality in (75, 50):
        family.add(f"Mail/IMG_1_{quality}.jpg", encoded(opened(camera), quality=quality), master)


@kind(small=True)
def cropped(family):
    master = family.photograph()
    family.add("Camera/IMG_1.jpg", camera := jpeg(family, master.pixels), master)
    for name, box in (("a", (32, 24, 616, 408)), ("b", (61, 17, 633, 419))):
        part = opened(camera)[box[1] : box[3], box[0] : box[2]]
        family.add(f"Edited/IMG_1_{name}.jpg", encoded(part, quality=85), master.view(box))


@kind(small=True)
def converted(family):
    master = family.photograph()
    family.add("Camera/IMG_1.jpg", camera := jpeg(family, master.pixels), master)
    family.add("Web/img_1.webp", encoded(opened(camera), "WEBP", quality=80), master)
    family.add("Phone/IMG_1.heic", encoded(opened(camera), "HEIF", quality=60), master)
    family.add("Screenshots/img_1.png", encoded(opened(camera), "PNG"), master)


@kind(small=True)
def same_bytes(family):
    master = family.photograph()
    family.add("Camera/IMG_1.jpg", camera := jpeg(family, master.pixels), master)
    family.add("Backup/IMG_1 (1).jpg", camera, master)


@kind()
def two_messengers(family):
    master = family.picture("picture", resized(photograph(family.rng, 1500, 1000), 1280))
    family.add("Facebook/1_o.jpg", encoded(master.pixels, quality=85, progressive=True), master)
    family.add("WhatsApp/IMG-WA1.jpg", encoded(resized(master.pixels, 800), quality=70), master)


@kind()
def flat_copy_of_a_cut_out(family):
    cut, flat = cut_out(family)
    family.add("Work/cut.png", encoded(cut.pixels, "PNG"), cut)
    family.add("Work/cut.jpg", encoded(flat, quality=85), cut)


# ---- metadata: a copy, saved again, that says what the better file does not


def says(name: str, token: str, small: bool = False, beside: str = "", **saved: Any) -> None:
    """Enter a kind whose lesser copy alone says something: `token`, in which {} is the family's text.

    Args:
        name: of the kind and of what it says.
        token: as `remains.values` reads it.
        small: drawn in `make test`.
        beside: the name of the file beside it that says it.
        saved: what the copy is saved with: `exif` tags, the `body` of an XMP packet, `segments`; or the `file` beside it.
    """

    def fill(value: Any, text: str) -> Any:
        if isinstance(value, dict):
            return {key: fill(each, text) for key, each in value.items()}
        if isinstance(value, bytes):
            return value.replace(b"{}", text.encode())
        return (
            value(text) if callable(value) else value.replace("{}", text) if isinstance(value, str) else value
        )

    def draw_family(family: Family) -> None:
        master = family.photograph()
        options = fill(saved, family.words)
        file = options.pop("file", b"")
        full = jpeg(family, master.pixels, 93, exif=files.exif(family, None if "date" in name else ""))
        options["exif"] = files.exif(family, **options.get("exif", {}))
        text = {name: fill(token, family.words)}
        data = jpeg(family, opened(full), 80, **options)
        photo = family.add("Phone/IMG_1234.jpg", data, master, says={} if beside else text)
        if beside:
            family.add_beside(photo, beside, file, says=text)
        family.add("Full/IMG_1.jpg", full, master)

    kind(name, small=small, name=name)(draw_family)


AT = ((48.0, 5.0, 0.0), (11.0, 7.0, 0.0))
DATE, PLACE = "date 2015-06-02 15:28:41", "place 48.083 11.117"
GPS = "<exif:GPSLatitude>48,5.0N</exif:GPSLatitude><exif:GPSLongitude>11,7.0E</exif:GPSLongitude>"
TAKEOUT = json.dumps({"description": "{}", "geoData": {"latitude": 47.1, "longitude": 8.2}}).encode()
HISTORY = files.xmp(words("darktable:history", "{}", of="Seq"))
says("exif description", "{}", exif={"x010e": "{}"})
says("exif copyright", "{}", exif={"x8298": "{}"})
says("user comment", "{}", exif={"x9286": b"ASCII\0\0\0{}"})
says("rating of exif", "rating 5", exif={"x4746": 5})
says("place", PLACE, exif={"place": AT})
says("date with dashes", DATE, exif={"date": "2015-06-02 15:28:41"})
says("date of iso", DATE, exif={"date": "2015-06-02T15:28:41"})
says("date with a zone", DATE, exif={"date": "2015:06:02 15:28:41+02:00"})
says("date with a fraction", DATE, exif={"date": "2015:06:02 15:28:41.123"})
says("digitized date", DATE, exif={"date": None, "x9004": "2015:06:02 15:28:41"})
says("title", "{}", body=words("dc:title", "{}", of="Alt"))
says("caption", "{}", small=True, body=words("dc:description", "{}", of="Alt"))
says("keywords", "{}", body=words("dc:subject", "{}", "lake"))
says("hierarchical keywords", "{}", body=words("lr:hierarchicalSubject", "{}"))
says("rating", "rating 5", body="<xmp:Rating>5</xmp:Rating>")
says("label", "{}", body="<xmp:Label>{}</xmp:Label>")
says("headline", "{}", body="<photoshop:Headline>{}</photoshop:Headline>")
says("place of xmp", PLACE, body=GPS)
says("people of windows", "{}", body=files.person("MP:RegionInfo", "MPRI:Regions", "MPReg:PersonDisplayName"))
says("people", "{}", body=files.person("mwg-rs:Regions", "mwg-rs:RegionList", "mwg-rs:Name"))
says("develop settings", "+0.47", body="<crs:Exposure2012>+0.47</crs:Exposure2012>")
says("panorama", "equirectangular", body="<GPano:ProjectionType>equirectangular</GPano:ProjectionType>")
says("jpeg comment", "{}", small=True, segments=lambda text: segment(0xFE, text.encode()))
says("iptc caption", "{}", segments=lambda text: files.iptc_caption(text.encode()))
says(
    "iptc in latin 1", "Fête, {}", segments=lambda text: files.iptc_caption(f"Fête, {text}".encode("latin-1"))
)
says("takeout", "{}", beside="IMG_1234.jpg.json", file=TAKEOUT)
says("takeout with a cut name", "{}", beside="IMG_1234.j.json", file=TAKEOUT)
says("sidecar", "{}", beside="IMG_1234.xmp", file=files.xmp(words("dc:description", "{}", of="Alt")))
says("further darktable edit", "{}", beside="IMG_1234_01.jpg.xmp", file=HISTORY)


# ---- files beside a photograph that no metadata reader understands


def beside(family: Family, suffix: str) -> None:
    """Add a lesser copy with a file beside it, and the better file without."""
    master = family.photograph()
    full = jpeg(family, master.pixels, 93)
    photo = family.add("Phone/IMG_1234.jpg", jpeg(family, opened(full), 80), master)
    family.add_beside(photo, f"IMG_1234{suffix}", film(family, 4000))
    family.add("Full/IMG_1.jpg", full, master)


for _suffix in [
    ".MOV",
    ".CR2",
    ".AAE",
    ".jpg.pp3",
    ".jpg.dop",
    "_HEVC.MOV",
    ".CRW",
    ".fff",
    ".acr",
    ".vrd",
    ".m4a",
    ".txt",
]:
    kind("beside", small=_suffix == ".CRW", name=f"beside {_suffix}")(partial(beside, suffix=_suffix))


# ---- attachments inside a photograph


def pair(family: Family, path: str, data: bytes, picture: Picture, **holds: Any) -> None:
    """Add a file that holds something, and one of the same picture that has a rating instead."""
    family.add(path, data, holds.pop("shows", picture), **holds)
    suffix = path.rpartition(".")[2]
    family.add(f"Edited/IMG_1.{suffix}", rated(family, picture.pixels, suffix), picture, FIVE_STARS)


@kind("film", small=True)
def motion_photo(family):
    master, behind = family.photograph(), film(family)
    data = jpeg(family, master.pixels, body="<GCamera:MotionPhoto>1</GCamera:MotionPhoto>") + behind
    pair(family, "Camera/PXL_1.MP.jpg", data, master, inside={"film": behind})


@kind("gain map", small=True)
def gain_map(family):
    master = family.photograph()
    gain = encoded(resized(master.pixels, 200), xmp=files.xmp("<hdrgm:GainMapMax>2.5</hdrgm:GainMapMax>"))
    first = jpeg(family, master.pixels, body="<hdrgm:Version>1.0</hdrgm:Version>")
    pair(family, "Camera/IMG_1.jpg", files.multi_picture(first, gain), master, inside={"gain map": gain})


@kind("second view")
def stereo(family):
    master = family.photograph()
    second = encoded(np.roll(master.pixels, 6, axis=1))
    data = files.multi_picture(jpeg(family, master.pixels), second)
    pair(family, "Camera/IMG_1.jpg", data, master, inside={"second view": second})


@kind("sound")
def sound_in_a_segment(family):
    master, sound = family.photograph(), family.rng.bytes(20_000)
    data = jpeg(family, master.pixels, segments=segment(0xE2, b"SOUND\0" + sound))
    pair(family, "Camera/IMG_1.jpg", data, master, inside={"sound": sound})


@kind("chunk")
def chunk_that_nobody_knows(family):
    master, body = family.photograph(), family.rng.bytes(3000)
    png = encoded(master.pixels, "PNG")
    data = png[:33] + files.chunk(b"caBX", body) + png[33:]
    pair(family, "Work/x.png", data, master, inside={"chunk": body})


def png_text(family: Family, key: str, name: str) -> None:
    """Add a PNG with a text of its own."""
    master, texts = family.photograph(), PngImagePlugin.PngInfo()
    texts.add_text(key, f"{family.words}, Steps: 30", zip=key == "workflow")
    data = encoded(master.pixels, "PNG", pnginfo=texts)
    pair(family, "old/notes/x.png", data, master, says={name: f"{family.words}, Steps: 30"})


for _key in ("Description", "parameters", "workflow"):
    _name = f"png {_key.lower()}"
    kind(_name, small=_key == "Description", name=_name)(partial(png_text, key=_key, name=_name))


@kind("profile")
def colour_profile(family):
    master, profile = family.photograph(), files.swapped_profile()
    data = jpeg(family, master.pixels, icc_profile=profile)
    pair(family, "Camera/DSC_1.jpg", data, master, inside={"profile": profile})


@kind("layers")
def tiff_layers(family):
    master, layers = family.photograph(), b"Adobe Photoshop Document Data Block\0" + family.rng.bytes(30_000)
    data = encoded(master.pixels, "TIFF", tiffinfo={37724: layers, 0x010F: "ACME"})
    pair(family, "Work/poster.tif", data, master, inside={"layers": layers})


@kind("film")
def film_behind_a_heic(family):
    master, behind = family.photograph(), film(family)
    data = encoded(master.pixels, "HEIF", exif=files.exif(family))
    data += struct.pack(">I", 8 + len(behind)) + b"mpvd" + behind
    pair(family, "Phone/IMG_1.heic", data, master, inside={"film": behind})


def two_frames(family: Family, path: str, file_format: str) -> None:
    """Add a file of two pages or frames, and the first one alone."""
    first, second = family.photograph(), family.photograph(name="second")
    more = {"save_all": True, "append_images": [Image.fromarray(second.pixels)]}
    data = encoded(first.pixels, file_format, **more)
    pair(family, path, data, first, shows=[first.view(), second.view(frame=1)])


kind("second", name="tiff of two pages")(partial(two_frames, path="Scans/letter.tif", file_format="TIFF"))
kind("second", name="heic of two pictures")(partial(two_frames, path="Phone/1.heic", file_format="HEIF"))
kind("second", name="moving webp")(partial(two_frames, path="Web/x.webp", file_format="WEBP"))
kind("second", name="moving png")(partial(two_frames, path="Web/x.png", file_format="PNG"))


# ---- what 8 bits of red, green and blue do not hold


def cut_out(family: Family) -> tuple[Picture, np.ndarray]:
    """Return a cut-out with a soft edge, and it on white."""
    rgb, mask = photograph(family.rng, 600, 600), Image.new("L", (600, 600), 0)
    ImageDraw.Draw(mask).ellipse((60, 90, 540, 510), fill=255)
    mask = mask.filter(ImageFilter.GaussianBlur(2))
    flat = Image.composite(Image.fromarray(rgb), Image.new("RGB", (600, 600), "white"), mask)
    return family.picture("transparency", np.dstack([rgb, np.asarray(mask)])), np.asarray(flat)


def transparent(family: Family, name: str) -> None:
    """Add a cut-out, and a copy on white that has a rating."""
    cut, flat = cut_out(family)
    family.add(f"work/cutouts/item.{name.lower()}", encoded(cut.pixels, name), cut)
    family.add("item.png", rated(family, flat, "png"), cut, FIVE_STARS)


def sixteen_bits(family: Family, suffix: str) -> None:
    """Add a scan of 16 bits a channel, and a copy of 8 that has a rating."""
    pixels = 256 * photograph(family.rng, 640, 428).astype(np.uint16)
    deep = family.picture("16 bits", pixels + family.rng.integers(0, 256, pixels.shape, dtype=np.uint16))
    data = cv2.imencode(f".{suffix}", deep.pixels[..., ::-1])[1].tobytes()
    family.add(f"Scans/scan_1.{suffix}", data, deep)
    family.add(
        f"Web/scan_1.{suffix}", rated(family, (deep.pixels >> 8).astype(np.uint8), suffix), deep, FIVE_STARS
    )


def lossless_master(family: Family, name: str, quality: int = 100, **options: Any) -> None:
    """Add a lossless file, and the JPEG that was exported of it."""
    master = family.photograph()
    family.add(f"master/x.{name.lower()}", encoded(master.pixels, name, **options), master)
    family.add("export/x.jpg", encoded(master.pixels, quality=quality, subsampling=0), master)


for _format in ("PNG", "WEBP", "AVIF"):
    _name = f"transparent {_format.lower()}"
    kind("transparency", small=_format == "PNG", name=_name)(partial(transparent, name=_format))
kind("16 bits", small=True, name="16-bit png")(partial(sixteen_bits, suffix="png"))
kind("16 bits", name="16-bit tiff")(partial(sixteen_bits, suffix="tif"))
kind("picture", small=True, name="png master")(partial(lossless_master, name="PNG"))
kind("picture", name="tiff master")(partial(lossless_master, name="TIFF"))
kind("picture", name="webp master")(partial(lossless_master, name="WEBP", quality=98, lossless=True))


# ---- two files that say different things


@kind("place", small=True)
def another_place(family):
    master = family.photograph()
    for path, degrees in (("a/x.jpg", 48.0), ("b/map/x.jpg", 40.0)):
        data = jpeg(family, master.pixels, exif=files.exif(family, place=((degrees, 5.0, 0.0), AT[1])))
        family.add(path, data, master, says={"place": f"place {degrees + 5 / 60:.3f} 11.117"})


@kind("caption")
def another_caption(family):
    master = family.photograph()
    for path, text in (("a/x.jpg", f"{family.words} a"), ("b/x.jpg", f"{family.words} b")):
        data = jpeg(family, master.pixels, body=words("dc:description", text, of="Alt"))
        family.add(path, data, master, says={"caption": text})


@kind("date")
def another_date(family):
    master = family.photograph()
    for path, year in (("a/x.jpg", 2011), ("b/x.jpg", 2019)):
        data = jpeg(family, master.pixels, exif=files.exif(family, f"{year}:08:01 10:00:00"))
        family.add(path, data, master, says={"date": f"date {year}-08-01 10:00:00"})


# ---- pixels: what the first file shows and the other does not

Edit = Callable[[Family, np.ndarray], np.ndarray]


def shows(name: str, edit: Edit, small: bool = False) -> None:
    """Enter a kind whose first file shows what an edit adds to the second one."""

    def draw_family(family: Family) -> None:
        master = family.photograph()
        made = family.picture(name, edit(family, master.pixels))
        family.add("Album/IMG_1.jpg", jpeg(family, made.pixels), made)
        family.add("Camera/IMG_1.jpg", jpeg(family, master.pixels), master)

    kind(name, small=small, name=name)(draw_family)


def draw_text(
    pixels: np.ndarray, place: tuple[int, int], text: str, size: int, fill: str = "white"
) -> np.ndarray:
    """Return the picture with a text on it."""
    image = Image.fromarray(pixels)
    ImageDraw.Draw(image).text(place, text, fill, ImageFont.load_default(size))
    return np.asarray(image)


def text_on(place: tuple[int, int], text: str, size: int, fill: str = "white") -> Edit:
    """Return an edit that writes a text."""
    return lambda family, pixels: draw_text(pixels, place, text, size, fill)


def edited(edit: Callable[[Image.Image], Image.Image]) -> Edit:
    """Return an edit by Pillow."""
    return lambda family, pixels: np.asarray(edit(Image.fromarray(pixels)).convert("RGB"))


def spot(width: int, colour: tuple[int, int, int]) -> Edit:
    """Return an edit that adds an ellipse somewhere in the middle."""

    def edit(family: Family, pixels: np.ndarray) -> np.ndarray:
        image, (x, y) = Image.fromarray(pixels), family.rng.integers(100, 320, 2)
        ImageDraw.Draw(image).ellipse((x, y, x + width, y + 0.6 * width), fill=colour)
        return np.asarray(image)

    return edit


def noisy(rng: np.random.Generator, pixels: np.ndarray, strength: float) -> np.ndarray:
    """Return pixels with a sensor's noise."""
    return rounded(pixels + rng.normal(0, strength, pixels.shape))


def blur_a_face(family: Family, pixels: np.ndarray) -> np.ndarray:
    """Return the picture with a blurred circle in its middle."""
    blurred = edited(lambda im: im.filter(ImageFilter.GaussianBlur(9)))(family, pixels)
    return np.where(np.hypot(*np.ogrid[-200:228, -320:320])[..., None] < 36, blurred, pixels)


shows("written caption", text_on((30, 350), "Merry Christmas 2022", 40), small=True)
shows("date stamp", text_on((490, 395), "2019 07 12", 22, "orange"))
shows("watermark", text_on((240, 200), "(c) Studio", 36))
shows("sepia", lambda _, pixels: rounded(pixels.mean(axis=2, keepdims=True) * [1, 0.85, 0.6]))
shows("black and white", edited(lambda im: im.convert("L")))
shows("brighter", edited(lambda im: ImageEnhance.Brightness(im).enhance(1.25)))
shows("warmer", lambda _, pixels: rounded(pixels * [1.08, 1.0, 0.9]))
shows("sharpened", edited(lambda im: im.filter(ImageFilter.UnsharpMask(1.5, 120, 2))))
shows("more contrast", edited(lambda im: ImageEnhance.Contrast(im).enhance(1.3)))
shows("bird", spot(22, (20, 20, 25)), small=True)
shows("ball", spot(60, (210, 40, 40)))
shows("blurred face", blur_a_face)


def page(family: Family, figure: str) -> np.ndarray:
    """Return a printed page with a figure on it."""
    rng, lexicon = (
        np.random.default_rng([5, *family.words.encode()]),
        ["invoice", "total", "paid", "order", "date", "street"],
    )
    lines = [" ".join(rng.choice(lexicon, 7)) + f" {rng.integers(10**4)}" for _ in range(16)]
    pixels = np.full((640, 700, 3), (250, 249, 246), np.uint8)
    text = "\n".join([*lines, f"{' ' * 60}Total {figure}"])
    return noisy(rng, draw_text(pixels, (40, 40), text, 22, "black"), 1.5)


@kind("figure", small=True)
def changed_digit(family):
    for name, figure in (("figure", "1,284.50"), ("other figure", "1,234.50")):
        picture = family.picture(name, page(family, figure))
        family.add(f"Scans/invoice {name}.jpg", jpeg(family, picture.pixels), picture)


@kind("clock")
def webcam_clock(family):
    master = photograph(family.rng, 800, 536)
    master[:36] = 0
    for name, time in (("clock", "09:10:00"), ("later clock", "09:28:00")):
        stamped = draw_text(master, (8, 4), f"CAM 3 2024-05-01 {time}", 22)
        picture = family.picture(name, noisy(family.rng, stamped, 1.5))
        family.add(f"cam/{name}.jpg", encoded(picture.pixels, quality=85), picture)


@kind("first exposure")
def exposures_from_a_tripod(family):
    scene = photograph(family.rng, 800, 536).astype(np.float32)
    for name, shift, light in (("first exposure", 0.0, 1.0), ("second exposure", 0.4, 1.02)):
        to = np.array([[1, 0, shift], [0, 1, shift]], np.float32)
        moved = cv2.warpAffine(light * scene, to, (800, 536), borderMode=cv2.BORDER_REFLECT)
        picture = family.picture(name, noisy(family.rng, moved, 5.0))
        family.add(
            f"Camera/{name}.jpg", jpeg(family, picture.pixels, 95, exif=files.exif(family, None)), picture
        )


@kind("picture", small=True)
def half_size_with_a_rating(family):
    master = family.photograph(1000, 668)
    family.add("Camera/IMG_1.jpg", jpeg(family, master.pixels), master)
    family.add("Edited/IMG_1.jpg", rated(family, resized(master.pixels, 500), "jpg"), master, FIVE_STARS)


@kind("picture")
def wider_frame(family):
    master = family.photograph()
    family.add("Camera/IMG_1.jpg", jpeg(family, master.pixels, 85), master)
    part = master.pixels[30:400, 40:600]
    family.add("Edited/IMG_1.jpg", rated(family, part, "jpg"), master.view((40, 30, 600, 400)), FIVE_STARS)


@kind("picture", small=True)
def enlargement_with_a_camera(family):
    master = family.photograph()
    family.add("Downloads/x.jpg", encoded(master.pixels, quality=93), master)
    sharpen = edited(lambda im: im.filter(ImageFilter.UnsharpMask(2, 140, 2)))
    large = sharpen(family, resized(master.pixels, 1280))
    date = {"date": f"date {family.date.replace(':', '-', 2)}"}
    family.add("Camera/IMG_1_big.jpg", jpeg(family, large, 96), master, date)


@kind("picture")
def smoothed(family):
    master = family.photograph()
    family.add("Phone/IMG_1.jpg", jpeg(family, master.pixels, 90), master)
    smooth = edited(lambda im: im.filter(ImageFilter.MedianFilter(3)))(family, master.pixels)
    family.add("Edited/IMG_1.jpg", rated(family, smooth, "jpg"), master, FIVE_STARS)


@kind("aslant")
def deskewed_scan(family):
    paper = Image.fromarray(photograph(family.rng, 700, 468))
    paper = paper.rotate(2.2, Image.Resampling.BICUBIC, expand=True, fillcolor=(206, 206, 204))
    made = family.picture("aslant", np.asarray(paper))
    family.add("Scans/old.jpg", encoded(made.pixels), made)
    straight = np.asarray(paper.rotate(-2.2, Image.Resampling.BICUBIC).crop((44, 40, 680, 450)))
    cut = family.picture("straight", straight, scene="straight")
    family.add("Scans/old_straight.jpg", encoded(cut.pixels), cut)


@kind("Anna")
def two_captions(family):
    master = photograph(family.rng, 640, 428)
    for name in ("Anna", "Erik"):
        picture = family.picture(name, draw_text(master, (60, 340), f"Happy birthday, {name}!", 42))
        family.add(f"cards/{name}.jpg", encoded(picture.pixels, quality=88), picture)


@kind("border")
def border(family):
    master = family.photograph()
    wide = np.pad(master.pixels, ((40, 40), (40, 40), (0, 0)), constant_values=255)
    made = family.picture("border", draw_text(wide, (300, 470), "Lake, 1961", 22, "black"), scene="border")
    family.add("Prints/IMG_1.jpg", jpeg(family, made.pixels), [made.view(), master.view(margin=40)])
    family.add("Camera/IMG_1.jpg", jpeg(family, master.pixels), master)


@kind("collage")
def collage(family):
    first, second = family.photograph(), family.photograph(name="second")
    made = family.picture("collage", np.hstack([first.pixels, second.pixels]), scene="collage")
    family.add("Edited/both.jpg", jpeg(family, made.pixels), made)
    family.add("Camera/IMG_1.jpg", jpeg(family, first.pixels), first)
    family.add("Camera/IMG_2.jpg", jpeg(family, second.pixels), second)


@kind("red eyes")
def red_eye(family):
    master = photograph(family.rng, 640, 428)
    for name, colour in (("red eyes", (205, 30, 30)), ("dark eyes", (45, 28, 28))):
        image = Image.fromarray(master)
        ImageDraw.Draw(image).ellipse((270, 140, 370, 270), fill=(224, 172, 140))
        for left in (296, 334):
            ImageDraw.Draw(image).ellipse((left, 186, left + 10, 197), fill=colour)
        picture = family.picture(name, noisy(np.random.default_rng(1), np.asarray(image), 1))
        family.add(f"Album/{name}.jpg", jpeg(family, picture.pixels, 93), picture)
