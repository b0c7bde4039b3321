"""What files tell of their history, and what the keeper makes of it."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from support.review_library import only_group, photo

from benchmarks.photo_quality.edits import LOOK_ALIKES, named
from photodup.embedding.imaging import to_jpeg
from photodup.photos.compare.canvas import lay, small, without_margins
from photodup.photos.compare.features import features
from photodup.photos.compare.snapping import snapped
from photodup.photos.compare.traces import coarsest_step, toned_first
from photodup.photos.compare.verify import verify, verify_with_map
from photodup.photos.groups.keepers import KeepRules
from photodup.photos.groups.tiers import GroupingOptions, find_tiers
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def grey(data: bytes) -> np.ndarray:
    return np.asarray(opened(data).convert("L"))


@pytest.mark.parametrize("name", ["coffee", "chelsea", "astronaut"])
def test_an_earlier_compression_is_seen_through_a_finer_one(name):
    image = photo(name)
    steps = {q: coarsest_step(grey(to_jpeg(opened(to_jpeg(image, q)), 95))) for q in (30, 60)}
    own = coarsest_step(grey(to_jpeg(image, 95)))
    # Tables of the standard: 17 to 40 at quality 30, 8 to 19 at 60, 1 to 2 at 95.
    assert 15 < steps[30] < 45 and 7 < steps[60] < 22 and own <= 3
    shifted = opened(to_jpeg(image, 30)).crop((3, 5, image.width, image.height))
    assert coarsest_step(grey(to_jpeg(shifted, 95))) <= 3, "blocks that lie elsewhere tell nothing"


def test_a_picture_without_blocks_enough_tells_nothing():
    assert coarsest_step(np.zeros((64, 64), np.uint8)) == 0
    assert coarsest_step(np.zeros((5, 5), np.uint8)) == 0
    noise = np.random.default_rng(0).integers(3, 252, (512, 512), dtype=np.uint8)
    assert coarsest_step(noise) == 0


def keeper(folder, **images: bytes) -> tuple[str, str]:
    for name, data in images.items():
        (folder / f"{name}.jpg").write_bytes(data)
    group = only_group(folder)
    return group.keeper.path.stem, group.choice.reason


def test_a_strong_compression_that_was_saved_finely_again_is_not_kept(tmp_path):
    image = photo("chelsea")
    original = to_jpeg(image, 85)
    # The larger file of the two, with finer tables, and its path comes first.
    again = to_jpeg(opened(to_jpeg(opened(original), 30)), 97)
    assert len(again) > len(original) * 0.9
    assert keeper(tmp_path, a_again=again, original=original)[0] == "original"


@pytest.mark.parametrize(("first", "then"), [([72, 92], [75, 92]), ([70], [76]), ([66, 90], [78])])
def test_an_original_does_not_go_for_a_copy_whose_finer_compression_hides_its_own(tmp_path, first, then):
    image = photo("coffee")
    for name, qualities in (("original", first), ("copy", then)):
        for quality in qualities:
            image = opened(data := to_jpeg(image, quality))
        (tmp_path / f"{name}.jpg").write_bytes(data)
    assert all(photo.path.stem != "original" for photo in only_group(tmp_path).may_go)


def test_what_was_only_saved_again_finely_is_not_the_original(tmp_path):
    original = to_jpeg(photo("chelsea"), 80)
    assert keeper(tmp_path, a_again=to_jpeg(opened(original), 96), original=original) == (
        "original",
        "compressed once: the others were saved again",
    )


def test_a_strongly_compressed_original_is_kept_and_none_of_its_copies_is_finer(tmp_path):
    """A turned copy connects the others, and in all of them the original's artefacts look like detail."""
    original = to_jpeg(photo("coffee"), 45)
    own = opened(original)
    files = {"original": original, "a_harder": to_jpeg(opened(to_jpeg(own, 20)), 90)}
    files["cut"] = to_jpeg(own.crop((40, 25, own.width - 30, own.height - 20)), 90)
    files["turned"] = to_jpeg(own.rotate(4, Image.Resampling.BICUBIC, fillcolor="white"), 90)
    for name, data in files.items():
        (tmp_path / f"{name}.jpg").write_bytes(data)
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "original"
    assert not [said for said in group.differs if "finer detail" in said or "compressed" in said]


