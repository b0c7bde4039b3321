"""The embedded Triton as a process and as a server; every test talks to the real binary."""

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from support.command import running
from support.service import has_ended, until
from support.triton import executions, infer, load, loaded, needs_triton, tiny_embedding, tiny_graph

from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import normalize
from photodup.serving.triton.config import read_config, set_batching, set_parameter
from photodup.serving.triton.control import answers_during, temporary_config
from photodup.serving.triton.models.emulation import emulated_embedding
from photodup.serving.triton.repository import add_version, render_repository
from photodup.serving.triton.server import EmbeddedTriton

pytestmark = needs_triton()


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (3, 3, 224, 224), dtype=np.uint8)


@pytest.mark.parametrize("bad", [np.zeros((1, 3, 224, 224), np.float64), np.zeros((1, 3, 9, 9), np.float32)])
def test_a_wrong_tensor_is_refused_and_the_server_lives_on(bad: np.ndarray, pixels: np.ndarray, tiny_triton):
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match=r"image|shape"):
        infer(tiny_triton, "openclip_vit_b32", bad)
    assert infer(tiny_triton, "openclip_vit_b32", pixels.astype(np.float32)).shape == (3, 512)


def test_batches_form_while_the_model_is_busy(tiny_triton) -> None:
    """32 single requests on a model that takes 100 ms: fewer executions than images, all answered right."""
    server, model = tiny_triton, "emulated_4080trt"
    config = read_config(server.repository / model / "config.pbtxt")
    set_parameter(config, base_ms=100)
    images = np.random.default_rng(2).normal(size=(32, 1, 3, 224, 224)).astype(np.float32)
    with loaded(server, model, config=config):
        before = executions(server, model)
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda a: infer(server, "emulated_4080trt", a, "grpc"), images))
        after = executions(server, model)
        for image, answer in zip(images, answers, strict=True):  # nobody got somebody else's answer
            np.testing.assert_allclose(answer, emulated_embedding(image), atol=1e-6)
        assert after[0] - before[0] == 32
        assert after[1] - before[1] < 32
        set_batching(config, "off")
        load(server, "emulated_4080trt", config)
        before = executions(server, model)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda a: infer(server, "emulated_4080trt", a, "grpc"), images[:16]))
        after = executions(server, model)
        assert (after[0] - before[0], after[1] - before[1]) == (16, 16)  # and without the batcher they do not


@pytest.mark.parametrize(("bound", "reason"), [
    ({"max_queue_size": 1}, "maximum queue size"),
    ({"default_timeout_microseconds": 1_000_000}, "timeout expired"),
])  # fmt: skip
def test_a_queue_is_bounded_in_length_and_in_time(bound: dict, reason: str, tiny_triton) -> None:
    """The bounds of the rendered configuration, made small: of eight at once some are answered, some refused."""
    from tritonclient.utils import InferenceServerException

    server, model = tiny_triton, "emulated_4080trt"
    config = read_config(server.repository / model / "config.pbtxt")
    set_parameter(config, base_ms=2000)
    set_batching(config, "single")
    for name, value in bound.items():
        assert getattr(config.dynamic_batching.default_queue_policy, name) > value
        setattr(config.dynamic_batching.default_queue_policy, name, value)
    image = np.zeros((1, 3, 224, 224), np.float32)

    def ask(_: int) -> str:
        try:
            return str(infer(server, model, image, "grpc").shape)
        except InferenceServerException as error:
            assert error.status() == "StatusCode.UNAVAILABLE"
            return error.message().lower()

    with loaded(server, model, config=config):
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(ask, range(8)))
        assert ask(0) == "(1, 512)"  # and afterwards it serves as before
    refused = [outcome for outcome in outcomes if outcome != "(1, 512)"]
    assert 0 < len(refused) < 8 and all(reason in outcome for outcome in refused), outcomes


def test_decoding_makes_no_batches(tiny_triton) -> None:
    """A batch would keep one instance busy while the other has nothing to do."""
    server, model = tiny_triton, "openclip_vit_b32_preprocess"
    encoded = io.BytesIO()
    Image.fromarray(np.zeros((2000, 2000, 3), np.uint8)).save(encoded, "PNG")
    sent = np.array([[encoded.getvalue()]], dtype=object)
    before = executions(server, model)
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: infer(server, model, sent, "grpc", "image"), range(24)))
    after = executions(server, model)
    assert (after[0] - before[0], after[1] - before[1]) == (24, 24)


def test_a_configuration_tried_out_is_gone_afterwards(tiny_triton) -> None:
    """Triton keeps it if the model is merely loaded again: later measurements would be of another server."""
    from tritonclient.grpc import InferenceServerClient

    server, model = tiny_triton, "openclip_vit_b32"

    def served():
        with InferenceServerClient(server.grpc_url) as client:
            return client.get_model_config(model).config

    def change(config) -> None:
        set_batching(config, "off")
        config.instance_group[0].count += 1

    def is_changed() -> bool:
        config = served()
        count = config.instance_group[0].count
        return not config.HasField("dynamic_batching") and count == before.instance_group[0].count + 1

    before, path = served(), server.repository / model / "config.pbtxt"
    file = read_config(path)
    assert before.HasField("dynamic_batching")
    change(config := read_config(path))
    load(server, model, config)
    assert is_changed()
    load(server, model)
    assert served() == before and read_config(path) == file
    with temporary_config(server.grpc_url, model, change):
        assert is_changed()
    assert served() == before
    with pytest.raises(RuntimeError), temporary_config(server.grpc_url, model, change):
        raise RuntimeError("a point failed")
    assert served() == before


