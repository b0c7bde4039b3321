"""The accuracy check: it counts the decisions that flip, passes what is harmless and refuses what is not."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import bdtr
from support.command import run_command
from support.triton import tiny_graph

from photodup.core.errors import PhotodupError
from photodup.embedding.engines import reduced
from photodup.embedding.engines.encoder import export_of, load_model
from photodup.embedding.engines.reduced import source_of
from photodup.photos.demo.encoder import export_stand_in
from photodup.photos.demo.photographs import SOURCES
from photodup.photos.groups.tiers import ModelThresholds
from photodup.study.accuracy import flips
from photodup.study.accuracy.export_command import check_decisions, export_precision
from photodup.study.accuracy.flips import upper_bound, verdict_of_flips
from photodup.study.accuracy.pictures import choose_pictures

LIMITS = ModelThresholds(0.65, 0.85, 0.75, "made up")


def circle(n: int = 60, seed: int = 0) -> np.ndarray:
    """Unit vectors in a plane, up to a radian apart: many pairs near every threshold."""
    angles = np.random.default_rng(seed).uniform(0, 1, n)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def held_out(n: int = 60, per_photograph: int = 1) -> SimpleNamespace:
    pictures = tuple(SimpleNamespace(photograph=i // per_photograph, name=str(i)) for i in range(n))
    return SimpleNamespace(held_out=pictures, n_photographs=n // per_photograph, source="a circle")


def turned(vectors: np.ndarray, row: int, angle: float) -> np.ndarray:
    cos, sin = np.cos(angle), np.sin(angle)
    changed = vectors.copy()
    changed[row] = changed[row] @ np.array([[cos, sin], [-sin, cos]], np.float32)
    return changed


def asked(reference, changed, **options):
    pictures = options.pop("pictures", None) or held_out(len(reference))
    return verdict_of_flips(
        pictures, reference, changed, LIMITS, label="tiny at int8", offer="bf16", **options
    )


def test_the_same_embeddings_pass():
    result = asked(circle(), circle())
    assert result.verdict == "passed"
    found = result.decisions["all similar"]
    assert found.flipped == 0 and found.near >= 300 and 0 < found.upper_bound < 0.01
    assert "most" in str(result) and json.dumps(result.as_record())


def test_flips_are_counted_where_they_are():
    reference = circle()
    changed = turned(reference, 7, 0.2)
    result = asked(reference, changed)
    upper = np.triu_indices(60, 1)
    before, after = ((v @ v.T)[upper] for v in (reference, changed))
    for name, threshold in (("similar", 0.85), ("burst", 0.75)):
        wanted = int(((before >= threshold) != (after >= threshold)).sum())
        assert result.decisions[name].flipped == wanted > 0
        near = np.abs(before - threshold) <= 0.05
        matter = near | (before >= threshold) | (after >= threshold)
        assert result.decisions[name].pairs == matter.sum() < len(before)
    assert result.figures["cosine_min"] == pytest.approx(np.cos(0.2), abs=1e-4)


def test_over_the_budget_it_is_refused_and_the_next_better_is_offered(monkeypatch):
    reference = circle()
    changed = asked(reference, turned(turned(reference, 7, 0.2), 8, -0.2))
    assert changed.verdict == "refused"
    assert "the budget allows 1.0%: use bf16." in changed.sentence
    assert changed.sentence.startswith("tiny at int8")
    monkeypatch.setattr(flips, "MAX_SIMILAR_FLIP_SHARE", 0.5)
    assert asked(reference, turned(reference, 7, 0.2)).verdict == "passed"


def test_the_upper_bound_decides_and_not_the_count(monkeypatch):
    """The rate may be within the budget: refused as long as what is known of it reaches beyond."""
    reference = circle()
    changed = turned(reference, 7, 0.2)
    found = asked(reference, changed).decisions["all similar"]
    between = (found.rate + found.upper_bound) / 2
    assert found.rate < between < found.upper_bound
    for allowed, verdict in ((between, "refused"), (found.upper_bound, "passed")):
        monkeypatch.setattr(flips, "MAX_SIMILAR_FLIP_SHARE", allowed)
        assert asked(reference, changed).verdict == verdict


@pytest.mark.parametrize(("flipped", "pairs"), [(0, 300), (3, 1000), (9, 95)])
def test_the_bound_is_clopper_and_pearsons(flipped, pairs):
    bound = upper_bound(flipped, pairs)
    assert bdtr(flipped, pairs, bound) == pytest.approx(0.05, abs=1e-6)
    assert upper_bound(0, 300) < 0.01 < upper_bound(0, 290)
    assert upper_bound(0, 0) == 1.0


def test_one_proven_copy_that_flips_is_enough(monkeypatch):
    reference = circle()
    changed = turned(reference, int(reference[:, 1].argmax()), 0.3)  # the one furthest from the others
    monkeypatch.setattr(flips, "MAX_SIMILAR_FLIP_SHARE", 1)
    monkeypatch.setattr(flips, "needs_cosine", lambda a, b: True)
    lone = asked(reference, changed)
    assert lone.verdict == "passed", "pictures of different photographs are no copies"
    pictures = held_out(60, per_photograph=60)
    proven = asked(reference, changed, pictures=pictures)
    assert proven.verdict == "refused"
    assert "copy decisions flip, and the budget allows 0: use bf16" in proven.sentence
    assert 0 < proven.decisions["copies"].flipped < proven.decisions["copies"].pairs
    monkeypatch.setattr(flips, "needs_cosine", lambda a, b: False)
    unproven = asked(reference, changed, pictures=pictures)
    assert unproven.verdict == "passed", "what pixels do not prove is no copy with either embedding"
    assert unproven.decisions["candidate"].flipped > 0, "counted, not judged"


def test_what_is_left_is_neither_refused_nor_impossible(tmp_path, monkeypatch):
    source = reduced.source_of(tiny_graph(tmp_path / "tiny.onnx"))
    offer = reduced.fallback_for
    monkeypatch.setattr(reduced, "can_compute", lambda precision: True)
    assert offer(source, "openvino", "bf16", tmp_path) == "fp32"
    assert offer(source, "onnx", "int8", tmp_path) == "fp32", "it has no BF16"
    assert offer(source, "openvino", "int8", tmp_path) == "bf16 if it passes, else fp32"
    for verdict, wanted in (("passed", "bf16"), ("refused", "fp32 (bf16 is refused too)")):
        notes = source.notes("openvino", "bf16", accuracy_check={"verdict": verdict})
        reduced.write_notes(reduced.reduced_path(source, "openvino", "bf16", tmp_path), notes)
        assert offer(source, "openvino", "int8", tmp_path) == wanted
    monkeypatch.setattr(reduced, "can_compute", lambda precision: False)
    assert offer(source, "openvino", "int8", tmp_path) == "fp32"


BROKEN = circle()
BROKEN[4] = np.nan


@pytest.mark.parametrize(("changed", "is_random", "verdict", "said"), [
    (circle(), True, "undecided", "weights are random"),
    (turned(circle(), 7, 0.5), True, "undecided", "weights are random"),
    (circle(12), False, "undecided", "300 are needed: give more photographs"),
    (BROKEN, False, "refused", "1 embeddings are not finite"),
])  # fmt: skip
def test_what_decides_nothing_and_what_is_no_number_says_so(changed, is_random, verdict, said):
    result = asked(circle(len(changed)), changed, is_random=is_random)
    assert result.verdict == verdict and said in result.sentence


def test_pictures_to_judge_by_are_not_calibrated_on(tmp_path):
    pictures = choose_pictures(edits=["crop 90%"])
    scenes = {source.name: source.scene for source in SOURCES}
    held = {scenes[picture.name.partition(", ")[0]] for picture in pictures.held_out}
    assert held and len(held) == len(set(scenes.values())) // 2
    calibrated = {image.tobytes() for image in pictures.calibration}
    assert not calibrated & {image.tobytes() for image in pictures.pixels()}
    (tmp_path / "empty").mkdir()
    with pytest.raises(PhotodupError, match=r"has 0 photographs that can be read, and 20 are needed"):
        choose_pictures(tmp_path / "empty")


def test_only_int8_and_bf16_are_made():
    with pytest.raises(PhotodupError, match="int8 or bf16, not fp16"):
        export_precision("random:0", "fp16")
    with pytest.raises(PhotodupError, match="of fp32 only --draft is a question"):
        export_precision("random:0", "fp32")
    assert "--precision fp32" in run_command("export", "--draft", status=2)


def test_a_reduced_scale_is_asked_about_apart_from_the_precision(tmp_path, monkeypatch):
    """The same JPEGs decoded whole and by a quarter; the answer is kept by weights, precision and scale."""
    graph = tiny_graph(tmp_path / "tiny.onnx")
    source = reduced.source_of(graph)
    pictures = choose_pictures(edits=["crop 90%"])
    pictures = replace(pictures, held_out=pictures.held_out[:6])
    whole, drafted = pictures.both_decodings()
    apart = np.abs(whole.astype(int) - drafted).mean(axis=(1, 2, 3))
    assert whole.shape == drafted.shape == (6, 3, 224, 224) and (apart > 0).all()
    assert (apart < 8).all(), "the same pictures, in greys"
    plain = reduced.reduced_path(source, "onnx", "fp32", tmp_path)
    for name, value in {"MAX_COPY_FLIPS": 9, "MAX_SIMILAR_FLIP_SHARE": 1, "LEAST_PAIRS": 1}.items():
        monkeypatch.setattr(flips, name, value)
    model = load_model(f"onnx:{graph}", device="cpu")
    assert reduced.draft_verdict_on(model, tmp_path) == "not asked"
    result = check_decisions(source, "fp32", pictures, engine="onnx", directory=tmp_path, draft=True)
    assert "at a reduced scale" in result.sentence and result.verdict == "passed", result
    assert reduced.draft_verdict_on(model, tmp_path) == "passed" and not plain.exists()
    other = load_model(f"onnx:{tiny_graph(tmp_path / 'other.onnx', seed=1)}", device="cpu")
    assert reduced.draft_verdict_on(other, tmp_path) == "not asked", "other weights"
    notes = reduced.read_notes(reduced.draft_path(source, "onnx", "fp32", tmp_path))
    assert notes.draft_size == 448 and notes.accuracy_check["pictures"] == 6


@pytest.mark.long
def test_the_trained_stand_in_is_refused(tmp_path):
    """Real weights, real photographs, the engine that serves: INT8 costs decisions."""
    weights = export_stand_in()
    source = source_of(export_of(weights))
    refused = export_precision(weights, "int8", directory=tmp_path)
    offer = reduced.fallback_for(source, "openvino", "int8", tmp_path)
    assert refused.verdict == "refused" and refused.sentence.endswith(f": use {offer}.")
    assert refused.decisions["all similar"].near >= 300 and refused.decisions["copies"].pairs > 30
    path = reduced.reduced_path(source, "openvino", "int8", tmp_path)
    assert reduced.read_notes(path).accuracy_check["verdict"] == "refused"
    model = load_model(weights, engine="openvino", precision="int8", directory=tmp_path)
    assert reduced.verdict_on(model) == "refused", "it is served with its label"
