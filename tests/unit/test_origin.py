"""Who comes from whom: a suggestion names the source, or none is made."""

import io
import json
import zlib
from base64 import b85encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from support.review_library import BASE, copies_in, exif, listed, only_group, photo, two_laid, write, xmp

from benchmarks.photo_quality.edits import named
from photodup.embedding.imaging import encoded, to_jpeg
from photodup.photos.compare.canvas import Laid
from photodup.photos.compare.evidence import pair_codes
from photodup.photos.compare.merit import Merit
from photodup.photos.compare.tones import hues, lost_tones
from photodup.photos.compare.traces import holds_rounding_of, is_enlarged_from, is_saved_from
from photodup.photos.groups.keepers import KeepRules
from photodup.photos.groups.origin import Origins, is_edit, place
from photodup.photos.groups.results import TierGroup
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.catalogue import Catalogue, Photo
from photodup.photos.library.inventory import Inventory, unpacked
from photodup.photos.library.metadata import (
    described_by_xmp,
    exposure,
    lost_in_words,
    read_exposure,
)
from photodup.photos.library.scan import scan
from photodup.photos.search.candidates import Shots


def saved(image: Image.Image, quality: int) -> Image.Image:
    return Image.open(io.BytesIO(to_jpeg(image, quality)))


def going(group: TierGroup) -> set[str]:
    return {photo.path.name for photo in group.may_go}


@pytest.fixture(scope="module")
def original() -> Image.Image:
    return photo("coffee").resize((480, 320), Image.Resampling.LANCZOS)


def laid(picture: Any) -> Laid:
    """Return a picture that lies over the others as it is."""
    rgb = np.asarray(picture)
    whole = np.ones(rgb.shape[:2], bool)
    return Laid(rgb, rgb[..., 0], whole, whole, np.eye(2, 3), 1.0, rgb.shape[1::-1])


def sepia(image: Image.Image) -> Image.Image:
    grey = np.asarray(image.convert("L"), float)[..., None]
    return Image.fromarray((grey * [1.05, 0.88, 0.65]).clip(0, 255).astype(np.uint8))


def rescan(image: Image.Image) -> Image.Image:
    """A print on warm paper, on a scanner's glass, not quite straight."""
    random = np.random.default_rng(1)
    print_ = Image.fromarray((np.asarray(image) * [0.93, 0.9, 0.8] + [20, 15, 5]).clip(0, 255).astype("u1"))
    paper = random.normal([240, 236, 225], 2, (image.height + 70, image.width + 80, 3)).clip(0, 255)
    sheet = Image.fromarray(paper.astype(np.uint8))
    sheet.paste(print_, (40, 35))
    return sheet.rotate(1.2, Image.Resampling.BICUBIC, fillcolor=(228, 226, 220))


RETONED = {
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.85),
    "colourful": lambda image: ImageEnhance.Color(image).enhance(1.3),
    "sepia": sepia,
    "sharpened": lambda image: image.filter(ImageFilter.UnsharpMask(2, 120, 2)),
    "mirrored": ImageOps.mirror,
}


@pytest.mark.parametrize("edit", RETONED)
def test_an_edit_goes_where_the_source_is_known_and_nothing_where_it_is_not(tmp_path, original, edit):
    """What is lost for good tells, too: the colours of sepia, or tones that an edit drove to their limit."""
    for folder, data in (("known", exif()), ("unknown", b"")):
        write(original, tmp_path / folder / "z" / "original.jpg", data=data)
        source = Image.open(tmp_path / folder / "z" / "original.jpg")
        write(RETONED[edit](source), tmp_path / folder / f"{edit}.jpg", quality=96)
    known = only_group(tmp_path / "known")
    assert known.keeper.path.stem == "original" or edit == "sharpened", known.choice
    assert "original.jpg" not in going(known)
    unknown = only_group(tmp_path / "unknown")
    assert going(unknown) <= ({f"{edit}.jpg"} if edit in ("sepia", "colourful") else set()), unknown.differs


@pytest.mark.parametrize("light", [0.5, 0.8])
def test_a_black_and_white_copy_does_not_make_a_lighter_one_the_source(tmp_path, original, light):
    """Grey is a mix of the channels: one that is at its limit in the original has lost nothing against it."""
    vivid = ImageEnhance.Color(ImageEnhance.Brightness(original).enhance(light)).enhance(2.5)
    write(vivid, tmp_path / "original.jpg", quality=95)
    write(ImageEnhance.Brightness(vivid).enhance(1.4), tmp_path / "lighter.jpg", quality=95)
    write(ImageOps.grayscale(vivid), tmp_path / "grey.jpg", quality=95)
    assert "original.jpg" not in going(only_group(tmp_path))


