"""JPEGs of 12 megapixels for timing."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from photodup.core.files import replacing
from photodup.photos.demo.photographs import SOURCES, camera_exif


def make_12mp(directory: Path | str, n: int = 8, photographs: Sequence[Path] = ()) -> list[Path]:
    """Write n JPEGs of 4000 × 3000 pixels for timing a scan; return their paths.

    They are enlarged and given a sensor's grain, or their smoothness would make files unlike a camera's: quality 90 then
    gives 3 to 5 MB.

    Args:
        photographs: of which they are made; else of the demonstration's.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for i in range(n):
        source = SOURCES[i % len(SOURCES)]
        image = Image.open(photographs[i % len(photographs)]).convert("RGB") if photographs else source.open()
        large = ImageOps.fit(image, (4000, 3000))
        grain = np.random.default_rng(i).normal(0, 5, (3000, 4000, 1)).astype(np.float32)
        noisy = Image.fromarray(np.clip(np.asarray(large) + grain, 0, 255).astype(np.uint8))
        path = directory / f"IMG_{i:04d}.jpg"
        date = datetime(2023, 1, 1) + timedelta(hours=i)
        with replacing(path) as part:
            noisy.save(part, "JPEG", quality=90, exif=camera_exif(source, date))
        paths.append(path)
    return paths
