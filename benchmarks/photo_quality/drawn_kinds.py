"""The kinds of the honest measurement: what an owner may have of one photograph, and which of it the rule in words keeps.

Drawn from docs/photos.md alone, without a look at the judge. KINDS have not changed since the first draw was measured; the
second draw has ADDED_KINDS as well. `drawn` measures them.
"""

import io
import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageCms, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from photodup.embedding.imaging import decode, encode

Files = dict[str, bytes]
MEGAPIXELS = 1.5  # of the photographs, but for the kinds of large ones
LARGE = 9.5e6  # pixels from which a photograph is large
WORDS = "Kowloon ferry 7731"  # something that only one file says

# Which photographs have to remain, by their place in what a kind makes: one of each tuple.
GO, EITHER, STAY = ((0,),), ((0, 1),), ((0,), (1,))


@dataclass(frozen=True)
class Photograph:
    """A photograph of the list. `of` is the file that it is another picture or a real copy of, and `use` says which."""

    name: str
    path: Path
    use: str = "photograph"
    of: str = ""

    @property
    def whole(self) -> Image.Image:
        return decode(self.path)

    @cached_property
    def is_large(self) -> bool:
        return bool(np.prod(self.whole.size) >= LARGE)

    @cached_property
    def image(self) -> Image.Image:
        """The photograph, of at most 1.5 megapixels."""
        whole = self.whole
        factor = (MEGAPIXELS * 1e6 / np.prod(whole.size)) ** 0.5
        return resized(whole, factor) if factor < 0.97 else whole

    @cached_property
    def file(self) -> bytes:
        """A JPEG without metadata: that of the package if it has this size and no turn, else saved at quality 93."""
        data = self.path.read_bytes()
        if data[:2] == b"\xff\xd8":
            opened = Image.open(io.BytesIO(data))
            if opened.size == self.image.size and opened.getexif().get(274, 1) == 1:
                bare = [part for part in segments(data) if not 0xE1 <= part[1] <= 0xED and part[1] != 0xFE]
                return b"".join([b"\xff\xd8", *bare])
        return jpeg(self.image, 93)

    @property
    def shown(self) -> Image.Image:
        """What the file shows."""
        return Image.open(io.BytesIO(self.file)).convert("RGB")

    def exif(self, **tags: Any) -> Image.Exif:
        """A camera's EXIF, with other values of some tags."""
        random, exif = Random(self.name), Image.Exif()
        day = f"20{random.randint(10, 24)}:0{random.randint(1, 9)}:1{random.randint(0, 9)}"
        minute = f"{day} 1{random.randint(0, 9)}:{random.randint(10, 59)}"
        date = tags.get("date", f"{minute}:{random.randint(10, 59)}")
        exif[271], exif[272], exif[274], exif[306] = "Panasonic", "DMC-TZ91", tags.get("orientation", 1), date
        if "title" in tags:
            exif[270] = tags["title"]
        camera, place = exif.get_ifd(0x8769), exif.get_ifd(0x8825)
        camera[36867] = camera[36868] = date
        camera[33434], camera[33437], camera[34855] = tags.get("seconds", 1 / 250), 4.5, tags.get("iso", 200)
        camera[37386] = 24.0
        if "comment" in tags:
            camera[37510] = b"ASCII\0\0\0" + tags["comment"].encode()
        place[1], place[2], place[3], place[4] = (
            "N",
            (tags.get("north", 47.0), 22.0, 5.0),
            "E",
            (8.0, 32.0, random.randint(0, 59)),
        )
        return exif

    def taken(self, image: Image.Image | None = None, quality: int = 0, **tags: Any) -> bytes:
        """The JPEG as a camera writes it, with EXIF; or another picture with this photograph's EXIF."""
        data = jpeg(image, quality) if image else self.file
        return with_part(data, 0xE1, b"Exif\0\0" + self.exif(**tags).tobytes().removeprefix(b"Exif\0\0"))


def segments(data: bytes) -> Iterable[bytes]:
    """Yield the segments of a JPEG behind its first mark; the last goes on to the end of the file."""
    place = 2
    while data[place + 1] != 0xDA:
        length = 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        yield data[place : place + length]
        place += length
    yield data[place:]


def with_part(data: bytes, marker: int, content: bytes) -> bytes:
    """Return the JPEG with one more segment in front."""
    return b"\xff\xd8" + bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content + data[2:]


def jpeg(image: Image.Image, quality: int | str, **options: Any) -> bytes:
    return encode(image, "JPEG", quality=quality, **options)


def resized(image: Image.Image, factor: float, filter_: int = Image.Resampling.LANCZOS) -> Image.Image:
    return image.resize([max(1, round(side * factor)) for side in image.size], filter_)


def to_side(image: Image.Image, side: float) -> Image.Image:
    return resized(image, side / max(image.size))


def cropped(image: Image.Image, random: Random, width: float, height: float) -> Image.Image:
    """Cut these shares of the sides out, anywhere."""
    size = [round(side * share) for side, share in zip(image.size, (width, height), strict=True)]
    left, top = (random.randint(0, side - part) for side, part in zip(image.size, size, strict=True))
    return image.crop((left, top, left + size[0], top + size[1]))


def to_shape(image: Image.Image, random: Random) -> Image.Image:
    return (
        ImageOps.fit(image, (900, random.choice([900, 1125, 506])), centering=(random.random(), 0.5))
        if min(image.size) > 900
        else ImageOps.fit(image, (min(image.size),) * 2)
    )


