"""What a picture holds: documents that say something else, subjects in one of two, and edits that add nothing."""

import io
import random
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont
from support.review_library import copies_in, only_group, photo, two_laid

from benchmarks.photo_quality.edits import LOOK_ALIKES, named
from photodup.embedding.imaging import encoded
from photodup.photos.compare.alignment import align
from photodup.photos.compare.content import Contents, Difference, compare_contents, is_page, where
from photodup.photos.compare.exposures import FineNoise, fine_noise, own_rounding, rounding_noise
from photodup.photos.compare.traces import coarsest_step, file_traces

PHOTOS = ["astronaut", "coffee", "chelsea", "rocket"]
WORDS = (
    "invoice", "dated", "kindly", "pay", "amount", "within", "days", "account", "bank", "garden", "please",
)  # fmt: skip


def saved(image: Image.Image, quality: int = 90) -> Image.Image:
    return Image.open(io.BytesIO(encoded(image, "JPEG", quality=quality))).convert("RGB")


def compared(first: Image.Image, second: Image.Image, compare=compare_contents) -> Any:
    """Compare two pictures of one frame; the second is brought to the first's size."""
    a, b = (np.asarray(image.convert("RGB").resize(first.size)) for image in (first, second))
    shared = np.zeros(a.shape[:2], bool)
    shared[4:-4, 4:-4] = True
    return compare(a, b, shared)


def common_noise(first: np.ndarray, second: np.ndarray, shared: np.ndarray) -> FineNoise:
    return fine_noise(first, align(first, second, shared).moved(second), shared)


@pytest.fixture(scope="module")
def photographs() -> dict[str, Image.Image]:
    return {name: photo(name) for name in PHOTOS}


def letter(to: str = "Anna Huber", total: str = "412.50", seed: int = 0) -> Image.Image:
    page = Image.new("RGB", (900, 1270), "white")
    draw, pick = ImageDraw.Draw(page), random.Random(seed)
    draw.text((70, 70), f"To: {to}", fill="black", font=ImageFont.load_default(28))
    for row in range(24):
        line = " ".join(pick.choice(WORDS) for _ in range(8))
        draw.text((70, 190 + row * 38), line, fill="black", font=ImageFont.load_default(24))
    draw.text((70, 1180), f"Total: {total}", fill="black", font=ImageFont.load_default(28))
    return page


def slide(points: int) -> Image.Image:
    page = Image.new("RGB", (1280, 720), "white")
    draw = ImageDraw.Draw(page)
    draw.rectangle((0, 0, 1280, 100), fill=(0, 60, 120))
    draw.text((40, 20), "Results", fill="white", font=ImageFont.load_default(48))
    for row, text in enumerate(
        ["growth in every region", "a new market", "price and margin", "the next quarter"]
    ):
        if row < points:
            draw.text((80, 170 + row * 110), f"- {text}", fill="black", font=ImageFont.load_default(40))
    return page


@pytest.mark.parametrize(("first", "second"), [
    (letter(), letter(to="Michael Wolf")),
    (letter(), letter(total="89.10")),
    (letter(), letter(total="412.80")),
    (slide(2), slide(4)),
    (slide(4), slide(2)),
], ids=["recipient", "total", "one digit", "points added", "points missing"])  # fmt: skip
@pytest.mark.parametrize("quality", [None, 88])
def test_pages_that_say_something_else_differ(first, second, quality):
    if quality:
        first, second = saved(first, quality), saved(second, quality)
    found = compared(first, second)
    assert found.places and not found.is_caption
    assert all(0 <= side <= 1 for place in found.places for side in place.box)


