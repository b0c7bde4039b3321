"""Pictures on disk, a stand-in encoder and a scan that is killed, for the tests of the catalogue."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from support.command import running

from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import ImageError, decode


def photo(path: Path, seed: int = 0, size: tuple[int, int] = (64, 48), **save) -> Path:
    """Write a small picture with structure; another seed gives another one."""
    values = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).resize(size, Image.Resampling.BICUBIC).save(path, **save)
    return path


def photos(folder: Path, n: int) -> None:
    """Write n different photographs: 0.jpg, 1.jpg and so on."""
    for i in range(n):
        photo(folder / f"{i}.jpg", i)


class CountingEmbedder:
    """A stand-in encoder (mean colours): the catalogue cares about bytes in and unit vectors out."""

    backend, model_name, model_digest, is_random = "test", "mean-colours", "a" * 64, False
    precision = "fp32"
    draft_size = None

    def __init__(self, fail_after: int | None = None) -> None:
        self.seen: list[int] = []
        self.fail_after = fail_after

    def embed(self, images):
        if self.fail_after is not None and sum(self.seen) >= self.fail_after:
            raise PhotodupError("the server went away")
        if any(isinstance(image, bytes) and image.startswith(b"BAD") for image in images):
            raise ImageError("refused")
        self.seen.append(len(images))
        pictures = [image if isinstance(image, Image.Image) else decode(image) for image in images]
        rows = [np.asarray(picture.resize((2, 2)), dtype=np.float32).ravel() + 1 for picture in pictures]
        return np.array([row / np.linalg.norm(row) for row in rows], dtype=np.float32)


_SCAN_SLOWLY = """
import sys, time
from photodup.photos.library import scan as library
library._BATCH_FILES = 5
read = library.read_facts_and_look
def slow(data, look, **options):
    time.sleep(0.02)
    return read(data, look, **options)
library.read_facts_and_look = slow
from photodup.cli import main
sys.argv[0] = "photodup"
main()
"""


def killed_scan(folder: Path, *options: str, how: int, n_done: Callable, least: int, **variables) -> str:
    """Scan slowly in a process that gets the signal `how` when `least` are done; return what it said."""
    command = [sys.executable, "-c", _SCAN_SLOWLY, "scan", str(folder), "--workers", "2", *options]
    with running(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=os.environ | variables
    ) as process:
        deadline = time.monotonic() + 120
        while n_done() < least:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(how)
        said = process.communicate(timeout=120)[1]
        assert process.returncode != 0 and "Traceback" not in said
        return said
