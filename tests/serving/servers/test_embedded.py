"""FastAPI and Triton started together: found, ready, and gone with whoever started them."""

import os
import signal
import socket
import subprocess
import sys
import textwrap

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image
from support.command import running
from support.images import photo
from support.service import as_files, until
from support.triton import executions, infer, needs_triton, render_tiny

from photodup.bench.load.usage import listening_pid
from photodup.core.errors import PhotodupError
from photodup.core.settings import variables
from photodup.embedding.backends import wires_of
from photodup.embedding.engines.encoder import load_model
from photodup.embedding.imaging import decode, encode, normalize, to_jpeg, to_uint8
from photodup.serving.check import check_all
from photodup.serving.embedded import export_models
from photodup.serving.endpoints import load_endpoints
from photodup.serving.service.triton_model import TritonModel
from photodup.serving.triton.repository import render_repository
from photodup.serving.triton.server import EmbeddedTriton

pytestmark = needs_triton()


def test_both_are_ready_and_neither_outlives_a_killed_starter(tmp_path) -> None:
    code = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from photodup.serving.embedded import embedded_servers
        from photodup.serving.endpoints import save_endpoints
        with embedded_servers(models=["emulated_zero"], triton_first=True, progress=print) as found:
            save_endpoints(found, Path({str(tmp_path / "found.yaml")!r}))
            print("READY", flush=True)
            time.sleep(120)
    """)
    with running([sys.executable, "-u", "-c", code], stderr=subprocess.STDOUT) as starter:
        said = []
        for line in starter.stdout:
            said.append(line.strip())
            if line.startswith("READY"):
                break
        assert said[-1] == "READY", said
        assert any(line.startswith("Triton is ready after") for line in said)
        found = load_endpoints(tmp_path / "found.yaml")
        assert {check.finding for check in check_all(found)} == {"ready"}
        assert set(found.backends) == {
            *(f"fastapi-pytorch-fp32-http-{wire}" for wire in wires_of("fastapi")),
            "triton-emulated-zero-fp32-http-fp32",
            "triton-emulated-zero-fp32-grpc-fp32",
        }
        started = {
            name.partition("-")[0]: psutil.Process(listening_pid(url)).create_time()
            for name, url in found.backends.items()
        }
        assert started["triton"] < started["fastapi"]
        ports = {int(url.removesuffix("/metrics").rsplit(":", 1)[1]) for url in found.metrics.values()}
        ports |= {int(url.rsplit(":", 1)[1]) for url in found.backends.values()}
        assert len(ports) == 4
        os.kill(starter.pid, signal.SIGKILL)
        until(lambda: not any(map(_open, ports)))


def test_an_export_that_cannot_be_made_is_one_sentence() -> None:
    with pytest.raises(PhotodupError) as caught:
        export_models({"MODEL_PRETRAINED": "/nonexistent/checkpoint.pt"})
    assert "/nonexistent/checkpoint.pt" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def _open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.long  # each wire has its test with a tiny graph, and each file of the real one in test_export.py
def test_the_real_model_gives_pytorchs_embedding_over_every_wire_and_protocol(tmp_path) -> None:
    """The published criterion, 0.1% of the vector's length, for the whole way: file, server, wire and back."""
    data = pytest.importorskip("skimage.data")
    photos = [to_jpeg(Image.fromarray(picture), 90) for picture in (data.astronaut(), data.coffee())]
    pixels = np.stack([to_uint8(decode(photo)) for photo in photos])
    sent = {
        "openclip_vit_b32": normalize(pixels),
        "openclip_vit_b32_fp16": normalize(pixels).astype(np.float16),
        "openclip_vit_b32_uint8": pixels,
        "openclip_vit_b32_jpeg": np.array([[photo] for photo in photos], dtype=object),
    }
    made = export_models()
    assert {"fp32", "uint8", "fp16"} <= set(made)
    reference = load_model().embed(normalize(pixels))
    render_repository("cpu-embedded", tmp_path, made, models=list(sent))
    with EmbeddedTriton(tmp_path, list(sent)) as server:
        for model, array in sent.items():
            for protocol in ("http", "grpc"):
                answer = infer(server, model, array, protocol)
                assert np.linalg.norm(answer - reference, axis=1).max() < 1e-3, (model, protocol)
                assert np.linalg.norm(answer - reference[::-1], axis=1).max() > 1e-3  # the photos do differ


def test_a_service_in_front_of_triton_answers_what_triton_computes(tmp_path, launch, tiny_exports):
    """More images than Triton takes at once, then the same service while Triton is gone."""
    model = "openclip_vit_b32_uint8"
    photos = [encode(photo(300 + 40 * seed, 260, seed), "JPEG") for seed in range(8)]
    repository = render_tiny(tmp_path, tiny_exports, [model])
    with EmbeddedTriton(repository, [model]) as triton:
        ours = launch(ENGINE="triton", TRITON_GRPC_URL=triton.grpc_url, MODEL_PRETRAINED="", BATCH_DELAY_MS=0)
        ours.wait()
        info = httpx.get(f"{ours.url}/info").json()
        before = executions(triton, model)[0]
        files = as_files([photos[i % 8] for i in range(40)])
        answer = httpx.post(f"{ours.url}/embed", files=files, timeout=60).json()["embeddings"]
        wanted = infer(triton, model, np.stack([to_uint8(decode(data)) for data in photos]))
        said = [info[name] for name in ("engine", "precision", "digest", "accuracy_check")]
        assert said == ["triton", "fp32", "tiny", "not needed"]
        np.testing.assert_allclose(answer, wanted[[i % 8 for i in range(40)]], atol=1e-6)
        assert executions(triton, model)[0] - before == 40 + 8
    gone = httpx.post(f"{ours.url}/embed", files=as_files(photos[:1]), timeout=60)
    assert gone.status_code == 503 and "Triton behind this service" in gone.text


@pytest.mark.parametrize(("settings", "said"), [
    ({"INFERENCE_BACKEND": "triton-onnx-fp32-http-uint8"}, "sends pixels by gRPC"),
    ({"TRITON_GRPC_URL": "127.0.0.1:9"}, "No gRPC server answers at 127.0.0.1:9"),
])  # fmt: skip
def test_a_triton_that_cannot_be_had_is_named(settings, said):
    with variables(**{"INFERENCE_BACKEND": "", **settings}), pytest.raises(PhotodupError, match=said):
        TritonModel("fp32")
