"""One client for every server: same answers, same order, and an error that names the remedy."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext

import numpy as np
import pytest
from PIL import Image
from support.flaky import in_front_of
from support.images import bomb, photo
from support.service import free_port
from support.triton import tiny_embedding

from photodup.core.errors import PhotodupError, ServerError
from photodup.embedding.backends import Backend, wires_of
from photodup.embedding.client import embedder as client
from photodup.embedding.client.embedder import connect
from photodup.embedding.client.http import Patience
from photodup.embedding.client.servers import address_for_grpc
from photodup.embedding.imaging import ImageError, client_jpeg, decode, encode, normalize, to_uint8

PHOTOS = [encode(photo(280 + 20 * seed, 250, seed), "JPEG") for seed in range(6)]
PIXELS = np.stack([to_uint8(decode(data)) for data in PHOTOS])
HASTY = Patience(connect_s=20, request_s=20, attempts=2, pause_s=0.01)
TRITON = [wire for wire in wires_of("triton") if wire != "json"]
FASTAPI = [f"fastapi-pytorch-fp32-http-{wire}" for wire in wires_of("fastapi")]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("INFERENCE_SERVICE_URL", "INFERENCE_BACKEND", "TRITON_GRPC_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def triton_url(tiny_triton):
    return lambda protocol: tiny_triton.http_url if protocol == "http" else tiny_triton.grpc_url


# --- right answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", FASTAPI)
def test_the_service_answers_as_the_model_in_this_process(backend, random_service, random_model):
    with connect(random_service.url, backend, jpeg_quality=None) as embedder:
        found = embedder.embed(PHOTOS)
        np.testing.assert_allclose(found, random_model.embed_pixels(PIXELS), atol=5e-6)
        assert (embedder.backend, embedder.model_digest) == (backend, random_model.digest)
        assert (embedder.is_random, embedder.dim, embedder.model_name) == (True, 512, "ViT-B-32")
        assert found.dtype == np.float32 and np.abs(found[0] - found[1]).max() > 1e-3
    with connect(random_service.url, backend) as embedder:  # 10 KB each: other pixels, nearly the same vector
        small = embedder.embed(PHOTOS[:2])
        resent = random_model.embed_pixels(np.stack([to_uint8(decode(client_jpeg(p))) for p in PHOTOS[:2]]))
        np.testing.assert_allclose(small, resent, atol=5e-6)
        assert 1e-5 < np.abs(small - found[:2]).max() < 0.05


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("wire", TRITON)
def test_triton_answers_as_the_graph_over_every_wire(protocol, wire, triton_url):
    name = f"triton-onnx-fp32-{protocol}-{wire}"
    with connect(triton_url(protocol), name, jpeg_quality=None) as embedder:
        found = embedder.embed(PHOTOS)
        wanted = tiny_embedding(normalize(PIXELS))
        np.testing.assert_allclose(found, wanted, atol=3e-3 if wire == "fp16" else 1e-5)
        assert (embedder.backend, embedder.model_digest) == (name, "tiny")
        assert embedder.dim == 512 and embedder.remote.max_images == 32


def test_the_openvino_engine_is_another_model(triton_url):
    with connect(triton_url("http"), "triton-openvino-fp32-http-fp32") as embedder:
        assert embedder.model_name == "openclip_vit_b32_openvino"
        np.testing.assert_allclose(embedder.embed(PHOTOS), tiny_embedding(normalize(PIXELS)), atol=1e-4)


def test_files_bytes_and_images_may_be_mixed_and_keep_their_order(tmp_path, tiny_onnx):
    path = tmp_path / "photo.jpg"
    path.write_bytes(PHOTOS[1])
    mixed = [PHOTOS[0], path, decode(PHOTOS[2]), Image.open(path)]
    with connect(backend="local-onnx-fp32", pretrained=tiny_onnx) as embedder:
        np.testing.assert_allclose(embedder.embed(mixed), tiny_embedding(PIXELS[[0, 1, 2, 1]]), atol=1e-5)
        assert embedder.backend == "local-onnx-fp32" and embedder.is_random is False
        assert embedder.embed([]).shape == (0, 512)
    mixed[3].close()


@pytest.mark.parametrize("backend", FASTAPI)
def test_a_large_batch_is_split_to_what_the_service_takes_in_order(backend, small_service):
    """Limits of this service: 8 images, 4 MB."""
    server = small_service()
    many = [PHOTOS[i % 6] for i in range(21)]
    large = [encode(photo(700, 600, seed), "PNG") for seed in range(6)]  # 0.8 MB each
    with connect(server.url, backend, jpeg_quality=None) as embedder:
        wanted = tiny_embedding(PIXELS[[i % 6 for i in range(21)]])
        np.testing.assert_allclose(embedder.embed(many), wanted, atol=1e-5)
        assert sum(map(len, large)) > embedder.remote.max_bytes
        pixels = np.stack([to_uint8(decode(data)) for data in large])
        np.testing.assert_allclose(embedder.embed(large), tiny_embedding(pixels), atol=1e-5)


def test_a_large_batch_is_split_to_what_triton_takes_in_order(triton_url):
    order = [i % 6 for i in range(70)]
    with connect(triton_url("grpc"), "triton-onnx-fp32-grpc-uint8") as embedder:
        found = embedder.embed([PHOTOS[i] for i in order])
        np.testing.assert_allclose(found, tiny_embedding(normalize(PIXELS[order])), atol=1e-5)


def test_the_connection_is_kept(small_service):
    server = small_service()
    with connect(server.url, "pytorch") as embedder:
        embedder.embed(PHOTOS)
        before = len(open_connections(server.process.pid))
        for _ in range(5):
            embedder.embed(PHOTOS)
        assert len(open_connections(server.process.pid)) == before


def open_connections(pid: int) -> list[str]:
    import psutil

    return [c.raddr for c in psutil.Process(pid).net_connections("tcp") if c.status == "ESTABLISHED"]


# --- bad images ----------------------------------------------------------------------------------


@pytest.mark.parametrize("quality", [90, None])
@pytest.mark.parametrize("backend", FASTAPI)
def test_a_bad_image_is_named_by_its_position_in_the_call(backend, quality, small_service):
    many = [PHOTOS[i % 6] for i in range(12)]
    many[10] = b"not an image"
    with connect(small_service().url, backend, jpeg_quality=quality) as embedder:
        with pytest.raises(ImageError, match="not an image") as caught:
            embedder.embed(many)
        assert caught.value.index == 10  # in the second request, whether client or server noticed
        assert len(embedder.embed(PHOTOS)) == 6


def test_a_bomb_is_refused_before_it_is_sent_and_in_process(tiny_onnx):
    too_large = pytest.raises(ImageError, match="1,600 megapixels")
    with connect(backend="local-onnx-fp32", pretrained=tiny_onnx) as embedder, too_large as caught:
        embedder.embed([PHOTOS[0], bomb()])
    assert caught.value.index == 1


# --- servers that are not there, or not the right one --------------------------------------------


@pytest.mark.parametrize(("address", "backend", "words"), [
    ("http://127.0.0.1:{free}", "pytorch", "No server answers at .*photodup serve"),
    ("http://127.0.0.1:{free}", "triton", "No server answers"),
    ("127.0.0.1:{free}", "triton_grpc", "No gRPC server answers at .*TRITON_GRPC_URL"),
    ("http://no.such.host.invalid:80", "pytorch", "No server answers"),
    ("ftp://host:1", "pytorch", "no HTTP address: use http://host:port"),
    ("localhost", "triton_grpc", "no gRPC address: use host:port"),
    ("{service}", "triton", "is the FastAPI service, not Triton's HTTP port.*INFERENCE_BACKEND"),
    ("{service_address}", "triton_grpc", "is the FastAPI service, not a gRPC port"),
])  # fmt: skip
def test_a_server_that_is_not_there_or_another_is_one_sentence(address, backend, words, small_service):
    url = small_service().url
    address = address.format(free=free_port(), service=url, service_address=url.removeprefix("http://"))
    with pytest.raises(ServerError, match=words):
        connect(address, backend, patience=HASTY)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_that_takes_another_wire_is_refused(protocol, triton_url, monkeypatch):
    monkeypatch.setattr(Backend, "triton_model", "openclip_vit_b32_uint8")
    with pytest.raises(ServerError, match=r"openclip_vit_b32_uint8 takes .*UINT8.* needs FP32"):
        connect(triton_url(protocol), f"triton-onnx-fp32-{protocol}-fp32")


# --- timeouts and retries ------------------------------------------------------------------------


@pytest.fixture
def flaky(small_service) -> Iterator:
    with ExitStack() as stack:
        yield lambda failures, how: stack.enter_context(in_front_of(small_service().url, failures, how))


@pytest.mark.parametrize("how", ["closed", "503", "silent"])
@pytest.mark.parametrize(("failures", "patience", "asked"), [(1, (60, 5), 2), (99, (1, 0.5), 3)])
def test_a_passing_failure_is_retried_within_bounds(flaky, how, failures, patience, asked, monkeypatch):
    proxy = flaky(failures, how)
    no_keep_alive(monkeypatch)
    ends = pytest.raises(ServerError, match="3 attempts") if failures > asked else nullcontext()
    patience = Patience(*patience, attempts=3, pause_s=0.01)
    with connect(proxy.url, "pytorch", jpeg_quality=None, patience=patience) as embedder, ends:
        np.testing.assert_allclose(embedder.embed(PHOTOS[:1]), tiny_embedding(PIXELS[:1]), atol=1e-5)
    assert proxy.seen == asked


def no_keep_alive(monkeypatch) -> None:
    """The proxy understands one request per connection."""
    import httpx

    real, once = httpx.Client, {"headers": {"Connection": "close"}}
    monkeypatch.setattr(httpx, "Client", lambda **options: real(**options | once))


def test_a_server_that_dies_midway_is_one_sentence(launch):
    server = launch()
    server.wait()
    with connect(server.url, "pytorch", patience=HASTY) as embedder:
        embedder.embed(PHOTOS[:1])
        server.stop()
        with pytest.raises(ServerError, match="No server answers"):
            embedder.embed(PHOTOS[:1])


# --- choosing ------------------------------------------------------------------------------------


def test_auto_falls_back_to_this_machine_with_a_warning(tiny_onnx):
    with pytest.warns(UserWarning, match="No server answers.*Embedding on this machine instead"):
        made = connect(f"http://127.0.0.1:{free_port()}", mode="auto", patience=HASTY, pretrained=tiny_onnx)
    with made:
        assert made.backend == "local-pytorch-fp32"
        np.testing.assert_allclose(made.embed(PHOTOS[:1]), tiny_embedding(PIXELS[:1]), atol=1e-5)


def test_auto_uses_the_server_that_is_there(small_service):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with connect(small_service().url, mode="auto") as embedder:
            assert embedder.backend == "fastapi-pytorch-fp32-http-jpeg"


@pytest.mark.parametrize(("short", "full"), [
    ("triton_grpc", "triton-onnx-fp32-grpc-fp32"),
    ("local", "local-pytorch-fp32"),
    ("", "local-pytorch-fp32"),
])  # fmt: skip
def test_the_environment_of_the_source_documents_works(monkeypatch, short, full):
    """Without a server, or where none is wanted, the model runs here."""
    chosen = []
    monkeypatch.setattr(client, "RemoteEmbedder", lambda url, one, *_: chosen.append((url, one.name)))
    monkeypatch.setattr(client, "LocalEmbedder", lambda backend, **_: chosen.append((None, backend.name)))
    if short:
        monkeypatch.setenv("INFERENCE_SERVICE_URL", "http://gpu:8002")
        monkeypatch.setenv("INFERENCE_BACKEND", short)
    connect()
    connect(backend="local-onnx-fp32")
    url = "http://gpu:8002" if short.startswith("triton") else None
    assert chosen == [(url, full), (None, "local-onnx-fp32")]


@pytest.mark.parametrize(("url", "configured", "address"), [
    ("http://gpu:8003", None, "gpu:8004"),
    ("http://gpu:47088/", None, "gpu:47089"),
    ("http://gpu:8003", "gpu:31001", "gpu:31001"),
    ("gpu:9999", "gpu:31001", "gpu:9999"),
    ("grpc://gpu:9999", None, "gpu:9999"),
    (None, None, "localhost:8004"),
])  # fmt: skip
def test_the_grpc_address_is_given_or_one_above_http(monkeypatch, url, configured, address):
    if configured:
        monkeypatch.setenv("TRITON_GRPC_URL", configured)
    assert address_for_grpc(url) == address


def test_what_cannot_be_chosen_is_refused():
    with pytest.raises(PhotodupError, match="measure what JSON costs"):
        client.connect("http://127.0.0.1:1", "triton-onnx-fp32-http-json")
    with pytest.raises(PhotodupError, match="local, remote or auto"):
        connect(mode="hybrid")