def test_version_2_replaces_version_1_without_a_failed_request(pixels: np.ndarray, tiny_triton, tmp_path):
    server, model = tiny_triton, "openclip_vit_b32_uint8"
    new_graph, folders = tiny_graph(tmp_path / "fp32-2.onnx", seed=7), []

    def computed_by(seed: int) -> bool:
        return np.allclose(infer(server, model, pixels), tiny_embedding(normalize(pixels), seed), atol=1e-5)

    def replace() -> None:
        assert computed_by(0)
        folders.append(add_version(server.repository, model, 2, new_graph))
        load(server, model)
        assert computed_by(7)

    told = answers_during(server.grpc_url, model, pixels, replace)
    assert told["failures"] == [] and set(told["answers_by_version"]) == {"1", "2"}
    shutil.rmtree(folders[0])  # and back again
    load(server, model)
    assert computed_by(0)


def test_a_model_that_does_not_load_is_named_with_the_reason(tmp_path: Path, tiny_exports) -> None:
    render_repository("cpu-embedded", tmp_path, tiny_exports, models=["openclip_vit_b32"])
    broken = tmp_path / "openclip_vit_b32" / "1" / "model.onnx"
    broken.unlink()
    broken.write_bytes(b"not a graph")
    with (
        pytest.raises(PhotodupError, match=r"Triton ended while it started: .*openclip_vit_b32.*log"),
        EmbeddedTriton(tmp_path),
    ):
        pass


@pytest.mark.parametrize(("change", "reason"), [
    (("dynamic_batching {", "dynamic_batching { preferred_batch_size: [64]"), "preferred size must be <= max batch size"),
    (('name: "openclip_vit_b32"', 'name: "other"'), "directory name must equal model name"),
])  # fmt: skip
def test_a_configuration_that_triton_refuses_is_named_with_its_reason(
    tmp_path, tiny_repository, change, reason
):
    shutil.copytree(tiny_repository / "openclip_vit_b32", tmp_path / "openclip_vit_b32")
    path = tmp_path / "openclip_vit_b32" / "config.pbtxt"
    path.write_text(path.read_text().replace(*change))
    refused = pytest.raises(PhotodupError, match=f"The configuration of 'openclip_vit_b32': .*{reason}")
    with refused, EmbeddedTriton(tmp_path):
        pass


def test_a_wrong_line_in_a_configuration_is_named_before_the_start(tmp_path: Path, tiny_exports) -> None:
    render_repository("cpu-embedded", tmp_path, tiny_exports, models=["openclip_vit_b32"])
    path = tmp_path / "openclip_vit_b32" / "config.pbtxt"
    path.write_text(path.read_text().replace("max_batch_size", "max_batch"))
    with pytest.raises(PhotodupError, match=r"openclip_vit_b32/config\.pbtxt.*line \d+.*max_batch"):
        EmbeddedTriton(tmp_path)


def test_no_triton_here_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHOTODUP_TRITON_VENV", str(tmp_path))
    with pytest.raises(PhotodupError, match="make install"):
        EmbeddedTriton(tmp_path, [])
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(PhotodupError, match=r"Linux on x86-64 only.*endpoints file"):
        EmbeddedTriton(tmp_path, [])


def test_a_model_that_is_not_rendered_is_named(tmp_path: Path) -> None:
    with pytest.raises(PhotodupError, match=r"nonesuch.*make it with `photodup render`"):
        EmbeddedTriton(tmp_path, ["nonesuch"])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, "supervisor"])
def test_nothing_is_left_when_the_starter_is_killed(how: "signal.Signals | str", tiny_repository) -> None:
    """Start a server in a process of its own, kill that (or the supervisor between them), look for remains."""
    code = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from photodup.serving.triton.server import EmbeddedTriton
        server = EmbeddedTriton(Path({str(tiny_repository)!r}), ["openclip_vit_b32"])
        with server:
            print(server.http_port, server.grpc_port, server.pid, flush=True)
            time.sleep(60)
    """)
    with running([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as starter:
        http, grpc, supervisor = map(int, starter.stdout.readline().split())
        family = [supervisor, *(one.pid for one in psutil.Process(supervisor).children(recursive=True))]
        assert len(family) >= 3, "supervisor, server and stub were expected"
        os.kill(
            supervisor if how == "supervisor" else starter.pid, signal.SIGKILL if how == "supervisor" else how
        )
        until(lambda: all(map(has_ended, family)))
        for port in (http, grpc):
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0
