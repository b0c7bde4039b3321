"""The quality measurement: its arithmetic on known scores, and the real thing on a few photographs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from photodup.errors import PhotodupError
from photodup.photos.quality import Original, curve, evaluate, measure_chaining, report
from photodup.photos.transforms import named


def simple(scores, positive, default=None):
    scores, positive = np.array(scores, float), np.array(positive, bool)
    return curve("x", scores, positive, ["edit"] * len(scores), default)


def test_a_perfect_and_a_useless_detector():
    perfect = simple([3, 2, 1, 0], [1, 1, 0, 0])
    assert (perfect.average_precision, perfect.recall_at_zero_fp, perfect.recall_at_p90) == (1, 1, 1)
    useless = simple([1, 1, 1, 1], [1, 0, 0, 0])
    assert (useless.average_precision, useless.recall_at_zero_fp) == (0.25, 0)


def test_one_false_positive_in_the_middle():
    found = simple([0.9, 0.8, 0.7, 0.1], [1, 0, 1, 0], np.array([True, True, False, False]))
    assert found.recall_at_zero_fp == 0.5 and found.zero_fp_threshold == 0.8
    assert found.average_precision == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert found.at_default == (1, 1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=2, max_size=60))
def test_average_precision_is_that_of_scikit_learn(pairs):
    from sklearn.metrics import average_precision_score

    scores, positive = zip(*pairs, strict=True)
    if len(set(positive)) < 2:
        return
    expected = average_precision_score(positive, scores)
    assert simple(scores, positive).average_precision == pytest.approx(expected)


def test_a_tie_with_a_negative_is_no_recall():
    assert simple([0.9, 0.9, 0.1], [1, 0, 1]).recall_at_zero_fp == 0


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
    import skimage.data

    names = ("astronaut", "coffee", "chelsea", "rocket")
    originals = [Original(n, Image.fromarray(getattr(skimage.data, n)()), n) for n in names]

    def embed(images):
        """A tiny picture as an embedding: real pixels, no weights."""
        rows = np.stack([np.asarray(i.convert("RGB").resize((6, 6)), np.float32).ravel() for i in images])
        rows -= rows.mean(axis=1, keepdims=True)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    return evaluate(
        originals,
        named(["resize 0.5x", "jpeg q 30", "crop 70%", "mirror"]),
        embed=embed,
        model="6 x 6 pixels",
    )


def test_verification_finds_copies_without_weights(measured):
    by_name = {entry.name: entry for entry in measured.curves}
    assert by_name["MD5"].recall_at_zero_fp == 0, "an edited file has other bytes"
    plain, verified = by_name["perceptual hash"], by_name["hash, then verified"]
    assert verified.recall_at_zero_fp >= 0.85 > plain.recall_at_zero_fp
    assert verified.at_default[1] == 0 and verified.at_default[0] >= 0.85 * verified.n_positive
    assert plain.recall_by_transform["mirror"] == 0 and verified.recall_by_transform["mirror"] == 1


def test_the_report_names_everything(measured):
    text = report(measured)
    for word in ("6 x 6 pixels", "4 photographs", "R@0FP", "crop 70%", "largest star", "embedding or hash"):
        assert word in text
    assert {row["detector"] for row in measured.rows()} == {entry.name for entry in measured.curves}


def test_a_wrong_rule_is_caught(measured, monkeypatch):
    """The planted fault: a verification that accepts everything shows false positives in the table."""
    from photodup.photos import quality
    from photodup.photos.verify import Verification

    monkeypatch.setattr(quality, "verify", lambda a, b: Verification(99, 1, 1, 1, 0, 1))
    noise = [
        Original(str(s), Image.effect_noise((300, 300), 20 + 30 * s).convert("RGB"), str(s)) for s in range(3)
    ]
    found = evaluate(noise, named(["jpeg q 30"]), embed=lambda images: np.ones((len(images), 1), np.float32))
    assert found.curves[-1].at_default[1] > 0
