"""Slow and many: trickled bodies, ten times the load, and the key. Against real services over TCP."""

import asyncio
import contextlib
import socket
import time

import httpx
import pytest
from support.hostile_images import encode, grain
from support.paths import ROOT
from support.service import as_files, check_against_openapi, stuck_upload, until

from photodup.core.errors import ServerError
from photodup.embedding.backends import parse_backend
from photodup.embedding.client.http import Patience
from photodup.embedding.client.servers import FastApiServer
from photodup.serving.process.ports import key_warning
from photodup.serving.service import handler as service
from photodup.serving.service.admission import Admission, Overloaded, Pace
from photodup.serving.service.app import create_app
from photodup.serving.service.settings import ServiceSettings

PHOTO = encode(grain(224, 224), "JPEG", quality=85)
FILES = as_files([PHOTO])
SLOW_ENCODER = str(ROOT / "tests" / "support" / "slow_encoder.py")


def post(url: str, **request) -> httpx.Response:
    return httpx.post(f"{url}/embed", **({"files": FILES, "timeout": 60} | request))


# Bodies that do not arrive


def test_three_hundred_trickled_bodies_keep_nobody_out(small_service):
    server = small_service(MAX_IN_FLIGHT=8, BODY_SECONDS=600, MIN_BODY_RATE=200)
    stuck = [stuck_upload(server.url, sent=1) for _ in range(300)]

    def are_free(trickling: list) -> bool:
        for connection in trickling:
            with contextlib.suppress(OSError):  # a busy machine sends too late, and it is told so already
                connection.sendall(b" ")
        return server.metrics()["photodup_requests_in_flight"] == 0

    try:
        until(lambda: server.metrics()["photodup_requests_in_flight"] >= 300)
        for _ in range(5):
            are_free(stuck)
            assert post(server.url).status_code == 200
        # After five seconds at that rate they are told so, though bytes go on coming, and the places they took are free.
        until(lambda: are_free(stuck[1:]))
        answer = stuck[0].recv(4096).decode()
        assert answer.startswith("HTTP/1.1 408") and "less than 200 bytes a second" in answer
        assert "MIN_BODY_RATE" in answer
    finally:
        for connection in stuck:
            connection.close()
    assert server.metrics()['photodup_requests_total{status="408"}'] == 300


def test_a_body_has_a_deadline_whatever_its_rate(small_service):
    server = small_service(BODY_SECONDS=2, MIN_BODY_RATE=1)
    with stuck_upload(server.url, sent=1) as connection:
        end = time.monotonic() + 120
        connection.settimeout(0.1)
        answer = b""
        while not answer:
            assert time.monotonic() < end
            try:
                connection.sendall(b" " * 1000)
                answer = connection.recv(4096)
            except TimeoutError:
                continue
        connection.settimeout(120)
        # The head may come without the body; what was sent after the server had closed may reset the connection.
        with contextlib.suppress(ConnectionResetError):
            while received := connection.recv(4096):
                answer += received
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 408 " in head and (b"not complete after 2 seconds" in body or not body)


def test_a_slow_but_steady_body_is_read(small_service):
    server = small_service(MIN_BODY_RATE=300)
    start = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'
    body = start + PHOTO + b"\r\n--x--\r\n"

    def pieces():
        for first in range(0, len(body), 1500):
            yield body[first : first + 1500]
            time.sleep(1.5 * 7500 / len(body))

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert post(server.url, files=None, content=pieces(), headers=headers).status_code == 200


def test_headers_that_never_end_are_not_waited_for(small_service):
    server = small_service()
    host, port = server.url.removeprefix("http://").split(":")
    silent, half = (socket.create_connection((host, int(port))) for _ in range(2))
    half.sendall(b"POST /embed HTTP/1.1\r\nHost: x\r\n")
    for connection in (silent, half):
        connection.settimeout(120)
        assert connection.recv(100) == b""
        connection.close()


