"""What owners' libraries contain: a function a kind. The first file of each holds what the kind is about."""

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from PIL import (
    ExifTags,
    Image,
    ImageCms,
    ImageDraw,
    ImageEnhance,
    ImageFilter,
    ImageFont,
    PngImagePlugin,
    TiffImagePlugin,
)

from oracle.library import Family, Picture, encoded, opened, photograph, resized, rounded

RATED = {"xmp": "<xmp:Rating>4</xmp:Rating>"}  # a reason for which another file is preferred


@dataclass(frozen=True)
class Kind:
    """A kind of family. `loses` names the parts that are gone when its first file is removed; empty for honest copies."""

    draw: Callable[[Family], None]
    loses: tuple[str, ...]
    is_small: bool


KINDS: dict[str, Kind] = {}
# `kind: part` of what photodup loses today. The list may only shrink.
KNOWN_FAILURES = frozenset(yaml.safe_load((Path(__file__).parent / "known_failures.yaml").read_text()) or ())


def kind(loses: str | Sequence[str] = (), small: bool = False, name: str = "") -> Callable:
    """Enter a function into the table under its name. `small` kinds are drawn in `make test`."""

    def enter(draw: Callable[[Family], None]) -> Callable[[Family], None]:
        parts = (loses,) if isinstance(loses, str) else tuple(loses)
        KINDS[name or draw.__name__.replace("_", " ")] = Kind(draw, parts, small)
        return draw

    return enter


def draw(kinds: Iterable[str], n: int = 1, seed: int = 0) -> Iterator[Family]:
    """Draw n families of each kind."""
    for name in kinds:
        for number in range(n):
            family = Family(name, number, seed)
            KINDS[name].draw(family)
            yield family


# ---- files


def exif(
    family: Family, *, date: str | None = "", camera: bool = True, place: Sequence = (), **tags: Any
) -> bytes:
    """Return EXIF as a camera writes it, with the family's date; further tags by their number, such as `x010e`."""
    block = Image.Exif()
    details = block.get_ifd(ExifTags.IFD.Exif)
    if camera:
        block[0x010F], block[0x0110] = "ACME", "ACME P1"
    if date is not None:
        details[0x9003] = date or family.date
    if place:
        block.get_ifd(ExifTags.IFD.GPSInfo).update({1: "N", 2: place[0], 3: "E", 4: place[1]})
    for name, value in tags.items():
        number = int(name[1:], 16)
        (details if 0x8290 < number < 0x9C90 or number > 0xA000 else block)[number] = value
    return block.tobytes()


def xmp(body: str, attributes: str = "") -> bytes:
    """Return an XMP packet with properties as elements and attributes."""
    names = {
        "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
        "xmp": "http://ns.adobe.com/xap/1.0/",
        "dc": "http://purl.org/dc/elements/1.1/",
        "lr": "http://ns.adobe.com/lightroom/1.0/",
        "crs": "http://ns.adobe.com/camera-raw-settings/1.0/",
        "exif": "http://ns.adobe.com/exif/1.0/",
        "photoshop": "http://ns.adobe.com/photoshop/1.0/",
        "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
        "GPano": "http://ns.google.com/photos/1.0/panorama/",
        "GCamera": "http://ns.google.com/photos/1.0/camera/",
        "hdrgm": "http://ns.adobe.com/hdr-gain-map/1.0/",
        "mwg-rs": "http://www.metadataworkinggroup.com/schemas/regions/",
        "MP": "http://ns.microsoft.com/photo/1.2/",
        "MPRI": "http://ns.microsoft.com/photo/1.2/t/RegionInfo#",
        "MPReg": "http://ns.microsoft.com/photo/1.2/t/Region#",
        "darktable": "http://darktable.sf.net/",
    }
    spaces = " ".join(f'xmlns:{name}="{address}"' for name, address in names.items())
    packet = (
        f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF {spaces.split(" ")[0]}><rdf:Description rdf:about="" {spaces} '
        f"{attributes}>{body}</rdf:Description></rdf:RDF></x:xmpmeta>"
    )
    return packet.encode()


def bag(name: str, *words: str, of: str = "Bag") -> str:
    """Return an XMP property with several words."""
    language = ' xml:lang="x-default"' if of == "Alt" else ""
    return (
        f"<{name}><rdf:{of}>{''.join(f'<rdf:li{language}>{w}</rdf:li>' for w in words)}</rdf:{of}></{name}>"
    )


