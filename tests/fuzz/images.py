"""Damaged images against the decoders: each is decoded, or refused in a sentence, within its deadline."""

import hashlib
import os
import random
import time
from collections import Counter

from support.images import photo
from support.paths import ROOT

from photodup.embedding import imaging
from photodup.embedding.decode_pool import DecodePool, TooSlow
from photodup.embedding.imaging import ImageError, encode

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "HEIF", "AVIF")
DEADLINE_S = 20.0
WORDS = (b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff\xda")


def seeds() -> list[bytes]:
    """One small image in every format, a progressive JPEG and one in CMYK."""
    image = photo(96, 64)
    plain = [encode(image, name) for name in FORMATS]
    return [*plain, encode(image, "JPEG", progressive=True), encode(image.convert("CMYK"), "JPEG")]


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Overwrite, insert, cut, repeat: one to eight times."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = (
            chance.randrange(len(changed) + 1)
            if chance.random() < 0.5
            else chance.randrange(min(64, len(changed)) + 1)
        )
        kind = chance.randrange(6)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            word = chance.choice(WORDS)
            changed[at : at + len(word)] = word
        elif kind == 2:
            changed[at:at] = chance.randbytes(chance.randint(1, 16))
        elif kind == 3:
            del changed[at : at + chance.randint(1, 64)]
        elif kind == 4:
            changed[at:at] = changed[at : at + chance.randint(1, 256)] * chance.randint(1, 20)
        else:
            del changed[at:]
        changed = changed or bytearray(b"\0")
    return bytes(changed)


def fuzz(seconds: float) -> bool:
    """Decode mutated images for about `seconds`; True if nothing crashed, hung or raised anything else."""
    seed = time.time_ns() % 2**32
    chance, originals, counts = random.Random(seed), seeds(), Counter()
    found: list[str] = []
    facts = "photodup.photos.library.hashing:pack_facts"
    pool = DecodePool(facts, size=1, deadline_s=DEADLINE_S, remedy="give it more time")
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            data = mutate(chance.choice(originals), chance)
            here = imaging.is_bounded(data) if data[:2] == b"\xff\xd8" else False
            started = time.monotonic()
            try:
                imaging.decode(data).load() if here else pool.run(data)
                counts["decoded here" if here else "decoded in a process"] += 1
            except TooSlow:
                counts["too slow"] += 1
                found.append(keep(data, "too slow"))
            except ImageError as error:
                counts["refused"] += 1
                if "crashed" in str(error):
                    found.append(keep(data, "crashed the decoder"))
                if "\n" in str(error) or not str(error):
                    found.append(keep(data, f"said {error!r}"))
            except Exception as error:
                counts[type(error).__name__] += 1
                found.append(keep(data, repr(error)))
            if here and time.monotonic() - started > DEADLINE_S:
                found.append(keep(data, "was called bounded and was not"))
    finally:
        pool.close()
    print(f"seed {seed}: {sum(counts.values())} images: {dict(counts.most_common())}")
    print("\n".join(found[:20]))
    return not found


def keep(data: bytes, what: str) -> str:
    """Write the image into build/fuzz/ and return a line about it."""
    folder = ROOT / "build" / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.md5(data).hexdigest()}.bin"
    path.write_bytes(data)
    return f"{os.path.relpath(path, ROOT)} {what}"
