"""A file may go if the file that stays can reproduce it: kinds drawn by code on real photographs."""

import io
from collections.abc import Collection
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from support.review_library import photo

from benchmarks.photo_quality.edits import LOOK_ALIKES, named
from photodup.embedding.imaging import decode, encode
from photodup.photos.compare.compare import lacks
from photodup.photos.compare.pictures import Picture, Saving
from photodup.photos.compare.reproduce import rounding
from photodup.photos.compare.unexplained import Difference
from photodup.photos.groups.choose import choose_keeper

PHOTOGRAPHS = ["astronaut", "coffee", "chelsea"]


def read(data: bytes, *, has_camera: bool = False) -> Picture:
    with Image.open(io.BytesIO(data)) as header:
        return Picture(decode(data), Saving.of(header), has_camera)


def saved(image: Image.Image, form: str = "JPEG", **options) -> Picture:
    return read(encode(image, form, **{"quality": 92} | options))


def noisy(image: Image.Image, sigma: float, seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).normal(0, sigma, (image.height, image.width, 3))
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).round().astype(np.uint8))


@cache
def original(name: str) -> Picture:
    image = ImageOps.contain(photo(name), (480, 480), Image.Resampling.LANCZOS)
    return saved(image)


def reasons(keeper: Picture, member: Picture) -> str:
    return "; ".join(difference.reason for difference in lacks(keeper, member))


# ---- what a file reproduces ------------------------------------------------------------------------------------

COPIES = [
    "resize 0.5x",
    "resize 0.25x",
    "jpeg q 75",
    "jpeg q 30",
    "crop 80%",
    "messenger",
    "thumbnail",
    "rotate 5°",
]


@pytest.mark.parametrize("name", PHOTOGRAPHS)
@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_is_reproduced_by_its_source_and_never_the_other_way_round(name, kind):
    source = original(name)
    copy = saved(named([kind])[0](source.image))
    assert reasons(source, copy) == ""
    assert reasons(copy, source)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "HEIF", "AVIF"])
def test_a_conversion_is_reproduced_and_its_source_stays(form):
    source = original("coffee")
    copy = saved(source.image, form)
    assert reasons(source, copy) == ""
    assert reasons(copy, source) == "the file to keep was made from it"


@pytest.mark.parametrize("way", [Image.Resampling.BICUBIC, Image.Resampling.BILINEAR, Image.Resampling.BOX])
def test_a_copy_is_reproduced_in_whatever_way_its_program_resized_it(way):
    source = original("coffee")
    copy = saved(source.image.resize((240, 160), way), quality=80)
    assert reasons(source, copy) == ""


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_a_copy_is_reproduced_however_it_lies_in_its_file(orientation):
    source = original("coffee")
    half = source.image.resize((237, 158), Image.Resampling.LANCZOS)
    tag = Image.Exif()
    tag[0x0112] = orientation
    turn = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    copy = read(encode(half.transpose(turn[orientation]), "JPEG", quality=85, exif=tag))
    assert copy.image.size == half.size and reasons(source, copy) == ""


def test_a_lossless_master_stays_and_the_jpeg_exported_from_it_goes():
    master = saved(photo("coffee").resize((480, 320)), "PNG")
    for quality in (100, 95, 80):
        export = saved(master.image, quality=quality, subsampling=0)
        assert reasons(master, export) == "" != reasons(export, master)


def test_of_two_lossless_files_that_differ_in_one_pixel_none_goes():
    image = original("coffee").image.copy()
    first = saved(image, "PNG")
    image.putpixel((100, 100), tuple(value ^ 32 for value in image.getpixel((100, 100))))
    assert reasons(first, saved(image, "PNG")) == "which of the two is the original is not seen"
    assert not reasons(first, saved(first.image, "TIFF"))


def test_what_was_saved_again_more_finely_goes_for_its_source():
    source = saved(photo("coffee").resize((480, 320)), quality=80)
    again = saved(source.image, quality=93)
    assert reasons(source, again) == ""
    assert reasons(again, source) == "the file to keep was made from it"


@pytest.mark.parametrize("quality", [85, 30])
def test_of_two_files_saved_of_one_picture_the_better_one_stays(quality):
    image = photo("coffee").resize((480, 320), Image.Resampling.LANCZOS)
    better, worse = saved(image, quality=95), saved(image, quality=quality)
    assert reasons(better, worse) == ""
    assert reasons(worse, better)


