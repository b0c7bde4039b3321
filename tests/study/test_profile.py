"""The profiler's account of a small model adds up, and a node on another provider than the wanted is named."""

import numpy as np
import onnxruntime
import pytest
from support.triton import save_graph

from photodup.core.errors import PhotodupError
from photodup.study.profiling import profile as profiling


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Flatten → MatMul → Relu, with [n, 3, 224, 224] in and [n, 8] out."""
    nodes = [
        ("Flatten", ["image"], "flat"),
        ("MatMul", ["flat", "w"], "product"),
        ("Relu", ["product"], "embedding"),
    ]
    ends = ("image", ["n", 3, 224, 224]), ("embedding", ["n", 8])
    weights = {"w": np.random.default_rng(0).normal(size=(3 * 224 * 224, 8)).astype(np.float32)}
    return save_graph(tmp_path_factory.mktemp("profile") / "small.onnx", nodes, *ends, weights)


def test_every_node_is_accounted_for(small, figure):
    found = profiling.profile(small, runs=5)
    assert {n["name"] for n in found["nodes"]} == {"flat", "product", "embedding"}
    assert len(found["run_ms"]) == 5
    in_nodes_ms = sum(n["ms"] for n in found["nodes"])
    assert in_nodes_ms > 0
    figure(in_nodes_ms <= 2 * np.mean(found["run_ms"]), found)
    assert not profiling.fallbacks(found["nodes"], "CPUExecutionProvider")


@pytest.mark.figures
def test_warm_up_is_not_counted(small):
    """Per-run means stay means: with the three runs of the warm-up counted, too, they would be four times as large."""
    found = profiling.profile(small, runs=1)
    assert sum(n["ms"] for n in found["nodes"]) <= 3 * np.mean(found["run_ms"])


def test_nodes_that_fall_back_are_named(small):
    """Azure's provider runs no local operator, so a session that prefers it ends on the CPU with every node."""
    wanted = "AzureExecutionProvider"
    if wanted not in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime has the CPU provider only: nothing can fall back")
    found = profiling.profile(small, runs=1, providers=[wanted, "CPUExecutionProvider"])
    left = profiling.fallbacks(found["nodes"], found["wanted"])
    assert found["wanted"] == wanted and left["MatMul", "CPUExecutionProvider"] == 1 and left.total() == 3


def test_a_node_elsewhere_is_counted_by_operator():
    nodes = [
        {"op": "MatMul", "provider": "p"},
        {"op": "Add", "provider": "p"},
        {"op": "MatMul", "provider": "q"},
    ]
    assert profiling.fallbacks(nodes, "p") == {("MatMul", "q"): 1}


def test_creation_and_batches_are_timed(small):
    assert len(profiling.creation_s(small, 2)) == 2
    assert all(s > 0 for s in profiling.creation_s(small, 1, optimize=False))
    times = profiling.batch_ms(small, [1, 3], min_s=0)
    assert {n: len(t) for n, t in times.items()} == {1: 3, 3: 3}
    assert all(ms > 0 for t in times.values() for ms in t)


def test_what_cannot_be_opened_is_said_kindly(small, tmp_path):
    with pytest.raises(PhotodupError, match="photodup export"):
        profiling.profile(tmp_path / "absent.onnx")
    with pytest.raises(PhotodupError, match="QNNExecutionProvider"):
        profiling.open_session(small, providers=["QNNExecutionProvider"])
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(small.read_bytes()[:1000])
    with pytest.raises(PhotodupError, match=r"broken\.onnx"):
        profiling.open_session(broken)
