"""Copies are told from second shots on the pixels, with real photographs."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from support.review_library import photo

from benchmarks.photo_quality.edits import LOOK_ALIKES, REFERENCE, TRANSFORMS, named
from photodup.core.errors import PhotodupError
from photodup.photos.compare.dense import grey_maps
from photodup.photos.compare.features import features
from photodup.photos.compare.limits import LIMITS
from photodup.photos.compare.maps import from_centres, rescaled, to_centres
from photodup.photos.compare.verify import FEW_FEATURES, CopyEvidence, matches, verify_copy

PHOTOS = ["astronaut", "coffee", "chelsea", "rocket"]


@pytest.fixture(scope="module")
def photos():
    return {name: photo(name) for name in PHOTOS}


@pytest.fixture(scope="module")
def known(photos):
    return {name: features(image) for name, image in photos.items()}


@pytest.mark.parametrize("name", REFERENCE)
def test_an_edit_is_still_a_copy(photos, known, name):
    (edit,) = named([name])
    found = {photo: verify_copy(known[photo], features(edit(image))) for photo, image in photos.items()}
    missed = [photo for photo, verdict in found.items() if not verdict.is_copy()]
    assert not missed, {photo: found[photo] for photo in missed}
    assert all(verdict.mirrored == (name == "mirror") for verdict in found.values() if verdict.is_copy())


def test_different_pictures_are_not_copies(known):
    assert not any(verify_copy(*pair).is_copy() for pair in combinations(known.values(), 2))


def test_a_second_shot_from_another_place_is_not_a_copy():
    """A real stereo pair: everything is in both, and near things moved against far ones."""
    import skimage.data

    folder = Path(skimage.data.__file__).parent
    left, right = (folder / f"motorcycle_{side}.png" for side in ("left", "right"))
    if not left.exists():
        pytest.skip("this scikit-image does not carry the stereo pair")
    verdict = verify_copy(features(Image.open(left)), features(Image.open(right)))
    assert verdict.inliers > 50, "the scene is the same, and is found to be"
    assert not verdict.is_copy()


def test_someone_who_walked_through_the_picture_is_no_caption(photos, known):
    """The planted burst: a fixed camera, and in one place something else, as large as a person."""
    pixels = np.asarray(photos["coffee"]).copy()
    other = np.asarray(photos["chelsea"])
    pixels[100:340, 60:200] = other[20:260, 120:260]
    verdict = verify_copy(known["coffee"], features(Image.fromarray(pixels)))
    assert verdict.inliers > 100 and not verdict.is_copy(), verdict
    assert verdict.spot < 0.02, "nothing of it is writing"


@pytest.mark.parametrize("colour", ["yellow", "black"])
def test_a_caption_of_several_lines_is_one_of_the_edits(photos, known, colour):
    from PIL import ImageDraw

    written = photos["coffee"].copy()
    draw = ImageDraw.Draw(written)
    for line in range(3):
        draw.text((30, 30 + 60 * line), "greetings from the sea", fill=colour, font_size=36)
    verdict = verify_copy(known["coffee"], features(written))
    assert verdict.is_copy() and verdict.spot > 0.02, verdict


def test_things_that_moved_in_several_places_are_not_a_copy(photos, known):
    """The planted second shot: parts of the picture swapped in four separate places."""
    pixels = np.asarray(photos["astronaut"]).copy()
    for top, left in [(60, 60), (60, 380), (380, 60), (380, 380)]:
        pixels[top : top + 80, left : left + 80] = pixels[top + 20 : top + 100, left + 40 : left + 120][::-1]
    verdict = verify_copy(known["astronaut"], features(Image.fromarray(pixels)))
    assert verdict.inliers > 100 and verdict.agreement < LIMITS.min_agreement and not verdict.is_copy()


def test_mirrored_features_are_those_of_the_mirror_image(photos, known):
    """The permutation replaces a second extraction, so it must find what that would."""
    flipped = features(ImageOps.mirror(photos["astronaut"]))
    permuted = known["astronaut"].mirrored()
    found = matches(permuted.descriptors, flipped.descriptors)
    assert len(found) > 0.8 * len(permuted.points)
    shift = np.abs(permuted.points[found[:, 0]] - flipped.points[found[:, 1]])
    assert np.median(shift) < 1
    assert np.array_equal(permuted.mirrored().descriptors, known["astronaut"].descriptors)


@pytest.mark.parametrize(
    "image", [Image.new("RGB", (300, 200), "white"), Image.new("L", (1, 1)), Image.new("RGB", (5000, 2))]
)
def test_pictures_without_features_are_never_copies(known, image):
    assert not verify_copy(known["coffee"], features(image)).is_copy()
    assert not verify_copy(features(image), features(image)).is_copy()


def test_size_is_bounded_before_anything_is_compared():
    large = features(Image.effect_noise((4000, 3000), 80))
    assert max(large.grey.shape) == 480 and len(large.points) <= 1000


GOOD = CopyEvidence(50, 1.0, 0.9, 0.0, 1.0)
BY_GREY = CopyEvidence(overlap=1, correlation=0.95, agreement=1, by_grey=True, patches=60)


@pytest.mark.parametrize(("good", "faults"), [
    (GOOD, {"inliers": 5, "overlap": 0.1, "correlation": 0.2, "spot": 0.6, "agreement": 0.8}),
    (BY_GREY, {"patches": 12, "correlation": 0.3, "spot": 0.6, "overlap": 0.1}),
], ids=["by features", "by greys"])  # fmt: skip
def test_each_threshold_can_refuse(good, faults):
    assert good.is_copy()
    for name, value in faults.items():
        assert not CopyEvidence(**(vars(good) | {name: value})).is_copy(), name


def test_every_transform_gives_an_rgb_picture(photos):
    for edit in (*TRANSFORMS, *LOOK_ALIKES):
        ground = edit.ground(photos["coffee"]) if edit.ground else photos["coffee"]
        before = ground.tobytes()
        assert edit(ground).mode == "RGB" and ground.tobytes() == before, edit.name
    assert [edit.name for edit in named(REFERENCE)] == list(REFERENCE)
    with pytest.raises(PhotodupError, match=r"There is no edit .sepia.: choose of resize 0\.5x"):
        named(["sepia"])


# ---- pictures without features -------------------------------------------------------------------------


def drawing(seed: int, size=(640, 420)) -> Image.Image:
    """A few large ovals of plain colours on a gradient: edges, and hardly a corner."""
    from PIL import ImageDraw, ImageFilter

    rng = np.random.default_rng(seed)
    across = np.linspace(60, 190, size[0])[None, :, None] + np.linspace(-30, 30, size[1])[:, None, None]
    image = Image.fromarray((across + np.zeros(3)).clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        x, y = rng.uniform(-0.1, 0.7, 2) * size
        across, down = rng.uniform(150, 400), rng.uniform(120, 300)
        draw.ellipse((x, y, x + across, y + down), fill=tuple(int(v) for v in rng.integers(30, 220, 3)))
    return image.filter(ImageFilter.GaussianBlur(2.5))


@pytest.fixture(scope="module")
def drawings():
    return [drawing(seed) for seed in range(4)]


def test_the_drawings_are_what_they_are_meant_to_be(drawings):
    assert all(len(features(image).points) < FEW_FEATURES for image in drawings)


@pytest.mark.parametrize("name", ["resize 0.5x", "jpeg q 30", "crop 70%", "rotate 5°", "mirror", "blur 0.5%"])
def test_an_edit_without_features_is_still_a_copy(drawings, name):
    (edit,) = named([name])
    found = [verify_copy(features(image), features(edit(image))) for image in drawings]
    assert all(verdict.is_copy() for verdict in found), found
    assert all(verdict.by_grey for verdict in found), "or the test is about features"


def test_different_drawings_are_not_copies(drawings):
    assert not any(verify_copy(*pair).is_copy() for pair in combinations(map(features, drawings), 2))


def test_a_drawing_in_which_something_moved_is_not_a_copy():
    """The same-scene negative: before one background, one shape stands elsewhere."""
    from PIL import ImageDraw, ImageFilter

    def scene(x: int) -> Image.Image:
        image = drawing(1)
        ImageDraw.Draw(image).ellipse((x, 120, x + 150, 330), fill=(230, 225, 215))
        return image.filter(ImageFilter.GaussianBlur(1))

    assert verify_copy(features(scene(100)), features(scene(100))).is_copy(), "or the test says nothing"
    verdict = verify_copy(features(scene(100)), features(scene(220)))
    assert not verdict.is_copy(), verdict


def test_two_plain_gradients_are_not_copies():
    down = Image.linear_gradient("L").resize((600, 400)).convert("RGB")
    for other in (ImageOps.mirror(down), down.rotate(4), down.point(lambda v: v // 2 + 60), down):
        assert not verify_copy(features(down), features(other)).is_copy(), "there is nothing to agree on"


def test_the_map_is_found_where_it_was_made(drawings):
    """Alignment by greys, against a map that is known: a turn of 4° and a scale of 0.9."""
    import cv2

    target = features(drawings[0]).grey
    known = cv2.getRotationMatrix2D((240, 150), 4, 0.9)
    source = cv2.warpAffine(target, cv2.invertAffineTransform(known), target.shape[::-1], borderMode=1)
    corners = np.array([[150, 100], [330, 100], [150, 220], [330, 220]])
    maps = grey_maps(target, source)
    errors = [np.abs(corners @ (found - known)[:, :2].T + (found - known)[:, 2]).max() for found in maps]
    assert errors and min(errors) < 1.5


@settings(max_examples=40)
@given(st.floats(0.3, 3), st.floats(0.3, 3), st.floats(-50, 50), st.floats(-50, 50))
def test_rescaling_a_map_keeps_what_lies_on_what(source, target, x, y):
    transform = np.array([[0.9, 0.1, x], [-0.1, 0.9, y]])
    there = transform[:, :2] @ (10.0, 20.0) + transform[:, 2]
    again = to_centres(rescaled(from_centres(transform), source, target))
    point = (np.array([10.0, 20.0]) + 0.5) * source - 0.5
    assert np.allclose(again[:, :2] @ point + again[:, 2], (there + 0.5) * target - 0.5)


def test_a_verdict_does_not_depend_on_which_comes_first(photos, known, drawings):
    pairs = [(known["coffee"], features(edit(photos["coffee"]))) for edit in named(REFERENCE)]
    pairs += [(features(drawings[0]), features(edit(drawings[0]))) for edit in named(REFERENCE)[:5]]
    pairs += [(known["coffee"], known["rocket"]), (features(drawings[0]), features(drawings[1]))]
    for first, second in pairs:
        assert verify_copy(first, second).is_copy() == verify_copy(second, first).is_copy()