# Ten times the load


def test_honest_work_in_flight_is_finished_when_the_service_is_stopped(launch):
    server = launch(program=(SLOW_ENCODER,), SLOW_MS=700)
    server.wait()

    async def send_and_stop() -> httpx.Response:
        async with httpx.AsyncClient(timeout=60) as client:
            answer = asyncio.create_task(client.post(f"{server.url}/embed", files=as_files([PHOTO] * 8)))
            await asyncio.to_thread(until, lambda: server.metrics()["photodup_requests_in_flight"] >= 1)
            server.process.terminate()
            return await answer

    answer = asyncio.run(send_and_stop())
    assert answer.status_code == 200 and len(answer.json()["embeddings"]) == 8
    assert server.process.wait(120) in (0, -15)


def test_a_refusal_is_documented_and_says_when_to_come_back(launch):
    server = launch(program=(SLOW_ENCODER,), SLOW_MS=300, MAX_WAIT_S=0.5, BATCH_MAX=1)
    server.wait()

    async def burst() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=60) as client:
            sent = (client.post(f"{server.url}/embed", files=FILES) for _ in range(12))
            return await asyncio.gather(*sent)

    answers = asyncio.run(burst())
    refused = [answer for answer in answers if answer.status_code == 503]
    assert refused and any(answer.status_code == 200 for answer in answers)
    assert "expected wait" in refused[0].json()["detail"] and "MAX_WAIT_S" in refused[0].json()["detail"]
    assert int(refused[0].headers["retry-after"]) >= 1
    check_against_openapi(refused[0], server.url)
    assert post(server.url).status_code == 200
    server.stop()


def test_the_expected_wait_is_that_of_the_slowest_stage():
    admission = Admission(ServiceSettings(max_in_flight=100, max_wait_s=2, decode_threads=2, batch_max=1))
    with admission.enter(1000):
        assert admission.expected_wait_s == 0  # nothing is known yet
        admission.decoding.add(10, 0.1)
        assert admission.expected_wait_s == pytest.approx(1000 * 0.01 / 2)
        admission.computing.add(1, 0.1)
        assert admission.expected_wait_s == pytest.approx(1000 * 0.1)
        with pytest.raises(Overloaded, match=r"100\.0 s") as refused:
            admission.check()
        assert refused.value.retry_after_s == 98
    batching = Admission(ServiceSettings(max_in_flight=100, max_wait_s=2, decode_threads=2, batch_max=8))
    batching.computing.add(10, 2.5)
    assert batching.batch_limit == 2  # of a quarter of a second each: a quarter of the bound
    with batching.enter(2):
        assert batching.expected_wait_s == pytest.approx(3 * 0.25)  # one more may join its batch
    with batching.enter(6), pytest.raises(Overloaded):
        batching.check()
    assert admission.expected_wait_s == 0
    with admission.enter(64) as place:
        place.move_to("costly", 60)
        admission.check()  # what may take long holds up nobody else
        admission.costly.add(1, 10)
        with pytest.raises(Overloaded):
            admission.check_costly()


def test_an_estimate_follows_a_change_within_seconds_of_work():
    pace = Pace()
    pace.add(1, 10)  # a first execution that had to compile
    for _ in range(60):
        pace.add(1, 0.05)
    assert pace.seconds_per_image < 0.2
    for _ in range(5):
        pace.add(1, 1)
    assert pace.seconds_per_image > 0.5


def test_the_first_guess_at_the_pace_is_not_that_of_a_cold_model(monkeypatch, figure):
    """INT8 right after its start refused four in flight: its second run was slow, and the only one that counted."""
    calls = []

    class Cold:
        name, pretrained, precision, digest = "cold", "random:0", "fp32", "0" * 64

        def embed_pixels(self, pixels):
            calls.append(len(pixels))
            time.sleep(0.5 if len(calls) < 4 else 0)

    monkeypatch.setattr(service, "load_model", lambda *arguments, **options: Cold())
    cold = service.Service(ServiceSettings(max_wait_s=2, jpeg_scale="whole"))
    cold.load()
    try:
        assert calls == [1] * service.WARM_UPS
        figure(cold.admission.computing.seconds_per_image < 0.4, cold.admission.computing)
        with contextlib.ExitStack() as in_flight:
            for _ in range(4):
                in_flight.enter_context(cold.admission.enter(1))
    finally:
        cold.close()


