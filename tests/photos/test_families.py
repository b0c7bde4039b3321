"""Whole families, the best original, and what is shown as different: planted cases on real photographs."""

import numpy as np
import pytest
from PIL import Image
from support.review_library import copies_in, only_group, photo, save

from photodup.photos.compare import compare
from photodup.photos.compare.pixels import Pixels
from photodup.photos.groups.results import Group
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan


def marked(group: Group) -> set[str]:
    return {photo.path.stem for photo in group.may_go}


@pytest.fixture(scope="module")
def original() -> Image.Image:
    """A photograph as sharp as its pixels."""
    return photo("coffee").resize((480, 320), Image.Resampling.LANCZOS)


def test_a_live_photo_stays_with_its_film(tmp_path, original):
    save(original.resize((300, 200)), tmp_path / "IMG_1.jpg")
    (tmp_path / "IMG_1.MOV").write_bytes(b"film")
    save(original, tmp_path / "sent.jpg")
    group = only_group(tmp_path)
    assert marked(group) == set(), (group.keeper, group.members)


def test_a_wider_view_is_kept_and_what_shows_more_elsewhere_stays(tmp_path, original):
    save(original.crop((0, 0, 440, 320)), tmp_path / "left.jpg")
    save(original.crop((50, 0, 480, 320)), tmp_path / "right.jpg")
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "left" and marked(group) == set()
    assert "shows more of the scene" in group.members[0].difference


def test_finer_detail_in_a_crop_is_not_given_up_for_the_whole(tmp_path):
    sharp = photo("coffee")
    save(sharp.resize((200, 133), Image.Resampling.LANCZOS), tmp_path / "whole.jpg")
    save(sharp.crop((60, 40, 540, 360)), tmp_path / "fine.jpg")
    group = only_group(tmp_path)
    assert marked(group) == set()
    assert group.members[0].difference == "shows more of the scene"


def test_a_part_that_shows_something_else_is_told(tmp_path, original):
    """Someone is in one of two shots from one place: the search may prove them, the page must not suggest one."""
    changed = original.copy()
    changed.paste(photo("astronaut").resize((44, 44)), (210, 20))
    save(original, tmp_path / "one.jpg")
    save(changed, tmp_path / "other.jpg")
    for group in copies_in(tmp_path):
        assert marked(group) == set()


def test_each_of_two_pictures_that_are_alike_keeps_a_file_of_its_own(tmp_path, original):
    """All four files are one family; neither picture's small copy may go for the other, or stay for its sake."""
    changed = original.copy()
    changed.paste(photo("astronaut").resize((44, 44)), (210, 20))
    for name, image in {"one": original, "other": changed}.items():
        save(image, tmp_path / f"{name}.jpg", quality=95)
        save(image.resize((240, 160), Image.Resampling.LANCZOS), tmp_path / f"{name}-small.jpg")
    groups = copies_in(tmp_path)
    assert {group.keeper.path.stem: marked(group) for group in groups} == {
        "one": {"one-small"}, "other": {"other-small"}
    }  # fmt: skip
    assert sum(1 + len(group.others) for group in groups) == 4, "no file is in two groups"


def test_two_exposures_with_little_parallax_are_not_suggested(tmp_path, original):
    """The near half moves by two pixels of 480, the far one does not."""
    pixels = np.asarray(original)
    height, width = pixels.shape[:2]
    columns, rows = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    near = np.float32(3.0) / (1 + np.exp(-(rows - height * 0.5) / 4, dtype=np.float32))
    import cv2

    moved = cv2.remap(pixels, columns + near, rows, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)
    save(original, tmp_path / "left.jpg")
    save(Image.fromarray(moved), tmp_path / "right.jpg")
    for group in copies_in(tmp_path):
        assert marked(group) == set(), group.members


def test_only_what_is_proven_against_the_keeper_itself_is_marked(tmp_path, original, monkeypatch):
    """The keeper never saw one member: it is shown, with the reason, and not suggested."""
    save(original, tmp_path / "original.jpg", quality=95)
    save(original.resize((240, 160)), tmp_path / "half.jpg")
    save(original.resize((160, 107)), tmp_path / "small.jpg")
    before = compare.align

    def blind(keeper, member):
        return None if member.image.size == (160, 107) else before(keeper, member)

    monkeypatch.setattr(compare, "align", blind)
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "original" and marked(group) == {"half"}
    (small,) = [photo for photo in group.others if photo.path.stem == "small"]
    assert group.difference(small) == "is not seen to be the same picture"


def test_what_was_measured_of_a_family_is_remembered(tmp_path, original, monkeypatch):
    save(original, tmp_path / "original.jpg")
    save(original.resize((240, 160)), tmp_path / "half.jpg")
    first = only_group(tmp_path)
    monkeypatch.setattr("photodup.photos.groups.choose.lacks", lambda *a: pytest.fail("was compared"))
    assert only_group(tmp_path) == first


@pytest.mark.parametrize("names", [("original",), ("original", "half")])
def test_a_file_that_goes_while_its_family_is_measured_is_skipped(tmp_path, original, monkeypatch, names):
    for name, size in {"original": original.size, "half": (240, 160), "small": (200, 133)}.items():
        save(original.resize(size), tmp_path / f"{name}.jpg")
    picture = Pixels.picture

    def after_they_went(pixels, row):
        for name in names:
            (tmp_path / f"{name}.jpg").unlink(missing_ok=True)
        pixels._pictures.clear()
        return picture(pixels, row)

    monkeypatch.setattr(Pixels, "picture", after_they_went)
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        found = find_tiers(catalogue)
    assert [sentence.partition(":")[0] for sentence in found.problems] == [
        f"{name}.jpg was skipped" for name in sorted(names)
    ]
    shown = [[group.keeper.path.stem, *(one.path.stem for one in group.others)] for group in found.copies]
    assert shown == ([["half", "small"]] if len(names) == 1 else [])
