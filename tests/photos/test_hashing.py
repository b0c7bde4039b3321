"""Content and perceptual hashes, and what counts as metadata: right for what they see, and scaled decoding costs nothing."""

import hashlib

import imagehash
import numpy as np
import pytest
from PIL import Image, TiffImagePlugin
from support.images import read_facts
from support.review_library import photo

from benchmarks.large_photographs import make_12mp
from photodup.embedding.imaging import decode, encode
from photodup.photos.demo.photographs import SOURCES
from photodup.photos.library.hashing import (
    DRAFT_SIZE,
    hamming,
    low_frequencies,
    md5,
    perceptual_hash,
)
from photodup.photos.library.metadata import count_fields

MAX_DRAFT_DISTANCE = (
    4  # bits of 64 by which the hash of a scaled decode may differ from that of a full decode
)


def test_scaled_decoding_changes_the_hash_by_at_most_the_stated_bits():
    worst, drafted = 0, 0
    for source in SOURCES[::2]:
        for width in (700, 2600):
            image = source.open()
            image = image.resize((width, width * image.height // image.width), Image.Resampling.BICUBIC)
            data = encode(image, "JPEG", quality=85)
            drafted += decode(data, draft_size=DRAFT_SIZE).size != image.size
            worst = max(worst, hamming(read_facts(data).phash, str(imagehash.phash(decode(data)))))
    assert drafted > 15  # else nothing was scaled and nothing is tested
    assert worst <= MAX_DRAFT_DISTANCE


def bits(phash: str) -> np.ndarray:
    return np.unpackbits(np.frombuffer(bytes.fromhex(phash), np.uint8)).reshape(8, 8)


def test_the_hash_is_imagehashs_own_but_for_bits_within_1e_9_of_the_median():
    """500 crops: none differs. (10,440 crops of the held-out photographs of `tools/photographs`: none differed.)"""
    assert read_facts(encode(SOURCES[0].open(), "PNG")).phash == str(imagehash.phash(SOURCES[0].open()))
    rng, ties = np.random.default_rng(29), 0
    for image in [source.open().convert("L") for source in SOURCES[:20]]:
        for _ in range(25):
            width, height = (int(n) for n in rng.integers(64, image.size))
            left, top = rng.integers(image.width - width + 1), rng.integers(image.height - height + 1)
            grey = image.resize((32, 32), Image.Resampling.LANCZOS, (left, top, left + width, top + height))
            assert perceptual_hash(grey) in (None, str(imagehash.phash(grey)))
        pixels = np.asarray(grey)
        grey = Image.fromarray(np.triu(pixels) + np.triu(pixels, 1).T)  # mirrored: coefficients tie
        frequencies = low_frequencies(np.asarray(grey))
        tied = abs(frequencies - np.median(frequencies)) <= 1e-9
        ours, theirs = bits(perceptual_hash(grey)), bits(str(imagehash.phash(grey)))
        assert not (ours != theirs)[~tied].any() and not ours[tied].any()
        ties += tied.any()
    assert ties


def test_photographs_of_different_things_are_far_apart_and_a_stereo_pair_is_not():
    hashes = [(source, perceptual_hash(source.open())) for source in SOURCES]
    pairs = [(a, b, hamming(x, y)) for i, (a, x) in enumerate(hashes) for b, y in hashes[:i]]
    assert min(distance for a, b, distance in pairs if a.scene != b.scene) > 4 * MAX_DRAFT_DISTANCE
    # Why a hash alone must not decide what is a copy: two photographs, from two places, this close.
    (stereo,) = [distance for a, b, distance in pairs if a.scene == b.scene == "motorcycle"]
    assert stereo <= 10


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "TIFF", "HEIF", "AVIF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_orientation_is_applied_in_every_format(fmt, orientation):
    upright = SOURCES[0].open()
    turn = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    stored = upright.transpose(turn[orientation]) if orientation in turn else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    facts = read_facts(encode(stored, fmt, quality=95, exif=exif.tobytes()))
    assert (facts.width, facts.height, facts.format) == (*upright.size, fmt)
    assert hamming(facts.phash, str(imagehash.phash(upright))) <= 4


def test_a_blank_picture_has_no_hash():
    assert perceptual_hash(Image.new("RGB", (200, 100), "white")) is None
    for size in ((1, 1), (1, 3000)):
        facts = read_facts(encode(Image.new("RGB", size, "red"), "PNG"))
        assert (facts.width, facts.height, facts.phash) == (*size, None)


def test_md5_and_hamming():
    assert md5(b"photo") == hashlib.md5(b"photo").hexdigest()
    assert hamming("00000000000000ff", "0000000000000000") == 8


@pytest.mark.parametrize(("date", "offset", "taken"), [
    *((date, "", None) for date in ("0000:00:00 00:00:00", "", "yesterday", "2020:13:01 00:00:00")),
    # What is stored must be a time that everybody can read again.
    *(("2021:07:08 09:10:11", offset, "2021-07-08T09:10:11") for offset in ("+99:99", "+24:00", "²²:³³", "+2:000", "later")),
])  # fmt: skip
def test_an_impossible_date_is_none_and_an_impossible_offset_does_not_cost_the_date(date, offset, taken):
    exif = Image.Exif()
    exif.get_ifd(0x8769).update({0x9003: date, 0x9011: offset})
    assert read_facts(encode(SOURCES[0].open(), "JPEG", exif=exif)).taken_at == taken


def test_twelve_megapixels_are_scaled_eightfold(tmp_path):
    (path,) = make_12mp(tmp_path, 1)
    assert decode(path, draft_size=DRAFT_SIZE).size == (500, 375)
    facts = read_facts(path.read_bytes())
    assert (facts.width, facts.height) == (4000, 3000)
    assert hamming(facts.phash, str(imagehash.phash(decode(path)))) <= MAX_DRAFT_DISTANCE


# ---- what counts as metadata, in files of each format --------------------------------------------------------

SUFFIXES = (".jpg", ".tif", ".png", ".webp")


def fields(path) -> int:
    return read_facts(path.read_bytes()).exif_fields


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("compression", [None, "tiff_deflate"])
def test_a_file_without_metadata_has_none_whatever_its_format(tmp_path, suffix, compression):
    options = {"compression": compression} if compression and suffix == ".tif" else {}
    photo("coffee").save(tmp_path / f"a{suffix}", dpi=(72, 72), **options)
    assert fields(tmp_path / f"a{suffix}") == 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_a_camera_writes_is_counted_alike_in_every_format(tmp_path, suffix):
    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0112], exif[0x010E] = "Make", "Model", 6, ""
    exif.get_ifd(0x8769)[0x9003] = "2020:05:16 09:00:00"
    exif.get_ifd(0x8769)[0x9000] = b"0232"
    exif.get_ifd(0x8825)[1] = "N"
    exif.get_ifd(0x8825)[2] = (47.0, 0.0, 0.0)
    photo("coffee").save(tmp_path / f"a{suffix}", exif=exif.tobytes())
    assert fields(tmp_path / f"a{suffix}") == 5, "make, model, date and two of the position"


def test_a_tiff_made_of_a_photo_does_not_win_by_its_structure(tmp_path):
    """The fault this guards against: a plain count prefers the TIFF by a dozen fields nobody wrote."""
    exif = Image.Exif()
    exif[0x010F] = "Make"
    photo("coffee").save(tmp_path / "a.jpg", exif=exif)
    photo("coffee").save(tmp_path / "a.tif")
    with Image.open(tmp_path / "a.tif") as image:
        assert len(image.getexif()) > 5 and isinstance(image, TiffImagePlugin.TiffImageFile)
        assert count_fields(image.getexif()) == 0
    assert fields(tmp_path / "a.jpg") > fields(tmp_path / "a.tif")