def test_what_a_strong_compression_lost_is_finer_detail(tmp_path):
    """The copy comes first by the owner's rule, and the original beside it is not suggested."""
    original = to_jpeg(photo("coffee"), 95)
    (tmp_path / "original.jpg").write_bytes(original)
    (tmp_path / "copy.jpg").write_bytes(to_jpeg(opened(original), 20))
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        first = next(one.md5 for one in catalogue.photos() if one.path.stem == "copy")
        options = GroupingOptions(rules=KeepRules(chosen=[first]))
        (group,) = find_tiers(catalogue, options).copies
    assert (group.keeper.path.stem, list(group.may_go)) == ("copy", [])
    assert "finer detail" in group.differs[0]


def test_coarse_steps_of_colour_do_not_make_a_sepia_print_black_and_white(tmp_path):
    grey = np.asarray(photo("coffee").convert("L"), float)[:, :, None]
    print_ = to_jpeg(Image.fromarray((grey * (1, 0.85, 0.65)).astype(np.uint8)), 92)
    assert keeper(tmp_path, a_copy=to_jpeg(opened(print_), 10), original=print_)[0] == "original"


def test_a_blur_hides_its_history_and_gains_nothing_by_it(tmp_path):
    original = to_jpeg(opened(to_jpeg(photo("chelsea"), 60)), 92)  # as it came to the owner
    blurred = to_jpeg(opened(original).filter(ImageFilter.GaussianBlur(1.2)), 96)
    mirrored = to_jpeg(ImageOps.mirror(opened(original)), 92)
    half = to_jpeg(opened(original).resize((225, 150)), 92)
    assert keeper(tmp_path, a_blur=blurred, b_mirror=mirrored, c=half, original=original)[0] == "original"


def test_corners_that_are_black_on_black_do_not_make_a_turned_copy_the_keeper(tmp_path):
    image = photo("rocket")
    dark = Image.new("RGB", (image.width + 160, image.height + 160))
    dark.paste(image.resize((300, 200)), (180, 180))
    original = to_jpeg(dark, 90)
    turned = to_jpeg(opened(original).rotate(5, Image.Resampling.BICUBIC), 97)
    others = {
        f"c{q}": to_jpeg(opened(original).resize((dark.width - q, dark.height - q)), 85) for q in (100, 200)
    }
    assert keeper(tmp_path, a_turned=turned, original=original, **others)[0] == "original"


def test_of_a_picture_on_white_and_its_turned_copy_only_the_copy_has_empty_corners():
    import cv2

    ground = Image.new("RGB", (480, 320), "white")
    ground.paste(photo("coffee").resize((200, 134)), (280, 93))
    pictures = {0: small(ground), 1: small(ground.rotate(15, Image.Resampling.BICUBIC))}
    maps = {0: np.eye(2, 3), 1: cv2.getRotationMatrix2D((239.5, 159.5), -15, 1)}
    laid = lay(pictures, maps, {0: ground.size, 1: ground.size})
    without_margins(pictures, laid)
    assert (laid[0].added, laid[1].added) == ((), ("empty corners",))


def test_a_border_around_a_picture_on_white_is_a_border(tmp_path):
    ground = Image.new("RGB", (720, 620), "white")
    ground.paste(photo("coffee").resize((480, 320)), (120, 150))
    original = to_jpeg(ground, 92)
    framed = ImageOps.expand(opened(original), 30, "white")
    ImageDraw.Draw(framed).text((260, 400), "greetings from the sea", fill="yellow", font_size=40)
    crops = {f"crop{c}": to_jpeg(opened(original).crop((c, c, 720 - c, 620 - c)), 92) for c in (30, 60)}
    lighter = to_jpeg(ImageEnhance.Brightness(opened(original)).enhance(0.9), 92)
    found = keeper(tmp_path, a_framed=to_jpeg(framed, 96), original=original, z=lighter, **crops)
    assert found[0] == "original", found


def test_nothing_goes_for_a_crop_of_what_stands_before_a_plain_ground(tmp_path):
    shades = np.linspace(225, 245, 700)[None, :, None] + np.linspace(0, 8, 520)[:, None, None]
    wall = Image.fromarray(np.broadcast_to(shades, (520, 700, 3)).astype(np.uint8))
    for name, ground in (("wall", wall), ("white", Image.new("RGB", (700, 520), "white"))):
        shape = Image.new("L", (300, 200))
        ImageDraw.Draw(shape).ellipse((0, 0, 299, 199), fill=255)
        ground.paste(photo("chelsea").resize((300, 200)), (200, 160), shape)
        folder = tmp_path / name
        folder.mkdir()
        original = to_jpeg(ground, 92)
        crop = to_jpeg(opened(original).crop((60, 50, 640, 480)), 92)
        (folder / "a_crop.jpg").write_bytes(crop)
        (folder / "original.jpg").write_bytes(original)
        group = only_group(folder)
        assert group.keeper.path.stem == "original", group.choice.reason
        # On white it may as well be the picture that got a border: nobody can say, and both stay.
        assert bool(group.may_go) == (name == "wall"), group.difference(group.members[0])