# The key


KEY = "a-key-of-this-test"


def test_without_the_key_nothing_but_health_is_answered(monkeypatch, small_service):
    server = small_service(API_KEY=KEY)
    for path in ("/healthz", "/readyz", "/health"):
        assert httpx.get(server.url + path).status_code == 200
    for path in ("/info", "/metrics", "/openapi.json", "/docs", "/nothing"):
        assert httpx.get(server.url + path).status_code == 401
    wrong = [
        {}, {"X-API-Key": "x"}, {"X-API-Key": KEY[:-1]}, {"Authorization": f"Basic {KEY}"}, {"X-API-Key": ""},
    ]  # fmt: skip
    for headers in [*wrong, {"Authorization": "Bearer"}, {"Authorization": "Bearer é".encode()}]:
        refused = post(server.url, headers=headers)
        assert refused.status_code == 401 and "X-API-Key" in refused.json()["detail"]
        assert KEY not in refused.text
    right = [{"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {KEY}"}]
    for headers in right:
        assert post(server.url, headers=headers).status_code == 200
    assert KEY not in server.log.read_text()
    backend = parse_backend("fastapi-pytorch-fp32-http-jpeg")
    stranger = FastApiServer(server.url, backend, Patience())
    with pytest.raises(ServerError, match=r"asks for an API key.*PHOTODUP_API_KEY"):
        stranger.describe()
    stranger.close()
    monkeypatch.setenv("PHOTODUP_API_KEY", KEY)
    client = FastApiServer(server.url, backend, Patience())
    assert client.describe().name and client.infer([PHOTO]).shape == (1, 512)
    client.close()


@pytest.mark.parametrize(("settings", "warns"), [
    ({"HOST": "0.0.0.0"}, True),
    ({"HOST": "0.0.0.0", "LOG_LEVEL": "critical", "API_KEY": ""}, True),
    ({"HOST": "0.0.0.0", "API_KEY": KEY}, False),
    ({"HOST": "127.0.0.1"}, False),
])  # fmt: skip
def test_a_service_that_others_reach_says_so_when_it_asks_for_no_key(settings, warns, launch):
    server = launch(**settings)
    server.wait()
    server.stop()
    assert ("asks for no key" in server.log.read_text()) is warns
    assert server.log.read_text().count("API_KEY") == warns  # in one line


def test_a_model_that_cannot_be_loaded_is_named_in_the_log_and_to_no_client(tmp_path, caplog):
    from fastapi.testclient import TestClient

    hidden = tmp_path / "secret-model.onnx"
    with TestClient(create_app(ServiceSettings(model_pretrained=f"onnx:{hidden}", engine="onnx"))) as client:
        until(lambda: client.get("/readyz").json() == {"status": "failed"})
        answers = [client.get(path) for path in ("/readyz", "/health", "/info")]
        answers += [client.post("/embed", files=FILES)]
    assert {answer.status_code for answer in answers} == {503}
    assert not [answer.text for answer in answers if "secret" in answer.text or str(tmp_path) in answer.text]
    assert str(hidden) in caplog.text


def test_a_warning_is_for_addresses_that_others_reach():
    hosts = ("127.0.0.1", "127.1.2.3", "::1", "localhost", "", "0.0.0.0", "::", "192.168.1.2", "example.org")
    warned = [bool(key_warning(host, "It", "API_KEY")) for host in hosts]
    assert warned == [False] * 4 + [True] * 5
