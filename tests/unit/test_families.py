"""Whole families, the best original, and what is shown as different: planted cases on real photographs."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageOps
from support.review_library import copies_in, only_group, photo, save, two_laid

from benchmarks.photo_quality.edits import named
from photodup.embedding import imaging
from photodup.photos.compare import pixels
from photodup.photos.compare.features import features
from photodup.photos.compare.verify import Verification
from photodup.photos.groups.families import families
from photodup.photos.groups.results import TierGroup
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan


def star(hub: int, others: range) -> dict[tuple[int, int], float]:
    return {(min(hub, i), max(hub, i)): 1.0 for i in others if i != hub}


def test_a_family_is_found_whole_though_the_best_file_is_least_like_the_others():
    """The star of the best ranked file (0) has one member; around the best connected one all are there."""
    (family,) = families(star(5, range(10)), list(range(10)))
    assert (family.hub, family.members) == (5, tuple(range(10)))


def test_one_wrong_pair_joins_nothing_and_two_join():
    clique = dict.fromkeys(combinations(range(5), 2), 1.0) | dict.fromkeys(combinations(range(5, 10), 2), 1.0)
    rank = list(range(10))
    whole = [tuple(range(5)), tuple(range(5, 10))]
    for wrong in [(0, 5), (2, 7), (4, 9)]:
        assert [family.members for family in families(clique | {wrong: 1.0}, rank)] == whole
        assert len(families(clique | {wrong: 1.0}, rank, min_links=1)) == 1, "which chaining would"
    assert len(families(clique | {(0, 5): 1.0, (1, 6): 1.0}, rank)) == 1
    assert len(families(clique | {(0, 5): 1.0, (0, 6): 1.0}, rank)) == 2, "one photo is one witness"


@settings(max_examples=60)
@given(
    st.sets(
        st.tuples(st.integers(0, 14), st.integers(0, 14)).filter(lambda pair: pair[0] < pair[1]), max_size=40
    ),
    st.permutations(range(15)),
)
def test_nobody_is_in_two_families_and_each_member_has_a_proven_pair_inside(pairs, rank):
    found = families(dict.fromkeys(pairs, 1.0), rank)
    everyone = [row for family in found for row in family.members]
    assert len(everyone) == len(set(everyone))
    for family in found:
        assert family.hub in family.members and len(family.members) > 1
        for row in family.members:
            assert any((min(row, o), max(row, o)) in pairs for o in family.members if o != row)


def marked(group: TierGroup) -> set[str]:
    return {photo.path.stem for photo in group.may_go}


@pytest.fixture(scope="module")
def original() -> Image.Image:
    """A photograph as sharp as its pixels."""
    return photo("coffee").resize((480, 320), Image.Resampling.LANCZOS)


def written(image: Image.Image) -> Image.Image:
    image = image.copy()
    ImageDraw.Draw(image).text((30, 240), "greetings from the sea", fill="yellow", font_size=34)
    return image


EDITS = {
    "watermark": (written, "content"),
    "border": (lambda image: ImageOps.expand(image, 14, "white"), "content"),
    **dict.fromkeys(("crop 70%", "rotate 5°", "story frame"), (None, "content")),
    **dict.fromkeys(("blur 0.5%", "resize 0.5x", "resize 0.125x"), (None, "resolution")),
}


@pytest.mark.parametrize("edit", EDITS)
def test_the_original_is_kept_and_the_edit_may_go(tmp_path, original, edit):
    """By the bytes alone the edit would win: it is the larger file, and its path comes first."""
    change, rule = EDITS[edit][0] or named([edit])[0], EDITS[edit][1]
    save(original, tmp_path / "z" / "original.jpg", quality=90)
    save(change(original), tmp_path / f"{edit}.jpg", quality=95)
    group = only_group(tmp_path)
    assert (group.keeper.path.stem, group.choice.rule) == ("original", rule), group.choice.reason
    assert marked(group) == {edit}, group.differs


@pytest.mark.parametrize("name", ["chelsea", "coffee"])
def test_of_a_file_and_its_lighter_edit_the_first_stays(tmp_path, name):
    save(photo(name), tmp_path / "z" / "original.jpg", quality=90)
    (lighter,) = named(["brightness 1.4x"])
    save(lighter(Image.open(tmp_path / "z" / "original.jpg")), tmp_path / "a.jpg", quality=95)
    group = only_group(tmp_path)
    assert (group.keeper.path.stem, group.choice.rule) == ("original", "source")


def test_the_original_stays_where_each_seems_to_have_writing_that_the_other_lacks(tmp_path):
    """The letters look like writing both ways but for their outlines, and the larger file is the one with them."""
    save(photo("rocket"), tmp_path / "original.jpg", quality=92)
    (caption,) = named(["caption"])
    save(caption(Image.open(tmp_path / "original.jpg")), tmp_path / "caption.jpg", quality=92)
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "original" and "a caption" in group.choice.reason


@pytest.mark.parametrize("name", ["chelsea", "coffee", "astronaut"])
def test_a_photograph_goes_on_beyond_its_crop_and_a_collage_does_not_beyond_its_part(name):
    collage, crop = named(["collage", "crop 80%"])
    image = ImageOps.contain(photo(name), (400, 400))
    for pair, is_collage in (((collage(image), image), True), ((image, crop(image)), False)):
        laid = two_laid(*(imaging.encoded(one, "PNG") for one in pair))
        assert any("collage" in words for words in laid.lacks(0, 1).said) is is_collage


def test_a_far_larger_file_stays_though_it_holds_no_more(tmp_path, original):
    save(original.resize((120, 80)), tmp_path / "small.jpg", quality=95)
    save(original.resize((120, 80)).resize((480, 320), Image.Resampling.BICUBIC), tmp_path / "large.jpg")
    group = only_group(tmp_path)
    assert "large.jpg" not in {photo.path.name for photo in group.may_go}


def test_a_wider_view_is_kept_and_what_shows_more_elsewhere_stays(tmp_path, original):
    save(original.crop((0, 0, 440, 320)), tmp_path / "left.jpg")
    save(original.crop((50, 0, 480, 320)), tmp_path / "right.jpg")
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "left" and marked(group) == set()
    assert "shows more of the scene" in group.difference(group.members[0])


def test_finer_detail_in_a_crop_is_not_given_up_for_the_whole(tmp_path):
    sharp = photo("coffee")
    save(sharp.resize((200, 133), Image.Resampling.LANCZOS), tmp_path / "whole.jpg")
    save(sharp.crop((60, 40, 540, 360)), tmp_path / "fine.jpg")
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "whole" and marked(group) == set()
    assert group.difference(group.members[0]) == "holds finer detail"


def test_black_and_white_is_never_suggested(tmp_path, original):
    save(original, tmp_path / "colour.jpg", quality=85)
    save(original.convert("L").convert("RGB"), tmp_path / "a grey.jpg", quality=95)
    group = only_group(tmp_path)
    assert (group.keeper.path.stem, group.choice.reason) == ("colour", "in colour")
    assert marked(group) == set() and "black and white" in group.difference(group.members[0])


def test_yellow_writing_on_white_makes_no_colour_picture_of_a_grey_one(tmp_path, original):
    """White and yellow differ in blue alone; its copy with a caption may go."""
    lighter = np.linspace(0, 2, 320).clip(0, 1)[:, None] * np.full((320, 480), 255)
    white, light = Image.new("L", original.size, "white"), Image.fromarray(lighter).convert("L")
    grey = Image.composite(white, original.convert("L"), light).convert("RGB")
    save(grey, tmp_path / "z" / "original.jpg", quality=90)
    save(written(grey), tmp_path / "caption.jpg", quality=95)
    save(grey, tmp_path / "other.jpg", quality=40)
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "original", group.choice.reason
    assert marked(group) == {"caption", "other"}


def test_a_caption_on_a_grey_picture_is_judged_by_whole_pictures_of_its_tones(tmp_path):
    """Brightened, cropped and turned copies do not explain the caption, and must not outvote those that do."""
    grey = ImageOps.contain(photo("astronaut"), (560, 560)).convert("L").convert("RGB")
    save(grey, tmp_path / "original.jpg", quality=90)
    names = ["border with text 5%", "brightness 1.4x", "crop 70%", "crop 80%", "mirror", "rotate 5°"]
    for edit in named(names):
        save(edit(grey).convert("RGB"), tmp_path / f"{edit.name}.jpg", quality=90)
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "original", group.choice.reason
    assert marked(group) >= {"border with text 5%", "crop 70%", "crop 80%"}


@pytest.mark.parametrize(
    ("suffix", "form"), [("tif", "TIFF"), ("webp", "WEBP"), ("png", "PNG"), ("gif", "GIF")]
)
def test_a_file_of_four_pages_is_no_copy_of_its_first(tmp_path, original, suffix, form):
    others = [photo(name).resize(original.size) for name in ("astronaut", "chelsea", "rocket")]
    original.save(tmp_path / f"pages.{suffix}", form, save_all=True, append_images=others)
    save(original, tmp_path / "first.jpg")
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "pages" and marked(group) == set()
    assert "the one to keep has 4 pages or frames" in group.difference(group.members[0])


def test_a_live_photo_stays_with_its_film(tmp_path, original):
    save(original.resize((300, 200)), tmp_path / "IMG_1.jpg")
    (tmp_path / "IMG_1.MOV").write_bytes(b"film")
    save(original, tmp_path / "sent.jpg")
    group = only_group(tmp_path)
    assert marked(group) == set(), (group.keeper, group.differs)


def test_a_part_that_shows_something_else_is_told(tmp_path, original):
    """Someone is in one of two shots from one place: the search may prove them, the page must not suggest one."""
    changed = original.copy()
    changed.paste(photo("astronaut").resize((44, 44)), (210, 20))
    save(original, tmp_path / "one.jpg")
    save(changed, tmp_path / "other.jpg")
    for group in copies_in(tmp_path):
        assert marked(group) == set()


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
        assert marked(group) == set(), group.evidence


def test_only_what_is_proven_against_the_keeper_itself_is_marked(tmp_path, original, monkeypatch):
    """The keeper never saw one member: it is shown, with the reason, and not suggested."""
    save(original, tmp_path / "original.jpg", quality=95)
    save(original.resize((240, 160)), tmp_path / "half.jpg")
    save(original.resize((160, 107)), tmp_path / "small.jpg")
    found = pixels.verify

    def blind(first, second):
        evidence = found(first, second)
        greys = {first.grey.tobytes(), second.grey.tobytes()}
        return Verification() if greys == apart else evidence

    apart = {
        features(imaging.decode(tmp_path / f"{name}.jpg", draft_size=480)).grey.tobytes()
        for name in ("original", "small")
    }
    monkeypatch.setattr(pixels, "verify", blind)
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "original" and marked(group) == {"half"}
    (small,) = [photo for photo in group.members if photo.path.stem == "small"]
    assert "not proven" in group.difference(small)


def test_what_was_measured_of_a_family_is_remembered(tmp_path, original, monkeypatch):
    save(original, tmp_path / "original.jpg")
    save(original.resize((240, 160)), tmp_path / "half.jpg")
    first = only_group(tmp_path)
    monkeypatch.setattr("photodup.photos.groups.judging.LaidFamily", lambda *a: pytest.fail("was measured"))
    assert only_group(tmp_path) == first


@pytest.mark.parametrize("names", [("original",), ("original", "half")])
def test_a_file_that_goes_while_its_family_is_measured_is_skipped(tmp_path, original, monkeypatch, names):
    from photodup.photos.groups import judging

    for name, size in {"original": original.size, "half": (240, 160), "small": (200, 133)}.items():
        save(original.resize(size), tmp_path / f"{name}.jpg")
    measured = judging.LaidFamily

    def after_they_went(*family):
        for name in names:
            (tmp_path / f"{name}.jpg").unlink(missing_ok=True)
        return measured(*family)

    monkeypatch.setattr(judging, "LaidFamily", after_they_went)
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        found = find_tiers(catalogue)
    assert [sentence.partition(":")[0] for sentence in found.problems] == [
        f"{name}.jpg was skipped" for name in sorted(names)
    ]
    shown = [[group.keeper.path.stem, *(one.path.stem for one in group.members)] for group in found.copies]
    assert shown == ([["half", "small"]] if len(names) == 1 else [])
