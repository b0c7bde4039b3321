"""What the extra `photos-more` reads: RAW that lies alone and JPEG XL; and what a scan says without it."""

import shutil

import numpy as np
import pytest
from PIL import Image
from support.library import photo as small_photo
from support.review_library import copies_in, exif, photo

from photodup.embedding import imaging
from photodup.photos.library import walking
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan


def write_dng(image: Image.Image, path, orientation: int) -> None:
    """Write a picture as a camera's sensor sees it: one colour a pixel."""
    import tifffile

    path.parent.mkdir(parents=True, exist_ok=True)
    light = ((np.asarray(image, float) / 255) ** 2.2 * 60000).astype(np.uint16)
    sensor = light[..., 1].copy()
    sensor[::2, ::2], sensor[1::2, 1::2] = light[::2, ::2, 0], light[1::2, 1::2, 2]
    matrix = (3.24, -1.54, -0.5, -0.97, 1.88, 0.04, 0.06, -0.2, 1.06)
    to_camera = [n for part in matrix for n in (int(part * 1e4), 10000)]
    tags = [
        (33421, "H", 2, (2, 2)),
        (33422, "B", 4, bytes([0, 1, 1, 2])),
        (50706, "B", 4, bytes([1, 4, 0, 0])),
    ]
    tags += [(50721, "2i", 9, to_camera), (50728, "2I", 3, (1,) * 6), (274, "H", 1, orientation)]
    tags += [(50708, "s", 0, "Test"), (271, "s", 0, "Maker"), (306, "s", 0, "2020:01:02 03:04:05")]
    tifffile.imwrite(path, sensor, photometric=32803, metadata=None, extratags=tags)


def test_without_the_extra_a_scan_names_what_it_leaves_out(tmp_path, monkeypatch):
    monkeypatch.setattr(walking, "is_installed", lambda module: False)
    small_photo(tmp_path / "a.bmp")
    small_photo(tmp_path / "b.jpg")
    for name in ("B.dng", "c.NEF", "d.jxl", "._e.dng"):  # the first belongs to b.jpg
        (tmp_path / name).write_bytes(b"II*\0")
    report = scan(tmp_path, progress=False)
    assert (report.n_read, report.problems) == (2, [])
    assert "\n2 left out (c.NEF and d.jxl): pip install 'photodup[photos-more]' reads RAW" in str(report)


def test_raw_alone_and_jpeg_xl_are_photos_and_raw_goes_only_for_the_same_bytes(tmp_path):
    pytest.importorskip("rawpy")
    pytest.importorskip("pillow_jxl")
    write_dng(photo("coffee").resize((300, 200)), tmp_path / "A" / "a.dng", 6)
    (tmp_path / "B").mkdir()
    shutil.copy2(tmp_path / "A" / "a.dng", tmp_path / "B" / "b.dng")
    shutil.copy2(tmp_path / "A" / "a.dng", tmp_path / "A" / "c.dng")
    developed = imaging.decode(tmp_path / "A" / "a.dng")
    developed.resize((140, 210)).save(tmp_path / "B" / "small.jpg")
    rocket = photo("rocket").resize((320, 213))
    rocket.save(tmp_path / "A" / "c.jpg")
    rocket.save(tmp_path / "A" / "d.jxl", exif=exif())
    groups = {group.keeper.path.name: group for group in copies_in(tmp_path)}
    with Catalogue(tmp_path) as catalogue:
        found = {p.path.name: (p.format, p.width, p.height, p.taken_at) for p in catalogue.photos()}
    assert found["a.dng"] == ("RAW", 200, 300, "2020-01-02T03:04:05")
    assert found["d.jxl"] == ("JXL", 320, 213, "2022-05-17T18:10:00") and "c.dng" not in found
    raw = next(group for group in groups.values() if "dng" in group.keeper.path.name)
    assert {p.path.suffix: raw.difference(p) for p in raw.others}[".dng"] == ""
    assert "keep both" in {p.path.suffix: raw.difference(p) for p in raw.others}[".jpg"]
    assert groups["c.jpg"].others[0].path.name == "d.jxl"
    assert "has date" in groups["c.jpg"].members[0].difference
