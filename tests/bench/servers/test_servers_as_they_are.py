"""Servers have habits: each is a real one behind a real socket, and is measured, or refused in one sentence."""

import contextlib
import functools
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent import futures

import httpx
import numpy as np
import pytest
from support.command import one_sentence
from support.http_server import accepting

from photodup.bench.anyurl.measure import LoadTarget
from photodup.bench.anyurl.payloads import files, made_up_arrays, made_up_images, payloads_for
from photodup.bench.anyurl.target import target_of
from photodup.bench.backends import adapters
from photodup.bench.backends.http_connection import HttpConnection, HttpError
from photodup.bench.load import counters
from photodup.cli import app
from photodup.core.addresses import is_loopback, masked
from photodup.core.errors import ServerError
from photodup.core.files import parse_json
from photodup.core.settings import key_headers
from photodup.embedding.client.embedder import connect
from photodup.embedding.client.http import Patience, ask
from photodup.embedding.imaging import encode
from photodup.serving.check import check_all
from photodup.serving.endpoints import from_ports

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def read_request(peer: socket.socket) -> bytes:
    """Return the head and the whole body of a request; nothing where the client has left."""
    got = b""
    while b"\r\n\r\n" not in got:
        if not (piece := peer.recv(65536)):
            return b""
        got += piece
    head, _, rest = got.partition(b"\r\n\r\n")
    length = int((head.lower().partition(b"content-length: ")[2].split() or [b"0"])[0])
    body = bytearray(rest)
    while len(body) < length and (piece := peer.recv(1 << 20)):
        body += piece
    return head + b"\r\n\r\n" + body


def saying(*pieces: bytes, closes: bool = False) -> Callable[[socket.socket], None]:
    """Return a server that answers each request with these pieces, some time apart, and perhaps ends the connection."""

    def serve(peer: socket.socket) -> None:
        while read_request(peer):
            for piece in pieces:
                peer.sendall(piece)
                time.sleep(0.01)
            if closes:
                return

    return serve


def answer(serve: Callable, method: str = "POST", body: bytes = b"x", times: int = 2, **options) -> bytes:
    with (
        accepting(serve) as url,
        contextlib.closing(HttpConnection(url, timeout_s=2, **options)) as connection,
    ):
        head = connection.head(method, "/", len(body))
        return [connection.request(head, body)[1] for _ in range(times)][-1]