def test_a_photograph_of_few_hues_is_no_sepia_beside_a_lighter_copy(original):
    """A lighter copy clips a channel, which makes hues of one; what pixels of one light have stays."""
    grey = np.asarray(original.convert("L"), float)[..., None] / 255
    sunset = np.concatenate([255 * (1.6 * grey).clip(0, 1), 200 * grey**1.3, 90 * grey**2], 2)
    sunset = Image.fromarray((sunset + 0.05 * (original - 255 * grey)).clip(0, 255).astype(np.uint8))
    edits = sunset, ImageEnhance.Brightness(sunset).enhance(1.4), sepia(sunset)
    own, lighter, print_ = (hues(laid(image)) for image in edits)
    assert own > 0.7 * lighter and print_ < 0.35 * own


@pytest.mark.parametrize("data", [exif(), b""])
def test_a_rescan_never_replaces_the_file(tmp_path, original, data):
    write(original, tmp_path / "Camera" / "IMG_1.jpg", data=data)
    write(rescan(original), tmp_path / "scan1.jpg", quality=97)
    assert all("IMG_1.jpg" not in going(group) for group in copies_in(tmp_path))


def test_an_edit_by_name_loses_though_all_metadata_is_its_sources(tmp_path, original):
    write(original, tmp_path / "Camera" / "2022" / "IMG_1.JPG", data=exif())
    lighter = ImageEnhance.Brightness(original).enhance(1.08)
    write(lighter, tmp_path / "IMG_1-edited.jpg", quality=96, data=exif())
    group = only_group(tmp_path)
    assert (group.keeper.path.name, going(group)) == ("IMG_1.JPG", {"IMG_1-edited.jpg"})
    assert group.choice.reason == "the other is an edit, as its name says"


def test_the_owners_folder_may_prefer_the_edit(tmp_path, original):
    write(original, tmp_path / "Camera" / "IMG_1.JPG")
    write(ImageEnhance.Brightness(original).enhance(0.9), tmp_path / "Edited" / "IMG_1-edited.jpg")
    group = only_group(tmp_path, rules=KeepRules(folders=["Edited"]))
    assert (group.keeper.path.name, going(group)) == ("IMG_1-edited.jpg", {"IMG_1.JPG"})


@pytest.mark.parametrize("rules", [KeepRules(), KeepRules(["size"])])
def test_neither_of_two_tones_is_suggested_without_a_sign(tmp_path, original, rules):
    write(original, tmp_path / "one.jpg", data=exif())
    write(ImageEnhance.Brightness(original).enhance(0.92), tmp_path / "two.jpg", quality=96, data=exif())
    group = only_group(tmp_path, rules=rules)
    assert going(group) == set() and "no file tells which came first" in group.differs[0]


@pytest.mark.parametrize(("named", "edited"), [
    ("IMG_1-edited.jpg", True), ("IMG_1-bearbeitet(1).jpg", True), ("IMG_E1234.JPG", True), ("IMG_1 edit.png", True),
    ("IMG_1.jpg", False), ("credit.jpg", False), ("IMG_1 (2).jpg", False), ("Edith.jpg", False),
])  # fmt: skip
def test_names_of_edits(named, edited):
    assert is_edit(replace(BASE, path=Path(named)), {}) is edited


def test_programs_that_edit_and_those_that_develop():
    assert is_edit(BASE, {"software": "Snapseed 2.0"}) and is_edit(BASE, {"software": "Adobe Photoshop 25"})
    assert not is_edit(BASE, {"software": "16.1.2"}) and not is_edit(BASE, {"software": "darktable 4.6"})


@pytest.mark.parametrize(
    ("said", "is_known"), [({"camera": "Ixus"}, True), ({"keywords": ["Album|Sea"], "caption": "x"}, False)]
)
def test_what_an_owner_says_of_a_file_does_not_tell_that_no_program_changed_it(said, is_known):
    """Google's export says such things beside a file whose own metadata was taken away."""
    edit, other = replace(BASE, id=1), replace(BASE, id=2)
    told = {1: {"software": "Adobe Photoshop 25"}, 2: said}
    origins = Origins([edit, other], lambda _: Merit(), lambda photo: told[photo.id])
    assert origins.is_edit(edit, other) is is_known


