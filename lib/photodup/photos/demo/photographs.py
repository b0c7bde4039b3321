"""A demonstration library from photographs that scikit-image and scikit-learn carry in their wheels.

Nothing is downloaded. Near-duplicates are made here, so which are copies of which is known, and so are
the hard negatives: a real stereo pair (one scene, two viewpoints) and disjoint regions of one photograph
(one texture, not one pixel in common). The capture dates are invented.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import util
from itertools import groupby
from pathlib import Path

from PIL import Image, ImageEnhance, ImageOps

from photodup.core.errors import PhotodupError
from photodup.core.files import replacing
from photodup.core.names import printable
from photodup.embedding import imaging

GROUND_TRUTH = "ground_truth.json"

_SKIMAGE, _SKLEARN = ("skimage", "data"), ("sklearn", "datasets/images")


@dataclass(frozen=True, slots=True)
class Source:
    """A shipped photograph. Sources with one `scene` show the same thing and are still different photographs.

    `box` cuts out a region (left, top, right, bottom, as fractions). Regions of one file never overlap, and
    a file that is cut up does not appear whole.
    """

    name: str
    package: tuple[str, str]
    file: str
    folder: str
    scene: str
    credit: str
    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)

    def open(self) -> Image.Image:
        """Return the upright RGB photograph.

        Raises:
            PhotodupError: the package that ships it is not installed.
        """
        package, folder = self.package
        spec = util.find_spec(package)
        if spec is None or not spec.origin:
            raise PhotodupError(
                f"The demonstration photographs come with {package}: pip install 'photodup[demo]'."
            )
        image = imaging.decode(Path(spec.origin).parent / folder / self.file)
        sides = zip(self.box, image.size * 2, strict=True)
        left, top, right, bottom = (round(share * side) for share, side in sides)
        return image.crop((left, top, right, bottom))


def _regions(name: str, file: str, folder: str, credit: str) -> list[Source]:
    halves = {"left": (0.0, 0.0, 0.5, 1.0), "right": (0.5, 0.0, 1.0, 1.0)}
    return [
        Source(f"{name}_{side}", _SKIMAGE, file, folder, name, credit, box) for side, box in halves.items()
    ]


_NASA, _CC0 = "NASA, public domain", "CC0"
_MIDDLEBURY = "D. Scharstein et al., Middlebury stereo datasets 2014"
SOURCES: tuple[Source, ...] = (
    Source("china", _SKLEARN, "china.jpg", "2019/Travel", "china", "danielbuechele, CC BY 2.0"),
    Source("flower", _SKLEARN, "flower.jpg", "2019/Garden", "flower", "vultilion, CC BY 2.0"),
    Source("astronaut", _SKIMAGE, "astronaut.png", "2020/People", "astronaut", _NASA),
    Source("camera", _SKIMAGE, "camera.png", "2020/People", "camera", "Lav Varshney, CC0"),
    Source("chelsea", _SKIMAGE, "chelsea.png", "2020/Home", "chelsea", "Stefan van der Walt, CC0"),
    Source("coffee", _SKIMAGE, "coffee.png", "2020/Home", "coffee", "Rachel Michetti, CC0"),
    Source("clock", _SKIMAGE, "clock_motion.png", "2020/Home", "clock", "Stefan van der Walt, public domain"),
    Source("coins", _SKIMAGE, "coins.png", "2021/Museum", "coins", "Brooklyn Museum, no known restrictions"),
    Source("rocket", _SKIMAGE, "rocket.jpg", "2021/Space", "rocket", "SpaceX, public domain"),
    Source("moon", _SKIMAGE, "moon.png", "2021/Space", "moon", "as shipped with scikit-image"),
    Source("retina", _SKIMAGE, "retina.jpg", "2021/Laboratory", "retina", "Mikael Häggström, CC0"),
    Source("ihc", _SKIMAGE, "ihc.png", "2021/Laboratory", "ihc", "CMMI, no known restrictions"),
    # A stereo pair: one motorcycle, two viewpoints.
    Source("motorcycle_left", _SKIMAGE, "motorcycle_left.png", "2022/Garage", "motorcycle", _MIDDLEBURY),
    Source("motorcycle_right", _SKIMAGE, "motorcycle_right.png", "2022/Garage", "motorcycle", _MIDDLEBURY),
    *_regions("hubble", "hubble_deep_field.jpg", "2021/Space", _NASA),
    *_regions("brick", "brick.png", "2022/Textures", _CC0),
    *_regions("grass", "grass.png", "2022/Textures", _CC0),
    *_regions("gravel", "gravel.png", "2022/Textures", _CC0),
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A near-duplicate to make: `suffix` decides the format, `folder` is where such files usually end up."""

    name: str
    suffix: str
    folder: str
    quality: int = 90
    scale: float = 1.0
    crop: float = 1.0
    brightness: float = 1.0
    orientation: int = 1
    keep_exif: bool = True


VARIANTS: tuple[Variant, ...] = (
    Variant("half_size", ".jpg", "Shared", scale=0.5),
    Variant("jpeg_q30", ".jpg", "Messenger", quality=30, keep_exif=False),
    Variant("crop_90", ".jpg", "Edited", crop=0.9),
    Variant("crop_70", ".jpg", "Edited", crop=0.7),
    Variant("brighter_30", ".jpg", "Edited", brightness=1.3),
    Variant("exif_rotated", ".jpg", "Camera upload", orientation=6),
    Variant("png", ".png", "Screenshots", keep_exif=False),
    Variant("webp_q80", ".webp", "Web", quality=80, keep_exif=False),
    Variant("heic_q60", ".heic", "Phone", quality=60),
    Variant("tiff", ".tif", "Scans"),
)
_VARIANTS_PER_SOURCE = 4  # every third one, starting one further for each source