CURVE = [round(255 * (value / 255) ** 0.7) for value in range(256)]
TONES = {
    "lighter": lambda image: ImageEnhance.Brightness(image).enhance(1.4),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.6),
    "harder": lambda image: ImageEnhance.Contrast(image).enhance(1.5),
    "softer": lambda image: ImageEnhance.Contrast(image).enhance(0.6),
    "by a curve": lambda image: image.point(CURVE * 3),
}


@pytest.mark.parametrize("name", ["astronaut", "coffee", "chelsea"])
def test_tones_say_which_of_two_came_first_and_of_two_exposures_nothing(name):
    [bracket] = [one for one in LOOK_ALIKES if one.name == "bracket"]
    named_first = []
    for first, then in ((92, 92), (85, 95)):
        original = to_jpeg(photo(name), first)
        edits = {said: to_jpeg(change(opened(original)), then) for said, change in TONES.items()}
        shots = to_jpeg(bracket.ground(photo(name)), first), to_jpeg(bracket(photo(name)), then)
        for pair in (*((original, edit) for edit in edits.values()), shots):
            tables = [Image.open(io.BytesIO(one)).quantization[0] for one in pair]
            pictures = [np.asarray(opened(one)) for one in pair]
            found = toned_first(tables, pictures)
            assert toned_first(tables[::-1], pictures[::-1]) == (found if found < 0 else 1 - found)
            assert found < 1, "never the edit"
            named_first.append(found == 0)
        assert not named_first[-1], "two exposures"
    assert sum(named_first) >= 8, "of ten"


def test_a_tinted_copy_of_a_grey_photograph_is_not_the_one_in_colour(tmp_path):
    original = to_jpeg(photo("chelsea").convert("L").convert("RGB"), 90)
    [warm] = named(["warm filter"])
    assert keeper(tmp_path, original=original, a_warm=to_jpeg(warm(opened(original)), 95))[0] == "original"


@pytest.mark.parametrize("light", [255 - 14, 255 - 12, 90])
def test_a_white_border_is_found_around_a_picture_on_any_ground(light):
    ground = Image.new("RGB", (720, 620), (light,) * 3)
    ground.paste(photo("coffee").resize((480, 320)), (120, 300))
    framed = small(opened(to_jpeg(ImageOps.expand(ground, 30, "white"), 96)))
    one = lay({0: framed}, {0: np.eye(2, 3)}, {0: (780, 680)})
    without_margins({0: framed}, one)
    assert one[0].added == ("a border",) and 0.8 < one[0].picture.mean() / (720 * 620 / 780 / 680) < 1


def test_a_map_of_one_frame_is_made_exact():
    image = photo("coffee")
    first, second = features(image), features(image.filter(ImageFilter.GaussianBlur(3)))
    _, found = verify_with_map(first, second)
    exact = snapped(first.grey, second.grey, found + np.array([[0, 0, 4], [0, 0, -3]]))
    np.testing.assert_allclose(exact, [[1, 0, 0], [0, 1, 0]], atol=1e-9)
    turned = features(ImageOps.mirror(image))
    _, found = verify_with_map(first, turned)
    np.testing.assert_allclose(snapped(first.grey, turned.grey, found), [[-1, 0, 479], [0, 1, 0]], atol=1e-9)


def test_a_crop_is_not_laid_frame_on_frame():
    image = photo("coffee")
    cropped = features(image.crop((8, 6, 592, 394)))
    _, found = verify_with_map(features(image), cropped)
    np.testing.assert_array_equal(snapped(features(image).grey, cropped.grey, found), found)


def test_the_strongest_features_prove_and_rule_out_as_all_do(monkeypatch):
    from photodup.photos.compare import verify as module

    pictures = [photo(name) for name in ("coffee", "chelsea", "rocket")]
    first = [features(image) for image in pictures]
    second = [features(ImageOps.mirror(image).crop((30, 20, 400, 290))) for image in pictures]
    found = [[verify(a, b).is_copy() for b in second] for a in first]
    assert found == np.eye(3, dtype=bool).tolist()
    monkeypatch.setattr(module, "_by_features", lambda *a, **k: pytest.fail("all features were compared"))
    assert verify(first[0], second[0]).is_copy() and verify(first[0], second[0]).mirrored
