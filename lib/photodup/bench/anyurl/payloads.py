"""Payloads: files, texts, arrays, or photographs that are made up here."""

import mimetypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from photodup.bench.anyurl.target import Target
from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import to_jpeg

MOST_BYTES = 256_000_000  # all payloads are prepared before the first is sent
MADE_UP, SIDE = 64, 224  # payloads, and pixels on a side
JSON = "application/json"  # such a file is a request's whole body
_TEXT = (
    "a photo of two children on the beach in summer our old house street at night bridge over river mountain "
    "lake with snow cat asleep window birthday cake table garden red bicycle dog running field train station"
)


@dataclass(frozen=True)
class Payloads:
    """Items that requests are made of, and how they are described.

    Attributes:
        kind: `images`, `texts`, `files` or `arrays`.
        items: encoded images or files (bytes), texts (str), or seeds of arrays (int).
        description: one clause for a person.
    """

    kind: str
    items: tuple
    description: str
    media_type: str = "application/octet-stream"

    @property
    def unit(self) -> str:
        """The unit of throughput: a plain request carries one file."""
        return {"images": "images/s", "texts": "texts/s", "files": "requests/s"}.get(self.kind, "items/s")


def picture(seed: int, width: int = 400, height: int = 300) -> Image.Image:
    """Return soft colours at five scales, like a photograph."""
    random = np.random.default_rng(seed)
    total = np.full((height, width, 3), 128 + random.normal(0, 25, 3), np.float32)
    for cells, contrast in ((3, 60), (6, 40), (12, 25), (32, 15), (96, 10)):
        for channel in range(3):
            coarse = Image.fromarray(random.normal(0, contrast, (cells, cells)).astype(np.float32))
            total[..., channel] += np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
    return Image.fromarray(np.clip(total, 0, 255).astype(np.uint8))


def made_up_images(count: int = MADE_UP) -> Payloads:
    """Return pictures as JPEG; like photographs they are about 15 KB at this size."""
    items = tuple(to_jpeg(picture(seed, SIDE, SIDE), 90) for seed in range(count))
    mean_kb = sum(map(len, items)) / count / 1000
    description = f"{count} made-up pictures of {SIDE} × {SIDE} pixels, {mean_kb:.0f} KB each"
    return Payloads("images", items, description, "image/jpeg")


def made_up_texts() -> Payloads:
    """Return short sentences of ten random words."""
    generator = Random(0)
    items = tuple(" ".join(generator.choices(_TEXT.split(), k=10)) for _ in range(MADE_UP))
    return Payloads("texts", items, f"{MADE_UP} made-up sentences of ten words")


def made_up_arrays() -> Payloads:
    return Payloads("arrays", tuple(range(MADE_UP)), f"{MADE_UP} arrays of random numbers")


def files(paths: Sequence[Path]) -> Payloads:
    """Return the content of files, those of a folder included.

    Raises:
        PhotodupError: a file that is missing or cannot be read, or none at all.
    """
    listed: list[Path] = []
    for path in paths:
        if path.is_dir():
            listed += sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        elif path.is_file():
            listed.append(path)
        else:
            raise PhotodupError(f"There is no file {path}: correct the path given with --file.")
    if not listed:
        raise PhotodupError(f"{', '.join(map(str, paths))} holds no file to send.")
    items, total = [], 0
    for path in listed:
        try:
            items.append(path.read_bytes())
        except OSError as error:
            raise PhotodupError(f"{path} cannot be read: {error.strerror}.") from None
        total += len(items[-1])
        if total > MOST_BYTES:
            break
    left = f", the first of {len(listed)}" if len(items) < len(listed) else ""
    kind = mimetypes.guess_type(listed[0].name)[0] or "application/octet-stream"
    description = f"{len(items)} given file{'s' * (len(items) > 1)}{left}, {total / len(items) / 1000:,.0f} KB on average"
    is_image = all((mimetypes.guess_type(p.name)[0] or "").startswith("image/") for p in listed[: len(items)])
    return Payloads("images" if is_image else "files", tuple(items), description, kind)


def payloads_for(
    target: Target, *, kind: str | None, paths: Sequence[Path], texts: Sequence[str]
) -> Payloads:
    """Return what a target is sent: what was given, or what is usual for it.

    Raises:
        PhotodupError: something that this protocol cannot carry.
    """
    protocol = target.protocol
    if paths and texts:
        raise PhotodupError("Give files or texts, not both.")
    if protocol == "post" and not (paths or texts):
        if target.method in ("GET", "HEAD", "DELETE"):
            return Payloads("files", (b"",), "no body")
        raise PhotodupError(f"A plain {target.method} needs a body: name one with --file.")
    if protocol in ("multipart", "base64") and (texts or kind == "texts"):
        raise PhotodupError(f"The protocol {protocol} takes images, not texts.")
    if paths:
        read = files(paths)
        if protocol == "openai" and read.kind == "files" and kind != "images" and read.media_type != JSON:
            return _lines(read)
        return replace(read, kind=kind or read.kind)
    if texts:
        count = len(texts)
        return Payloads("texts", tuple(texts), f"{count} given text{'s' * (count > 1)}")
    usual_kinds = {"multipart": "images", "base64": "images", "openai": target.takes or "texts"}
    makers = {"images": made_up_images, "texts": made_up_texts, "arrays": made_up_arrays}
    kind = kind or usual_kinds.get(protocol, "arrays")
    if kind not in makers or (kind == "arrays" and not protocol.startswith("kserve")):
        raise PhotodupError(f"{kind!r} cannot be sent by {protocol}: images, texts, or arrays for KServe.")
    return makers[kind]()


def _lines(payloads: Payloads) -> Payloads:
    """Return each line of the files as a text."""
    try:
        lines = [line for data in payloads.items for line in data.decode().splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise PhotodupError(
            "A file given is neither text nor named as an image: add --payload images if it is one."
        ) from None
    return Payloads("texts", tuple(lines), f"{len(lines)} lines of the files given")