@dataclass(frozen=True, slots=True)
class Truth:
    """One line of the ground truth: copies share `group`, different photographs of one thing `scene`."""

    path: str
    source: str
    transformation: str
    group: str
    scene: str
    taken_at: str
    credit: str


def build_demo(directory: Path | str) -> Path:
    """Build the demonstration library and return its ground truth (JSON: `photos` is a list of `Truth`).

    Deterministic: the same package versions give the same bytes. Other files in the folder are left alone.

    Raises:
        PhotodupError: a package that ships photographs is missing, the folder cannot be written, or another file has one
            of the names.
    """
    root = Path(directory).expanduser()
    path = root / GROUND_TRUTH
    try:
        root.mkdir(parents=True, exist_ok=True)
        plan = list(_plan())
        truths = sorted((truth for truth, *_ in plan), key=lambda truth: truth.path)
        description = {"about": (__doc__ or "").strip(), "photos": [asdict(truth) for truth in truths]}
        text = (json.dumps(description, indent=1, ensure_ascii=False) + "\n").encode()
        _refuse_another(path, text)  # before anything is written
        for source, photos in groupby(plan, key=lambda photo: photo[2]):
            image = source.open()
            for truth, variant, _ in photos:
                date = datetime.fromisoformat(truth.taken_at)
                seconds = date.replace(tzinfo=UTC).timestamp()  # the same on every machine
                _put(root, root / truth.path, _encode(image, variant, source, date), seconds)
        _put(root, path, text)
    except OSError as error:
        raise PhotodupError(f"Cannot write the demonstration library to {root}: {error.strerror}.") from None
    return path


def load_ground_truth(path: Path | str) -> list[Truth]:
    """Read what `build_demo` wrote."""
    return [Truth(**photo) for photo in json.loads(Path(path).read_text("utf-8"))["photos"]]


def _refuse_another(target: Path, data: bytes) -> None:
    """Refuse a file that is there with other bytes: it is somebody else's."""
    if os.path.lexists(target) and (
        target.is_symlink() or not target.is_file() or target.read_bytes() != data
    ):
        raise PhotodupError(
            f"{printable(target)} is there and is no part of this demonstration: name a folder of its own."
        )


def _put(root: Path, target: Path, data: bytes, seconds: float | None = None) -> None:
    """Write a file with its date, unless it is there."""
    _refuse_another(target, data)
    if not target.is_file():
        with replacing(target, within=root) as part:
            part.write_bytes(data)
            if seconds is not None:
                os.utime(part, (seconds, seconds))


def _plan() -> Iterator[tuple[Truth, Variant, Source]]:
    """Yield each photo of the library, with what it is made of."""
    for i, source in enumerate(SOURCES):
        name = f"IMG_{1001 + i}.jpg"
        date = datetime(int(source.folder[:4]), 5, 1, 9) + timedelta(days=3 * i)
        if source.name == "motorcycle_right":  # Like a burst: one second after the left view.
            date -= timedelta(days=3, seconds=-1)
        original = Variant("original", ".jpg", source.folder, quality=95)
        files = {f"{source.folder}/{name}": original}
        for k in range(_VARIANTS_PER_SOURCE):
            variant = VARIANTS[(i + 3 * k) % len(VARIANTS)]
            files[f"{variant.folder}/{source.name}-{variant.name}{variant.suffix}"] = variant
        if i % 4 == 0:
            files[f"Backup/{name}"] = replace(original, name="exact_copy")
        for path, variant in files.items():
            facts = (source.name, variant.name, source.name, source.scene, date.isoformat(), source.credit)
            yield Truth(path, *facts), variant, source


def _encode(image: Image.Image, variant: Variant, source: Source, date: datetime) -> bytes:
    left, top = (round(side * (1 - variant.crop) / 2) for side in image.size)
    image = ImageOps.crop(image, (left, top, left, top))
    image = ImageOps.scale(image, variant.scale, Image.Resampling.LANCZOS)
    if variant.brightness != 1:
        image = ImageEnhance.Brightness(image).enhance(variant.brightness)
    if variant.orientation == 6:  # The viewer is to turn it clockwise, so it is stored turned the other way.
        image = image.transpose(Image.Transpose.ROTATE_90)
    options: dict = {"quality": variant.quality} if variant.suffix in (".jpg", ".webp", ".heic") else {}
    if variant.keep_exif:
        # As bytes: pillow-heif ignores the orientation in an Exif object.
        options["exif"] = camera_exif(source, date, variant.orientation).tobytes()
    formats = {".jpg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".heic": "HEIF", ".tif": "TIFF"}
    return imaging.encode(image, formats[variant.suffix], **options)


def camera_exif(source: Source, date: datetime, orientation: int = 1) -> Image.Exif:
    """Return the metadata that a camera would have written into a photograph of this source."""
    exif = Image.Exif()
    exif[0x010E] = f"{source.file} ({source.credit})"  # ImageDescription
    exif[0x010F], exif[0x0110] = "photodup", "Demonstration"  # Make, Model
    exif[0x0112] = orientation
    exif[0x0132] = f"{date:%Y:%m:%d %H:%M:%S}"  # DateTime
    exif.get_ifd(0x8769)[0x9003] = f"{date:%Y:%m:%d %H:%M:%S}"  # DateTimeOriginal
    return exif
