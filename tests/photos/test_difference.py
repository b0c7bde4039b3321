"""The picture of where two files of one picture differ: in the place where it is, as strong as it is."""

import numpy as np
import pytest
from PIL import Image
from support.review_library import photo

from photodup.photos.review.drawn_difference import drawn_difference

FAINT, STRONG = (100, 100, 140, 140), (380, 200, 440, 250)  # left, top, right, bottom


@pytest.fixture(scope="module")
def coffee() -> Image.Image:
    return photo("coffee")


@pytest.fixture(scope="module")
def changed(coffee) -> Image.Image:
    """The same, a little lighter in one place, and inverted in another."""
    found = coffee.copy()
    found.paste(coffee.crop(FAINT).point(lambda grey: grey + 24), FAINT)
    found.paste(coffee.crop(STRONG).point(lambda grey: (grey + 128) % 256), STRONG)
    return found


def glow(drawn: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """How strongly each pixel of the first picture is drawn as different, 0 to 510: red, then yellow."""
    red, green, blue = np.asarray(drawn.resize(size), int).transpose(2, 0, 1)
    return red + green - 2 * blue


def inside(values: np.ndarray, box: tuple[int, int, int, int], margin: int) -> np.ndarray:
    left, top, right, bottom = box
    return values[top + margin : bottom - margin, left + margin : right - margin]


@pytest.mark.parametrize("edit", ["none", "half", "turned", "mirrored", "cropped"])
def test_it_glows_where_the_two_differ_and_nowhere_else(coffee, changed, edit):
    other = {
        "none": changed,
        "half": changed.resize((300, 200), Image.Resampling.LANCZOS),
        "turned": changed.transpose(Image.Transpose.ROTATE_90),
        "mirrored": changed.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "cropped": changed.crop((60, 40, 560, 360)),
    }[edit]
    seen = glow(drawn_difference(coffee, other)[0], coffee.size)
    faint, strong = (inside(seen, box, 6) for box in (FAINT, STRONG))
    assert np.median(faint) > 60 and np.median(strong) > 2 * np.median(faint)
    for box in (FAINT, STRONG):
        inside(seen, box, -8)[:] = 0
    assert (seen > 60).mean() < 0.01, "the rest lies on itself"


def test_what_one_alone_shows_is_striped_and_no_difference(coffee):
    box = (120, 80, 480, 320)
    drawn = drawn_difference(coffee, coffee.crop(box))[0]
    assert (glow(drawn, coffee.size) > 60).mean() < 0.001
    striped = np.asarray(drawn.convert("L").resize(coffee.size), int)
    assert np.ptp(striped[20:60, 20:60]) > 40, "outside the crop"
    wider = drawn_difference(coffee.crop(box), coffee)[0]
    assert wider.size[0] / wider.size[1] == pytest.approx(1.5, abs=0.02), "grown to what the other shows"


def test_equal_pictures_are_dark_and_two_pictures_have_no_difference(coffee):
    equal = drawn_difference(coffee, coffee)
    assert glow(equal[0], coffee.size).max() == 0 and equal[1:] == (0, 0)
    assert drawn_difference(coffee, photo("chelsea")) is None


def test_how_much_differs_is_the_share_that_glows_and_the_most_is_of_any_pixel(coffee):
    faint, strong = coffee.copy(), coffee.copy()
    faint.paste(coffee.crop(FAINT).point(lambda grey: grey - 5 * (grey > 5)), FAINT)
    strong.paste(coffee.crop(FAINT).point(lambda grey: grey - 60 * (grey > 60)), FAINT)
    drawn, share, most = drawn_difference(coffee, faint)
    assert share == 0 and most == pytest.approx(5, abs=1) and glow(drawn, coffee.size).max() == 0
    _, share, most = drawn_difference(coffee, strong)
    assert share == pytest.approx(40 * 40 / (600 * 400), rel=0.2)
    assert most >= 60
