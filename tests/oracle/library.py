"""What a drawn library contains: pictures with known pixels, and files with what each of them holds."""

import functools
import io
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pillow_heif
import pillow_jxl  # noqa: F401  registers JPEG XL with Pillow
from PIL import Image, ImageOps

pillow_heif.register_heif_opener()

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels


@dataclass(frozen=True)
class View:
    """What a file shows of a scene: `box` of the scene's pixels in frame number `frame`, after `turn` quarter turns.

    `margin` pixels on each side of the file show something else.
    """

    scene: str
    box: Box
    frame: int = 0
    turn: int = 0
    margin: int = 0


@dataclass(frozen=True, eq=False)
class Picture:
    """Pixels that an owner would miss, uint8 or uint16 [height, width, 3 or 4]. Pictures of one scene lie on each other."""

    name: str
    pixels: np.ndarray
    scene: str = ""

    def view(self, box: Box | None = None, **options: Any) -> View:
        """Return a view of this scene; by default of the whole."""
        height, width = self.pixels.shape[:2]
        return View(self.scene, box or (0, 0, width, height), **options)


@dataclass(frozen=True, eq=False)
class File:
    """A file with what it holds. A file beside a photograph names that photograph as its `owner`."""

    path: PurePosixPath
    data: bytes
    views: tuple[View, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    inside: Mapping[str, bytes] = field(default_factory=dict)
    owner: PurePosixPath | None = None
    is_attachment: bool = False


class Family:
    """Files of one kind about one photograph, in a folder of their own.

    Attributes:
        name: the kind and a number; also the folder.
        files: the first holds what its kind is about.
        pictures: what the files show, by name.
        words: a text that no other family has.
    """

    def __init__(self, kind: str, number: int, seed: int = 0) -> None:
        self.kind, self.name = kind, f"{kind} {number}"
        self.rng = np.random.default_rng([zlib.crc32(kind.encode()), number, seed])
        self.files: list[File] = []
        self.pictures: dict[str, Picture] = {}
        self.words = f"Grandmother at the lake, {self.rng.integers(10**6)}"
        day, second = self.rng.integers((1, 0), (29, 60))
        self.date = f"2019:07:{day:02d} 12:35:{second:02d}"

    def add(
        self,
        path: str,
        data: bytes,
        shows: Picture | View | Iterable[View] = (),
        says: Mapping[str, str] | None = None,
        inside: Mapping[str, bytes] | None = None,
    ) -> PurePosixPath:
        """Add a photograph; return its path.

        Args:
            path: relative to the family's folder.
            data: the file.
            shows: a picture of which it shows the whole, or views.
            says: value by name, as `remains.values` reads it.
            inside: bytes by name that have to stand in some file.
        """
        shows = shows.view() if isinstance(shows, Picture) else shows
        views = (shows,) if isinstance(shows, View) else tuple(shows)
        self.files.append(File(PurePosixPath(path), data, views, says or {}, inside or {}))
        return self.files[-1].path

    def add_beside(self, owner: PurePosixPath, name: str, data: bytes, says: Mapping | None = None) -> None:
        """Add a file beside a photograph: with `says`, its values count, else its bytes."""
        path = owner.parent / name
        self.files.append(File(path, data, (), says or {}, {}, owner, is_attachment=not says))

    def picture(self, name: str, pixels: np.ndarray, scene: str = "") -> Picture:
        """Add a picture that an owner would miss."""
        self.pictures[name] = Picture(name, pixels, scene)
        return self.pictures[name]

    def photograph(self, width: int = 640, height: int = 428, name: str = "picture") -> Picture:
        """Add a new photograph as a picture of its own scene `name`; `picture` is the family's."""
        scene = "" if name == "picture" else name
        return self.picture(name, photograph(self.rng, width, height), scene)

    def write(self, folder: Path) -> None:
        """Write the files into a library."""
        for file in self.files:
            path = folder / self.name / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)


@functools.cache
def _shipped() -> list[Image.Image]:
    """The colour photographs and textures that scikit-image, scikit-learn and Matplotlib carry in their wheels."""
    files = (
        "skimage/data/astronaut.png skimage/data/chelsea.png skimage/data/coffee.png skimage/data/rocket.jpg "
        "skimage/data/hubble_deep_field.jpg skimage/data/retina.jpg skimage/data/motorcycle_left.png skimage/data/ihc.png "
        "skimage/data/brick.png skimage/data/grass.png skimage/data/gravel.png sklearn/datasets/images/china.jpg "
        "sklearn/datasets/images/flower.jpg matplotlib/mpl-data/sample_data/grace_hopper.jpg"
    )
    roots = {
        name: Path(str(find_spec(name).origin)).parent.parent for name in ("skimage", "sklearn", "matplotlib")
    }
    return [Image.open(roots[file.partition("/")[0]] / file).convert("RGB") for file in files.split()]


def photograph(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Return a new photograph, uint8 [height, width, 3]: parts of shipped ones blended, toned, with a sensor's grain."""
    layers = []
    for i in rng.choice(len(_shipped()), 3, replace=False):
        part = _shipped()[i]
        part = ImageOps.mirror(part) if rng.random() < 0.5 else part
        share = min(1, rng.uniform(0.85, 1.1) * width / part.width, part.height * width / part.width / height)
        side = round(part.width * share), round(part.width * share * height / width)
        left, top = (
            int(rng.integers(0, max(1, whole - of + 1))) for whole, of in zip(part.size, side, strict=True)
        )
        box = (left, top, min(left + side[0], part.width), min(top + side[1], part.height))
        layers.append(np.asarray(part.resize((width, height), Image.Resampling.BICUBIC, box), np.float32))
    for layer in layers[1:]:
        coarse = Image.fromarray(rng.normal(0, 1, (3, 4)).astype(np.float32))
        share = np.clip(2 * np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)), -3, 3)
        layers[0] += (layer - layers[0]) / (1 + np.exp(-3 * share[..., None]))
    toned = 255 * np.clip(layers[0] / 255, 0, 1) ** rng.uniform(0.8, 1.25, 3)
    return rounded(toned + rng.normal(0, 1.2, toned.shape))


def rounded(pixels: np.ndarray) -> np.ndarray:
    """Return pixels as uint8."""
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def encoded(pixels: np.ndarray | Image.Image, file_format: str = "JPEG", **options: Any) -> bytes:
    """Return an encoded picture; a JPEG, WebP, HEIC or AVIF with quality 92 unless told otherwise."""
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(buffer, file_format, **({"quality": 92} | options))
    return buffer.getvalue()


def opened(data: bytes) -> np.ndarray:
    """Return an encoded picture's pixels, uint8 [height, width, 3]."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def resized(pixels: np.ndarray, longer_side: int) -> np.ndarray:
    """Return pixels whose longer side has so many."""
    scale = longer_side / max(pixels.shape[:2])
    size = round(pixels.shape[1] * scale), round(pixels.shape[0] * scale)
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))