def test_a_file_of_which_only_a_reduced_picture_is_compared_is_reproduced():
    source = saved(photo("retina"))
    copy = saved(source.image, quality=70)
    assert max(source.image.size) > 1365 and reasons(source, copy) == ""
    assert reasons(copy, source)


# ---- what it does not ------------------------------------------------------------------------------------------


def muted(image: Image.Image, saturation: float = 0.12) -> Image.Image:
    return ImageEnhance.Color(image).enhance(saturation)


def toned(image: Image.Image) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(1.15)


def spotted(image: Image.Image) -> Image.Image:
    image = image.copy()
    ImageDraw.Draw(image).ellipse((220, 120, 229, 129), fill=(205, 30, 30))
    return image


def warm(image: Image.Image) -> Image.Image:
    return ImageChops.multiply(image, Image.new("RGB", image.size, (255, 245, 225)))


EDITS = {
    "light": (toned, "its light or its colours are others"),
    "colours": (lambda image: ImageEnhance.Color(image).enhance(1.12), "its light or its colours are others"),
    "warm": (warm, "its light or its colours are others"),
    "grey": (lambda image: image.convert("L").convert("RGB"), "its light or its colours are others"),
    "spot": (spotted, "looks different in"),
    "caption": (named(["caption"])[0], "looks different in"),
    "retouch": (named(["retouch"])[0], "looks different in"),
    "sharpened": (lambda image: image.filter(ImageFilter.UnsharpMask(2, 100, 2)), ""),
    "clarity": (lambda image: image.filter(ImageFilter.UnsharpMask(12, 30, 0)), ""),
    "detail": (lambda image: image.filter(ImageFilter.UnsharpMask(1.2, 60, 2)), "as after sharpening"),
    "crisp": (lambda image: image.filter(ImageFilter.UnsharpMask(3, 20, 0)), "as after sharpening"),
    "mirror": (ImageOps.mirror, "is mirrored"),
    "turned": (lambda image: image.transpose(Image.Transpose.ROTATE_90), "is turned"),
    "stretched": (lambda image: image.resize((image.width * 6 // 5, image.height)), "is stretched"),
}


@pytest.mark.parametrize("name", PHOTOGRAPHS)
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_differs_and_neither_goes_for_the_other(name, edit):
    change, reason = EDITS[edit]
    source = original(name)
    edited = saved(change(source.image), quality=93)
    assert reasons(source, edited) and reason in reasons(source, edited)
    assert reasons(edited, source)


@pytest.mark.parametrize("factor", [0.7, 1.3, 1.5])
@pytest.mark.parametrize("form", ["JPEG", "WEBP"])
def test_other_colours_of_a_nearly_grey_photograph_are_seen(form, factor):
    source = saved(muted(original("chelsea").image), quality=94)
    edited = saved(muted(source.image, factor), form, quality=90)
    assert "its light or its colours are others" in reasons(source, edited)
    assert reasons(source, saved(source.image, form, quality=70)) == ""


@pytest.mark.parametrize("kind", [one.name for one in LOOK_ALIKES])
def test_what_only_looks_alike_stays(kind):
    (edit,) = (one for one in LOOK_ALIKES if one.name == kind)
    image = original("coffee").image
    first = saved(edit.ground(image) if edit.ground else image)
    second = saved(edit(first.image))
    assert reasons(first, second) and reasons(second, first)


@pytest.mark.parametrize("sigma", [1, 2, 3])
@pytest.mark.parametrize("quality", [95, 85, 70])
def test_of_two_exposures_from_a_tripod_none_goes(sigma, quality):
    image = photo("coffee").resize((480, 320), Image.Resampling.LANCZOS)
    first = saved(noisy(image, sigma, 1), quality=95)
    second = saved(noisy(image, sigma, 2), quality=quality)
    assert reasons(first, second) and reasons(second, first)
    if sigma > 1 and quality == 95:
        assert "its fine grain is not that of the file to keep" in reasons(first, second)


@pytest.mark.parametrize(("name", *"ab"), [("coffee", 97, 85), ("coffee", 97, 70), ("astronaut", 90, 85)])
def test_of_two_exposures_with_hardly_any_grain_none_goes(name, a, b):
    image = photo(name).resize((480, 320), Image.Resampling.LANCZOS)
    first, second = saved(noisy(image, 0.5, 1), quality=a), saved(noisy(image, 0.5, 2), quality=b)
    assert reasons(first, second) and reasons(second, first)


@pytest.mark.parametrize("form", ["WEBP", "AVIF", "HEIF"])
@pytest.mark.parametrize("sigma", [3, 6])
def test_of_two_exposures_none_goes_in_whatever_format_one_is_saved(form, sigma):
    image = ImageOps.contain(photo("astronaut"), (480, 480), Image.Resampling.LANCZOS)
    first = saved(noisy(image, sigma, 1), quality=95)
    for quality in (75, 95):
        second = saved(noisy(image, sigma, 2), form, quality=quality)
        assert reasons(first, second) and reasons(second, first)
    copy = saved(first.image, form, quality=95)
    assert reasons(first, copy) == "", "and a copy with grain goes"


@pytest.mark.parametrize("way", ["LANCZOS", "BICUBIC", "BOX", "HAMMING"])
@pytest.mark.parametrize(
    ("factor", "form", "quality"),
    [(0.7, "JPEG", 95), (0.5, "JPEG", 85), (0.7, "PNG", 0), (0.5, "HEIF", 80), (0.7, "WEBP", 90)],
)
def test_another_exposure_that_was_made_smaller_stays_and_a_copy_with_grain_goes(way, factor, form, quality):
    image = ImageOps.contain(photo("astronaut"), (512, 512), Image.Resampling.LANCZOS)
    first, second = (saved(noisy(image, 4, seed), quality=95) for seed in (1, 2))
    size = [round(side * factor) for side in image.size]
    exposure, copy = (
        saved(each.image.resize(size, Image.Resampling[way]), form, quality=quality)
        for each in (second, first)
    )
    assert "its fine grain is not that of the file to keep" in reasons(first, exposure)
    assert reasons(first, copy) == ""


@pytest.mark.parametrize("quality", [60, 80, 92])
def test_a_webp_is_reproduced_and_its_source_stays(quality):
    source = original("chelsea")
    copy = saved(source.image, "WEBP", quality=quality)
    assert reasons(source, copy) == "" != reasons(copy, source)
    assert reasons(saved(copy.image, quality=95), copy), "a JPEG made of a WebP"


@pytest.mark.parametrize("form", ["HEIF", "AVIF", "WEBP"])
def test_no_original_goes_for_the_jpeg_that_was_made_of_it(form):
    source = saved(original("rocket").image, form, quality=85)
    assert reasons(saved(source.image, quality=75), source) and reasons(
        saved(source.image, quality=92), source
    )


@pytest.mark.parametrize("larger", ["bicubic", "sharpened", "smoothed", "doubled"])
def test_no_source_goes_for_its_enlargement(larger):
    import cv2

    source = original("coffee")
    image = source.image.resize((960, 640), Image.Resampling.BICUBIC)
    if larger == "doubled":
        image = source.image.resize((960, 640), Image.Resampling.NEAREST)
        assert reasons(saved(image, "PNG"), source)
    if larger == "sharpened":
        image = image.filter(ImageFilter.UnsharpMask(1.2, 60, 2))
    if larger == "smoothed":
        image = Image.fromarray(cv2.bilateralFilter(np.asarray(image), 7, 18, 5))
    assert reasons(saved(image, quality=94), source)


def test_a_picture_does_not_go_for_a_collage_or_a_frame_of_it():
    source = original("coffee")
    collage, screen = named(["collage", "desktop screenshot"])
    for change in (collage, screen, lambda image: ImageOps.expand(image, 20, "white")):
        assert "has an edge where this one ends" in reasons(saved(change(source.image), "PNG"), source)


@pytest.mark.parametrize("half", [False, True])
def test_one_figure_of_an_invoice_is_seen(half):
    pages = []
    for total in ("412.50", "412.60"):
        page = Image.new("RGB", (1240, 1754), "white")
        for line in range(30):
            ImageDraw.Draw(page).text((100, 100 + 50 * line), f"{line} of your order", "black", font_size=34)
        ImageDraw.Draw(page).text((100, 1640), f"Total: {total}", "black", font_size=38)
        pages.append(page)
    size = (620, 877) if half else (1240, 1754)
    copy = saved(pages[1].resize(size, Image.Resampling.LANCZOS), quality=80)
    assert "looks different in" in reasons(saved(pages[0]), copy)


@pytest.mark.parametrize(("share", "quality"), [(0.7, 82), (1, 60)])
def test_one_digit_of_a_table_is_seen_and_an_equal_table_may_go(share, quality):
    def table(figure: str) -> Image.Image:
        page = Image.new("RGB", (800, 600), "white")
        for cell in range(210):
            text, place = (
                figure if cell == 101 else f"{37.31 * cell:.2f}",
                (20 + cell % 7 * 110, 15 + cell // 7 * 19),
            )
            ImageDraw.Draw(page).text(place, text, "black", font_size=13)
        return page

    size = round(800 * share), round(600 * share)
    same, other = (saved(table(text).resize(size), quality=quality) for text in ("318.40", "313.40"))
    keeper = saved(table("318.40"))
    assert not reasons(keeper, same) and "looks different in one place" in reasons(keeper, other)


def test_places_are_boxes_in_both_frames():
    source = original("coffee")
    (difference,) = lacks(source, saved(spotted(source.image.crop((60, 40, 460, 300)))))
    ((ours, its),) = difference.boxes
    left, top, right, bottom = its
    assert 215 < left * 400 < 225 and 225 < right * 400 < 235 and 115 < top * 260 < 125
    assert ours[0] * 480 == pytest.approx(left * 400 + 60, abs=1)
    assert ours[3] * source.image.height == pytest.approx(bottom * 260 + 40, abs=1)


def test_a_jpegs_rounding_is_seen_in_what_was_made_of_it_and_nowhere_else():
    source = original("coffee")
    assert rounding(np.asarray(source.image), source.saving) > 0.5
    other = photo("coffee").resize(source.image.size, Image.Resampling.LANCZOS)
    assert abs(rounding(np.asarray(other), source.saving)) < 0.05


def test_a_file_of_four_pages_does_not_go_for_its_first(tmp_path):
    image = original("coffee").image
    image.save(tmp_path / "a.tif", save_all=True, append_images=[image.rotate(180)] * 3)
    pages = read((tmp_path / "a.tif").read_bytes())
    assert reasons(original("coffee"), pages) == "holds 4 pages or frames"


# ---- the keeper ------------------------------------------------------------------------------------------------

LACK = (Difference("something"),)


def chosen(
    n: int, missing: set[tuple[int, int]], besides: Collection[tuple[int, int]] = (), preferred: int = 0
):
    return choose_keeper(
        range(n),
        lambda keeper, row: LACK if (keeper, row) in missing else (),
        lambda keeper, row: LACK if (keeper, row) in besides else (),
        preferred,
    )


def test_the_keeper_is_the_file_that_reproduces_all_others():
    decision = chosen(3, {(0, 1), (2, 0)})
    assert (decision.keeper, decision.differences) == (1, {0: (), 2: ()})


def test_of_those_that_reproduce_all_the_first_that_loses_nothing_else_is_kept():
    assert chosen(3, set()).keeper == 0
    assert chosen(3, set(), {(0, 1), (1, 2)}).keeper == 2
    assert chosen(3, {(2, 0)}, {(0, 1), (1, 2)}).keeper == 0, "what a picture shows counts more"


@given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=5))
def test_where_none_reproduces_all_it_is_the_first_of_the_best_three_that_reproduces_most(missing):
    n_missing = [sum((keeper, row) in missing for row in range(5) if row != keeper) for keeper in range(5)]
    best = n_missing.index(0) if 0 in n_missing else n_missing.index(min(n_missing[:3]))
    assert chosen(5, missing).keeper == best


def test_where_none_reproduces_all_those_that_nobody_reproduces_stay():
    decision = chosen(4, {(0, 1), (0, 2), (1, 0), (2, 0), (3, 0), (3, 1), (2, 1)})
    assert decision.keeper == 1 and decision.differences == {0: LACK, 2: (), 3: ()}


def test_the_owners_own_choice_is_kept_and_suggested_is_only_what_it_reproduces():
    decision = chosen(3, {(0, 1)}, preferred=1)
    assert (decision.keeper, decision.differences) == (0, {1: LACK, 2: ()})


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_a_strongly_saved_original_does_not_go_for_its_saving_again_or_enlargement(name):
    """Each JPEG foretells the other; the finer was saved from the coarser, which it foretells better."""
    source = saved(original(name).image, quality=78)
    again = saved(source.image, quality=87)
    assert reasons(again, source) == "the file to keep was made from it" and not reasons(source, again)
    larger = saved(
        source.image.resize([3 * side // 2 for side in source.image.size], Image.Resampling.BICUBIC),
        quality=87,
    )
    assert reasons(larger, source) and not reasons(source, larger)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_lies_in_its_file_as_exif_says(orientation):
    upright = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    saving = Saving("JPEG", orientation=orientation)
    lying = Image.fromarray(saving.as_saved(upright))
    lying.getexif()[0x0112] = orientation
    assert np.array_equal(np.asarray(ImageOps.exif_transpose(lying)), upright)
    assert np.array_equal(saving.upright(np.asarray(lying)), upright)
