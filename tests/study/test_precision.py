"""Reduced-precision graphs round where they say, and the comparison sees what rounding does to decisions."""

import numpy as np
import pytest
from support.command import run_python
from support.processor import needs_int8
from support.triton import save_graph

from photodup.core.errors import PhotodupError
from photodup.embedding.engines.quantise import int8_file
from photodup.embedding.fidelity import compare_embeddings, flips
from photodup.study.precision import rounding as precision


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Two matrix products with an addition between, so that every rounding can be recomputed by hand."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = {
        "a": rng.standard_normal((24, 16)),
        "bias": rng.standard_normal(16),
        "b": rng.standard_normal((16, 8)),
    }

    nodes = [
        helper.make_node("MatMul", ["image", "a"], ["first"]),
        helper.make_node("Add", ["first", "bias"], ["sum"]),
        helper.make_node("MatMul", ["sum", "b"], ["embedding"]),
    ]
    tensor = lambda name, width: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])  # noqa: E731
    graph = helper.make_graph(
        nodes,
        "toy",
        [tensor("image", 24)],
        [tensor("embedding", 8)],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()],
        value_info=[tensor("first", 16), tensor("sum", 16)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path = tmp_path_factory.mktemp("toy") / "toy.onnx"
    onnx.save(model, path)
    return path, {k: v.astype(np.float32) for k, v in weights.items()}


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(1).standard_normal((16, 24)).astype(np.float32)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_rounding_happens_at_every_step_and_is_not_optimised_away(source, images, name):
    import ml_dtypes

    path, w = source
    dtype = np.float16 if name == "fp16" else ml_dtypes.bfloat16

    def low(values):
        return values.astype(dtype).astype(np.float32)

    by_hand = low(low(low(low(images) @ low(w["a"])) + low(w["bias"])) @ low(w["b"]))
    weights_only = (images @ low(w["a"]) + low(w["bias"])) @ low(w["b"])
    actual = precision.embeddings_of(precision.rounded(precision.load_graph(path), name), images)
    unit = 2.0 ** (-10 if name == "fp16" else -7)
    assert np.abs(actual - by_hand).max() <= 2 * unit * np.abs(by_hand).max()  # a sum may round the other way
    assert np.mean(actual == by_hand) > 0.8
    assert np.mean(weights_only == by_hand) < 0.2


def test_fp16_overflows_and_bf16_does_not(source, images):
    graph = precision.load_graph(source[0])
    huge = images * 1e5
    assert not np.isfinite(precision.embeddings_of(precision.rounded(graph, "fp16"), huge)).all()
    assert np.isfinite(precision.embeddings_of(precision.rounded(graph, "bf16"), huge)).all()


@needs_int8
def test_int8_differs_a_little(source, images, tmp_path):
    file = int8_file(source[0], tmp_path, images)
    exact, whole = (precision.embeddings_of(path, images) for path in (source[0], file))
    assert list(tmp_path.iterdir()) == [file]
    assert 0 < np.abs(whole - exact).max() < 0.1 * np.abs(exact).max()


def test_fp16_file_keeps_float32_at_its_ends(source, images, tmp_path):
    file = precision.fp16_file(source[0], tmp_path)
    kinds = {w.data_type for w in precision.load_graph(file).graph.initializer}
    assert kinds == {10}  # FLOAT16
    assert precision.embeddings_of(file, images).dtype == np.float32


def test_fp16_file_of_a_vision_transformer_is_read_without_a_crash(tmp_path):
    """In a process of its own: the layout pass of ONNX Runtime that `embed` leaves out kills the whole process."""
    rng = np.random.default_rng(0)
    steps = [
        ("Conv", rng.standard_normal((64, 3, 32, 32)) / 55, {"strides": [32, 32]}),
        ("Reshape", np.array([-1, 64, 49]), {}),
        ("Transpose", None, {"perm": [0, 2, 1]}),
        ("LayerNormalization", np.ones(64), {}),
        ("Transpose", None, {"perm": [1, 0, 2]}),
        ("MatMul", rng.standard_normal((64, 8)) / 8, {}),
    ]
    nodes, weights, last = [], {}, "image"
    for i, (operator, weight, attributes) in enumerate(steps):
        inputs, output = [last], "embedding" if i == len(steps) - 1 else f"t{i}"
        if weight is not None:
            weights[f"w{i}"] = weight.astype(np.int64 if operator == "Reshape" else np.float32)
            inputs.append(f"w{i}")
        nodes.append((operator, inputs, output, attributes))
        last = output
    ends = ("image", ["n", 3, 224, 224]), ("embedding", [49, "n", 8])
    save_graph(tmp_path / "tiny.onnx", nodes, *ends, weights)
    code = (
        "import sys, numpy as np; from pathlib import Path; from photodup.study.precision import rounding as precision;"
        "source = Path(sys.argv[1]); file = precision.fp16_file(source, source.parent);"
        "images = np.random.default_rng(1).standard_normal((2, 3, 224, 224), np.float32);"
        "print(abs(precision.embeddings_of(file, images) - precision.embeddings_of(source, images)).max())"
    )
    done = run_python(code, str(tmp_path / "tiny.onnx"), timeout=120)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 0.05


def test_bad_input_gets_one_sentence(source, tmp_path):
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(source[0].read_bytes()[:100])
    with pytest.raises(PhotodupError, match="fp8"):
        precision.rounded(precision.load_graph(source[0]), "fp8")
    with pytest.raises(PhotodupError, match="photodup export"):
        precision.load_graph(cut)
    with pytest.raises(PhotodupError, match="at least one"):
        int8_file(source[0], tmp_path, np.zeros((0, 24), np.float32))


def test_comparison_counts_what_changed():
    angle = np.deg2rad([0, 10, 40, 52])
    vectors = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    moved = vectors.copy()
    moved[1] = np.cos(np.deg2rad(30)), np.sin(np.deg2rad(30))  # now nearer to the third than to the first
    lost = vectors.copy()
    lost[3] = np.nan
    same = compare_embeddings(vectors, vectors, 0.98)
    assert (same["flipped"], same["neighbour_kept"], same["distance_max"]) == (0, 1.0, 0.0)
    changed = compare_embeddings(vectors, moved, 0.98)
    assert (changed["pairs"], changed["same"]) == (6, 1)
    assert changed["flipped"] == 2  # the first pair is no longer one, the second and third became one
    assert changed["neighbour_rank_max"] == 3  # for the moved one: the first is now the farthest
    assert changed["cosine_min"] == pytest.approx(np.cos(np.deg2rad(20)), abs=1e-6)
    assert compare_embeddings(vectors, lost, 0.98)["n_not_finite"] == 1


def test_flips_count_each_decision():
    angle = np.deg2rad([0, 10, 40])
    vectors = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    moved = vectors[[0, 2, 2]]
    assert flips(vectors, vectors, {"copy": 0.98}) == {"flipped_copy": 0}
    # 0-1 (10 degrees) ends, 1-2 (30 degrees) begins; at 0.5 (60 degrees) all pairs stay together.
    assert flips(vectors, moved, {"copy": 0.98, "scene": 0.5}) == {"flipped_copy": 2, "flipped_scene": 0}