def picture(values: np.ndarray) -> Image.Image:
    return Image.fromarray(values.clip(0, 255).round().astype(np.uint8))


def grain(image: Image.Image, sigma: float, random: Random) -> Image.Image:
    noise = np.random.default_rng(random.getrandbits(32)).normal(0, sigma, (image.height, image.width, 1))
    return picture(np.asarray(image, np.float32) + cv2.GaussianBlur(noise, (0, 0), 0.6)[..., None] * 1.6)


def written(image: Image.Image, text: str, x: float, y: float, size: float, ink: Any) -> Image.Image:
    drawn = image.copy()
    place = round(x * image.width), round(y * image.height)
    ImageDraw.Draw(drawn, "RGBA").text(place, text, fill=ink, font_size=max(10, round(size * image.width)))
    return drawn


def busy_spot(image: Image.Image, random: Random, share: float) -> tuple[int, int, int]:
    """Return where a spot with much in it lies (x, y, radius), of the spots that were tried."""
    grey, radius = np.asarray(image.convert("L"), np.float32), max(6, round(share * max(image.size)))
    tried = [
        (
            random.randint(2 * radius, image.width - 2 * radius),
            random.randint(2 * radius, image.height - 2 * radius),
        )
        for _ in range(20)
    ]
    x, y = max(
        tried, key=lambda at: grey[at[1] - radius : at[1] + radius, at[0] - radius : at[0] + radius].std()
    )
    return x, y, radius


def taken_out(image: Image.Image, random: Random, share: float) -> Image.Image:
    """Take what shows in a spot out, as retouching does."""
    x, y, radius = busy_spot(image, random, share)
    mask = np.zeros((image.height, image.width), np.uint8)
    cv2.circle(mask, (x, y), radius, 255, -1)
    return Image.fromarray(cv2.inpaint(np.array(image), mask, 4, cv2.INPAINT_TELEA))