def test_an_enlargement_loses_to_its_source(tmp_path, original):
    for quality in (92, 40):
        folder = tmp_path / str(quality)
        write(original, folder / "z" / "source.jpg", quality=quality)
        source = Image.open(folder / "z" / "source.jpg")
        write(source.resize((960, 640), Image.Resampling.BICUBIC), folder / "large.jpg", quality=96)
        group = only_group(folder)
        assert (group.keeper.path.stem, going(group)) == ("source", {"large.jpg"}), group.choice


@pytest.mark.parametrize("name", ["chelsea", "coffee", "rocket"])
@pytest.mark.parametrize("change", ["resize", "noise", "sharpen"])
def test_a_smooth_picture_is_not_shown_to_be_made_of_its_smaller_copy(name, change):
    """What it has nothing of lies at 0, a multiple of every step of the copy's table."""
    larger = saved(photo(name).filter(ImageFilter.GaussianBlur(1)), 60)
    small = larger.resize((larger.width // 2, larger.height // 2))
    if change == "noise":
        noise = np.random.default_rng(2).normal(0, 3, (small.height, small.width, 3))
        small = Image.fromarray((small + noise).clip(0, 255).astype(np.uint8))
    copy = saved(small.filter(ImageFilter.UnsharpMask(1, 100, 2)) if change == "sharpen" else small, 88)
    enlarged = saved(copy.resize((copy.width * 2, copy.height * 2), Image.Resampling.BICUBIC), 95)
    for given, is_made in ((larger, False), (enlarged, True)):
        at_size = [np.asarray(given.convert("L").resize(copy.size, way)) for way in Image.Resampling if way]
        table, grey = copy.quantization[0], np.asarray(copy.convert("L"))
        assert any(is_enlarged_from(table, grey, one) for one in at_size) is is_made


@pytest.mark.parametrize("blur", [1, 2, 4])
def test_an_unsharp_original_does_not_go_for_its_copy_at_half_the_size(tmp_path, blur):
    for name in ("chelsea", "coffee"):
        soft = photo(name).filter(ImageFilter.GaussianBlur(blur))
        write(soft, tmp_path / name / "z" / "original.jpg", quality=92)
        write(soft.resize((soft.width // 2, soft.height // 2)), tmp_path / name / "small.jpg", quality=88)
        assert all("original.jpg" not in going(group) for group in copies_in(tmp_path / name))


def test_an_original_is_no_enlargement_of_its_smaller_copy(tmp_path, original):
    for share in (0.9, 0.75, 0.5):
        folder = tmp_path / str(share)
        write(original, folder / "z" / "original.jpg")
        small = original.resize((round(480 * share), round(320 * share)))
        write(small, folder / "small.jpg", quality=97)
        group = only_group(folder)
        assert (group.keeper.path.stem, going(group)) == ("original", {"small.jpg"}), group.choice


def test_coloured_writing_makes_no_colour_picture_of_one_with_a_single_hue(tmp_path, original):
    write(sepia(original), tmp_path / "z" / "original.jpg")
    with_text = Image.open(tmp_path / "z" / "original.jpg")
    ImageDraw.Draw(with_text).text((30, 240), "greetings from the sea", fill="lime", font_size=34)
    write(with_text, tmp_path / "caption.jpg", quality=96)
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "original", group.choice


def test_letters_over_a_white_sky_are_no_tones_that_it_lost():
    sky = np.full((100, 200, 3), 255, np.uint8)
    written = sky.copy()
    written[20:80] = np.arange(200)[None, :, None]
    first, second = laid(sky), laid(written)
    assert lost_tones(first, second) > 0.1 and not lost_tones(first, second, [(0, 0.2, 1, 0.8)])


@pytest.mark.parametrize(
    ("edit", "has_lost"), [("vignette", False), ("brightness 0.6x", False), ("sky", True)]
)
def test_white_that_only_a_vignette_darkens_holds_no_tones(edit, has_lost):
    """Below a sky that is cut off at white lies a picture, by which the vignette is seen."""
    y, x = np.mgrid[:200, :300]
    ground = np.where(y > 100, 90 + 60 * np.sin(x / 9) * np.cos(y / 7), 255)
    sky = np.where(y > 100, ground, 140 + 100 * np.sin(x / 40))
    pictures = [Image.fromarray(np.stack([grey.astype(np.uint8)] * 3, axis=-1)) for grey in (ground, sky)]
    edited = pictures[1] if edit == "sky" else named([edit])[0](pictures[0])
    assert (lost_tones(laid(pictures[0]), laid(edited)) > 0.1) is has_lost


@pytest.mark.parametrize("ground", [0, 215])
def test_a_coloured_thing_that_one_copy_has_makes_no_colour_picture_of_it(tmp_path, original, ground):
    """Also a yellow thing on a ground as light as yellow is."""
    grey = ImageOps.grayscale(original)
    if ground:
        grey.paste(ground, (0, 200, 120, 320))
    write(grey.convert("RGB"), tmp_path / "z" / "original.jpg")
    source = Image.open(tmp_path / "z" / "original.jpg")
    for share in (0.9, 0.7):
        write(source.resize((round(480 * share), round(320 * share))), tmp_path / f"small{share}.jpg")
    ImageDraw.Draw(source).ellipse((30, 230, 90, 290), fill="yellow", outline="black", width=6)
    write(source, tmp_path / "sticker.jpg", quality=88)
    group = only_group(tmp_path)
    assert group.keeper.path.stem == "original", group.choice


def test_an_original_of_little_colour_never_goes_for_a_more_vivid_copy(tmp_path, original):
    """Only a tenth of the picture has any colour that the copy has more of."""
    muted = ImageEnhance.Color(original).enhance(0)
    muted.paste(Image.new("RGB", (150, 100), (132, 112, 106)), (300, 200))
    write(muted, tmp_path / "original.jpg")
    pale = Image.open(tmp_path / "original.jpg")
    write(ImageEnhance.Color(pale).enhance(1.6), tmp_path / "vivid.jpg", quality=95)
    assert not going(only_group(tmp_path))


def test_a_sharpened_copy_never_replaces_its_source(tmp_path, original):
    cases = (
        (original, 60, original.size, (1, 60, 2), 96),
        (original, 92, (960, 640), (2, 120, 2), 96),
        (photo("coffee"), 60, (780, 520), (1, 60, 2), 88),
    )
    for number, (picture, quality, size, sharpened, quality_after) in enumerate(cases):
        folder = tmp_path / str(number)
        write(picture, folder / "source.jpg", quality=quality)
        large = Image.open(folder / "source.jpg").resize(size, Image.Resampling.LANCZOS)
        write(large.filter(ImageFilter.UnsharpMask(*sharpened)), folder / "large.jpg", quality=quality_after)
        assert "source.jpg" not in going(only_group(folder))


SAVED = {
    "stretched": (lambda image: image.resize((576, 320)), 70),
    "larger": (lambda image: image.resize((960, 640)), 70),
    "smaller": (lambda image: image.resize((240, 160)), 70),
    "cut": (lambda image: image.crop((20, 20, 460, 300)), 85),
    "padded": (lambda image: ImageOps.pad(image, (540, 540), color="white"), 85),
    "saved coarsely before": (lambda image: saved(image.resize((288, 192)), 60), 92),
}


@pytest.mark.parametrize("way", SAVED)
def test_what_was_saved_from_a_file_goes_even_if_that_is_unsharp(tmp_path, way):
    (change, quality), soft = SAVED[way], photo("chelsea").filter(ImageFilter.GaussianBlur(0.7))
    write(soft.resize((480, 320)), tmp_path / "z" / "original.jpg")
    write(change(Image.open(tmp_path / "z" / "original.jpg")), tmp_path / "copy.jpg", quality=quality)
    group = only_group(tmp_path)
    assert (group.keeper.path.stem, going(group)) == ("original", {"copy.jpg"}), group.differs


def test_a_frame_around_a_file_may_be_made_of_it():
    """Both have one table, so that no trace tells but what saving the file in the frame gives."""
    original = to_jpeg(photo("chelsea"), 92)
    framed = named(["story frame"])[0](Image.open(io.BytesIO(original)).convert("RGB"))
    family = two_laid(original, to_jpeg(framed, 92))
    assert family.relation(1, 0).is_remade and not family.relation(0, 1).is_remade


@pytest.mark.parametrize(
    ("kept", "other", "may_be"),
    [((30, 95), (30,), True), ((60, 80), (70,), True), ((), (30, 95), True), ((80,), (30, 90), False)],
)
def test_what_was_saved_again_may_have_been_compressed_harder_before(kept, other, may_be):
    """Each is a photograph saved in these qualities, one after the other; without any it is a PNG."""
    files = []
    for qualities in (kept, other):
        image, data = photo("chelsea"), encoded(photo("chelsea"), "PNG")
        for quality in qualities:
            image, data = saved(image, quality), to_jpeg(image, quality)
        files.append(data)
    assert two_laid(*files).relation(0, 1).is_resaved is may_be


@pytest.mark.parametrize("quality", [50, 70, 85])
def test_rounding_tells_a_file_that_was_saved_from_a_picture_from_one_that_it_was_made_of(quality):
    given, buffer = photo("coffee").convert("L"), io.BytesIO()
    given.save(buffer, "JPEG", quality=quality)
    file: Any = Image.open(buffer)
    table, grey, before = file.quantization[0], np.asarray(file), np.asarray(given)
    sharper, softer = (
        np.asarray(file.filter(f)) for f in (ImageFilter.UnsharpMask(1, 60), ImageFilter.BoxBlur(1))
    )
    assert is_saved_from(table, grey, before) and not holds_rounding_of(table, grey, before)
    assert not any(is_saved_from(table, grey, made) for made in (grey, sharper, softer))
    assert holds_rounding_of(table, grey, grey) and holds_rounding_of(table, grey, sharper)


def test_a_lossless_file_is_kept_unless_it_was_made_of_the_jpeg(tmp_path, original):
    original.save(tmp_path / "first.tif")
    (tmp_path / "first").mkdir()
    write(Image.open(tmp_path / "first.tif"), tmp_path / "first" / "made.jpg", quality=88)
    group = only_group(tmp_path)
    assert (group.keeper.format, going(group)) == ("TIFF", {"made.jpg"})
    assert group.choice.reason == "best format: TIFF, not made of a JPEG"


def test_a_lossless_file_made_of_a_jpeg_goes(tmp_path, original):
    write(original, tmp_path / "z" / "first.jpg", quality=88)
    Image.open(tmp_path / "z" / "first.jpg").save(tmp_path / "made.png")
    group = only_group(tmp_path)
    assert (group.keeper.format, going(group)) == ("JPEG", {"made.png"})
    assert group.choice.reason == "the others were made of it"


@pytest.mark.parametrize("data", [exif(), b""])
def test_between_a_heic_and_a_jpeg_of_one_size_nothing_is_suggested(tmp_path, original, data):
    write(original, tmp_path / "IMG_1.jpg", data=exif())
    write(Image.open(tmp_path / "IMG_1.jpg"), tmp_path / "IMG_1.heic", quality=95, data=data)
    group = only_group(tmp_path)
    assert "IMG_1.jpg" not in going(group)


def test_of_a_jpeg_and_a_heic_without_metadata_only_a_heic_that_was_made_of_the_jpeg_goes(tmp_path, original):
    for number, order in enumerate((("a.jpg", "b.heic"), ("b.heic", "a.jpg"))):
        folder = tmp_path / str(number)
        write(original, folder / order[0], quality=85)
        write(Image.open(folder / order[0]), folder / order[1], quality=85)
        # Rounding tells that the HEIC was made of the JPEG, and nothing that the JPEG was made of the HEIC.
        assert going(only_group(folder)) == ({"b.heic"} if number == 0 else set())


# ---- metadata ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("large", "small", "beside", "lost"), [
    (b"", exif(), "", "has date, place and camera, which the one to keep lacks"),
    (exif(), exif(camera=False, rating=4), "", "has a rating of 4; the one to keep has date, place and camera"),
    (b"", b"", "small.CR2", "has its RAW beside it"),
    (exif(), exif(), "", ""),  # what the better one has, too, holds nothing back
], ids=["date and place", "both sides", "RAW", "nothing"])  # fmt: skip
def test_the_better_picture_replaces_none_with_what_it_lacks(tmp_path, original, large, small, beside, lost):
    write(original, tmp_path / "large.jpg", data=large)
    write(original.resize((240, 160)), tmp_path / "small.jpg", data=small)
    if beside:
        (tmp_path / beside).write_bytes(b"what the sensor saw")
    group = only_group(tmp_path)
    assert (group.keeper.path.name, going(group)) == ("large.jpg", set() if lost else {"small.jpg"})
    assert lost in group.differs[0]


def test_another_place_is_lost():
    places = {name: {"place": place} for name, place in {
        "here": "48.083333 11.117000", "rounded": "48.0834 11.117", "there": "48.084 11.117", "nowhere": "a b",
    }.items()}  # fmt: skip
    assert not lost_in_words(places["here"], places["rounded"])
    assert lost_in_words(places["here"], places["there"]) == "has another place than the one to keep"
    assert lost_in_words(places["here"], places["nowhere"])


def test_xmp_is_read_as_attributes_elements_and_lists():
    tags = "<dc:subject><rdf:Bag><rdf:li>sea</rdf:li><rdf:li>Ann</rdf:li></rdf:Bag></dc:subject>"
    title = '<dc:title><rdf:Alt><rdf:li xml:lang="x-default">Low tide</rdf:li></rdf:Alt></dc:title>'
    assert described_by_xmp(xmp('xmp:Rating="5"', tags + title).encode()) == {
        "rating": 5, "keywords": ["Ann", "sea"], "title": "Low tide"
    }  # fmt: skip
    assert described_by_xmp(xmp("", "<xmp:Rating>3</xmp:Rating>").encode()) == {"rating": 3}
    assert described_by_xmp(xmp('xmp:Rating="0"').encode()) == {}, "not rated"


@pytest.mark.parametrize("packet", [
    b"", b"\xff\xfe\x00", b"<a", b"<a>" * 200_000,
    b'<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><a Rating="5">&c;</a>',
])  # fmt: skip
def test_what_is_no_xmp_says_nothing(packet):
    assert described_by_xmp(packet) == {}


def test_xmp_and_xp_tags_within_files_count(tmp_path, original):
    packet = xmp('xmp:Rating="4"').encode()
    for suffix in ("jpg", "png", "webp"):
        write(original, tmp_path / suffix / f"a.{suffix}", **({"xmp": packet} if suffix != "png" else {}))
    tagged = Image.Exif()
    tagged[0x9C9E] = "sea;Ann\0".encode("utf-16-le")
    tagged[0x010E] = "OLYMPUS DIGITAL CAMERA"
    original.save(tmp_path / "tagged.jpg", exif=tagged)
    scan(tmp_path, progress=False)
    said = {photo.path.name: unpacked(photo.inventory).kinds for photo in listed(tmp_path).values()}
    assert said["a.jpg"] == said["a.webp"] == {"rating": 4}
    assert said["tagged.jpg"] == {"keywords": ["Ann", "sea"]}, "what every camera says is no caption"


@pytest.mark.parametrize("named", ["IMG_1.xmp", "IMG_1.jpg.xmp"])
@pytest.mark.parametrize("same_bytes", [True, False])
def test_the_file_with_a_rated_sidecar_is_never_suggested(tmp_path, original, named, same_bytes):
    """By every other rule the bare copy would be kept: its path comes first, or it has more pixels."""
    write(original if same_bytes else original.resize((360, 240)), tmp_path / "z" / "Archive" / "IMG_1.jpg")
    write(original, tmp_path / "a.jpg")
    (tmp_path / "z" / "Archive" / named).write_text(xmp('xmp:Rating="5"'))
    group = only_group(tmp_path)
    assert "IMG_1.jpg" not in going(group)
    if same_bytes:
        assert (group.keeper.path.name, going(group)) == ("IMG_1.jpg", {"a.jpg"})
        assert group.choice.reason == "has a rating of 5, which the other lacks"
    else:
        assert "has a rating of 5, which the one to keep lacks" in group.differs[0]


def test_copies_that_were_rated_otherwise_both_stay(tmp_path, original):
    for folder, stars in (("a", 5), ("b", 2)):
        write(original, tmp_path / folder / "IMG_1.jpg")
        (tmp_path / folder / "IMG_1.xmp").write_text(xmp(f'xmp:Rating="{stars}"'))
    group = only_group(tmp_path)
    assert going(group) == set() and "has another rating than" in group.differs[0]


def test_dates_of_another_length_are_one_date():
    long, short = {"date": "2022-05-17T18:10:00.25+02:00"}, {"date": "20220517"}
    assert lost_in_words(long, short) == lost_in_words(short, {"date": "2022-05-17T18:10:00"}) == ""
    assert lost_in_words(long, {"date": "2021-05-17T18:10:00"}) == "has another date than the one to keep"


# ---- two exposures -------------------------------------------------------------------------------------------


def shot(number: int, **changes) -> Photo:
    said = {k: changes.pop(k) for k in ("time", "bias", "sensitivity", "sequence", "drive") if k in changes}
    changes.setdefault("path", Path(f"{number}.jpg"))
    return replace(BASE, id=number, md5=f"{number:032}", exposure=json.dumps(said), **changes)


@pytest.mark.parametrize(("first", "second", "are_two"), [
    ({"bias": 0.0}, {"bias": -2.0}, True),
    ({"bias": 0.0}, {}, False),
    ({"time": 0.008}, {"time": 1 / 126}, False),
    ({"time": 0.008}, {"time": 0.004}, True),
    ({"sensitivity": 100}, {"sensitivity": 400}, True),
    ({"sequence": 1}, {"sequence": 2}, True),
    ({"drive": 0}, {"drive": 2}, True),
    ({"drive": 2}, {"drive": 2}, False),
    ({"taken_at": "2020-01-02T00:00:00.0"}, {"taken_at": "2020-01-02T00:00:00.10"}, True),
    ({"taken_at": "2020-01-02T00:00:00.12"}, {"taken_at": "2020-01-02T00:00:00.123"}, False),
    ({"taken_at": "2020-01-02T00:00:00.12"}, {"taken_at": "2020-01-02T00:00:00"}, False),
    ({"taken_at": "2020-01-02T12:00:00+02:00"}, {"taken_at": "2020-01-02T10:00:00+00:00"}, False),
    ({"taken_at": "2020-01-02T12:00:00"}, {"taken_at": "2020-01-02T12:00:01"}, True),
    ({}, {}, False),  # an edit keeps the time
    ({}, {"taken_at": None}, False),
    ({}, {"taken_at": "2020-01-02T00:00:01", "camera": None}, False),
    ({"path": Path("DSC_0012.JPG")}, {"path": Path("x/DSC_0013.JPG")}, True),
    ({"path": Path("DSC_0012.JPG")}, {"path": Path("DSC_0012 (1).JPG")}, False),
    ({"path": Path("DSC_0012.JPG"), "camera": None}, {"path": Path("DSC_0013.JPG"), "camera": None}, False),
    ({"bias": 0.0, "camera": "A"}, {"bias": 1.0, "camera": "B"}, False),
])  # fmt: skip
def test_what_tells_two_exposures_of_one_camera(first, second, are_two):
    photos = [shot(1, **first), shot(2, **second)]
    codes = pair_codes(np.array([0]), np.array([1]))
    assert bool(Shots(photos).are_two(codes)[0]) is are_two
    assert bool(Shots(photos[::-1]).are_two(codes)[0]) is are_two


def test_a_bracket_is_read_from_files_and_never_suggested(tmp_path, original):
    darker = ImageEnhance.Brightness(original).enhance(0.7)
    write(original, tmp_path / "IMG_1_0.JPG", data=exif(SubsecTimeOriginal="0", ExposureBiasValue=0.0))
    write(darker, tmp_path / "IMG_1_1.JPG", data=exif(SubsecTimeOriginal="0", ExposureBiasValue=-2.0))
    scan(tmp_path, progress=False)
    with Catalogue(tmp_path) as catalogue:
        photos = catalogue.photos()
        assert [json.loads(photo.exposure)["bias"] for photo in photos] == [0.0, -2.0]
        assert photos[0].taken_at == "2022-05-17T18:10:00.0"
        assert find_tiers(catalogue).copies == ()


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize(("maker", "tags"), [
    (b"FUJIFILM\x0c\0\0\0", (0x1101, 0x1103)), (b"Panasonic\0\0\0", (0x2B, 0x2A)), (b"SONY DSC \0\0\0", (0xB04A, 0xB049)),
])  # fmt: skip
def test_number_and_drive_mode_are_read_from_makers_notes(maker, tags, order):
    def note(number: int) -> bytes:
        fields = [(tags[0], 3, 1, number), (tags[1], 4, 1, 2), (tags[0] + 5, 2, 9, 70)]
        sizes = (2, 2, 4)
        entries = [
            b"".join(value.to_bytes(size, order) for value, size in zip(one, sizes, strict=False))
            + one[3].to_bytes(4 if one[1] == 4 else 2, order).ljust(4, b"\0")
            for one in fields
        ]
        return maker + len(fields).to_bytes(2, order) + b"".join(entries)

    assert read_exposure(exposure({0x927C: note(3)})) == {"sequence": 3, "drive": 2}
    assert read_exposure(exposure({0x927C: note(0)})) == {"drive": 2}, "0 is no sequence"
    for damaged in (maker, maker + b"\xff\xff", note(3)[:20], b"Another maker", "text", None):
        assert exposure({0x927C: damaged}) is None


def test_the_program_that_saved_a_file_says_nothing_beside_files_without_metadata(tmp_path, original):
    found = Image.Exif()
    found[0x0131] = "Adobe Photoshop CC 2017 (Windows)"
    write(original, tmp_path / "a.jpg", data=found.tobytes(), quality=95)
    write(original, tmp_path / "b.jpg", quality=40)
    group = only_group(tmp_path)
    assert (group.keeper.path.name, going(group)) == ("a.jpg", {"b.jpg"})


def test_an_edit_with_the_exposure_of_its_source_is_no_second_exposure(tmp_path, original):
    data = exif(SubsecTimeOriginal="25", ExposureBiasValue=-0.3, ExposureTime=0.008)
    write(original, tmp_path / "IMG_1.JPG", data=data)
    write(original.resize((240, 160)), tmp_path / "small.jpg", data=data)
    assert going(only_group(tmp_path)) == {"small.jpg"}


# ---- what settles equal files --------------------------------------------------------------------------------


@pytest.mark.parametrize(("better", "worse", "why"), [
    ("Camera/2024/IMG_1124.JPG", "Kopie von IMG_1124.jpg", "its name is not that of a copy"),
    ("some/where/IMG_1.jpg", "IMG_1 (2).jpg", "its name is not that of a copy"),
    ("a/b/c/IMG_1.jpg", "Copy of IMG_1.jpg", "its name is not that of a copy"),
    *((name, copy, "its name is not that of a copy") for name, copy in (
        ("a/b/IMG_1.jpg", "IMG_1 2.jpg"), ("a/b/IMG_1.jpg", "IMG_1 (Anna's conflicted copy 2019-07-12).jpg"),
        ("a/b/IMG_1.jpg", "IMG_1-DESKTOP-AB12CD3.jpg"), ("a/b/IMG_1.jpg", "IMG_1.sync-conflict-20190712-1-AB.jpg"),
        ("a/b/IMG_1.jpg", "IMG_1 (in Konflikt stehende Kopie von Anna 2019-07-12).jpg"),
    )),
    *((camera, copy, "in a camera's or a dated folder, or not in one of copies") for camera, copy in (
        ("phone/DCIM/100APPLE/IMG_1.jpg", "Downloads/IMG_1.jpg"), ("a/2019-07-12 Anna/IMG_1.jpg", "Backup/IMG_1.jpg"),
        ("a/b/c/IMG_1.jpg", "Backup 2/IMG_1.jpg"), ("a/2019/IMG_1.jpg", "b/IMG_1.jpg"),
    )),
    ("IMG_1.jpg", "b/IMG_1.jpg", "the shortest path"),
])  # fmt: skip
def test_what_settles_files_that_are_equal(better, worse, why):
    photos = [shot(1, path=Path(better)), shot(2, path=Path(worse))]
    assert place(photos[0]) < place(photos[1])
    for order in (photos, photos[::-1]):
        choice = KeepRules(["resolution"]).choose(order)
        assert (str(choice.keeper.path), choice.reason) == (better, f"equal by every rule: {why}")


@pytest.mark.parametrize(
    "text", ["{", "[1]", "[" * 100_000, None, *(
        b85encode(zlib.compress(json.dumps(fields).encode())).decode() for fields in (
            {"kinds": {"keywords": "x", "rating": "x", "date": [1]}}, {"kinds": 5}, {"values": {"a": 5}}, {"parts": [1]},
            {"parts": {"a": 5}}, {"bits": "8"}, {"colours": "x"}, {"colours": "00" * 10**7},
            {"values": [5]}, {"values": {"a": [[]]}}, [],
        ))],
)  # fmt: skip
def test_what_somebody_put_into_a_catalogue_says_nothing(text):
    assert unpacked(text) == Inventory() and read_exposure(text) == {}
    assert KeepRules().choose([shot(1, inventory=text), shot(2, inventory=text)]).keeper.id == 1


def test_a_hostile_file_says_nothing_and_is_read(tmp_path, original):
    xmp = b'<!DOCTYPE a [<!ENTITY b "b">]><a>&b;</a>'
    original.save(tmp_path / "a.jpg", "JPEG", xmp=xmp, exif=exif(rating=9))
    scan(tmp_path, progress=False)
    assert unpacked(listed(tmp_path)["a.jpg"].inventory).kinds["rating"] == 9