@pytest.mark.parametrize(("serve", "method", "body"), [
    (saying(b"HTTP/1.1 100 Continue\r\n\r\n", OK), "POST", b"ok"),
    (saying(b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Wait\r\n\r\n", OK), "POST", b"ok"),
    (saying(b"HTTP/1.1 100 Continue\r\n\r\n" + OK), "GET", b"ok"),
    (saying(b"HTTP/1.0 200 OK\r\n\r\nto the", b" end", closes=True), "POST", b"to the end"),
    (saying(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b"end", closes=True), "GET", b"end"),
    (saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\nT: x\r\n\r\n"), "GET", b"ok"),
    (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"), "HEAD", b""),
    (saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), "HEAD", b""),
    (saying(b"HTTP/1.1 204 No Content\r\n\r\n"), "POST", b""),
])  # fmt: skip
def test_every_shape_of_answer_is_read(serve, method, body):
    assert answer(serve, method) == body


@pytest.mark.parametrize(("serve", "said"), [
    (saying(b"HTTP/1.1 101 Go\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"), "answered 101: it goes on"),
    (saying(b"HTTP/1.1 101 Go\r\n\r\n"), "answered 101: it goes on"),
    (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", closes=True), "before it had answered"),
    (saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", closes=True), "before it had"),
    (saying(b"HTTP/1.1 103 Early\r\n\r\n" * 15_000), "longer than 262,144 bytes"),
    (saying(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400_000), "longer than 262,144 bytes"),
    (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 1500), "longer than 1,000 bytes"),
])  # fmt: skip
def test_what_is_no_answer_is_one_sentence(serve, said):
    with pytest.raises((HttpError, ConnectionResetError), match=said):
        answer(serve, most_bytes=1000)


def refusing(closes: bool, peer: socket.socket) -> None:
    """Refuse by the head, as nginx does, and read no more; end the connection, or leave the client waiting."""
    while b"\r\n\r\n" not in peer.recv(4096):
        pass
    peer.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\n\r\ntoo large")
    time.sleep(0.1 if closes else 5)


@pytest.mark.parametrize("closes", [True, False])
def test_a_refusal_that_comes_before_the_body_is_sent_is_read_at_once(closes):
    began = time.monotonic()
    with pytest.raises(HttpError, match="answered 413: too large") as raised:
        answer(functools.partial(refusing, closes), body=bytes(30_000_000))
    assert raised.value.status == 413 and time.monotonic() - began < 1.5


def test_an_interim_answer_does_not_end_a_body_that_is_being_sent():
    def serve(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        got = len(read_request(peer).partition(b"\r\n\r\n")[2])
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n%08d" % got)

    assert answer(serve, body=bytes(20_000_000), times=1) == b"20000000"


def test_each_header_is_sent_once_and_the_users_counts():
    connection = HttpConnection("http://u:p@127.0.0.1:9/v1?api-version=2&key=k")
    given = {"Content-Type": "a/b", "host": "model.example.com", "content-type": "c/d", "Content-Length": "9"}
    first, *lines = connection.head("POST", "/x?a=b", 3, given).decode().strip().split("\r\n")
    assert first == "POST /v1/x?a=b&api-version=2&key=k HTTP/1.1"
    assert sorted(lines) == ["Content-Length: 3", "content-type: c/d", "host: model.example.com"]
    assert b"Host: [::1]:9\r\n" in HttpConnection("http://[::1]:9").head("GET", "/", 0)
    assert b"Host: xn--bcher-kva.example\r\n" in HttpConnection("http://bücher.example").head("GET", "/", 0)


def test_every_address_of_a_name_is_tried(monkeypatch):
    def addresses(host: str, port: int, *rest: object, **options: object) -> list:
        kind = socket.SOCK_STREAM, 6, ""
        return [(socket.AF_INET6, *kind, ("::1", port, 0, 0)), (socket.AF_INET, *kind, ("127.0.0.1", port))]

    with accepting(saying(OK)) as url:
        monkeypatch.setattr(socket, "getaddrinfo", addresses)
        connection = HttpConnection(url.replace("127.0.0.1", "two.example"), timeout_s=2)
        assert connection.request(connection.head("GET", "/", 0))[1] == b"ok"
        connection.close()


@pytest.mark.parametrize(("url", "shown"), [
    ("http://u:s3cret@h:1/p?api-key=SECRET&x=", "http://…@h:1/p?api-key=…&x="),
    ("http://u:s3/c@ret@h/p", "http://…@h/p"), ("https://h/p?SECRET", "https://h/p?…"),
    ("grpc://u:s3cret@h:1/m", "grpc://…@h:1/m"), ("http://h:1/p", "http://h:1/p"), ("h:1", "h:1"),
])  # fmt: skip
def test_what_is_shown_of_an_address_is_no_secret(url, shown):
    assert masked(url) == shown


@pytest.mark.parametrize(("url", "is_here"), [
    ("http://localhost:1", True), ("127.0.0.9:1", True), ("http://[::1]:1", True), ("a.localhost:1", True),
    ("http://192.0.2.1", False), ("localhost.example:1", False), ("http://u:p@127.0.0.1/x", True),
])  # fmt: skip
def test_loopback(url, is_here):
    assert is_loopback(url) == is_here


@pytest.mark.parametrize("user", ["u:s3cret", "t0ken:", "u:p%40ss"])
def test_user_and_password_of_a_url_are_sent_and_shown_nowhere(user, tmp_path, capsys):
    got = []

    def serve(peer: socket.socket) -> None:
        while request := read_request(peer):
            got.append(request)
            peer.sendall(OK)

    (tmp_path / "body.json").write_text("{}")
    with accepting(serve) as url:
        url = url.replace("//", f"//{user}@") + "/predict?code=SECRET1"
        options = ["--file", tmp_path / "body.json", "--seconds", "1", "--out", tmp_path / "o"]
        app(["load", url, *map(str, options)], standalone_mode=False)
    said = "".join(capsys.readouterr())
    kept = b"".join(path.read_bytes() for path in (tmp_path / "o").iterdir())
    secret = user.partition(":")[2] or "t0ken"
    assert b"Authorization: Basic " in got[0] and b"POST /predict?code=SECRET1 " in got[0]
    assert b"@" not in got[0]
    for word in (secret, "SECRET1"):
        assert word not in said and word.encode() not in kept
    assert "/predict?code=…" in said


@pytest.mark.parametrize("url", [
    "http://[", "http://a[b", "http://[::1", "http://h:99999/x", "http://", "grpc://a[b:1/m", "http://u:s3cret@[",
    "http://" + "a" * 300,
])  # fmt: skip
def test_an_odd_address_is_one_sentence(url, tmp_path):
    (tmp_path / "x").write_text("x")
    for command in (["load", url, "--file", str(tmp_path / "x")], ["verify", url],
                    ["gate", "--base-url", url, "--head-url", url, "--file", str(tmp_path / "x")]):  # fmt: skip
        with one_sentence(r"is no (HTTP|gRPC) address") as raised:
            app(command, standalone_mode=False)
        assert "s3cret" not in str(raised.value)


def test_a_path_with_spaces_and_letters_is_written_as_http_has_it():
    target = target_of("http://127.0.0.1:9/a b/ü?q=a b%20c", protocol="post")
    assert (target.path, target.query) == ("/a%20b/%C3%BC", "q=a%20b%20c")


# ---- KServe ----------------------------------------------------------------------------------------------


def kserve(says: dict[str, object], peer: socket.socket, asked: list[str] | None = None) -> None:
    while request := read_request(peer):
        path = request.split(b" ")[1].decode()
        if asked is not None:
            asked.append(path)
        said = says.get(path)
        if callable(said):
            said = said(request)
        status = b"404 No" if said is None else b"200 OK"
        body = json.dumps(said).encode()
        peer.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


MODEL = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}
TEXTS = MODEL | {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [-1, 1]}]}


def outputs(data: object, shape: object = (1, 2), **more: object) -> dict:
    return {"outputs": [{"name": "y", "datatype": "FP32", "shape": list(shape), "data": data}], **more}


def tried(says: dict[str, object], path: str, payloads=None) -> tuple[np.ndarray, list[str]]:
    asked: list[str] = []
    with accepting(functools.partial(kserve, says, asked=asked)) as url:
        target = target_of(url + path)
        return LoadTarget(target, payloads or made_up_arrays()).try_once(), asked


@pytest.mark.parametrize("extensions", [[], ["statistics"], None])
def test_numbers_go_as_json_where_a_server_lists_no_binary_tensors(extensions):
    def infer(request: bytes) -> object:
        is_json = b"inference-header" not in request.lower()
        return outputs([1.0, 2.0]) if is_json == (extensions is not None) else None

    about = {} if extensions is None else {"extensions": extensions}
    rows, _ = tried({"/v2": about, "/v2/models/m": MODEL, "/v2/models/m/infer": infer}, "/v2/models/m")
    np.testing.assert_array_equal(rows, [[1, 2]])


def test_texts_go_as_json_and_what_is_no_text_is_refused(tmp_path):
    def infer(request: bytes) -> object:
        sent = json.loads(request.partition(b"\r\n\r\n")[2])["inputs"][0]["data"]
        return outputs([1.0, 2.0]) if sent == ["grüß"] else None

    says = {"/v2": {"extensions": []}, "/v2/models/m": TEXTS, "/v2/models/m/infer": infer}
    (tmp_path / "a.txt").write_text("grüß")
    assert tried(says, "/v2/models/m", files([tmp_path / "a.txt"]))[0].tolist() == [[1, 2]]
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe")
    with one_sentence("JSON alone, and what is sent is no text"):
        tried(says, "/v2/models/m", files([tmp_path / "a.bin"]))


def test_a_version_is_what_is_asked_and_another_is_refused():
    version = "/v2/models/m/versions/3"
    says = {version: MODEL, f"{version}/infer": outputs([1.0, 2.0], model_version="3")}
    rows, asked = tried(says, f"{version}/infer")
    assert rows.shape == (1, 2) and f"{version}/infer" in asked and "/v2/models/m/infer" not in asked
    with one_sentence("answered with version 4 of the model, not 3"):
        tried(says | {f"{version}/infer": outputs([1.0, 2.0], model_version="4")}, version)
    with one_sentence(r"no model 'm', version 3,"):
        tried({"/v2/models/m": MODEL}, version)


@pytest.mark.parametrize(("data", "shape", "said"), [
    ([None, 1.0], (1, 2), "null, NaN or infinity"), ([1.0, float("nan")], (1, 2), "null, NaN or infinity"),
    ([1.0, float("inf")], (1, 2), "null, NaN or infinity"), ([1.0], (1, 2), "1 numbers for the shape"),
    ([1.0, 2.0, 3.0, 4.0], (-1, 2), "4 numbers for the shape"), ([1.0, 2.0] * 2, (2, 2), "the shape is"),
])  # fmt: skip
def test_numbers_that_are_none_are_errors(data, shape, said):
    with one_sentence(said):
        tried({"/v2/models/m": MODEL, "/v2/models/m/infer": outputs(data, shape)}, "/v2/models/m")


@pytest.mark.parametrize(("datatype", "field", "data"), [
    ("FP32", "fp32_contents", [1.5, 2]), ("FP64", "fp64_contents", [1.5, 2]), ("INT8", "int_contents", [-1, 2]),
    ("INT64", "int64_contents", [-1, 2]), ("UINT16", "uint_contents", [1, 2]), ("UINT64", "uint64_contents", [1, 2]),
])  # fmt: skip
def test_typed_numbers_over_grpc_and_the_version_that_is_asked(datatype, field, data):
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    class Server(service_pb2_grpc.GRPCInferenceServiceServicer):
        def ModelMetadata(self, request, context):
            assert request.version == "7"
            tensor = service_pb2.ModelMetadataResponse.TensorMetadata
            return service_pb2.ModelMetadataResponse(
                name="m",
                inputs=[tensor(name="x", datatype="FP32", shape=[-1, 4])],
                outputs=[tensor(name="y", datatype=datatype, shape=[-1, 2])],
            )

        def ModelInfer(self, request, context):
            answer = service_pb2.ModelInferResponse(model_version=request.model_version)
            output = answer.outputs.add(name="y", datatype=datatype, shape=[1, 2])
            getattr(output.contents, field).extend(data)
            hosts.append(dict(context.invocation_metadata()).get("x-who"))
            return answer

    hosts: list = []
    server = grpc.server(futures.ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Server(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        target = target_of(f"grpc://127.0.0.1:{port}/m/versions/7")
        assert LoadTarget(target, made_up_arrays()).try_once().tolist() == [data]
    finally:
        server.stop(None).wait()


# ---- embeddings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "content", "said"), [
    ("/v1/embeddings", {"data": [{"index": 0, "embedding": [None, None]}]}, "null, NaN or infinity"),
    ("/v1/embeddings", {"data": [{"index": 0, "embedding": [1.0, float("-inf")]}]}, "null, NaN or infinity"),
    ("/v1/embeddings", {"data": []}, "have the shape"),
    ("/v1/embeddings", {"data": [{"embedding": [1.0]}, {"embedding": [1.0, 2.0]}]}, "cannot be read"),
    ("/v1/embeddings", {"data": [{"embedding": [1.0]}, {"embedding": [2.0]}]}, "1 embeddings were asked for"),
    ("/v1/embeddings", {"data": [{"embedding": [1.0, 2.0]}]}, None),  # none is numbered
])  # fmt: skip
def test_an_answer_is_numbers_one_row_an_item(path, content, said):
    with accepting(functools.partial(kserve, {path: content})) as url:
        target = target_of(url + path, model="m")
        request = LoadTarget(target, payloads_for(target, kind="texts", paths=[], texts=[]))
        with one_sentence(said) if said else contextlib.nullcontext():
            assert request.try_once().tolist() == [[1, 2]]


@pytest.mark.parametrize("path", ["/api/embed", "/v1/embeddings", "/embed/base64"])
def test_a_json_file_is_a_body_as_it_is(path, tmp_path):
    (body := tmp_path / "body.json").write_text('{"model": "m", "input": "x"}\n')
    with accepting(functools.partial(kserve, {})) as url:
        target = target_of(url + path, model="m")
    request = LoadTarget(target, payloads_for(target, kind=None, paths=[body], texts=[]))
    head, sent = request.adapter().prepare(request.payloads.items)
    assert sent == body.read_bytes() and f"POST {path} ".encode() in head and b"application/json" in head


def test_json_is_limited_by_what_it_becomes():
    began = time.monotonic()
    for text in (b"[],", b"{},", b'"",', b"[{}],"):
        with pytest.raises(ValueError, match="would take more than"):
            parse_json(b"[" + text * (12_000_000 // len(text)) + b"0]")
    assert time.monotonic() - began < 5
    row = b"[" + b",".join([b"0.12345678901234567"] * 512) + b"]"
    assert len(parse_json(b"[" + b",".join([row] * 1000) + b"]")) == 1000


def test_embeddings_of_other_lengths_midway_are_errors():
    lengths = iter([2, 2, 3])
    says = {"/embed": lambda request: {"embeddings": [[1.0] * next(lengths)]}}
    with accepting(functools.partial(kserve, says)) as url:
        adapter = LoadTarget(target_of(f"{url}/embed"), made_up_images(1)).adapter()
        with contextlib.closing(adapter.open()) as connection:
            prepared = adapter.prepare([b"x"])
            assert [connection.decode(connection.request(prepared)).shape for _ in "ab"] == [(1, 2)] * 2
            with one_sentence("An embedding has 3 numbers, and one before 2"):
                connection.decode(connection.request(prepared))


def test_a_key_that_a_server_writes_into_its_error_is_not_shown(tmp_path):
    def serve(peer: socket.socket) -> None:
        while request := read_request(peer):
            body = request.partition(b"\r\n\r\n")[0][:400]
            peer.sendall(b"HTTP/1.1 403 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    (tmp_path / "x").write_text("x")
    with accepting(serve) as url:
        options = ["--file", str(tmp_path / "x"), "--api-key", "SECRET123", "-H", "X-Who: SECRET456"]
        with one_sentence("answered 403") as raised:
            app(["load", f"{url}/do?code=SECRET%37", *options], standalone_mode=False)
    assert "POST /do" in str(raised.value) and "SECRET123" not in str(raised.value)
    assert "SECRET456" not in str(raised.value)


@pytest.mark.parametrize("options", [["--variant", "off"], ["--model", "x"], ["--save", "x.yaml"]])
def test_an_option_of_triton_without_triton_is_refused(options):
    with one_sentence("are about Triton: add --embedded"):
        app(["serve", *options], standalone_mode=False)


def test_ctrl_c_ends_a_gate_while_its_servers_start(tmp_path):
    (body := tmp_path / "x").write_text("x")
    never = f"{sys.executable} -c 'import time; time.sleep(60)'"
    servers = ["--base", never, "--head", never]
    command = [sys.executable, "-m", "photodup", "gate", *servers, "--file", str(body)]
    with subprocess.Popen(
        [*command, "--url", "http://127.0.0.1:{port}/do"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()  # "Base: …"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 2 and "stopped by you" in said and "Traceback" not in said


# ---- the client's environment ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY", "http_proxy"])
@pytest.mark.parametrize(
    "proxy", ["socks5://127.0.0.1:1", "http://127.0.0.1:1", "http://u:s3cret@[", "foo://x"]
)
def test_a_proxy_is_for_other_machines_and_never_raises(name, proxy, monkeypatch):
    monkeypatch.setenv(name, proxy)
    with accepting(saying(OK)) as url:
        assert ask(url, "/", 2).text == "ok"
        assert ask(url.replace("127.0.0.1", "localhost"), "/", 2).text == "ok"
    with pytest.raises(ServerError) as raised:
        connect("http://192.0.2.1:9", patience=Patience(0.2, 0.2, attempts=1))
    assert "s3cret" not in str(raised.value) and "proxy" in str(raised.value)
    monkeypatch.setenv("NO_PROXY", "192.0.2.1")
    if not proxy.endswith("["):  # which httpx refuses before it looks at what to leave out
        with pytest.raises(ServerError):
            ask("http://192.0.2.1:9", "/", 0.2)


@pytest.mark.parametrize("key", ["secret\n", " secret\r\n"])
def test_a_key_of_a_secret_file_fits_both_ends(small_service, monkeypatch, key):
    url = small_service(API_KEY=key).url
    monkeypatch.setenv("PHOTODUP_API_KEY", key)
    with connect(url) as embedder:
        assert embedder.dim
    assert httpx.get(f"{url}/info", headers={"X-API-Key": "secret"}).status_code == 200
    servers = from_ports("127.0.0.1", int(url.rpartition(":")[2]))
    assert all(check.is_ready for check in check_all(servers) if "fastapi" in check.subject)
    with counters.meter(url, (), key_headers())() as columns:
        adapters.answers_to(adapters.adapter("fastapi-onnx-fp32-http-jpeg", url), made_up_images(1).items)
    assert columns["server_requests"] == 1 and columns["server_memory_mib"] > 0
    for odd in ("sec\nret", "ключ"):
        monkeypatch.setenv("PHOTODUP_API_KEY", odd)
        with one_sentence("PHOTODUP_API_KEY holds characters that no header can carry") as raised:
            connect(url)
        assert odd not in str(raised.value)


@pytest.mark.parametrize("key", ["sec\nret", "ключ", " \n"])
def test_the_service_refuses_a_key_that_nobody_can_send(key, monkeypatch):
    from photodup.serving.service.settings import read_settings

    monkeypatch.setenv("API_KEY", key)
    with one_sentence(r"^API_KEY: ") as raised:
        read_settings()
    assert key.strip() == "" or key not in str(raised.value)


def trickling(peer: socket.socket) -> None:
    read_request(peer)
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        peer.sendall(b"x")
        time.sleep(0.05)


@pytest.mark.parametrize(("serve", "said"), [
    (trickling, "not whole within"),
    (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", *[b"x" * 9_000_000] * 3), "more than 16,777,216"),
])  # fmt: skip
def test_a_probe_ends(serve, said):
    with accepting(serve) as url, pytest.raises(ServerError, match=said):
        ask(url, "/", 0.5)


# ---- the service -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photo() -> bytes:
    from PIL import Image

    return encode(Image.new("RGB", (40, 30), "teal"), "JPEG")


def test_what_clients_send_is_read(small_service, photo):
    import base64

    url = small_service().url
    plain = base64.b64encode(photo).decode()
    forms = {
        "lines": "\r\n".join(plain[i : i + 76] for i in range(0, len(plain), 76)),
        "for URLs": base64.urlsafe_b64encode(photo).decode(),
        "for URLs, not padded": base64.urlsafe_b64encode(photo).decode().rstrip("="),
    }
    expected = httpx.post(f"{url}/embed/base64", json={"images": [plain]}).json()
    for name, text in forms.items():
        assert httpx.post(f"{url}/embed/base64", json={"images": [text]}).json() == expected, name
    for bad in ("a*b", "====", "abcde"):
        assert httpx.post(f"{url}/embed/base64", json={"images": [bad]}).status_code == 400


def test_head_is_answered_as_get_without_a_body(small_service):
    url = small_service(API_KEY="k").url
    for path in ("/healthz", "/readyz", "/health"):
        answered = httpx.head(url + path)
        assert (answered.status_code, answered.content) == (200, b"")
    assert httpx.head(f"{url}/info").status_code == 401
    assert httpx.head(f"{url}/info", headers={"X-API-Key": "k"}).status_code == 200


CHUNKED = (
    b"POST /embed HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=x\r\nTransfer-Encoding: chunked\r\n"
)
FLOODS = {
    "headers": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"X-%06d: y\r\n"),
    "one header": (b"GET /healthz HTTP/1.1\r\nX: ", b"%010d"),
    "an address": (b"GET /", b"%010d"),
    "trailers": (CHUNKED + b"\r\n1\r\nx\r\n0\r\n", b"T-%06d: y\r\n"),
    "an extension": (CHUNKED + b"\r\n1;", b"%010d"),
}


def flooded(url: str, kind: str) -> tuple[int, bytes]:
    """Send without end; return how many bytes were taken, and what was answered."""
    begin, more = FLOODS[kind]
    address = httpx.URL(url)
    sent, piece = len(begin), b"".join(more % number for number in range(2000))
    with socket.create_connection((address.host, address.port), 5) as peer:
        peer.sendall(begin)
        with contextlib.suppress(ConnectionError):
            while sent < 30_000_000:
                peer.sendall(piece)
                sent += len(piece)
        said = b""
        with contextlib.suppress(ConnectionError):
            said = peer.recv(4096)
    return sent, said


@pytest.mark.parametrize("kind", FLOODS)
def test_headers_and_trailers_without_end_are_not_read(small_service, kind):
    sent, said = flooded(small_service().url, kind)
    assert sent < 30_000_000
    assert not said or said.split(b" ")[1] in (b"431", b"400"), said
    assert httpx.get(f"{small_service().url}/healthz").status_code == 200


def test_large_headers_in_one_piece_are_refused_and_usual_ones_are_not(small_service):
    url = small_service().url
    assert httpx.get(f"{url}/healthz", headers={"X": "x" * 30_000}).status_code == 200
    assert httpx.get(f"{url}/healthz", headers={"X": "x" * 80_000}).status_code in (400, 431)


def test_the_review_page_has_the_same_limit(tmp_path):
    from photodup.core.http_protocol import ImpatientProtocol
    from photodup.photos.review.serve import ReviewServer

    (tmp_path / "a.jpg").write_bytes(b"")
    server = ReviewServer(tmp_path, opened_on_page=True)
    try:
        server.start()
        assert server._server.config.http_protocol_class is ImpatientProtocol
        sent, said = flooded(server.url, "headers")
        assert sent < 30_000_000 and (not said or said.split(b" ")[1] in (b"431", b"400"))
    finally:
        server.stop()
