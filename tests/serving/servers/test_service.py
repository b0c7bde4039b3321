"""The FastAPI service over real TCP: right answers, bad input, bounded memory, honest counters."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from support.images import bomb, photo
from support.service import as_files, check_against_openapi, free_port, stuck_upload, until

from photodup.embedding.engines.encoder import load_model
from photodup.embedding.engines.reduced import draft_path, source_of, write_notes
from photodup.embedding.imaging import decode, encode, to_uint8
from photodup.embedding.vectors import digest_drafted

PHOTOS = [encode(photo(300 + 40 * seed, 260, seed), "JPEG", quality=90) for seed in range(8)]
ORDINARY = [("files", ("a.jpg", PHOTOS[0], "image/jpeg"))]


@pytest.fixture(scope="session")
def expected(real_model):
    return lambda photos: real_model.embed_pixels(np.stack([to_uint8(decode(data)) for data in photos]))


def post(url: str, path: str = "/embed", **request) -> httpx.Response:
    response = httpx.post(url + path, timeout=60, **request)
    check_against_openapi(response, url)
    return response


def typed(content: bytes, kind: str = "multipart/form-data; boundary=x") -> dict:
    return {"content": content, "headers": {"Content-Type": kind}}


def as_json(photos: list[bytes]) -> dict:
    return {"images": [base64.b64encode(data).decode() for data in photos]}


def test_every_way_in_and_out_gives_the_embeddings_of_the_model(random_service, random_model):
    url = random_service.url
    wanted = random_model.embed_pixels(np.stack([to_uint8(decode(data)) for data in PHOTOS[:3]]))
    floats = post(url, files=as_files(PHOTOS[:3])).json()["embeddings"]
    np.testing.assert_allclose(floats, wanted, atol=2e-6)
    one = post(url, files=as_files(PHOTOS[2:3], field="any_name"))
    np.testing.assert_allclose(one.json()["embeddings"], wanted[2:], atol=2e-6)
    assert one.headers["x-model-digest"] == random_model.digest
    rows = post(url, files=as_files(PHOTOS[:3]), params={"encoding": "base64"}).json()["embeddings"]
    exact = np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in rows])
    np.testing.assert_array_equal(exact, np.asarray(floats, np.float32))  # decimal text loses nothing
    body = as_json(PHOTOS[:3])
    body["images"][1] = "data:image/jpeg;base64," + body["images"][1]
    np.testing.assert_allclose(post(url, "/embed/base64", json=body).json()["embeddings"], wanted, atol=2e-6)
    assert np.abs(wanted[0] - wanted[1]).max() > 1e-3  # else a mix-up would not show


def test_large_jpegs_are_decoded_at_a_reduced_scale_where_allowed(small_service, tiny_onnx, tmp_path):
    model, data = load_model(tiny_onnx), encode(photo(1600, 1200, 1), "JPEG")
    source = source_of(Path(tiny_onnx.removeprefix("onnx:")))
    allowed = source.notes("onnx", "fp32", accuracy_check={"verdict": "passed"}, draft_size=448)
    write_notes(draft_path(source, "onnx", "fp32", tmp_path / "build" / "models"), allowed)
    drafted, roots = digest_drafted(model.digest), {"PHOTODUP_ROOT": tmp_path}
    for settings, size, digest in (
        ({}, None, model.digest),
        ({"JPEG_SCALE": "reduced"}, 448, drafted),
        (roots, 448, drafted),
        (roots | {"JPEG_SCALE": "whole"}, None, model.digest),
    ):
        url = small_service(**settings).url
        answer, info = post(url, files=as_files([data])), httpx.get(f"{url}/info").json()
        wanted = model.embed_pixels(to_uint8(decode(data, draft_size=size))[None])
        np.testing.assert_allclose(answer.json()["embeddings"], wanted, atol=2e-6)
        assert answer.headers["x-model-digest"] == info["digest"] == digest
        assert info["jpeg_scale"] == ("reduced" if size else "whole")


def test_requests_in_flight_are_computed_together_and_not_mixed_up(real_service, expected):
    server, wanted = real_service, expected(PHOTOS)
    before = server.metrics()

    def one(index: int) -> list[float]:
        answer = httpx.post(f"{server.url}/embed", files=as_files([PHOTOS[index]]), timeout=60)
        return answer.json()["embeddings"][0]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, [i % 8 for i in range(24)]))
    np.testing.assert_allclose(answers, wanted[[i % 8 for i in range(24)]], atol=5e-6)
    after = server.metrics()
    images = after["photodup_inferences_total"] - before["photodup_inferences_total"]
    executions = after["photodup_executions_total"] - before["photodup_executions_total"]
    assert images == 24
    assert executions <= 12, "requests in flight at the same time were not batched"


def test_batch_max_1_is_one_request_at_a_time(small_service):
    server = small_service(BATCH_MAX=1, MAX_WAIT_S=60)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda data: post(server.url, files=as_files([data, data])), PHOTOS * 2))
    metrics = server.metrics()
    assert metrics["photodup_executions_total"] == 16
    assert metrics["photodup_inferences_total"] == 32


def test_counters_count_each_request_once_in_each_stage(small_service):
    server = small_service(BATCH_MAX=1)
    before = server.metrics()
    for _ in range(3):
        post(server.url, files=as_files(PHOTOS[:2]))
    post(server.url, files=as_files([b"junk"]))
    after = server.metrics()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    for stage in ("receive", "decode", "queue", "compute", "respond"):
        assert grown(f'photodup_request_stage_seconds_count{{stage="{stage}"}}') == 3
        assert grown(f'photodup_request_stage_seconds_sum{{stage="{stage}"}}') > 0
    assert grown('photodup_requests_total{status="200"}') == 3
    assert grown('photodup_requests_total{status="400"}') == 1
    assert grown("photodup_inferences_total") == 6
    assert after["photodup_requests_in_flight"] == 0


BAD_IMAGES = {
    "empty": (b"", "empty"),
    "text": (b"hello", "not an image"),
    "truncated": (PHOTOS[1][:3000], "truncated"),
    "bomb": (bomb(), "1,600 megapixels, more than the limit of 2"),
    "too large": (encode(photo(1600, 1300), "JPEG"), "2 megapixels"),
}


@pytest.mark.parametrize("kind", BAD_IMAGES)
@pytest.mark.parametrize("path", ["/embed", "/embed/base64"])
def test_a_bad_image_is_named_by_its_index_and_a_sentence(path, kind, small_service):
    url = small_service().url
    data, reason = BAD_IMAGES[kind]
    photos = [PHOTOS[0], data, PHOTOS[1]]
    got = post(url, path, **({"files": as_files(photos)} if path == "/embed" else {"json": as_json(photos)}))
    problem = got.json()
    assert got.status_code == 400
    assert problem["index"] == 1 and problem["errors"][0]["index"] == 1
    assert reason in problem["detail"] and problem["detail"].startswith("Image 1: ")


def test_every_bad_image_of_a_request_is_listed(small_service):
    response = post(small_service().url, files=as_files([b"x", PHOTOS[0], b"y"]))
    assert [error["index"] for error in response.json()["errors"]] == [0, 2]
    assert "2 images are bad" in response.json()["detail"]


@pytest.mark.parametrize(("path", "request_", "status", "words"), [
    ("/embed", {"json": {}}, 415, "multipart/form-data"),
    ("/embed", {"content": PHOTOS[0], "headers": {"Content-Type": "image/jpeg"}}, 415, "image/jpeg"),
    ("/embed", {"content": b"x"}, 415, "untyped"),
    ("/embed/base64", {"files": ORDINARY}, 415, "application/json"),
    ("/embed", {"data": {"a": "b"}, "files": {}}, 415, "multipart"),
    ("/embed", {"content": b"--x", "headers": {"Content-Type": "multipart/form-data"}}, 400, "boundary"),
    ("/embed", typed(b"garbage"), 400, "cannot be read"),
    ("/embed", typed(b"--x--\r\n"), 422, "no file"),
    ("/embed/base64", {"json": {"images": ["%%%"]}}, 400, "not base64"),
    ("/embed/base64", {"json": {"images": []}}, 422, "at least 1"),
    ("/embed/base64", {"json": {"images": "abc"}}, 422, "array"),
    ("/embed/base64", {"json": {"images": [1]}}, 422, "images.0"),
    ("/embed/base64", {"json": {"pictures": []}}, 422, "images"),
    ("/embed/base64", typed(b"{nope", "application/json"), 422, "Invalid JSON"),
    ("/embed", {"files": as_files(PHOTOS[:1] * 9)}, 413, "More than 8 images"),
    ("/embed/base64", {"json": as_json([b"x"] * 9)}, 413, "More than 8 images"),
    ("/embed", {"files": ORDINARY, "params": {"encoding": "json"}}, 422, "encoding"),
])  # fmt: skip
def test_a_bad_request_is_told_what_is_wrong(path, request_, status, words, small_service):
    response = post(small_service().url, path, **request_)
    assert (response.status_code, words in response.json()["detail"]) == (status, True), response.text


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("path", ["/embed", "/embed/base64"])
def test_too_large_a_body_is_refused_without_being_held(path, announced, small_service, figure):
    server = small_service()
    before = server.rss_mb()
    size = 200_000_000
    kind = "multipart/form-data; boundary=x" if path == "/embed" else "application/json"
    start = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'

    def body():
        yield start if path == "/embed" else b'{"images": ["'
        for _ in range(size // 1_000_000):
            yield b"A" * 1_000_000

    headers = {"Content-Type": kind} | ({"Content-Length": str(size + len(start))} if announced else {})
    if announced:  # a client that sends all it announced, and one that streams
        whole = start + b"A" * size
        response = httpx.post(server.url + path, content=whole, headers={"Content-Type": kind}, timeout=60)
    else:
        response = httpx.post(server.url + path, content=body(), headers=headers, timeout=60)
    check_against_openapi(response, server.url)
    assert response.status_code == 413 and "larger than 4 MB" in response.json()["detail"]
    grown_mb = server.rss_mb() - before
    figure(grown_mb < 40, grown_mb)
    assert post(server.url, files=ORDINARY).status_code == 200


def test_memory_stays_bounded_under_a_barrage_and_the_service_lives_on(small_service, figure):
    server = small_service(MAX_WAIT_S=60)  # nobody is turned away, however busy the machine
    post(server.url, files=as_files(PHOTOS))
    evil = [bomb(), encode(photo(1400, 1400), "PNG"), bytes(10**6), PHOTOS[0][:-50], bomb(65_000, 65_000)]

    def send(index: int) -> int:
        return httpx.post(f"{server.url}/embed", files=as_files([evil[index % 5]]), timeout=60).status_code

    def barrage() -> None:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(send, range(60))) == {200, 400}

    barrage()  # the first one fills the allocator's arenas
    before = server.rss_mb()
    barrage()
    grown_mb = server.rss_mb() - before
    figure(grown_mb < 60, grown_mb)
    answer = post(server.url, files=as_files(PHOTOS))
    assert answer.status_code == 200 and len(answer.json()["embeddings"]) == 8
    assert server.process.poll() is None


def test_requests_that_are_still_arriving_take_no_place(small_service):
    server = small_service(MAX_IN_FLIGHT=3, BATCH_MAX=2)
    stuck = [stuck_upload(server.url) for _ in range(6)]
    until(lambda: server.metrics()["photodup_requests_in_flight"] == 6)
    assert post(server.url, files=ORDINARY).status_code == 200
    for connection in stuck:
        connection.close()
    until(lambda: server.metrics()["photodup_requests_in_flight"] == 0)
    assert post(server.url, files=ORDINARY).status_code == 200


def test_bodies_in_flight_share_one_budget(small_service):
    server = small_service(MAX_BUFFERED_MB=2, BATCH_MAX=3)
    stuck = stuck_upload(server.url, sent=1_900_000, announced=3_000_000)
    until(lambda: server.metrics()["photodup_requests_in_flight"] == 1)
    large = [encode(photo(900, 900), "PNG")]
    until(lambda: post(server.url, files=as_files(large)).status_code == 503)
    stuck.close()
    until(lambda: post(server.url, files=ORDINARY).status_code == 200)
    assert post(server.url, files=as_files([PHOTOS[0]])).status_code == 200


def test_the_event_loop_is_never_blocked_by_a_large_image(small_service):
    """While 12-megapixel photographs are decoded, the health check answers."""
    server = small_service(MAX_PIXELS=20_000_000, MAX_BODY_MB=60, BATCH_MAX=4)
    large = encode(photo(4000, 3000), "JPEG")

    async def measure() -> float:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            work = asyncio.create_task(client.post("/embed", files=as_files([large] * 8)))
            answered = 0
            while not work.done():
                answered += (await client.get("/healthz")).status_code == 200
                await asyncio.sleep(0.01)
            assert (await work).status_code == 200
            return answered

    # Decoding all eight takes seconds of CPU. Done on the loop, it would let one request through between two
    # images at most.
    assert asyncio.run(measure()) > 24


def test_health_answers_while_the_model_is_loading(launch):
    server = launch(MODEL_PRETRAINED="random:0")
    server.wait("/healthz")
    loading = httpx.get(f"{server.url}/readyz")
    assert (loading.status_code, loading.json()) == (503, {"status": "loading"})
    early = post(server.url, files=ORDINARY)
    assert early.status_code == 503 and "loading" in early.json()["detail"]
    check_against_openapi(loading, server.url)
    server.process.kill()
    server.process.wait()


def test_ready_health_info_and_metrics(small_service, tiny_onnx):
    url = small_service().url
    for path in ("/healthz", "/readyz", "/health"):
        assert httpx.get(url + path).json() == {"status": "ok"}
    info = httpx.get(f"{url}/info")
    check_against_openapi(info, url)
    assert info.json()["pretrained"] == tiny_onnx and info.json()["limits"]["max_images"] == 8
    metrics = httpx.get(f"{url}/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "photodup_executions_total" in metrics.text


def run_service(**settings: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "photodup.serving.service"],
        env=dict(os.environ) | settings,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(("settings", "words"), [
    ({"PORT": "eighty"}, "PORT=eighty"),
    ({"BATCH_MAX": "0"}, "BATCH_MAX=0"),
    ({"MODEL_PRETRAINED": "/nowhere/weights.pt"}, "No checkpoint at /nowhere/weights.pt"),
    ({"MODEL_PRETRAINED": "onnx:/nowhere.onnx"}, "photodup export"),
])  # fmt: skip
def test_a_service_that_cannot_start_says_why_and_exits_with_2(settings, words):
    done = run_service(**({"PORT": str(free_port())} | settings))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and words in done.stderr


def test_the_openapi_document_names_what_a_request_takes(small_service):
    document = httpx.get(f"{small_service().url}/openapi.json").json()
    form = document["paths"]["/embed"]["post"]["requestBody"]["content"]
    assert list(form) == ["multipart/form-data"]
    body = document["paths"]["/embed/base64"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["images"]
    assert json.dumps(document).count('"503"') >= 5