def put_in(image: Image.Image, random: Random, share: float) -> Image.Image:
    """Put a part of the picture somewhere else: a second bird."""
    (x, y, radius), drawn = busy_spot(image, random, share), image.copy()
    part = ImageOps.mirror(image.crop((x - radius, y - radius, x + radius, y + radius)))
    mask = Image.new("L", part.size)
    ImageDraw.Draw(mask).ellipse((2, 2, 2 * radius - 2, 2 * radius - 2), fill=255)
    to = (
        (x + image.width // 3) % (image.width - 2 * radius),
        (y + image.height // 3) % (image.height - 2 * radius),
    )
    drawn.paste(part, to, mask.filter(ImageFilter.GaussianBlur(2)))
    return drawn


def blurred_face(image: Image.Image, random: Random) -> Image.Image:
    x, y, radius = busy_spot(image, random, 0.05)
    box, drawn = (x - radius, y - radius, x + radius, y + radius), image.copy()
    part = image.crop(box)
    small = part.resize((6, 6), Image.Resampling.BOX).resize(part.size, Image.Resampling.NEAREST)
    drawn.paste(random.choice([small, part.filter(ImageFilter.GaussianBlur(radius / 3))]), box)
    return drawn


def local_contrast(image: Image.Image) -> Image.Image:
    """Map tones as an HDR program does: more contrast in each part of the picture."""
    lab = cv2.cvtColor(np.array(image), cv2.COLOR_RGB2LAB)
    lab[..., 0] = cv2.createCLAHE(2.5, (8, 8)).apply(lab[..., 0])
    return Image.fromarray(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB))


def developed(image: Image.Image, random: Random) -> Image.Image:
    """Develop a raw file otherwise: another exposure, white balance and curve."""
    warmth = random.choice([-1, 1]) * random.uniform(0.03, 0.08)
    linear = (np.asarray(image, np.float32) / 255) ** 2.2 * 2 ** random.choice([-0.35, 0.3])
    return picture(255 * (linear * [1 + warmth, 1, 1 - warmth]).clip(0, 1) ** (1 / 2.2))


def page(image: Image.Image, figures: Random, changed: int | None = None) -> Image.Image:
    """Photograph an invoice that lies on a table: its light and grain are the photograph's. One line may say another sum."""
    paper = Image.new("RGB", (1000, 1400), "#f7f5ef")
    for row in range(22):
        price = figures.randint(1000, 99999)
        price += 1000 * (row == changed)  # one digit
        item = (
            f"{figures.choice(['Cable', 'Service', 'Timber', 'Paint', 'Bolts'])} {figures.randint(100, 999)}"
        )
        line = f"{item}     {figures.randint(1, 9)} x {price / 100:.2f}"
        paper = written(paper, line, 0.08, 0.05 + 0.04 * row, 0.026, "#222")
    small = cv2.GaussianBlur(np.asarray(image.convert("L").resize((50, 70)), np.float32), (0, 0), 7)
    light = cv2.resize(small, paper.size, interpolation=cv2.INTER_CUBIC)
    return grain(picture(np.asarray(paper) * (0.75 + light[..., None] / 1000)), 1.5, Random(7))


def scanned(image: Image.Image, random: Random) -> Image.Image:
    """Scan a print: a little aslant, in the light and with the noise of this scan."""
    turned = image.rotate(random.uniform(-0.6, 0.6), Image.Resampling.BICUBIC).filter(
        ImageFilter.GaussianBlur(0.7)
    )
    return grain(
        ImageEnhance.Brightness(cropped(turned, Random(1), 0.96, 0.96)).enhance(random.uniform(0.97, 1.03)),
        4,
        random,
    )


def on_screen(image: Image.Image, bars: bool) -> Image.Image:
    """Show the picture on a phone; with its bars of symbols and text."""
    shown = resized(image, 1080 / image.width)
    if not bars:
        return shown
    screen = Image.new("RGB", (1080, shown.height + 420), "black")
    screen.paste(shown, (0, 180))
    return written(
        written(screen, "14:07      Gallery      83%", 0.05, 0.02, 0.04, "white"),
        "Share   Edit   Delete",
        0.15,
        0.93,
        0.04,
        "white",
    )


def framed(image: Image.Image, random: Random) -> Image.Image:
    """Put a wooden frame around the picture."""
    side = round(0.06 * max(image.size))
    wood = np.random.default_rng(random.getrandbits(32)).normal(0, 14, (image.height + 2 * side, 1, 1))
    size = image.height + 2 * side, image.width + 2 * side, 1
    frame = picture(np.broadcast_to(wood, size) + np.array([120, 78, 40]))
    frame.paste(image, (side, side))
    return frame


def collage(image: Image.Image) -> Image.Image:
    canvas = Image.new("RGB", (image.width * 3 // 2, image.height), "white")
    canvas.paste(image)
    canvas.paste(
        ImageOps.fit(ImageOps.flip(image), (image.width // 2 - 10, image.height)), (image.width + 10, 0)
    )
    return canvas


def cut_out(image: Image.Image) -> bytes:
    alpha = Image.new("L", image.size)
    ImageDraw.Draw(alpha).ellipse(
        (image.width // 8, image.height // 8, image.width * 7 // 8, image.height * 7 // 8), fill=255
    )
    shown = image.copy()
    shown.putalpha(alpha)
    return encode(shown, "PNG")


def sixteen_bits(image: Image.Image) -> bytes:
    """Return a 16-bit PNG: the light between two of the eight-bit steps is there, too."""
    fine = cv2.GaussianBlur(np.asarray(image, np.float32), (0, 0), 0.8)[..., ::-1]
    return cv2.imencode(".png", (fine * 257).clip(0, 65535).astype(np.uint16))[1].tobytes()


def movie(words: str = "") -> bytes:
    """Return the head of a QuickTime film, and what stands for its frames."""
    frames = Random(3).randbytes(40_000) + words.encode()
    return (
        struct.pack(">I4s4sI4s", 20, b"ftyp", b"qt  ", 0, b"qt  ")
        + struct.pack(">I4s", len(frames) + 8, b"mdat")
        + frames
    )


def xmp(words: str) -> bytes:
    return (
        '<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
        'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about="" '
        'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:subject><rdf:Bag><rdf:li>'
        f'{words}</rdf:li></rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="w"?>'
    ).encode()


def takeout(photo: Photograph) -> bytes:
    place = {"latitude": 0.0, "longitude": 0.0, "altitude": 0.0}
    facts = {
        "title": "IMG_2034.jpg",
        "description": WORDS,
        "imageViews": "3",
        "geoData": place,
        "photoTakenTime": {"timestamp": "1400000000"},
    }
    return json.dumps(facts, indent=2).encode()


def aslant(image: Image.Image, random: Random) -> Image.Image:
    """Photograph a flat picture that lies on a table: in perspective, in uneven light, with this photograph's noise."""
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float32)
    inwards = np.array([[random.uniform(0.02, 0.07) for _ in range(2)] for _ in range(4)])
    lying = corners + inwards * (1 - 2 * corners)
    size = np.array(image.size, np.float32)
    warp = cv2.getPerspectiveTransform(corners * size, lying.astype(np.float32) * size)
    turned = cv2.warpPerspective(np.array(image), warp, image.size, borderValue=(92, 74, 60))
    return grain(picture(turned * np.linspace(0.82, 1.04, image.width)[:, None]), 3, random)


def from_screen(image: Image.Image, random: Random) -> Image.Image:
    """Photograph a screen: bluish, and with the pattern of its pixels."""
    rows, columns = (0.08 * np.sin(np.arange(side) * random.uniform(1.7, 2.3)) for side in image.size[::-1])
    grid = 1 - 0.16 + rows[:, None, None] + columns[:, None]
    return aslant(picture(np.asarray(image) * grid * [0.95, 1, 1.08]), random)


def exposure(image: Image.Image, random: Random) -> Image.Image:
    """Take the scene from the hand: the frame lies a little otherwise, and the noise is this exposure's."""
    turned = image.rotate(random.uniform(-0.4, 0.4), Image.Resampling.BICUBIC)
    return grain(cropped(turned, random, 0.97, 0.97), 3, random)


def moved(image: Image.Image, random: Random) -> Image.Image:
    """Let what shows in a spot move elsewhere."""
    seed = random.getrandbits(32)
    return taken_out(put_in(image, Random(seed), 0.04), Random(seed), 0.04)


def subject(image: Image.Image) -> Image.Image:
    """Return the mask of a subject in the middle."""
    mask, (width, height) = Image.new("L", image.size), image.size
    ImageDraw.Draw(mask).ellipse((width // 4, height // 6, width * 3 // 4, height * 7 // 6), fill=255)
    return mask.filter(ImageFilter.GaussianBlur(4))


def portrait_mode(image: Image.Image) -> Image.Image:
    """Blur what lies behind the subject."""
    blurred = image.filter(ImageFilter.GaussianBlur(max(image.size) / 120))
    edited = Image.composite(image, blurred, subject(image))
    if np.abs(np.asarray(edited, int) - np.asarray(image)).mean() < 1.5:
        raise NoChange  # the background is blurred already
    return edited


def passport(image: Image.Image, random: Random) -> Image.Image:
    """Cut a passport's photo out, and put the subject before a studio's backdrop."""
    portrait = ImageOps.fit(image, (min(image.size) * 7 // 9, min(image.size)))
    light = np.linspace(228, 176, portrait.height)[:, None, None] * [0.97, 0.99, 1]
    backdrop = picture(np.broadcast_to(light, (portrait.height, portrait.width, 3)))
    return Image.composite(portrait, backdrop, subject(portrait))


def contact_sheet(image: Image.Image) -> Image.Image:
    """Print nine pictures on a sheet, this one in the middle."""
    sheet = Image.new("RGB", (1260, 960), "white")
    for place in range(9):
        shown = image if place == 4 else cropped(image, Random(place), 0.5, 0.5)
        sheet.paste(ImageOps.contain(shown, (400, 300)), (place % 3 * 420 + 10, place // 3 * 320 + 10))
    return sheet


def with_banner(image: Image.Image) -> Image.Image:
    """Add the banner of a mail's signature below."""
    canvas = Image.new("RGB", (image.width, image.height * 9 // 8), "#0a3d62")
    canvas.paste(image)
    return written(canvas, "Harbour Travel  +852 2522 0101", 0.05, 0.92, 0.035, "white")


# ---- the kinds


@dataclass(frozen=True)
class Kind:
    """What an owner may have: `make` writes the files, photographs first, and `remain` says which of those the rule keeps.

    Attributes:
        counts: whether what need not remain is harmless and should be suggested; else it may be suggested and need not.
        is_situation: how files come to lie together, not an edit.
        words: what has to be said by some file of the folder afterwards.
        takes: which photographs: `photograph`, `large`, or the real pairs of one or more uses.
    """

    name: str
    make: Callable[[Photograph, Random], Files]
    remain: tuple[tuple[int, ...], ...] = GO
    n: int = 20
    counts: bool = True
    is_situation: bool = False
    words: str = ""
    takes: str = "photograph"

    @property
    def rule(self) -> str:
        if len(self.remain) == 1:
            return "may go" if self.counts else "may go or stay"
        return "must stay"


class NoChange(Exception):
    """An edit leaves this photograph as it is."""


def _differs(first: Image.Image, second: Image.Image) -> bool:
    """Return whether an edit changes something that is seen; that of none at all is a copy and no edit."""
    greys = np.abs(np.asarray(first, int) - np.asarray(second)).max(axis=2)
    return greys.max() == 0 or (greys > 12).sum() >= 20


def _copy(
    edit: Callable[[Image.Image, Random], Image.Image | bytes],
    quality: tuple[int, int] = (80, 92),
    name: str = "b.jpg",
    plain: bool = False,
) -> Callable:
    """Make the camera's file and an edited copy that lost its EXIF."""

    def make(photo: Photograph, random: Random) -> Files:
        made = edit(shown := photo.shown, random)
        if (
            not isinstance(made, bytes)
            and made.size == shown.size
            and name == "b.jpg"
            and not _differs(made, shown)
        ):
            raise NoChange  # black and white of a grey photograph
        data = made if isinstance(made, bytes) else jpeg(made, random.randint(*quality))
        return {"IMG_2034.jpg": photo.file if plain else photo.taken(), name: data}

    return make


def _saved(image_format: str, qualities: tuple[int, int]) -> Callable:
    return lambda image, random: encode(image, image_format, quality=random.randint(*qualities))


def _large(edit: Callable[[Image.Image, Random], bytes], name: str = "b.jpg") -> Callable:
    def make(photo: Photograph, random: Random) -> Files:
        is_jpeg = photo.path.suffix == ".jpg"
        data = photo.path.read_bytes() if is_jpeg else photo.taken(photo.whole, 94)
        return {"P1000345.jpg": data, name: edit(decode(data), random)}

    return make


def _each(*takes: Callable[[Image.Image, Random], Image.Image]) -> Callable:
    """Make a JPEG of each, without metadata."""
    return lambda photo, random: {
        f"{place}.jpg": jpeg(take(photo.image, random), 92) for place, take in enumerate(takes)
    }


def _edited_and_small(photo: Photograph, random: Random) -> Files:
    edited = picture(np.asarray(ImageEnhance.Contrast(photo.shown).enhance(1.3)) * [1.05, 1, 0.93])
    return {
        "IMG_2034.jpg": photo.taken(),
        "IMG_2034-edited.jpg": jpeg(edited, 93),
        "small.jpg": jpeg(to_side(edited, 480), 80),
    }


def _two_exposures_sent(photo: Photograph, random: Random) -> Files:
    takes = [photo.taken(exposure(photo.image, random), 93) for _ in range(2)]
    copies = [_messenger(decode(take), random) for take in takes]
    return dict(
        zip(("IMG_2034.jpg", "IMG_2035.jpg", "sent-1.jpg", "sent-2.jpg"), takes + copies, strict=True)
    )


def _stamped(photo: Photograph, random: Random) -> Files:
    sheet, stamp = page(photo.image, random), Image.new("RGBA", (420, 130))
    draw, ink = ImageDraw.Draw(stamp), (170, 30, 40, 200)
    draw.rectangle((4, 4, 415, 125), outline=ink, width=8)
    draw.text((30, 30), "PAID 14 NOV", fill=ink, font_size=56)
    stamp, stamped = stamp.rotate(12, Image.Resampling.BICUBIC, expand=True), sheet.copy()
    stamped.paste(stamp, (480, 900), stamp)
    return {"a.jpg": jpeg(sheet, 90), "b.jpg": jpeg(stamped, 90)}


def _gallery(photo: Photograph, random: Random) -> Files:
    square = ImageOps.fit(photo.shown, (min(photo.shown.size),) * 2)
    return {
        "IMG_2034.jpg": photo.taken(),
        "gallery/page.jpg": jpeg(resized(photo.shown, 0.6), 82),
        "gallery/small.jpg": jpeg(to_side(photo.shown, 480), 78),
        "gallery/square.jpg": jpeg(to_side(square, 240), 75),
    }


def _tagged(quality: int = 0, **tags: Any) -> Callable:
    """Make the camera's file, and the same picture whose EXIF has other values."""
    return lambda photo, random: {
        "IMG_2034.jpg": photo.taken(),
        "b.jpg": photo.taken(photo.shown if quality else None, quality, **tags),
    }


def _real(photo: Photograph, random: Random) -> Files:
    """Take two files of a package as they are."""
    partner = photo.path.with_name(photo.of)
    return {f"a{partner.suffix}": partner.read_bytes(), f"b{photo.path.suffix}": photo.path.read_bytes()}


def _beside(
    files: Callable[[Photograph, Random], Files], **others: Callable[[Photograph], bytes]
) -> Callable:
    """Add files that are no photographs; `__` stands for a point, `_in_` for a folder."""
    return lambda photo, random: (
        files(photo, random)
        | {name.replace("_in_", "/").replace("__", "."): make(photo) for name, make in others.items()}
    )


def _messenger(image: Image.Image, random: Random) -> bytes:
    return jpeg(resized(image, random.uniform(0.5, 0.75)), random.randint(62, 78))


def _chain(photo: Photograph, random: Random) -> Files:
    mail = to_side(photo.shown, 800)
    return {
        "IMG_2034.jpg": photo.taken(),
        "IMG-20240512-WA0007.jpg": _messenger(photo.shown, random),
        "mail.jpg": jpeg(mail, 75),
        "mail-t.jpg": jpeg(to_side(mail, 240), 70),
    }


def _backup(photo: Photograph, random: Random) -> Files:
    data = photo.taken()
    return {"IMG_2034.jpg": data, "IMG_2034 (1).jpg": data, "Backup/2019/IMG_2034.jpg": data}


def _two_crops(photo: Photograph, random: Random) -> Files:
    width, height = photo.shown.size
    return {
        "a.jpg": jpeg(photo.shown.crop((0, 0, width * 2 // 3, height)), 90),
        "b.jpg": jpeg(photo.shown.crop((width // 3, 0, width, height)), 90),
    }


def _pages(change: bool) -> Callable:
    def make(photo: Photograph, random: Random) -> Files:
        seed, row = random.getrandbits(32), random.randint(2, 20)
        first, second = (
            page(photo.image, Random(seed), changed) for changed in (None, row if change else None)
        )
        return {
            "a.jpg": jpeg(first, 90),
            "b.jpg": jpeg(second, 90) if change else jpeg(resized(second, 0.7), 80),
        }

    return make


def _sideways(photo: Photograph, random: Random) -> Files:
    return {
        "IMG_2034.jpg": photo.taken(photo.image.rotate(90, expand=True), 93, orientation=6),
        "b.jpg": jpeg(photo.image, 86),
    }


def _motion(photo: Photograph, random: Random) -> Files:
    return {"PXL_2034.MP.jpg": photo.taken() + movie(), "b.jpg": jpeg(photo.shown, 88)}


def _enlarged(photo: Photograph, random: Random) -> Files:
    large = resized(photo.shown, 2, Image.Resampling.BICUBIC).filter(ImageFilter.UnsharpMask(2, 80, 0))
    return {"a.jpg": photo.file, "b.jpg": photo.taken(large, 94)}


def _two_exports(photo: Photograph, random: Random) -> Files:
    return {
        "DSC_77.jpg": photo.taken(photo.image, 92),
        "DSC_77-2.jpg": photo.taken(developed(photo.image, random), 92),
    }


def _heic(photo: Photograph, random: Random) -> Files:
    heic = encode(photo.image, "HEIF", quality=80, exif=photo.exif().tobytes())
    shown = decode(heic) if random.random() < 0.5 else resized(decode(heic), 0.6)
    return {"IMG_2034.heic": heic, "b.jpg": jpeg(shown, random.randint(78, 92))}


def _pair(
    first: Callable[[Image.Image], bytes], second: Callable[[Image.Image], bytes], names: tuple[str, str]
) -> Callable:
    return lambda photo, random: {names[0]: first(photo.image), names[1]: second(photo.image)}


def _png(image: Image.Image) -> bytes:
    return encode(image, "PNG", compress_level=3)


def _facebook(image: Image.Image, random: Random) -> bytes:
    mark = b"\x1c\x02\x28\x00\x1bFBMD0a000a7001000067150000c4"
    block = b"8BIM\x04\x04\x00\x00" + struct.pack(">I", len(mark)) + mark + b"\0" * (len(mark) % 2)
    return with_part(jpeg(resized(image, 0.65), 72, progressive=True), 0xED, b"Photoshop 3.0\0" + block)


def _soft(image: Image.Image, random: Random) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.8, 1.6)))


def _gd(image: Image.Image, random: Random) -> bytes:
    comment = b"CREATOR: gd-jpeg v1.0 (using IJG JPEG v80), quality = 82\n"
    return with_part(jpeg(resized(image, 0.8, Image.Resampling.BILINEAR), 82), 0xFE, comment)


_SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
_resized = _copy(lambda image, random: resized(image, random.uniform(0.4, 0.85), random.choice([1, 2, 3, 4])))
_live = _beside(_copy(_messenger), IMG_2034__MOV=lambda photo: movie(WORDS))
_equal = lambda photo, random: {"IMG_2034.jpg": photo.taken(), "upload-1.jpg": photo.taken()}  # noqa: E731

KINDS: tuple[Kind, ...] = (
    # edits that show nothing that the photograph does not
    Kind("resized", _resized),
    Kind("messenger's copy", _copy(_messenger, name="IMG-20240512-WA0007.jpg")),
    Kind("thumbnail", _copy(lambda image, random: to_side(image, random.randint(200, 400)))),
    Kind("saved again, with EXIF", lambda photo, random: {"IMG_2034.jpg": photo.taken(),
        "b.jpg": photo.taken(photo.shown, random.randint(55, 88))}),
    Kind("saved strongly", _copy(lambda image, random: image, (25, 40))),
    Kind("saved with the same tables", _copy(lambda image, random: jpeg(Image.open(io.BytesIO(jpeg(image, 90))), "keep",
        progressive=True))),
    Kind("4:2:0 of 4:4:4", lambda photo, random: {"IMG_2034.jpg": jpeg(photo.image, 95, subsampling=0),
        "b.jpg": jpeg(photo.image, 88)}),
    Kind("WebP", _copy(_saved("WEBP", (70, 90)), name="b.webp")),
    Kind("HEIC", _copy(_saved("HEIF", (50, 70)), name="b.heic")),
    Kind("AVIF", _copy(_saved("AVIF", (50, 70)), name="b.avif")),
    # a name is also a seed: it stays as it was drawn
    Kind("cropped to 80 to 95 %", _copy(lambda image, random: cropped(image, random, random.uniform(0.89, 0.98),
        random.uniform(0.89, 0.98)))),
    Kind("cropped to 40 to 70 %", _copy(lambda image, random: cropped(image, random, random.uniform(0.65, 0.85),
        random.uniform(0.65, 0.85)))),
    Kind("cropped to a format", _copy(to_shape)),
    Kind("cropped and resized", _copy(lambda image, random: resized(cropped(image, random, 0.9, 0.85), 0.6))),
    Kind("messenger twice", _copy(lambda image, random: resized(decode(_messenger(image, random)), 0.8), (60, 75))),
    Kind("soft", _copy(_soft), counts=False),  # or the other is sharpened
    Kind("enlarged", _copy(lambda image, random: resized(image, random.uniform(1.3, 2), Image.Resampling.BICUBIC),
        plain=True)),
    Kind("white to a square", _copy(lambda image, random: ImageOps.pad(image, (max(image.size),) * 2, color="white"))),
    Kind("black to 16:9", _copy(lambda image, random: ImageOps.pad(image, (1280, 720), color="black"))),
    Kind("JPEG of a PNG", _pair(_png, lambda image: jpeg(image, 88), ("a.png", "b.jpg"))),
    Kind("PNG of a JPEG", _copy(lambda image, random: _png(image), name="b.png", plain=True), EITHER),
    Kind("TIFF of a JPEG", _copy(lambda image, random: encode(image, "TIFF", compression="tiff_lzw"), name="b.tif",
        plain=True), EITHER),
    Kind("Facebook's copy", _copy(_facebook)),
    Kind("resized by gd", _copy(_gd)),
    Kind("saved again with an sRGB profile", _copy(lambda image, random: jpeg(image, 84, icc_profile=_SRGB))),
    Kind("large: half", _large(lambda image, random: jpeg(resized(image, 0.5), 85)), n=8, takes="large"),
    Kind("large: messenger", _large(lambda image, random: jpeg(to_side(image, 1600), 72)), n=8, takes="large"),
    Kind("large: thumbnail", _large(lambda image, random: jpeg(to_side(image, 320), 80)), n=8, takes="large"),
    Kind("large: saved again", _large(lambda image, random: jpeg(image, 80)), n=8, takes="large"),
    Kind("large: cropped to 85 %", _large(lambda image, random: jpeg(cropped(image, random, 0.93, 0.92), 88)), n=8,
        takes="large"),
    Kind("straightened", _copy(lambda image, random: cropped(image.rotate(random.choice([-1.5, 1.2]),
        Image.Resampling.BICUBIC), Random(1), 0.93, 0.93)), n=10, counts=False),
    # edits and files that differ
    *(Kind(name, _copy(edit), STAY, 12) for name, edit in (
        ("sharpened", lambda image, random: image.filter(ImageFilter.UnsharpMask(random.uniform(1, 2), 120, 0))),
        ("brighter or darker", lambda image, random: ImageEnhance.Brightness(image).enhance(random.choice([0.85, 1.15,
            1.3]))),
        ("warmer", lambda image, random: picture(np.asarray(image) * np.array([1.06, 1, 0.93]))),
        ("black and white", lambda image, random: ImageOps.autocontrast(image.convert("L")).convert("RGB")),
        ("tones mapped", lambda image, random: local_contrast(image)),
        ("film grain", lambda image, random: grain(image, 6, random)),
        ("object taken out", lambda image, random: taken_out(image, random, 0.03)),
        ("spot healed", lambda image, random: taken_out(image, random, 0.008)),
        ("second bird", lambda image, random: put_in(image, random, 0.03)),
        ("face blurred", blurred_face),
        ("date imprint", lambda image, random: written(image, "17. 6. '08", 0.74, 0.92, 0.03, (255, 150, 40))),
        ("caption", lambda image, random: written(image, "Our house, 1987", 0.06, 0.06, 0.05, "white")),
        ("sticker", lambda image, random: written(image, "\u2665", random.uniform(0.1, 0.8), random.uniform(0.1, 0.7),
            0.09, "red")),
        ("watermark", lambda image, random: written(image, "\u00a9 atelier", 0.35, 0.5, 0.07, (255, 255, 255, 80))),
        ("wooden frame", framed),
        ("collage", lambda image, random: collage(image)),
        ("mirrored", lambda image, random: ImageOps.mirror(image)),
        ("quarter turn", lambda image, random: image.transpose(Image.Transpose.ROTATE_90)),
        ("stretched", lambda image, random: image.resize((image.width * 11 // 10, image.height))),
        ("square with a filter", lambda image, random: ImageEnhance.Color(ImageOps.fit(image,
            (min(image.size),) * 2)).enhance(1.4)),
    )),
    Kind("cut out, transparent", _pair(cut_out, lambda image: jpeg(image, 92), ("a.png", "b.jpg")), STAY, 12),
    Kind("16 bits and its JPEG", _pair(sixteen_bits, lambda image: jpeg(image, 90), ("a.png", "b.jpg")), n=12, counts=False),
    # situations in which copies may go
    Kind("upload beside the camera's file", _equal, EITHER, 14, is_situation=True),
    Kind("backup and conflict copy", _backup, ((0, 1, 2),), 14, is_situation=True),
    Kind("camera, messenger, mail, its preview", _chain, n=14, is_situation=True),
    Kind("two in a Takeout, one with its JSON", _beside(_equal,
        **{"upload-1__jpg__supplemental-metadata__json": takeout}), EITHER, 10, counts=False, is_situation=True,
            words=WORDS),
    Kind("sidecar beside the camera's file", _beside(_resized, IMG_2034__xmp=lambda photo: xmp(WORDS)), n=16,
        is_situation=True, words=WORDS),
    Kind("the same sidecar beside both", _beside(_resized, IMG_2034__xmp=lambda photo: xmp(WORDS),
        b__xmp=lambda photo: xmp(WORDS)), n=14, is_situation=True, words=WORDS),
    Kind("Live Photo and messenger's copy", _live, n=16, is_situation=True, words=WORDS),
    Kind("sideways with its tag, and upright", _sideways, n=16, is_situation=True),
    Kind("motion photo and its still", _motion, n=14, is_situation=True),
    Kind("EXIF taken out, nothing else", lambda photo, random: {"IMG_2034.jpg": photo.taken(), "b.jpg": photo.file},
        n=14, is_situation=True),
    Kind("JPEG exported from HEIC", _heic, n=20, is_situation=True),
    Kind("screenshot of the whole screen", _copy(lambda image, random: _png(on_screen(image, bars=False)),
        name="Screenshot.png"), n=16, is_situation=True),
    Kind("program's folder of previews", _copy(lambda image, random: to_side(image, 512), (70, 80),
        "Previews/2034_512.jpg"), n=16, is_situation=True),
    Kind("wide view and its part", _copy(lambda image, random: cropped(image, random, 0.5, 1), (88, 94)), n=16,
        is_situation=True),
    Kind("invoice, and sent smaller", _pages(change=False), n=14, is_situation=True),
    Kind("web page's smaller file (real)", _real, n=60, is_situation=True, takes="web"),
    Kind("cut from a portrait (real)", _real, n=2, is_situation=True, takes="crop"),
    Kind("half-downloaded", _copy(lambda image, random: jpeg(image, 92)[: random.randint(30_000, 60_000)]), n=8,
        counts=False, is_situation=True),
    # situations in which photographs stay
    Kind("exposures, a second apart (real)", _real, STAY, 9, is_situation=True, takes="exposure"),
    Kind("series by a fixed camera (real)", _real, STAY, 20, is_situation=True, takes="series"),
    Kind("two cameras side by side (real)", _real, STAY, 20, is_situation=True, takes="stereo"),
    Kind("from another place (real)", _real, STAY, 9, is_situation=True, takes="view"),
    Kind("something laid on it (real)", _real, STAY, 9, is_situation=True, takes="object"),
    Kind("two exports of one raw", _two_exports, STAY, 14, is_situation=True),
    Kind("another date", _tagged(90, date="2016:02:03 10:11:12"), STAY, 12, is_situation=True),
    Kind("another place", _tagged(north=48.0), STAY, 12, is_situation=True),
    Kind("another exposure time", _tagged(88, seconds=1 / 60, iso=800), STAY, 12, is_situation=True),
    Kind("another title", lambda photo, random: {"a.jpg": photo.taken(title="Regatta"), "b.jpg": photo.taken(photo.shown,
        88, title="Kiel")}, STAY, 12, is_situation=True),
    Kind("another orientation tag", _tagged(orientation=6), STAY, 12, is_situation=True),
    Kind("keywords beside the copy only", _beside(_resized, b__xmp=lambda photo: xmp(WORDS)), n=12, counts=False,
        is_situation=True, words=WORDS),
    Kind("film beside the copy only", _beside(_resized, b__MOV=lambda photo: movie(WORDS)), n=12, counts=False,
        is_situation=True, words=WORDS),
    Kind("film behind a smaller copy", _copy(lambda image, random: jpeg(resized(image, 0.7), 85) + movie(WORDS)), STAY,
        12, is_situation=True),
    Kind("edit list beside the copy only", _beside(_resized,
        b__AAE=lambda photo: b"<plist><!-- " + WORDS.encode() + b" --></plist>"), n=12, counts=False, is_situation=True,
            words=WORDS),
    Kind("unknown part in a smaller copy", _copy(lambda image, random: with_part(jpeg(resized(image, 0.7), 85), 0xEB,
        b"JP\0\1depth" + Random(5).randbytes(3000))), STAY, 12, is_situation=True),
    Kind("comment in the copy only", lambda photo, random: {"IMG_2034.jpg": photo.taken(),
        "b.jpg": photo.taken(resized(photo.shown, 0.7), 85, comment=WORDS)}, n=12, counts=False, is_situation=True,
            words=WORDS),
    Kind("keywords in the copy only", _copy(lambda image, random: with_part(jpeg(resized(image, 0.7), 85), 0xE1,
        b"http://ns.adobe.com/xap/1.0/\0" + xmp(WORDS))), n=12, counts=False, is_situation=True, words=WORDS),
    Kind("sharpened enlargement with EXIF", _enlarged, STAY, 12, is_situation=True),
    Kind("two parts of a lost picture", _two_crops, STAY, 12, is_situation=True),
    Kind("invoice, one digit changed", _pages(change=True), STAY, 16, is_situation=True),
    Kind("scanned twice (simulated)", lambda photo, random: {"a.jpg": jpeg(scanned(photo.image, random), 92),
        "b.jpg": jpeg(scanned(photo.image, random), 92)}, STAY, 12, is_situation=True),
    Kind("screenshot with its bars", _copy(lambda image, random: _png(on_screen(image, bars=True)),
        name="Screenshot.png"), STAY, 12, is_situation=True),
    Kind("web page's file, sharper (real)", _real, n=4, counts=False, is_situation=True, takes="sharper web"),
)  # fmt: skip

# The second draw adds these: situations of owners that the first lacks. They join KINDS when it has been measured.
ADDED_KINDS: tuple[Kind, ...] = (
    Kind("storage saver's copy, with EXIF", lambda photo, random: {"IMG_2034.jpg": photo.taken(),
        "b.jpg": photo.taken(resized(photo.shown, 0.75), random.randint(78, 86))}, n=16, is_situation=True),
    Kind("web gallery: page, small, square", _gallery, n=14, is_situation=True),
    Kind("edited, and the edited one smaller", _edited_and_small, STAY, 12, is_situation=True),
    Kind("two exposures, both sent (simulated)", _two_exposures_sent, STAY, 12, is_situation=True),
    Kind("page, stamped", _stamped, STAY, 12, is_situation=True),
    Kind("cropped for a slider (real)", _real, takes="cropped", is_situation=True),
    Kind("edited by an image server (real)", _real, STAY, takes="edited"),
    *(Kind(name, _each(*takes), STAY, 12, is_situation=True) for name, *takes in (
        ("print: its scan, its photo", scanned, aslant),
        ("exposures from the hand", exposure, exposure),
        ("burst, the subject moves", exposure, lambda image, random: exposure(moved(image, random), random)),
        ("night mode and a plain exposure", lambda image, random: grain(ImageEnhance.Brightness(image).enhance(0.75), 8,
            random), lambda image, random: grain(local_contrast(image), 1.5, random)),
        ("panorama and one of its exposures", lambda image, random: grain(image, 2, random), lambda image, random: grain(
            ImageEnhance.Brightness(cropped(image, random, 0.45, 0.97)).enhance(1.08), 3, random)),
        ("photo and a still of its film", exposure, lambda image, random: ImageOps.fit(exposure(moved(image, random),
            random), (1280, 720)).filter(ImageFilter.GaussianBlur(0.7))),
    )),
    *(Kind(name, _copy(edit), STAY, 12) for name, edit in (
        ("screen, photographed", from_screen),
        ("portrait mode", lambda image, random: portrait_mode(image)),
        ("passport's crop, another background", passport),
        ("contact sheet", lambda image, random: contact_sheet(image)),
        ("mail's banner", lambda image, random: with_banner(image)),
    )),
)  # fmt: skip