def regions(outer: str, inner: str, name: str) -> str:
    """Return an XMP property that names a person in a part of the picture."""
    resource = "rdf:parseType='Resource'"
    person = f"<rdf:li {resource}><{name}>{{}}</{name}></rdf:li>"
    return f"<{outer} {resource}><{inner}><rdf:Bag>{person}</rdf:Bag></{inner}></{outer}>"


def jpeg(
    family: Family,
    pixels: np.ndarray,
    quality: int = 92,
    *,
    xmp_body: str = "",
    segments: bytes = b"",
    **options: Any,
) -> bytes:
    """Return a camera's JPEG with the family's date; `segments` go in front of its tables, other options to Pillow."""
    options = {"quality": quality, "exif": exif(family)} | options
    data = encoded(pixels, **options | ({"xmp": xmp(xmp_body)} if xmp_body else {}))
    return data[:2] + segments + data[2:]


def segment(marker: int, payload: bytes) -> bytes:
    """Return a JPEG segment."""
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(payload) + 2) + payload


def iptc(**records: bytes) -> bytes:
    """Return an APP13 segment with IPTC records by number, such as `r25`."""
    iim = b"".join(
        b"\x1c\x02" + bytes([int(n[1:])]) + struct.pack(">H", len(v)) + v for n, v in records.items()
    )
    iim += b"\0" * (len(iim) % 2)
    return segment(0xED, b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0" + struct.pack(">I", len(iim)) + iim)


def film(family: Family, n: int = 40_000) -> bytes:
    """Return bytes that begin as an MP4 does."""
    return b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + struct.pack(">I", 8 + n) + b"mdat" + family.rng.bytes(n)


def chunk(name: bytes, body: bytes) -> bytes:
    """Return a PNG chunk."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def multi_picture(first: bytes, second: bytes) -> bytes:
    """Return a JPEG with a second one behind it, which an MPF segment announces."""

    def index(total: int, offset: int) -> bytes:
        head = b"MPF\0MM\0*" + struct.pack(">IH", 8, 3) + struct.pack(">HHI4s", 0xB000, 7, 4, b"0100")
        head += struct.pack(">HHII", 0xB001, 4, 1, 2) + struct.pack(">HHII", 0xB002, 7, 32, 50) + bytes(4)
        return (
            head
            + struct.pack(">IIIHH", 0x20030000, total, 0, 0, 0)
            + struct.pack(">IIIHH", 0x20002, len(second), offset, 0, 0)
        )

    total = len(first) + len(segment(0xE2, index(0, 0)))
    return first[:2] + segment(0xE2, index(total, total - 10)) + first[2:] + second


def draw_text(
    pixels: np.ndarray, place: tuple[int, int], text: str, size: int = 30, fill: str = "white", **options: Any
) -> np.ndarray:
    """Return the picture with a text on it."""
    image = Image.fromarray(pixels)
    ImageDraw.Draw(image).text(place, text, fill=fill, font=ImageFont.load_default(size), **options)
    return np.asarray(image)


def edited(edit: Callable[[Image.Image], Image.Image], pixels: np.ndarray) -> np.ndarray:
    """Return pixels edited as a Pillow image."""
    return np.asarray(edit(Image.fromarray(pixels)).convert("RGB"))


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
def first_page_apart(family):
    first, second = family.photograph(), family.photograph(name="page 2")
    pages = encoded(
        Image.fromarray(first.pixels), "TIFF", save_all=True, append_images=[Image.fromarray(second.pixels)]
    )
    family.add("Scans/letter.tif", pages, [first.view(), second.view(frame=1)])
    family.add("Scans/letter_1.jpg", encoded(first.pixels, quality=88), first)


@kind()
def flat_copy_of_a_cut_out(family):
    cut, flat = cut_out(family)
    family.add("Work/cut.png", encoded(cut.pixels, "PNG"), cut)
    family.add("Work/cut.jpg", encoded(flat, quality=85), cut)


# ---- metadata: a copy, saved again, that says what the better file does not


def says(name: str, token: str, small: bool = False, beside: str = "", **options: Any) -> None:
    """Enter a kind whose lesser copy alone says something: `token`, in which {} is the family's text.

    Options: `exif` (of `exif`), `words` (the body of an XMP packet), `segments`, or a `file` beside it by the name `beside`.
    """

    def draw(family: Family) -> None:
        text = family.words

        def fill(value: Any) -> Any:
            if isinstance(value, str):
                return value.replace("{}", text)
            return value.replace(b"{}", text.encode()) if isinstance(value, bytes) else value

        master = family.photograph()
        tags = {tag: fill(value) for tag, value in options.get("exif", {}).items()}
        saved = {"exif": exif(family, **tags), "xmp_body": fill(options.get("words", ""))}
        saved["segments"] = fill(options["segments"])(text) if callable(options.get("segments")) else b""
        full = jpeg(
            family, master.pixels, 93, exif=exif(family, date=None) if "date" in name else exif(family)
        )
        data = jpeg(family, opened(full), 80, **saved)
        value = {name: fill(token)}
        photo = family.add("Phone/IMG_1234.jpg", data, master, says={} if beside else value)
        if beside:
            family.add_beside(photo, beside, fill(options["file"]), says=value)
        family.add("Full/IMG_1.jpg", full, master)

    kind(loses=name, small=small, name=name)(draw)


AT = ((48.0, 5.0, 0.0), (11.0, 7.0, 0.0))
TAKEOUT = json.dumps(
    {
        "title": "x",
        "description": "{}",
        "geoData": {"latitude": 47.1, "longitude": 8.2},
        "people": [{"name": "Person One"}],
    }
).encode()
says("exif description", "{}", exif={"x010e": "{}"})
says("exif copyright", "{}", exif={"x8298": "{}"})
says("user comment", "{}", exif={"x9286": b"ASCII\0\0\0{}"})
says("rating of exif", "rating 5", exif={"x4746": 5})
says("place", "place 48.083 11.117", exif={"place": AT})
says("date with dashes", "date 2015-06-02 15:28:41", exif={"date": "2015-06-02 15:28:41"})
says("date of iso", "date 2015-06-02 15:28:41", exif={"date": "2015-06-02T15:28:41"})
says(
    "date with a zone",
    "date 2015-06-02 15:28:41",
    exif={"date": "2015:06:02 15:28:41+02:00", "camera": False},
)
says("date with a fraction", "date 2015-06-02 15:28:41", exif={"date": "2015:06:02 15:28:41.123"})
says("digitized date", "date 2015-06-02 15:28:41", exif={"date": None, "x9004": "2015:06:02 15:28:41"})
says("title", "{}", words=bag("dc:title", "{}", of="Alt"))
says("caption", "{}", small=True, words=bag("dc:description", "{}", of="Alt"))
says("keywords", "{}", words=bag("dc:subject", "{}", "lake"))
says("hierarchical keywords", "{}", words=bag("lr:hierarchicalSubject", "{}"))
says("rating", "rating 5", words="<xmp:Rating>5</xmp:Rating>")
says("label", "{}", words="<xmp:Label>{}</xmp:Label>")
says("headline", "{}", words="<photoshop:Headline>{}</photoshop:Headline>")
says(
    "place of xmp",
    "place 48.083 11.117",
    words="<exif:GPSLatitude>48,5.0N</exif:GPSLatitude><exif:GPSLongitude>11,7.0E</exif:GPSLongitude>",
)
says("people of windows", "{}", words=regions("MP:RegionInfo", "MPRI:Regions", "MPReg:PersonDisplayName"))
says("people", "{}", words=regions("mwg-rs:Regions", "mwg-rs:RegionList", "mwg-rs:Name"))
says("develop settings", "+0.47", words="<crs:Exposure2012>+0.47</crs:Exposure2012>")
says("panorama", "equirectangular", words="<GPano:ProjectionType>equirectangular</GPano:ProjectionType>")
says("jpeg comment", "{}", small=True, segments=lambda text: segment(0xFE, text.encode()))
says("iptc caption", "{}", segments=lambda text: iptc(r120=text.encode()))
says(
    "iptc in latin 1",
    "Fête à Genève, {}",
    segments=lambda text: iptc(r120=f"Fête à Genève, {text}".encode("latin-1")),
)
says("takeout", "{}", beside="IMG_1234.jpg.json", file=TAKEOUT)
says("takeout with a cut name", "{}", beside="IMG_1234.j.json", file=TAKEOUT)
says("sidecar", "{}", beside="IMG_1234.xmp", file=xmp(bag("dc:description", "{}", of="Alt")))
says(
    "further darktable edit",
    "{}",
    beside="IMG_1234_01.jpg.xmp",
    file=xmp("<darktable:history><rdf:Seq><rdf:li>{}</rdf:li></rdf:Seq></darktable:history>"),
)


# ---- files beside a photograph


def beside(suffix: str, small: bool = False) -> None:
    """Enter a kind whose lesser copy has a file beside it that no metadata reader understands."""

    def draw(family: Family) -> None:
        master = family.photograph()
        full = jpeg(family, master.pixels, 93)
        photo = family.add("Phone/IMG_1234.jpg", jpeg(family, opened(full), 80), master)
        family.add_beside(photo, f"IMG_1234{suffix}", film(family, 4000))
        family.add("Full/IMG_1.jpg", full, master)

    kind(loses="beside", small=small, name=f"beside {suffix}")(draw)


for _suffix in (
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
):
    beside(_suffix, small=_suffix == ".CRW")


# ---- attachments inside a photograph


def pair(family: Family, path: str, data: bytes, better: bytes, master: Picture, **holds: Any) -> None:
    """Add a file that holds something, and one of the same picture that is preferred for another reason."""
    family.add(path, data, master, **holds)
    suffix = "png" if better.startswith(b"\x89PNG") else "jpg"
    family.add(f"Edited/IMG_1.{suffix}", better, master)


@kind(loses="film", small=True)
def motion_photo(family):
    master, behind = family.photograph(), film(family)
    body = f"<GCamera:MotionPhoto>1</GCamera:MotionPhoto><GCamera:MicroVideoOffset>{len(behind)}</GCamera:MicroVideoOffset>"
    data = jpeg(family, master.pixels, xmp_body=body) + behind
    pair(
        family,
        "Camera/PXL_1.MP.jpg",
        data,
        jpeg(family, master.pixels, xmp_body=RATED["xmp"]),
        master,
        inside={"film": behind},
    )


@kind(loses="gain map", small=True)
def gain_map(family):
    master = family.photograph()
    gain = encoded(
        resized(master.pixels, 200), quality=85, xmp=xmp("", 'hdrgm:Version="1.0" hdrgm:GainMapMax="2.5"')
    )
    data = multi_picture(jpeg(family, master.pixels, xmp_body="<hdrgm:Version>1.0</hdrgm:Version>"), gain)
    pair(
        family,
        "Camera/IMG_1.jpg",
        data,
        jpeg(family, master.pixels, xmp_body=RATED["xmp"]),
        master,
        inside={"gain map": gain},
    )


@kind(loses="second view")
def stereo(family):
    master = family.photograph()
    second = encoded(np.roll(master.pixels, 6, axis=1))
    data = multi_picture(jpeg(family, master.pixels), second)
    pair(
        family,
        "Camera/IMG_1.jpg",
        data,
        jpeg(family, master.pixels, xmp_body=RATED["xmp"]),
        master,
        inside={"second view": second},
    )


@kind(loses="sound")
def sound_in_a_segment(family):
    master, sound = family.photograph(), family.rng.bytes(20_000)
    data = jpeg(family, master.pixels, segments=segment(0xE2, b"SOUND\0" + sound))
    pair(
        family,
        "Camera/IMG_1.jpg",
        data,
        jpeg(family, master.pixels, xmp_body=RATED["xmp"]),
        master,
        inside={"sound": sound},
    )


@kind(loses="chunk")
def chunk_that_nobody_knows(family):
    master, body = family.photograph(), family.rng.bytes(3000)
    png = encoded(master.pixels, "PNG")
    data = png[:33] + chunk(b"caBX", body) + png[33:]
    pair(
        family,
        "Work/x.png",
        data,
        encoded(master.pixels, "PNG", exif=exif(family, x4746=5)),
        master,
        inside={"chunk": body},
    )


def png_text(key: str, name: str, small: bool = False) -> None:
    """Enter a kind whose PNG has a text of its own."""

    def draw(family: Family) -> None:
        master, words = family.photograph(), PngImagePlugin.PngInfo()
        words.add_text(key, f"{family.words}, Steps: 30", zip=key == "workflow")
        data = encoded(master.pixels, "PNG", pnginfo=words)
        better = encoded(master.pixels, "PNG", compress_level=1)
        pair(family, "old/notes/x.png", data, better, master, says={name: f"{family.words}, Steps: 30"})

    kind(loses=name, small=small, name=name)(draw)


png_text("Description", "png description", small=True)
png_text("parameters", "png prompt")
png_text("workflow", "png workflow")


@kind(loses="profile")
def colour_profile(family):
    master = family.photograph()
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    n = struct.unpack(">I", profile[128:132])[0]
    tags = {bytes(profile[132 + 12 * i :][:4]): 136 + 12 * i for i in range(n)}
    red, green = (profile[tags[name] : tags[name] + 8] for name in (b"rXYZ", b"gXYZ"))
    profile[tags[b"rXYZ"] : tags[b"rXYZ"] + 8], profile[tags[b"gXYZ"] : tags[b"gXYZ"] + 8] = green, red
    data = jpeg(family, master.pixels, icc_profile=bytes(profile))
    pair(
        family,
        "Camera/DSC_1.jpg",
        data,
        jpeg(family, master.pixels, xmp_body=RATED["xmp"]),
        master,
        inside={"profile": bytes(profile)},
    )


@kind(loses="layers")
def tiff_layers(family):
    master, layers = family.photograph(), b"Adobe Photoshop Document Data Block\0" + family.rng.bytes(30_000)
    for path, has_layers in (("Work/poster.tif", True), ("Export/poster.tif", False)):
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags[0x010F], tags[0x0110] = "ACME", "ACME P1"
        number, value, of = (37724, layers, 7) if has_layers else (0x4746, 5, 3)
        tags.tagtype[number] = of
        tags[number] = value
        family.add(
            path,
            encoded(master.pixels, "TIFF", tiffinfo=tags),
            master,
            inside={"layers": layers} if has_layers else {},
        )


@kind(loses="page 2")
def second_page(family):
    first, second = family.photograph(), family.photograph(name="page 2")
    pages = encoded(
        Image.fromarray(first.pixels), "TIFF", save_all=True, append_images=[Image.fromarray(second.pixels)]
    )
    family.add("Scans/letter.tif", pages, [first.view(), second.view(frame=1)])
    family.add("Scans/letter_1.png", encoded(first.pixels, "PNG", exif=exif(family, x4746=5)), first)


@kind(loses="second picture")
def two_pictures_in_a_heic(family):
    first, second = family.photograph(), family.photograph(name="second picture")
    data = encoded(
        first.pixels, "HEIF", quality=80, save_all=True, append_images=[Image.fromarray(second.pixels)]
    )
    family.add("Phone/IMG_1.heic", data, [first.view(), second.view(frame=1)])
    family.add(
        "Edited/IMG_1.heic", encoded(first.pixels, "HEIF", quality=90, exif=exif(family, x4746=5)), first
    )


@kind(loses="film")
def film_behind_a_heic(family):
    master, behind = family.photograph(), film(family)
    data = encoded(master.pixels, "HEIF", quality=80, exif=exif(family))
    data += struct.pack(">I", 8 + len(behind)) + b"mpvd" + behind
    family.add("Phone/IMG_1.heic", data, master, inside={"film": behind})
    family.add(
        "Edited/IMG_1.heic", encoded(master.pixels, "HEIF", quality=90, exif=exif(family, x4746=5)), master
    )


@kind(loses="frame 2")
def moving_webp(family):
    first, second = family.photograph(), family.photograph(name="frame 2")
    data = encoded(
        Image.fromarray(first.pixels),
        "WEBP",
        quality=90,
        save_all=True,
        append_images=[Image.fromarray(second.pixels)],
    )
    family.add("Web/x.webp", data, [first.view(), second.view(frame=1)])
    family.add(
        "Web/still/x.webp", encoded(first.pixels, "WEBP", quality=95, exif=exif(family, x4746=5)), first
    )


# ---- what 8 bits of red, green and blue do not hold


def cut_out(family: Family) -> tuple[Picture, np.ndarray]:
    """Return a cut-out with a soft edge, and it on white."""
    rgb = photograph(family.rng, 600, 600)
    mask = Image.new("L", (600, 600), 0)
    ImageDraw.Draw(mask).ellipse((60, 90, 540, 510), fill=255)
    mask = mask.filter(ImageFilter.GaussianBlur(2))
    cut = family.picture("transparency", np.dstack([rgb, np.asarray(mask)]))
    return cut, np.asarray(Image.composite(Image.fromarray(rgb), Image.new("RGB", (600, 600), "white"), mask))


def transparency(family: Family, name: str, **options: Any) -> None:
    """Add a cut-out, and a copy on white that is preferred for another reason."""
    cut, flat = cut_out(family)
    family.add(f"work/cutouts/item.{name.lower()}", encoded(cut.pixels, name, **options), cut)
    family.add("item.png", encoded(flat, "PNG", compress_level=1, exif=exif(family, x4746=5)), cut)


kind(loses="transparency", small=True, name="transparent png")(partial(transparency, name="PNG"))
kind(loses="transparency", name="transparent webp")(partial(transparency, name="WEBP"))
kind(loses="transparency", name="transparent avif")(partial(transparency, name="AVIF"))


def sixteen_bits(family: Family, suffix: str) -> None:
    """Add a scan of 16 bits a channel, and a rated copy of 8."""
    pixels = photograph(family.rng, 640, 428).astype(np.uint16)
    deep = family.picture(
        "16 bits", pixels * 256 + family.rng.integers(0, 256, pixels.shape, dtype=np.uint16)
    )
    data = cv2.imencode(suffix, deep.pixels[..., ::-1])[1].tobytes()
    family.add(f"Scans/scan_1{suffix}", data, deep)
    family.add(
        "Web/scan_1.png",
        encoded((deep.pixels >> 8).astype(np.uint8), "PNG", exif=exif(family, x4746=5)),
        deep,
    )


kind(loses="16 bits", small=True, name="16-bit png")(partial(sixteen_bits, suffix=".png"))
kind(loses="16 bits", name="16-bit tiff")(partial(sixteen_bits, suffix=".tif"))


def lossless_master(family: Family, name: str, quality: int = 100, **options: Any) -> None:
    """Add a lossless file, and the JPEG that was exported of it."""
    master = family.photograph()
    family.add(f"master/x.{name.lower()}", encoded(master.pixels, name, **options), master)
    family.add("export/x.jpg", encoded(master.pixels, quality=quality, subsampling=0), master)


kind(loses="picture", small=True, name="png master")(partial(lossless_master, name="PNG"))
kind(loses="picture", name="tiff master")(partial(lossless_master, name="TIFF"))
kind(loses="picture", name="webp master")(partial(lossless_master, name="WEBP", quality=98, lossless=True))


# ---- two files that say different things


@kind(loses="place", small=True)
def another_place(family):
    master = family.photograph()
    for path, degrees in (("a/x.jpg", 48.0), ("b/map/x.jpg", 40.0)):
        data = jpeg(family, master.pixels, exif=exif(family, place=((degrees, 5.0, 0.0), (11.0, 7.0, 0.0))))
        family.add(path, data, master, says={"place": f"place {degrees + 5 / 60:.3f} 11.117"})


@kind(loses="caption")
def another_caption(family):
    master = family.photograph()
    for i, path in enumerate(("a/x.jpg", "b/x.jpg")):
        data = jpeg(family, master.pixels, xmp_body=bag("dc:description", f"{family.words} {i}", of="Alt"))
        family.add(path, data, master, says={"caption": f"{family.words} {i}"})


@kind(loses="date")
def another_date(family):
    master = family.photograph()
    for path, date in (("a/x.jpg", "2011:01:02 10:00:00"), ("b/x.jpg", "2019:08:01 10:00:00")):
        data = jpeg(family, master.pixels, exif=exif(family, date=date))
        family.add(path, data, master, says={"date": f"date {date[:10].replace(':', '-')} 10:00:00"})


# ---- pixels: what the first file shows and the other does not


def shows(
    name: str, edit: Callable[[Family, np.ndarray], np.ndarray], small: bool = False, quality: int = 92
) -> None:
    """Enter a kind whose first file shows what an edit adds to the second one."""

    def draw(family: Family) -> None:
        master = family.photograph()
        made = family.picture(name, edit(family, master.pixels))
        for path, picture in (("Album/IMG_1.jpg", made), ("Camera/IMG_1.jpg", master)):
            family.add(path, jpeg(family, picture.pixels, quality), picture)

    kind(loses=name, small=small, name=name)(draw)


def spot(family: Family, pixels: np.ndarray, width: int, colour: tuple[int, int, int]) -> np.ndarray:
    """Return the picture with an ellipse somewhere in its middle."""
    image = Image.fromarray(pixels)
    x, y = family.rng.integers(100, 320, 2)
    ImageDraw.Draw(image).ellipse((x, y, x + width, y + 0.6 * width), fill=colour)
    return np.asarray(image.filter(ImageFilter.GaussianBlur(0.5)) if width > 200 else image)


def noisy(rng: np.random.Generator, pixels: np.ndarray, strength: float) -> np.ndarray:
    """Return pixels with a sensor's noise."""
    return rounded(pixels + rng.normal(0, strength, pixels.shape))


def text_on(place: tuple[int, int], text: str, size: int, fill: str = "white") -> Callable:
    """Return an edit that writes a text."""
    return lambda family, pixels: draw_text(
        pixels, place, text, size, fill, stroke_width=2, stroke_fill="black"
    )


def filtered(edit: Callable[[Image.Image], Image.Image]) -> Callable:
    """Return an edit by Pillow."""
    return lambda family, pixels: edited(edit, pixels)


shows("written caption", text_on((30, 350), "Merry Christmas 2022", 40), small=True)
shows("date stamp", text_on((490, 395), "2019 07 12", 22, "orange"))
shows("watermark", text_on((240, 200), "(c) Studio", 36))
shows(
    "sepia",
    filtered(
        lambda im: Image.blend(
            im, Image.merge("RGB", [im.convert("L").point(lambda v, f=f: v * f) for f in (1, 0.85, 0.6)]), 0.9
        )
    ),
)
shows("black and white", filtered(lambda im: im.convert("L")), small=True)
shows("brighter", filtered(lambda im: ImageEnhance.Brightness(im).enhance(1.25)))
shows("warmer", lambda family, pixels: rounded(pixels * [1.08, 1.0, 0.9]))
shows("sharpened", filtered(lambda im: im.filter(ImageFilter.UnsharpMask(1.5, 120, 2))))
shows("more contrast", filtered(lambda im: ImageEnhance.Contrast(im).enhance(1.3)))
shows("bird", lambda family, pixels: spot(family, pixels, 22, (20, 20, 25)), small=True)
shows("ball", lambda family, pixels: spot(family, pixels, 60, (210, 40, 40)))
shows(
    "blurred face",
    lambda family, pixels: np.where(
        np.hypot(*np.ogrid[-200:228, -320:320])[..., None] < 36,
        edited(lambda im: im.filter(ImageFilter.GaussianBlur(9)), pixels),
        pixels,
    ),
)


def page(family: Family, figure: str) -> np.ndarray:
    """Return a printed page with a figure on it."""
    rng = np.random.default_rng([5, *family.words.encode()])
    image = Image.new("RGB", (800, 1000), (250, 249, 246))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(22)
    words = ["invoice", "total", "amount", "customer", "delivery", "order", "paid", "street", "date"]
    for line in range(26):
        draw.text(
            (60, 60 + 34 * line),
            " ".join(rng.choice(words, 7)) + f" {rng.integers(10**4)}",
            fill=(30, 30, 40),
            font=font,
        )
    draw.text((480, 950), f"Total {figure}", fill=(30, 30, 40), font=font)
    return noisy(rng, np.asarray(image), 1.5)


@kind(loses="figure", small=True)
def changed_digit(family):
    made = family.picture("figure", page(family, "1,284.50"))
    family.add("Scans/invoice_a.jpg", jpeg(family, made.pixels), made)
    family.add("Scans/invoice_b.jpg", jpeg(family, page(family, "1,234.50")), made)


@kind(loses="clock")
def webcam_clock(family):
    master = photograph(family.rng, 800, 536)
    for name, time in (("clock", "09:10:00"), ("later clock", "09:28:00")):
        black = np.vstack([np.zeros((36, 800, 3), np.uint8), master[36:]])
        stamped = draw_text(black, (8, 4), f"CAM 3 2024-05-01 {time}", 22)
        picture = family.picture(name, noisy(family.rng, stamped, 1.5))
        family.add(f"cam/{time.replace(':', '')}.jpg", encoded(picture.pixels, quality=85), picture)


@kind(loses="first exposure")
def exposures_from_a_tripod(family):
    scene = photograph(family.rng, 800, 536).astype(np.float32)
    for name, shift, light in (("first exposure", 0.0, 1.0), ("second exposure", 0.4, 1.02)):
        moved = cv2.warpAffine(
            light * scene,
            np.float32([[1, 0, shift], [0, 1, shift]]),
            (800, 536),
            borderMode=cv2.BORDER_REFLECT,
        )
        picture = family.picture(name, noisy(family.rng, moved, 5.0))
        family.add(
            f"Camera/{name}.jpg", jpeg(family, picture.pixels, 95, exif=exif(family, date=None)), picture
        )


@kind(loses="picture", small=True)
def half_size_with_a_rating(family):
    master = family.photograph(1000, 668)
    family.add("Camera/IMG_1.jpg", jpeg(family, master.pixels), master)
    family.add(
        "Edited/IMG_1.jpg", jpeg(family, resized(master.pixels, 500), 96, xmp_body=RATED["xmp"]), master
    )


@kind(loses="picture")
def wider_frame(family):
    master, box = family.photograph(), (40, 30, 600, 400)
    family.add("Camera/IMG_1.jpg", jpeg(family, master.pixels, 85), master)
    part = master.pixels[box[1] : box[3], box[0] : box[2]]
    family.add("Edited/IMG_1.jpg", jpeg(family, part, 96, xmp_body=RATED["xmp"]), master.view(box))


@kind(loses="picture", small=True)
def enlargement_with_a_camera(family):
    master = family.photograph()
    family.add("Downloads/x.jpg", encoded(master.pixels, quality=93), master)
    large = edited(lambda im: im.filter(ImageFilter.UnsharpMask(2, 140, 2)), resized(master.pixels, 1280))
    family.add("Camera/IMG_1_big.jpg", jpeg(family, large, 96), master)


@kind(loses="original")
def smoothed(family):
    master = family.photograph(800, 536, name="original")
    family.add("Phone/IMG_1.jpg", jpeg(family, master.pixels, 90), master)
    smooth = edited(lambda im: im.filter(ImageFilter.MedianFilter(3)), master.pixels)
    family.add("Edited/IMG_1.jpg", jpeg(family, smooth, 96, xmp_body=RATED["xmp"]), master)


@kind(loses="aslant")
def deskewed_scan(family):
    print_ = Image.fromarray(photograph(family.rng, 700, 468))
    made = family.picture(
        "aslant",
        np.asarray(print_.rotate(2.2, Image.Resampling.BICUBIC, expand=True, fillcolor=(206, 206, 204))),
    )
    family.add("Scans/old.jpg", encoded(made.pixels, quality=91), made)
    straight = Image.fromarray(made.pixels).rotate(-2.2, Image.Resampling.BICUBIC)
    width, height = straight.size
    box = (round(width * 0.06), round(height * 0.08), round(width * 0.94), round(height * 0.92))
    cut = family.picture("straight", np.asarray(straight.crop(box)), scene="straight")
    family.add("Scans/old_straight.jpg", encoded(cut.pixels), cut)


@kind(loses="two captions a")
def two_captions(family):
    master = photograph(family.rng, 800, 536)
    for letter, text in (("a", "Happy birthday, Anna!"), ("b", "Happy birthday, Erik!")):
        picture = family.picture(f"two captions {letter}", draw_text(master, (60, 440), text, 48))
        family.add(f"cards/x_{letter}.jpg", encoded(picture.pixels, quality=88), picture)


@kind(loses="border")
def border(family):
    master = family.photograph()
    wide = np.pad(master.pixels, ((40, 40), (40, 40), (0, 0)), constant_values=255)
    framed = draw_text(wide, (300, 470), "Lake, 1961", 22, "black")
    made = family.picture("border", framed, scene="border")
    family.add("Prints/IMG_1.jpg", jpeg(family, framed), [made.view(), master.view(margin=40)])
    family.add("Camera/IMG_1.jpg", jpeg(family, master.pixels), master)


@kind(loses="collage")
def collage(family):
    first, second = family.photograph(), family.photograph(name="second")
    made = family.picture("collage", np.hstack([first.pixels, second.pixels]), scene="collage")
    family.add("Edited/both.jpg", jpeg(family, made.pixels), made)
    family.add("Camera/IMG_1.jpg", jpeg(family, first.pixels), first)
    family.add("Camera/IMG_2.jpg", jpeg(family, second.pixels), second)


@kind(loses="red eyes")
def red_eye(family):
    face = Image.fromarray(photograph(family.rng, 800, 536))
    draw = ImageDraw.Draw(face)
    draw.ellipse((350, 180, 450, 310), fill=(224, 172, 140))
    boxes = [(376, 226, 386, 237), (414, 226, 424, 237)]
    for box in boxes:
        draw.ellipse(box, fill=(205, 30, 30))
    corrected = face.copy()
    for box in boxes:
        ImageDraw.Draw(corrected).ellipse(box, fill=(45, 28, 28))
    for path, name, image in (
        ("Camera/IMG_1.jpg", "red eyes", face),
        ("Album/IMG_1.jpg", "dark eyes", corrected),
    ):
        picture = family.picture(name, noisy(np.random.default_rng(1), np.asarray(image), 1))
        family.add(path, jpeg(family, picture.pixels, 93), picture)