@pytest.mark.parametrize("page", [letter(), slide(4)], ids=["letter", "slide"])
@pytest.mark.parametrize("change", ["jpeg", "half the size", "darker"])
def test_a_page_that_was_only_saved_again_holds_the_same(page, change):
    again = {
        "jpeg": lambda: saved(page, 60),
        "half the size": lambda: page.resize((page.width // 2, page.height // 2), Image.Resampling.LANCZOS),
        "darker": lambda: page.point(lambda value: int(0.8 * value)),
    }[change]()
    small = min(page.size, again.size)
    assert not compared(page.resize(small, Image.Resampling.LANCZOS), again).places


@pytest.mark.parametrize("name", PHOTOS)
@pytest.mark.parametrize(
    "edit", ["jpeg q 30", "resize 0.5x", "brightness 1.4x", "blur 0.5%", "grey", "warm filter"]
)
def test_an_edit_of_the_whole_picture_adds_nothing(photographs, name, edit):
    original = saved(photographs[name])
    assert not compared(original, saved(named([edit])[0](original))).places


def test_what_was_there_is_missed_where_the_other_is_even(photographs):
    """In both directions: something is there, or something is gone, though a wide blur would wipe it out."""
    original = photographs["rocket"]
    with_bird = original.copy()
    ImageDraw.Draw(with_bird).polygon([(100, 60), (112, 66), (124, 60), (112, 72)], fill=(190, 180, 170))
    for first, second in ((original, with_bird), (with_bird, original)):
        found = compared(saved(first), saved(second, 88))
        assert found.places and not found.is_caption
        left, top, right, bottom = found.places[0].box
        assert left < 112 / original.width < right and top < 66 / original.height < bottom


@pytest.mark.long
def test_of_pairs_with_and_without_a_small_subject_none_is_suggested(tmp_path: Path, photographs):
    rng = np.random.default_rng(0)
    for i in range(40):
        original = photographs[PHOTOS[i % len(PHOTOS)]].resize((800, 560))
        size = round(800 * rng.uniform(0.015, 0.2))
        x, y = (int(rng.integers(0, side - size)) for side in (800, 560))
        ground = np.asarray(original.crop((x, y, x + size, y + size)), float).mean(axis=(0, 1))
        figure = original.copy()
        colour = tuple(int(v) for v in (ground + rng.choice([-60, 60], 3)).clip(0, 255))
        ImageDraw.Draw(figure).ellipse((x, y, x + size, y + size), fill=colour)
        for name, image in zip("ab", (original, figure), strict=True):
            saved_as = exposed(image, seed=int(rng.integers(1 << 30)))
            saved_as.save(tmp_path / f"{i}_{name}.jpg", quality=int(rng.integers(85, 96)))
    assert not [photo.path for group in copies_in(tmp_path) for photo in group.may_go]


@given(
    name=st.sampled_from(PHOTOS), width=st.floats(0.03, 0.2), at=st.tuples(st.floats(0.1, 0.7), st.floats(0.1, 0.7)),
    colour=st.tuples(*[st.integers(0, 255)] * 3), seed=st.integers(0, 2**16),
)  # fmt: skip
@example(name="rocket", width=0.0625, at=(0.625, 0.11), colour=(0, 49, 0), seed=0)  # dark green on dark blue
@settings(max_examples=10)
def test_a_subject_in_one_of_two_is_never_explained(photographs, name, width, at, colour, seed):
    original = photographs[name]
    size = max(12, round(width * original.width))
    x, y = (round(share * side) for share, side in zip(at, original.size, strict=True))
    box = (x, y, x + size, y + size)
    # A figure is seen where it is unlike its ground.
    ground = np.asarray(original.crop(box), float).mean(axis=(0, 1))
    if np.abs(ground - colour).max() < 60:
        return
    with_subject = original.copy()
    ImageDraw.Draw(with_subject).ellipse(box, fill=colour)
    rng = np.random.default_rng(seed)

    def noisy(image: Image.Image) -> Image.Image:
        values = np.asarray(image, float) + rng.normal(0, 3, (*image.size[::-1], 3))
        return saved(Image.fromarray(values.clip(0, 255).astype(np.uint8)), int(rng.integers(85, 96)))

    pair = noisy(original), noisy(with_subject)
    for first, second in (pair, pair[::-1]):
        found = compared(first, second)
        assert found.places and not found.is_caption


@given(gain=st.floats(0.7, 1.2), offset=st.integers(-15, 15), quality=st.integers(40, 95))
@settings(max_examples=8)
def test_a_picture_explains_itself_in_any_tones(photographs, gain, offset, quality):
    original = saved(photographs["coffee"])
    assert not compared(original, saved(original.point(lambda v: int(gain * v + offset)), quality)).places


def test_a_caption_over_a_picture_is_told_from_writing_on_a_page(photographs):
    original = photographs["chelsea"]
    captioned = original.copy()
    text = {"fill": (255, 255, 0), "font": ImageFont.load_default(28)}
    ImageDraw.Draw(captioned).text((30, 240), "greetings from the sea", **text)
    found = compared(original, saved(captioned))
    assert found.places and found.is_caption
    # The keeper's own caption is nothing that the other has.
    assert not compared(saved(captioned), original).is_caption
    page = letter()
    added = page.copy()
    ImageDraw.Draw(added).text(
        (70, 130), "greetings from the sea", fill="black", font=ImageFont.load_default(28)
    )
    assert not compared(page, added).is_caption


@pytest.mark.parametrize("direction", [1, -1])
def test_a_figure_before_a_rough_ground_is_no_caption_nor_is_the_ground_without_it(photographs, direction):
    rng = np.random.default_rng(3)
    rough = rng.integers(0, 2, (427, 640, 1)).repeat(3, axis=2) * 90.0
    rough = Image.fromarray(rough.astype(np.uint8)).filter(ImageFilter.GaussianBlur(1.5))
    mask = Image.new("L", rough.size, 0)
    ImageDraw.Draw(mask).rectangle((0, 220, 640, 427), fill=255)
    original = Image.composite(rough, photographs["rocket"], mask)
    figure = original.copy()
    draw = ImageDraw.Draw(figure)
    draw.ellipse((180, 280, 300, 330), fill=(70, 110, 80))
    for x in (190, 215, 260, 285):
        draw.rectangle((x, 310, x + 8, 370), fill=(70, 110, 80))
    pair = [saved(original), saved(figure, 88)][::direction]
    found = compared(*pair)
    assert found.places and not found.is_caption


def test_a_flock_of_birds_is_no_caption(photographs):
    original = photographs["rocket"]
    flock = original.copy()
    draw, pick = ImageDraw.Draw(flock), random.Random(0)
    for _ in range(9):
        x, y = pick.randrange(20, 600), pick.randrange(20, 200)
        draw.line([(x, y), (x + 7, y + 5), (x + 14, y)], fill=(190, 180, 170), width=2)
    found = compared(original, saved(flock))
    assert found.places and not found.is_caption


def test_a_blurred_background_is_never_taken_for_something_added(photographs):
    """Portrait mode: where the blur is wider than any that saving explains it differs, and it is no caption."""
    original = photographs["astronaut"]
    found = compared(original, saved(named(["portrait blur"])[0](original)))
    assert found.places and not found.is_caption


def test_pages_and_photographs_are_told_apart(photographs):
    everywhere = np.ones((1270, 900), bool)
    assert is_page(np.asarray(letter()), everywhere)
    for image in photographs.values():
        assert not is_page(np.asarray(image), np.ones(image.size[::-1], bool))


@pytest.mark.parametrize(("boxes", "said"), [
    ([(0.1, 0.1, 0.2, 0.2)], "at the top left"),
    ([(0.4, 0.8, 0.5, 0.9)], "at the bottom"),
    ([(0.4, 0.4, 0.5, 0.5)], "in the middle"),
    ([(0.8, 0.4, 0.9, 0.5), (0, 0, 0.1, 0.1)], "at the right and in 1 other place"),
    ([(0, 0, 1, 0.9)], "over most of the picture"),
])  # fmt: skip
def test_places_are_named_in_words(boxes, said):
    assert where(tuple(Difference(box, 20.0) for box in boxes)) == said


@pytest.mark.parametrize("name", PHOTOS[:3])
def test_a_faint_thing_that_was_brushed_away_is_missed_and_saving_is_not(photographs, name):
    first = saved(photographs[name], 92)
    values = np.asarray(first, float)
    y, x = np.mgrid[: first.height, : first.width]
    place = np.hypot(x - first.width / 2, y - first.height / 2) < first.width / 16
    brushed = Image.fromarray((values + 10 * place[..., None]).clip(0, 255).astype(np.uint8))
    assert compared(saved(brushed, 92), first).places, "of no more than some greys"
    assert not any(compared(first, saved(first, quality)).places for quality in (75, 88, 92, 97))


@pytest.mark.parametrize("name", ["coffee", "chelsea", "rocket"])
def test_two_exposures_from_two_places_lie_displaced_and_copies_do_not(photographs, name):
    [burst] = [one for one in LOOK_ALIKES if one.name == "burst"]
    first, second = (saved(make(photographs[name]), 92) for make in (burst.ground, burst))
    assert compared(first, second, align).displaced > 0.25
    for edit in named(["resize 0.25x", "jpeg q 10", "brightness 1.4x", "stretch 1.2x", "messenger"]):
        assert compared(first, saved(edit(first)), align).displaced < 0.2, edit.name
    for edit in named(["blur 0.25%", "blur 0.5%", "blur 1%"]):
        assert compared(first, saved(edit(first)), align).displaced < 0.05, edit.name
    assert compared(first, saved(named(["blur 0.25%"])[0](second)), align).displaced > 0.12, (
        "one of them is unsharp"
    )


@pytest.mark.parametrize("name", ["coffee", "chelsea", "rocket"])
def test_a_second_picture_is_moved_onto_the_first_and_the_first_back_onto_it(photographs, name):
    image = photographs[name]

    def apart(*pictures: np.ndarray) -> np.ndarray:
        """Return the difference in greys of what no resampling changes."""
        return np.abs(np.subtract(*(cv2.GaussianBlur(one.astype(np.float32), (0, 0), 2) for one in pictures)))

    for move in [(1, 0, 1.3, 0, 1, -0.6), (1, 0, 3, 0, 1, -2)]:
        moved = image.transform(image.size, Image.Transform.AFFINE, move, 3)
        a, b = np.asarray(image), np.asarray(moved)
        fit, shared = compared(image, moved, align), np.s_[12:-12, 12:-12]
        assert fit.displaced == 0
        assert apart(a, fit.moved(b))[shared].mean() < apart(a, b)[shared].mean() / 2
        assert apart(b, fit.reversed().moved(a))[shared].mean() < apart(a, b)[shared].mean() / 2


def test_pictures_that_share_nothing_have_no_places():
    blank = np.zeros((60, 60, 3), np.uint8)
    assert compare_contents(blank, blank, np.zeros((60, 60), bool)) == Contents()


def test_of_two_different_letters_none_is_suggested_and_the_places_are_marked(tmp_path: Path):
    letter().save(tmp_path / "a.png")
    letter(to="Michael Wolf").save(tmp_path / "b.png")
    group = only_group(tmp_path)
    (other,) = group.members
    assert not group.may_go
    assert "looks different at the top" in group.difference(other)
    for of_keeper in (True, False):
        left, top, _, bottom = group.boxes(other, of_keeper=of_keeper)[0]
        assert left < 0.3 and top < 70 / 1270 + 0.02 and bottom < 0.12, "the name in the first line"


def exposed(image: Image.Image, seed: int) -> Image.Image:
    """Photograph a picture: with noise of this exposure's own."""
    noise = np.random.default_rng(seed).normal(0, 4, (*image.size[::-1], 3))
    return Image.fromarray((np.asarray(image, float) + noise).clip(0, 255).astype(np.uint8))


def noise_of(first: Image.Image, second: bytes) -> tuple[FineNoise, float]:
    """Return the noise of both, and what compression may have put into it."""
    opened = Image.open(io.BytesIO(second))
    traces, again = file_traces(opened), opened.convert("RGB")
    rounding = rounding_noise(traces, coarsest_step(np.asarray(again.convert("L"))), 1.0)
    return compared(first, again, common_noise), rounding


def are_two_exposures(first: Image.Image, second: bytes) -> bool:
    noise, rounding = noise_of(first, second)
    return noise.is_of_two_exposures(rounding)


@pytest.mark.parametrize("name", PHOTOS)
@pytest.mark.parametrize("quality", [85, 95])
def test_two_exposures_share_no_noise(photographs, name, quality):
    still = photographs[name].resize((768, 768 * photographs[name].height // photographs[name].width))
    second = encoded(exposed(still, seed=2), "JPEG", quality=quality)
    assert are_two_exposures(saved(exposed(still, seed=1)), second)


@pytest.mark.parametrize("name", PHOTOS)
@pytest.mark.parametrize("quality", [10, 30, 75, 95])
def test_copies_of_one_exposure_share_its_noise_or_lost_it(photographs, name, quality):
    original = saved(exposed(photographs[name], seed=1))
    assert not are_two_exposures(original, encoded(original, "JPEG", quality=quality))
    if quality == 95:
        for edit in ("brightness 1.4x", "blur 0.5%", "grey"):
            edited = encoded(named([edit])[0](original), "JPEG", quality=quality)
            assert not are_two_exposures(original, edited), edit


@pytest.mark.parametrize("name", PHOTOS)
def test_a_blur_is_no_other_tone_and_a_little_more_light_or_colour_is(tmp_path: Path, photographs, name):
    image = photographs[name]
    edits = {edit.name: edit(image) for edit in named(["blur 0.5%", "blur 1%"])}
    changed = {
        "light": ImageEnhance.Brightness(image).enhance(1.1),
        "colour": ImageEnhance.Color(image).enhance(1.4),
    }
    for what, edited in (edits | changed).items():
        files = [encoded(one, "JPEG", quality=92) for one in (image, edited)]
        assert two_laid(*files).relation(0, 1).is_retoned is (what in changed), what


@pytest.mark.parametrize("name", ["chelsea", "rocket"])
def test_a_lighter_edit_holds_its_files_compression_and_another_exposure_does_not(photographs, name):
    """As still and as clean as no camera takes them: even so the compression of each file is its own."""
    image, light = photographs[name], named(["brightness 1.4x"])[0]
    first = encoded(image, "JPEG", quality=92)
    for seen, is_edit in ((Image.open(io.BytesIO(first)).convert("RGB"), True), (image, False)):
        files = [Image.open(io.BytesIO(one)) for one in (first, encoded(light(seen), "JPEG", quality=92))]
        pair = [one.convert("RGB") for one in files]
        most = [own_rounding(file_traces(one), 1.0) for one in files]
        assert (compared(*pair, common_noise).seen_in_an_edit(*most) > 0) is is_edit
        assert not compared(*pair[::-1], common_noise).seen_in_an_edit(*most[::-1])


def test_a_subject_nearly_as_pale_as_its_sky_is_kept(tmp_path: Path, photographs):
    """It differs by too little to be seen as a place; but the two files are two exposures."""
    sky = photographs["rocket"].resize((960, 640))
    with_cloud = sky.copy()
    ground = np.asarray(sky.crop((120, 80, 180, 120)), float).mean(axis=(0, 1))
    ImageDraw.Draw(with_cloud).ellipse((120, 80, 180, 120), fill=tuple(int(v) + 10 for v in ground))
    exposed(sky, seed=1).save(tmp_path / "a.jpg", quality=92)
    exposed(with_cloud, seed=2).save(tmp_path / "b.jpg", quality=90)
    group = only_group(tmp_path)
    assert not group.may_go
    assert "has fine noise of its own, as another exposure has" in group.difference(group.members[0])


def test_a_filter_that_took_noise_away_leaves_a_sign_and_compression_does_not(photographs):
    flat = photographs["chelsea"].filter(ImageFilter.GaussianBlur(6))
    original = encoded(exposed(flat, seed=1), "JPEG", quality=92)
    filtered = saved(Image.open(io.BytesIO(original)).filter(ImageFilter.MedianFilter(3)), 92)
    noise, rounding = noise_of(filtered, original)
    assert noise.may_be_filtered(rounding) and not noise.is_of_two_exposures(rounding)
    jpegs = [encoded(filtered, "JPEG", quality=quality) for quality in (92, 50)]
    for second in (*jpegs, encoded(flat, "PNG")):
        noise, rounding = noise_of(filtered, second)
        assert not noise.may_be_filtered(rounding)


def test_the_original_never_goes_for_a_copy_that_a_filter_made_smoother(tmp_path: Path, photographs):
    """On a picture without fine detail nothing but its noise shows which of the two came first."""
    flat = photographs["chelsea"].filter(ImageFilter.GaussianBlur(5))
    exposed(flat, seed=1).save(tmp_path / "z.jpg", quality=88)
    Image.open(tmp_path / "z.jpg").filter(ImageFilter.MedianFilter(3)).save(tmp_path / "a.jpg", quality=97)
    group = only_group(tmp_path)
    assert "z.jpg" not in {photo.path.name for photo in group.may_go}


def test_paper_or_a_wall_beside_a_picture_is_not_called_more_of_the_scene(photographs):
    original = photographs["chelsea"]
    # Its shade changes by more than a border's.
    shade = np.linspace(232, 202, original.height)[:, None, None] * (1, 0.97, 0.9)
    wide = Image.fromarray(np.tile(shade, (1, original.width + 90, 1)).astype(np.uint8))
    wide.paste(original, (0, 0))
    wide = exposed(wide, seed=3)
    pictures = [wide.crop((0, 0, original.width, wide.height)), wide.crop((30, 0, *wide.size))]
    laid = two_laid(*(encoded(one, "PNG") for one in pictures))
    assert "shows more around the picture, nearly of one colour" in laid.lacks(0, 1).said
    assert "shows more of the scene" in laid.lacks(1, 0).said
