"""What counts as metadata, in real files of each format and across an update of an old catalogue."""

import pytest
from PIL import Image, TiffImagePlugin
from support.images import read_facts
from support.review_library import photo

from photodup.photos.library.metadata import count_fields

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
