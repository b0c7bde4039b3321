"""A library and an old drive, of which it is known what the library has: made of the demonstration's photographs.

A scene is a part of a photograph with pieces of others in it, so thousands differ and many share a background.
"""

import functools
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance

from photodup.photos.demo.photographs import SOURCES

SIZE, TILE = (480, 360), 160

# What an old drive has of a photo that the library has as good or better: by kind, how it was made of it.
COPIES = {
    "half": lambda image: (image.resize((240, 180), Image.Resampling.LANCZOS), 80),
    "two thirds": lambda image: (image.resize((320, 240), Image.Resampling.LANCZOS), 75),
    "compressed": lambda image: (image, 30),
    "cropped": lambda image: (image.crop((16, 12, 464, 348)), 85),
}


@dataclass
class Planted:
    """Names in the old folder by what is true of them."""

    same: set[str] = field(default_factory=set)
    as_good: set[str] = field(default_factory=set)
    not_there: set[str] = field(default_factory=set)


@functools.cache
def _tiles() -> list[Image.Image]:
    """Cut every photograph into parts that have no pixel in common."""
    photographs = [source.open().convert("RGB") for source in SOURCES if not source.name.endswith("right")]
    return [
        image.crop((x, y, x + TILE, y + TILE * 3 // 4))
        for image in photographs
        for x in range(0, image.width - TILE + 1, TILE)
        for y in range(0, image.height - TILE * 3 // 4 + 1, TILE * 3 // 4)
    ]


def scene(number: int) -> Image.Image:
    """Return a picture; each number gives another one."""
    rng, tiles = np.random.default_rng(number), _tiles()
    image = tiles[number % len(tiles)].resize(SIZE, Image.Resampling.BICUBIC)
    for _ in range(9):
        piece = tiles[rng.integers(len(tiles))]
        side = int(rng.integers(70, 150))
        at = (int(rng.integers(-20, SIZE[0] - 60)), int(rng.integers(-20, SIZE[1] - 60)))
        image.paste(piece.resize((side, side * 3 // 4)).rotate(int(rng.integers(360)), expand=False), at)
    grain = rng.normal(0, 4, (SIZE[1], SIZE[0], 1))  # a sensor's, without which an enlargement is as good
    return Image.fromarray((np.asarray(image, float) + grain).clip(0, 255).astype(np.uint8))


def document(number: int) -> Image.Image:
    """Return a page of writing in which nothing but a number tells one from another."""
    page = Image.new("RGB", SIZE, "white")
    draw, ink = ImageDraw.Draw(page), {"fill": "black", "font_size": 16}
    for line in range(12):
        draw.text((30, 20 + 26 * line), f"{line}. the undersigned owes to the bearer", **ink)
    draw.text((330, 20 + 26 * 7), f"EUR {number}", **ink)
    return page


def save(image: Image.Image, path: Path, quality=92, *, shot: int | None = None, bias: float = 0) -> None:
    """Write a JPEG; with `shot`, seconds after a certain moment, as a camera does."""
    exif = Image.Exif()
    if shot is not None:
        exif[0x010F], exif[0x0110] = "photodup", "Test"
        taken = datetime(2021, 5, 1, 9) + timedelta(seconds=shot)
        exif.get_ifd(0x8769).update({0x9003: f"{taken:%Y:%m:%d %H:%M:%S}", 0x9204: bias})
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, "JPEG", quality=quality, exif=exif)


def plant(library: Path, old: Path, n: int, others: int = 0) -> Planted:
    """Write `n` rounds of scenes into both folders, eight or nine files each, and so many other photos into the library.

    Returns:
        What is true of the old folder.
    """
    planted = Planted()
    for number in range(5 * n, 5 * n + others):
        save(scene(number), library / f"others/{number % 40}/IMG_{number}.jpg", shot=120 * number)
    kinds = list(COPIES)
    for i in range(n):
        first, shot = 5 * i, 120 * i
        there = [library / f"{i % 40}/IMG_{first + k}.jpg" for k in range(4)]
        pictures = [scene(first + k) for k in range(4)]

        def put(kind: str, image: Image.Image, quality: int = 92, *, truth: set[str], i=i, **exif) -> None:
            name = f"{kind}/{i}.jpg"
            save(image, old / name, quality, **exif)
            truth.add(name)

        for k, path in enumerate(there[:3]):
            save(pictures[k], path, shot=shot + 20 * k)
        # The same bytes, under another name.
        (old / "same").mkdir(parents=True, exist_ok=True)
        (old / f"same/{i}.jpg").write_bytes(there[0].read_bytes())
        planted.same.add(f"same/{i}.jpg")
        for k in range(2):
            kind = kinds[(2 * i + k) % len(kinds)]
            with Image.open(there[1 + k]) as file:  # as people make copies: of a file
                put(kind, *COPIES[kind](file.convert("RGB")), truth=planted.as_good)
        put("stranger", scene(first + 4), truth=planted.not_there, shot=shot + 100)
        # What looks like a photo of the library and is none of it, one kind a round.
        look = ("document", "original", "dated", "burst", "exposure", "whole")[i % 6]
        picture, exif = pictures[3], {"shot": shot + 60}
        if look == "document":
            save(document(2 * i), there[3])
            picture, exif = document(2 * i + 1), {}
        elif look == "original":  # of which the library has half the size
            save(picture.resize((240, 180)), there[3], 80)
        elif look == "dated":  # the library's file has lost its date
            save(picture, there[3])
        elif look == "burst":  # a moment later, something has moved
            picture, exif = pictures[1].copy(), {"shot": shot + 21}
            picture.paste(pictures[2].crop((0, 0, 70, 60)), (200, 150))
        elif look == "exposure":
            picture = ImageEnhance.Brightness(pictures[1]).enhance(1.5)
            exif = {"shot": shot + 21, "bias": 1.0}
        else:  # of which the library has a part
            save(picture.crop((60, 45, 480, 360)), there[3])
        put(look, picture, truth=planted.not_there, **exif)
    return planted
