"""`--engine ray` on a cluster of a head and three nodes, all on this machine; one node is killed. Skipped without Ray."""

import contextlib
import importlib.util
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from photodup.photos.embed import over_ray
from photodup.photos.embed.choose import ChosenEncoder, EncoderRequest
from photodup.photos.embed.command import embed_and_print
from photodup.photos.embed.embed import embed_library
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan

HAS_RAY = all(importlib.util.find_spec(name) for name in ("ray", "pyarrow"))
pytestmark = [
    pytest.mark.skipif(not HAS_RAY, reason="Ray Data is not installed: pip install 'photodup[ray]'"),
    pytest.mark.filterwarnings("default"),  # Ray's own warnings are not ours to raise
    pytest.mark.timeout(400),
]
N_PHOTOS, BATCH = 640, 64  # 64 vectors of 512 numbers: more than the 100 KB that Ray sends without its store


@pytest.fixture
def cluster(monkeypatch):
    """A head that computes nothing and three nodes of one core, each with a raylet and workers of its own."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    memory = {"object_store_memory": 100_000_000}
    head = {"num_cpus": 0, "include_dashboard": False, **memory}
    started = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(3):
            started.add_node(num_cpus=1, **memory)
        monkeypatch.setenv("RAY_ADDRESS", started.address)
        yield started
    finally:
        started.shutdown()


@pytest.fixture
def library(tmp_path, monkeypatch, tiny_onnx):
    for name in ("INFERENCE_BACKEND", "INFERENCE_SERVICE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODEL_PRETRAINED", tiny_onnx)
    colours = np.random.default_rng(0).integers(0, 255, (N_PHOTOS, 8, 8, 3), dtype=np.uint8)
    folder = tmp_path / "library"
    folder.mkdir()
    for number, picture in enumerate(colours):
        Image.fromarray(picture).resize((96, 96)).save(folder / f"{number}.jpg")
    scan(folder, progress=False)
    return folder


def vectors(library: Path, catalogue: Path | None = None) -> tuple[str, dict[str, np.ndarray]]:
    """Return the model and each content's vector."""
    with Catalogue(library, catalogue) as opened:
        (model,) = opened.models()
        md5s, rows = opened.load_embeddings(model.digest)
    assert len(md5s) == len(set(md5s))
    return model.digest, dict(zip(md5s, rows, strict=True))


def slow_worker(diary: Path) -> type:
    """Return the engine's worker, slowed down; it notes in a file of its node which batch it begins and ends."""
    folder = str(diary)

    class Slow(over_ray._Worker):
        def __call__(self, batch):
            import ray

            node = ray.get_runtime_context().get_node_id()
            with open(os.path.join(folder, node), "a", buffering=1) as file:
                file.write(f"began {batch['md5'][0]}\n")
                time.sleep(1)
                found = super().__call__(batch)
                file.write(f"ended {batch['md5'][0]}\n")
            return found

    return Slow


def kill_a_node_at_work(cluster, diary: Path, killed: dict[str, list[str]]) -> None:
    """Wait until a node has ended a batch and begun another, then kill its raylet and its workers at once."""
    nodes = {node.node_id: node for node in cluster.worker_nodes}
    end = time.monotonic() + 300
    while not killed and time.monotonic() < end:
        for path in diary.iterdir():
            lines = path.read_text().split("\n")
            if len(lines) > 2 and lines[-2].startswith("began"):
                raylet = psutil.Process(nodes[path.name].all_processes["raylet"][0].process.pid)
                for process in [raylet, *raylet.children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(signal.SIGKILL)
                killed[path.name] = path.read_text().split("\n")
                break
        time.sleep(0.02)


def test_a_node_killed_in_the_middle_costs_no_vector_and_doubles_none(
    cluster, library, tmp_path, monkeypatch, capsys
):
    plain = tmp_path / "plain.sqlite"
    scan(library, plain, progress=False)
    local = ChosenEncoder("local-pytorch-fp32", None, "local", "test")
    with Catalogue(library, plain) as catalogue, local.connect() as embedder:
        embed_library(catalogue, embedder, progress=False)

    diary, written, killed = tmp_path / "diary", [], {}
    diary.mkdir()
    monkeypatch.setattr(over_ray, "_Worker", slow_worker(diary))
    store = over_ray.store

    def store_slowly(catalogue, digest, name, found, report):
        """Vectors of later batches wait on the nodes that made them."""
        written.extend(found.md5s)
        time.sleep(1)
        store(catalogue, digest, name, found, report)

    monkeypatch.setattr(over_ray, "store", store_slowly)
    killer = threading.Thread(target=kill_a_node_at_work, args=(cluster, diary, killed), daemon=True)
    killer.start()
    # One worker on each node by default, as each has room for one.
    request = EncoderRequest(weights=os.environ["MODEL_PRETRAINED"])
    embed_and_print(library, request=request, batch=BATCH, engine="ray")

    ((node, lines),) = killed.items()
    assert lines[-2].startswith("began"), "in the middle of a batch"
    lost = lines[-2].split()[1]
    others = [path.read_text() for path in diary.iterdir() if path.name != node]
    assert any(f"ended {lost}" in text for text in others), "another node did its batch"
    assert len(written) == len(set(written)) == N_PHOTOS
    assert f"{N_PHOTOS} photographs embedded" in capsys.readouterr().out
    digest, found = vectors(library)
    expected_digest, expected = vectors(library, plain)
    assert digest == expected_digest and found.keys() == expected.keys() and len(found) == N_PHOTOS
    np.testing.assert_allclose(
        np.stack([found[md5] for md5 in expected]), np.stack(list(expected.values())), atol=1e-5
    )
