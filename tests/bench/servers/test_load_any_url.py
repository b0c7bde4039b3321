"""`photodup load` against real servers: every protocol, every way to misuse it, and what it keeps."""

import contextlib
import functools
import json
import pickle
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import one_sentence
from support.http_server import Handler, accepting, serving
from support.images import photo
from support.openai_form import openai_form
from support.service import free_port
from support.triton import tiny_embedding
from support.visits import planted_visit
from typer.testing import CliRunner

from benchmarks import null_server
from photodup.bench.anyurl import target
from photodup.bench.anyurl.comparison import SHORTEST, SIDES, fit_visits, outcomes_of, sentences_of
from photodup.bench.anyurl.measure import LoadSpec, LoadTarget, measure_loads
from photodup.bench.anyurl.payloads import files, made_up_arrays
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.backends import http_connection
from photodup.bench.pairs.alternate import measure_visit
from photodup.bench.stats.metrics import Load
from photodup.cli import app
from photodup.core.errors import PhotodupError
from photodup.embedding.imaging import encode, normalize

LOAD = (sys.executable, "-m", "photodup", "load")


def load(*arguments: object, **environment: str) -> str:
    """Run the command here; return what it prints. It answers its question, or an exception is raised."""
    status, said = ended("load", *arguments, **environment)
    assert status == 0, said
    return said


def ended(*arguments: object, **environment: str) -> tuple[int, str]:
    """Run a command here; return its status and what it prints. On a busy machine it gets the time that it asks for."""
    result = CliRunner(env=environment).invoke(app, list(map(str, arguments)))
    if more := re.search(r"give --seconds (\d+)", str(result.exception)):
        return ended(*arguments, "--seconds", 2 * int(more[1]), **environment)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def check_counted(point: dict, said: str) -> None:
    """The server is read a little before and after the window; a total since its start would be far off."""
    assert abs(point["server_requests"] - point["n_requests"]) <= 8 + point["n_requests"] / 2
    assert "server's counters, " in said


@pytest.fixture
def kept(tmp_path):
    """Read the files of a run."""

    def kept() -> tuple[dict, "object"]:
        import pandas as pd

        assert sorted(p.name for p in tmp_path.iterdir()) == ["index.html", "requests.parquet", "result.json"]
        rows = pd.read_parquet(tmp_path / "requests.parquet")
        return json.loads((tmp_path / "result.json").read_text()), rows

    kept.folder = tmp_path
    return kept


@pytest.mark.parametrize(("path", "options", "protocol"), [
    ("", [], "multipart"),
    ("/embed", ["--concurrency", 4, "--batch", 2], "multipart"),
    ("/embed/base64", ["--connection", "new"], "base64"),
])  # fmt: skip
def test_our_service_in_each_of_its_forms(random_service, tmp_path, kept, path, options, protocol):
    said = load(random_service.url + path, "--seconds", 1, "--out", tmp_path, *options)
    result, rows = kept()
    assert f"({protocol})" in said and "64 made-up pictures" in said
    assert " requests/s, " in said and "no errors" in said and "latency: p50 " in said
    point = result["measurements"][0]
    assert result["targets"][0]["protocol"] == protocol and point["n_errors"] == 0
    assert point["batch"] == (2 if "--batch" in options else 1) and point["connection"] in ("warm", "new")
    windows = point["windows"]
    assert point["n_visits"] == len(windows) == rows.visit.nunique() >= 3 and "3 visits of 0." in said
    ends = rows.visit.map(lambda visit: windows[visit - 1]["duration_s"])
    late = int((rows.done_s > ends).sum())  # still in flight when its window closed
    assert len(rows) == point["n_requests"] + late and late <= 4 * len(windows) and rows.error.isna().all()
    rate = result["headlines"][0]["rate"]
    assert (
        point["throughput_images_per_s_ci_low"]
        < rate * point["batch"]
        < point["throughput_images_per_s_ci_high"]
    )
    assert re.search(r"requests/s, [\d,]+ answers", said) and "In brackets: 95% intervals" in said
    assert (rows.done_s >= rows.answered_s).all() and (rows.sent_s >= rows.due_s).all()
    np.testing.assert_allclose(rows.latency_ms, (rows.done_s - rows.due_s) * 1000, atol=1e-6)
    page = (tmp_path / "index.html").read_text()
    assert "<svg" in page and 'src="http' not in page and "<script" not in page
    assert point["n_idle_closes"] == 0, "a connection that the client closes is no idle one"
    assert point["server_cpu_cores"] > 0 and point["server_memory_mib"] > 0 and "server process: " in said
    check_counted(point, said)
    assert point["server_compute_infer_ms_mean"] > 0 and point["server_batch_mean"] >= 1


@pytest.mark.parametrize(("path", "options"), [
    ("/v1/embeddings", ["--encoding", "base64"]),
    ("/v1", ["--protocol", "openai"]),
])  # fmt: skip
def test_openais_form(random_service, tmp_path, kept, path, options):
    with openai_form(random_service.url) as url:
        said = load(url + path, "--seconds", 1, "--out", tmp_path, "--payload", "images", *options)
    result, rows = kept()
    assert "(openai)" in said and "no errors" in said and "latency: p50 " in said
    assert result["targets"][0]["protocol"] == "openai" and result["measurements"][0]["n_errors"] == 0
    assert rows.error.isna().all() and len(rows)


@pytest.mark.parametrize(("options", "said"), [
    (["--text", "a dog"], "answered 400.*no image but text"),
    (["--model", "no", "--payload", "images"], "There is no model 'no'"),
])  # fmt: skip
def test_what_openais_form_refuses_is_one_sentence(small_service, options, said):
    with openai_form(small_service().url) as url, one_sentence(said):
        load(f"{url}/v1/embeddings", "--timeout", 60, *options)


@pytest.mark.parametrize(("scheme", "model", "options", "said"), [
    ("http", "openclip_vit_b32", ["--batch", 2], "arrays of random numbers"),
    ("grpc", "openclip_vit_b32", ["--batch", 2], "arrays of random numbers"),
    ("http", "openclip_vit_b32_uint8", ["--concurrency", 4, "--processes", 2], "arrays of random numbers"),
    ("http", "openclip_vit_b32_jpeg", ["--payload", "images"], "made-up pictures"),
    ("grpc", "openclip_vit_b32_jpeg", ["--payload", "images"], "made-up pictures"),
])  # fmt: skip
def test_any_model_behind_kserve(tiny_triton, tmp_path, kept, scheme, model, options, said):
    http, grpc = f"{tiny_triton.http_url}/v2/models", f"grpc://{tiny_triton.grpc_url}"
    url = f"{http if scheme == 'http' else grpc}/{model}"
    out = load(url, "--seconds", 2, "--metrics", tiny_triton.metrics_url, "--out", tmp_path, *options)
    point = kept()[0]["measurements"][0]
    check_counted(point, out)
    assert ("decode" in out) == ("jpeg" in model) and said in out and point["n_requests"] > 0
    assert (point["protocol"], point["model"], point["n_errors"]) == (f"kserve-{scheme}", model, 0)


def test_given_arrays_and_files_are_what_is_sent(tiny_triton, tmp_path):
    pixels = np.random.default_rng(3).integers(0, 256, (2, 3, 224, 224), dtype=np.uint8)
    np.save(tmp_path / "two.npy", pixels)
    http, grpc = f"{tiny_triton.http_url}/v2/models", f"grpc://{tiny_triton.grpc_url}"
    for url in (f"{http}/openclip_vit_b32_uint8", f"{grpc}/openclip_vit_b32_uint8"):
        asked = target.target_of(url)
        given = LoadTarget(asked, made_up_arrays(), inputs=[f"image={tmp_path / 'two.npy'}"])
        wanted = tiny_embedding(normalize(pixels))
        np.testing.assert_allclose(given.try_once(2), wanted, atol=1e-5)
    data = encode(photo(224, 224, 7), "PNG")
    (tmp_path / "one.png").write_bytes(data)
    asked = target.target_of(f"{tiny_triton.http_url}/v2/models/openclip_vit_b32_jpeg")
    sent = files([tmp_path / "one.png"])
    answer = LoadTarget(asked, sent).try_once()
    wanted = tiny_embedding(normalize(np.asarray(photo(224, 224, 7)).transpose(2, 0, 1)[None]))
    np.testing.assert_allclose(answer, wanted, atol=1e-5)


@pytest.mark.parametrize(("path", "options", "said"), [
    ("/v2/models/none", [], "has no model 'none'"),
    ("/v2/models/openclip_vit_b32_jpeg", [], "takes bytes: say what to send"),
    ("/v2/models/openclip_vit_b32", ["--text", "a dog"], "No input of openclip_vit_b32 takes bytes"),
    ("/v2/models/openclip_vit_b32", ["--shape", "image=3,9,9"], r"\[3, 9, 9\] does not fit"),
    ("/v2/models/openclip_vit_b32", ["--shape", "pixels=3,9,9"], "has no input 'pixels': it has image"),
    ("/v2/models/openclip_vit_b32", ["--shape", "image=3,0,9"], "A shape is written NAME=3,224,224"),
    ("/v2/models/openclip_vit_b32", ["--input", "image=missing.npy"], "is no array that can be read"),
    ("/v2/models/openclip_vit_b32", ["--batch", 1000], "items a request at most: lower --batch"),
    ("", [], r"name one, as .*; it has .*openclip_vit_b32_jpeg.*\.$"),
    ("grpc", [], r"name one, as grpc://.*/MODEL; it has .*openclip_vit_b32_jpeg.*\.$"),
])  # fmt: skip
def test_what_does_not_fit_a_model_is_one_sentence(tiny_triton, path, options, said):
    url = f"grpc://{tiny_triton.grpc_url}" if path == "grpc" else tiny_triton.http_url + path
    with one_sentence(said):
        load(url, *options)


@pytest.mark.parametrize(("path", "options", "said"), [
    ("http://127.0.0.1:{free}", [], "Nothing answers at"),
    ("grpc://127.0.0.1:{free}/model", [], "Nothing answers at"),
    ("grpc://127.0.0.1:{port}/model", [], r"Nothing answers at .*gRPC"),
    ("grpc://127.0.0.1:{port}", [], "name one, as grpc://"),
    ("https://127.0.0.1:{port}/embed", [], "does not speak TLS"),
    ("ftp://127.0.0.1/x", [], "is no HTTP address"),
    ("/embed", ["--protocol", "openai", "--model", "m"], "answered 415"),
    ("/nothing/here", ["--file", __file__], "answered 404.*Correct the path"),
    ("/nothing/here", [], "needs a body: name one with --file"),
    ("/embed", ["--file", __file__], "Image 0: not an image"),
    ("/embed", ["--file", "missing.jpg"], "There is no file missing.jpg"),
    ("/embed", ["--text", "a dog"], "takes images, not texts"),
    ("/embed", ["--batch", 100], "answered 413"),
    ("/embed", ["--rate", "10,0"], "--rate is a number above 0"),
    ("/embed", ["--arrivals", "uniform"], "belong to an open loop"),
    ("/embed", ["--protocol", "soap"], "There is no protocol 'soap'"),
    ("/embed", ["-H", "nonsense"], "A header is written"),
    ("/embed", ["--api-key", "env:NO_SUCH_KEY"], "environment variable NO_SUCH_KEY: set it"),
    ("/embed", ["--compare"], "two URLs and --compare"),
    ("/embed", ["{server}/embed", "--compare", "--rate", 5], "takes turns under one closed loop: leave --rate"),
    ("/embed", ["--fail-if", "p95"], "A limit is written p95>100ms"),
    ("/embed", ["--fail-if", "rate<5ms"], "A limit is written"),
    ("/embed", ["--fail-if", "errors>1"], "A limit is written"),
    ("/embed", ["--concurrency", "1,x"], "--concurrency is a number above 0"),
    ("/embed", ["--concurrency", "1,2", "--rate", "5"], "are measured in turns"),
])  # fmt: skip
def test_bad_input_is_one_sentence(small_service, path, options, said):
    server = small_service().url
    address = path.format(port=server.rpartition(":")[2], free=free_port())
    url = address if "://" in address else server + address
    with one_sentence(said):
        load(url, "--timeout", 60, *(str(option).replace("{server}", server) for option in options))


def test_a_key_is_sent_and_never_kept(small_service, tmp_path):
    url = small_service(API_KEY="sesame-17").url
    with pytest.raises(PhotodupError, match=r"answered 401.*api-key"):
        load(f"{url}/embed")
    options = ("--api-key", "env:MY_KEY", "--seconds", 1)
    said = load(f"{url}/embed", *options, "--out", tmp_path, MY_KEY="sesame-17")
    assert "latency: p50" in said
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"sesame-17" not in written and "sesame" not in said


class Answers(Handler):
    """Answers POST with what `answer` says next: (status, body); counts and keeps what it got."""

    disable_nagle_algorithm, timeout = True, 60  # idle connections are closed after so many seconds

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.headers, body))
        status, answer = self.server.answer(len(self.server.got))
        self.reply(answer, status)


@contextlib.contextmanager
def answering(answer, **options):
    """Serve one path, which is the `url` of what is yielded."""
    with serving(Answers, answer=answer, got=[], **options) as server:
        server.url += "/do"
        yield server


@pytest.fixture
def body(tmp_path_factory) -> Path:
    """A file to send."""
    path = tmp_path_factory.mktemp("body") / "body.bin"
    path.write_bytes(b"x" * 1000)
    return path


DEEP = b"[" * 200_000
MODEL = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [3]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [2]}],
}


def answered(content: Any) -> Any:
    """Return a whole answer; what makes pieces of one as it is."""
    if callable(content):
        return content
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def changed(side: str, **fields: object) -> dict:
    return MODEL | {side: [MODEL[side][0] | fields]}


def endless() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"10000\r\n%s\r\n" % bytes(1 << 16)


def trickled() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    while True:
        time.sleep(0.1)
        yield b"x"


@pytest.fixture
def hostile() -> Iterator:
    """Start a real server that answers each request with the bytes, or the pieces, that its path names."""

    def serve(says: dict[str, Any], connection: socket.socket) -> None:
        while request := connection.recv(1 << 20):
            nothing = b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"
            said = says.get(request.split(b" ")[1].decode(), nothing)
            for piece in [said] if isinstance(said, bytes) else said():
                connection.sendall(piece)

    with contextlib.ExitStack() as stack:
        yield lambda says: stack.enter_context(accepting(functools.partial(serve, says)))


@pytest.mark.parametrize(("path", "says", "said"), [
    ("/embed", endless, "answer is longer than 4,194,304 bytes"),
    ("/embed", trickled, "answer was not whole within 1 s"),
    ("/embed", DEEP, r"The answer cannot be read \(RecursionError"),
    ("/embed", b"<p>", "The answer is not JSON, its Content-Type is text/html: is the address right"),
    ("/v1/embeddings", b"", "The answer is not JSON, it is empty: is the address right"),
    ("/embed", {"embeddings": 5}, "a 'embeddings' that is no list"),
    ("/embed", {"embeddings": [[{}]]}, r"cannot be read \(TypeError"),
    ("/embed", {"embeddings": [1, 2]}, r"have the shape \[2\]"),
    ("/embed", {"embeddings": ["!"]}, r"have the shape \[1, 0\]"),
    ("/v1/models", {"data": 5}, "lists no models"),
    ("/v1/models", DEEP, "lists no models"),
    ("/v1/embeddings", {"data": 5}, "a 'data' that is no list"),
    ("/v1/embeddings", {"data": [None]}, "The answer cannot be read"),
    ("/v2/models/m", MODEL | {"inputs": None}, "description of the model cannot be read"),
    ("/v2/models/m", MODEL | {"outputs": []}, "names no outputs of the model m"),
    ("/v2/models/m", changed("inputs", shape=[10**15]), "too many to make up"),
    ("/v2/models/m", changed("inputs", shape=[1] * 99), "99 dimensions: too many"),
    ("/v2/models/m", changed("inputs", datatype=[]), "is not made up here"),
    ("/v2/models/m/config", [5], "cannot be read"),
    ("/v2/models/m/infer", {"outputs": [None]}, "The answer cannot be read"),
    ("/v2/models/m/infer", {"outputs": [{"datatype": "FP32", "shape": [10**15], "data": [1]}]}, "1 numbers for the shape"),
])  # fmt: skip
def test_what_a_hostile_server_answers_is_one_sentence(hostile, monkeypatch, path, says, said):
    monkeypatch.setattr(http_connection, "MOST_ANSWER_BYTES", 1 << 22)
    url = path.removesuffix("/config").removesuffix("/infer").replace("/v1/models", "/v1/embeddings")
    options = ["--model", "m"] if path == url else []
    with one_sentence(said) as raised:
        load(hostile({"/v2/models/m": answered(MODEL), path: answered(says)}) + url, "--timeout", 1, *options)
    assert len(str(raised.value)) < 500


def test_a_server_that_is_still_loading_is_no_riddle(hostile):
    loading = b'HTTP/1.1 503 Later\r\nContent-Length: 36\r\n\r\n{"detail": "The model still loads."}\n'
    with one_sentence(r"is not ready: .*The model still loads.* Wait, and try again\.$"):
        load(hostile({"/info": loading}))


def test_the_models_of_a_server_are_listed_where_one_has_to_be_named(hostile):
    index = [{"name": "one", "state": "READY"}, {"name": "two", "state": "UNAVAILABLE"}, 5]
    with pytest.raises(PhotodupError, match=r"/v2/models/MODEL; it has one\.$"):
        load(hostile({"/v2": answered({"extensions": []}), "/v2/repository/index": answered(index)}))


def test_a_plain_post_sends_the_file_and_the_headers(tmp_path):
    (tmp_path / "body.json").write_text('{"a": 1}')
    with answering(lambda n: (202, b"fine")) as server:
        options = ["--file", tmp_path / "body.json", "-H", "X-Who: env:WHO", "--seconds", 1]
        said = load(f"{server.url}?x=1", *options, "--out", tmp_path / "o", WHO="me")
        headers, body = server.got[-1]
    assert "(POST)" in said and body == b'{"a": 1}' and headers["X-Who"] == "me"
    assert headers["Content-Type"] == "application/json"


def test_errors_midway_end_the_point_and_what_was_measured_is_kept(tmp_path, kept, body):
    with answering(lambda n: (200, b"ok") if n < 20 else (500, b"the disk is full")) as server:
        said = load(server.url, "--file", body, "--seconds", 60, "--out", tmp_path)
    _, rows = kept()
    assert "requests failed, most of them so: HttpError: The server answered 500: the disk is full" in said
    failed = rows[rows.error.notna()]
    assert 20 < len(failed) < 40 and 5 < rows.error.isna().sum() < 20, "it does not go on for the minute"
    assert failed.latency_ms.isna().all() and failed.done_s.gt(0).all()
    assert "stroke: #b4442f" in (tmp_path / "index.html").read_text()  # where they failed is drawn


@pytest.fixture
def echo(body):
    """A server that fails every tenth request, with the URL and the body that it takes."""
    with answering(lambda n: (500, b"no room") if n % 10 == 0 else (200, b"ok")) as server:
        yield server.url, "--file", body


def test_requests_that_fail_are_counted_beside_the_latency_of_the_others(echo, tmp_path, kept):
    limits = ("--fail-if", "errors>1%", "--fail-if", "p50<0ms")
    status, said = ended("load", *echo, "--seconds", 1, *limits, "--out", tmp_path)
    result, rows = kept()
    share = result["headlines"][0]["errors"]
    assert status == result["status"] == 1 and said.count("Failed by ") == 1
    assert f"Failed by --fail-if 'errors>1%': errors is {share:.2%}." in said
    assert 0.01 < share < 0.2 and share == pytest.approx(rows.error.notna().mean(), abs=0.02)
    assert "latency of those answered: p50" in said
    assert ended("load", *echo, "--seconds", 1, "--fail-if", "errors>20%", "--out", tmp_path)[0] == 0


def test_a_server_that_no_longer_answers_could_not_be_measured(tmp_path, body):
    with answering(lambda n: (200, b"ok") if n < 2 else (503, b"no room")) as server:
        status, said = ended("load", server.url, "--file", body, "--seconds", 2, "--out", tmp_path / "o")
    assert status == 2 and "no answers" not in said and "0 answers" in said


def test_the_result_is_printed_as_json_and_a_sweep_has_one_figure(echo, tmp_path):
    options = ["--concurrency", "1,2,4", "--seconds", "3", "--seed", "7", "--json", "--out", tmp_path]
    done = subprocess.run([*LOAD, *echo, *options], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert [one["concurrency"] for one in result["measurements"]] == [1, 2, 4]
    assert all(one["n_visits"] == 3 for one in result["measurements"])
    assert "in flight in turns, seed 7, 3 visits" in done.stderr
    assert len(result["headlines"]) == 3 and "2 in flight: " in done.stderr
    page = (tmp_path / "index.html").read_text()
    assert page.count("<svg") == 1 and "Dots: 1 in flight, 2 in flight, 4 in flight; " in page


def test_a_get_needs_no_body(tmp_path):
    class Get(Answers):
        do_GET = Answers.do_POST

    with serving(Get, answer=lambda n: (200, b"ok"), got=[]) as server:
        url = f"{server.url}/health"
        assert "(GET): 1 in flight" in load(url, "--method", "GET", "--seconds", 1, "--out", tmp_path)


def test_rates_are_offered_in_turns(tmp_path, kept, body):
    with answering(lambda n: (200, b"ok")) as server:
        options = ("--rate", "20,60", "--arrivals", "uniform", "--seed", 7, "--fail-if", "rate>40")
        status, said = ended("load", server.url, "--file", body, *options, "--seconds", 6, "--out", tmp_path)
    result, rows = kept()
    assert [point["offered_per_s"] for point in result["measurements"]] == [20, 60]
    assert "20 requests/s, 60 requests/s in turns, seed 7, 3 visits" in said
    assert "60 requests/s: p" not in said
    assert "60 requests/s: latency: p50 " in said and len(result["headlines"]) == 2
    assert status == 1 and said.count("Failed by ") == said.count("60 requests/s: Failed by --fail-if") == 1
    due_s = rows[(rows.measurement == 0) & (rows.visit == 1)].due_s.sort_values()
    np.testing.assert_allclose(np.diff(due_s), 1 / 20, atol=1e-6)


def test_a_load_that_is_stopped_before_its_first_window_is_one_sentence(body):
    watcher = Watcher(None)
    watcher.is_stopped = True
    with answering(lambda n: (200, b"ok")) as server:
        request = LoadTarget(target.target_of(server.url), files([body]))
        with one_sentence("stopped before anything was measured"):
            measure_loads(request, [LoadSpec()], watcher)


def test_a_connection_that_the_server_closed_meanwhile_is_opened_anew(tmp_path, kept, body, monkeypatch):
    monkeypatch.setattr(Answers, "timeout", 2)
    with answering(lambda n: (200, b"ok")) as server:
        options = ("--rate", 2, "--seconds", 8, "--concurrency", 16)
        said = load(server.url, "--file", body, *options, "--out", tmp_path)
    point = kept()[0]["measurements"][0]
    assert point["n_errors"] == 0 and point["n_idle_closes"] > 0
    assert "idle connection" in said and "opened anew within the request" in said


def test_tls_is_checked_unless_told_otherwise(tmp_path):
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*make, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    (body := tmp_path / "body.bin").write_bytes(b"x" * 300_000)
    with answering(lambda n: (200, b"ok" * 100_000), certificate=files) as server:
        with pytest.raises(PhotodupError, match="is not trusted"):
            load(server.url, "--file", body)
        for number, options in enumerate((["--ca", files[0]], ["--insecure", "--connection", "new"])):
            out = tmp_path / str(number)
            load(server.url, "--file", body, "--seconds", 1, "--out", out, *options)
            point = json.loads((out / "result.json").read_text())["measurements"][0]
            assert point["n_errors"] == 0 and point["n_requests"] > 5 and point["payload_bytes"] == 300_000
        for command in (("verify", server.url), ("gate", "--base-url", server.url, "--head-url", server.url)):
            for options, said in ((), "is not trusted"), (("--ca", files[0]), "lists no models"):
                with one_sentence(said):
                    ended(*command, "--protocol", "openai", *options)
        asked = target.target_of(server.url, security=target.Security(ca=files[0]))
        there = pickle.loads(pickle.dumps(LoadTarget(asked, made_up_arrays()).adapter()))
        with contextlib.closing(there.open()) as connection:  # as another process of the generator has it
            assert connection.request(there.prepare([b"x"]))[1] == b"ok" * 100_000
    with pytest.raises(PhotodupError, match="certificate files cannot be used"):
        load(server.url, "--file", body, "--ca", body)


def test_ctrl_c_keeps_what_was_measured(random_service, tmp_path, kept):
    command = [*LOAD, f"{random_service.url}/embed", "--seconds", "60", "--out", tmp_path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in process.stdout:  # where there is no terminal, progress comes in lines
        lines.append(line)
        if ", visit 1 of 10: " in line:
            process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(120) == 0
    text = "".join(lines)
    assert "answers" in text and "Ending; what was measured is kept" in text
    assert "It was stopped by you" in text
    assert len(kept()[1])


def sleepy(ms: float, is_dead=lambda: False):
    """A server that answers after so many milliseconds until it is dead."""

    def answer(number: int) -> tuple[int, bytes]:
        time.sleep(ms / 1000)
        return (500, b"the disk is full") if is_dead() else (200, b"ok")

    return answering(answer)


@pytest.fixture
def visits(monkeypatch) -> list[int]:
    """What was visited so far: the last probe, then the visits."""
    begun: list[int] = []

    def visit(*what, **more):
        if what[3] is SHORTEST:
            begun.clear()
        begun.append(len(begun))
        return measure_visit(*what, **more)

    monkeypatch.setattr("photodup.bench.anyurl.comparison.measure_visit", visit)
    return begun


@pytest.fixture
def versus(tmp_path, body):
    """Compare two small servers; returns what is printed."""

    def versus(first, second, *options):
        with first as one, second as other:
            said = ended("load", one.url, other.url, "--compare", "--file", body, "--out", tmp_path, *options)
            return said[1]

    return versus


@pytest.mark.parametrize(("in_flight", "metric", "found"), [
    (1, "latency_ms_p50", " longer than server 1"),
    (4, "throughput_images_per_s", " lower throughput than"),
])  # fmt: skip
def test_the_slower_of_two_is_named_after_the_check(versus, visits, kept, in_flight, metric, found, figure):
    said = versus(sleepy(10), sleepy(120), "--concurrency", in_flight, "--seconds", 10)
    check, first = said[said.index("heck") - 1 :].splitlines()[:2]  # "The check failed" on a busy machine
    figure(check.startswith("Check: "), check)
    assert " through other connections " in check and first.startswith("Server 2 ") and found in first
    result, rows = kept()
    null, pair = result["comparisons"][:2]
    assert (null["metric"], null["name"], pair["metric"]) == (metric, "check", metric)
    assert pair["verdict"] == "different by more than 2%"
    figure(pair["low"] > 0.3 or pair["high"] < -0.3, pair)
    assert abs(null["effect"]) < abs(pair["effect"]) and pair["null_low"] == null["low"]
    assert len(visits) - 1 == len(result["visits"]) == rows.visit.nunique() <= 8
    assert rows.groupby("server").size().to_dict().keys() == set(SIDES) and (rows.latency_ms > 5).all()
    assert all(visit["n_failed"] == [0, 0, 0] for visit in result["visits"])
    page = (kept.folder / "index.html").read_text()
    assert "<svg" in page and "through other connections against server 1" in page


def test_a_server_that_dies_midway_is_one_sentence_and_what_was_measured_counts(versus, visits, kept):
    said = versus(sleepy(1), sleepy(1, lambda: len(visits) > 2), "--seconds", 10)
    assert said.count("failed 20 requests in a row") == 1
    assert "Note: In visit 2 of " in said and "the disk is full; what was measured before is kept." in said
    assert len(kept()[0]["visits"]) == 1
    with one_sentence(r"failed 20 requests in a row: .*the disk is full\.$"):
        versus(sleepy(1), sleepy(1, lambda: len(visits) in (1, 2)))


def test_ctrl_c_ends_a_comparison_after_a_visit_of_its_own_seed(versus, visits, kept, monkeypatch):
    stop = property(lambda watcher: len(visits) > 1, lambda watcher, value: None)
    monkeypatch.setattr(Watcher, "is_stopped", stop, raising=False)
    seeds = []
    for options in ((), (), ("--seed", 7)):
        said = versus(sleepy(1), sleepy(1), "--seconds", 20, *options)
        assert "It was stopped by you after 1 of " in said and len(visits) == 2
        seeds += [visit["seed"] - 1 for visit in kept()[0]["visits"]]
        assert f", seed {seeds[-1]};" in said, "printed, so that --seed repeats it"
    assert len(seeds) == 3 and seeds[0] != seeds[1] and seeds[2] == 7, "drawn unless given"


@given(st.floats(0.01, 60), st.floats(1, 600), st.sampled_from((2, 3)))
def test_the_time_bounds_the_visits_and_the_blocks(least_s, seconds, n_sides):
    """As many visits as fit, at least as many as a verdict needs, or a sentence that names the time."""
    try:
        visits, plan = fit_visits(least_s, seconds, n_sides=n_sides)
    except PhotodupError as error:
        assert seconds < 3 * least_s / 0.9 + 1e-9
        needed = float(str(error).partition("--seconds ")[2].partition(",")[0])
        assert fit_visits(least_s, needed, n_sides=n_sides)[0] >= 3
        return
    assert 3 <= visits <= 8 and 1 <= plan.palindromes <= 10
    turns_s = plan.palindromes * (least_s + 2 * n_sides * plan.block_s)
    assert visits * (turns_s + n_sides * (plan.warmup_s + plan.alone_s)) <= seconds


def test_a_failed_check_marks_what_it_checks():
    """Server 1 differs from itself by 10%, server 2 from it by 30%."""
    visits = [planted_visit([10.0, 11.0, 13.0], number) for number in range(4)]
    check, pair, *more = outcomes_of(visits, Load("single_stream"))
    assert check.is_different and pair.effect == pytest.approx(0.3, abs=0.02)
    failed = "The check failed: server 1 through other connections differs from server 1 by"
    assert pair.notes[0].startswith(failed)
    first, *others = sentences_of([check, pair, *more], "images/s")
    failed = "The check failed, so the measuring itself finds a difference where there is none: "
    assert first.startswith(failed)
    assert others and all(one.endswith("(the check failed).") for one in others)


def test_the_gate_fails_for_a_head_that_is_far_slower(random_service, tmp_path):
    """A relay before the service waits four times as long as the service takes."""
    options = ["--seconds", 24, "--limit", 20, "--junit", tmp_path / "j.xml"]
    same, slower = (null_server.running(upstream=random_service.url, slower=share) for share in (0, 4))
    with same as base, slower as head:
        status, said = ended("gate", "--base-url", f"{base}/embed", "--head-url", f"{head}/embed", *options)
    assert status == 1 and "FAILED: head is " in said and "this gate fails an equal head in " in said
    assert "<failure message=" in (tmp_path / "j.xml").read_text()


def test_the_gate_starts_and_ends_its_commands(tmp_path, body):
    """Each is a process of its own for each visit, on the port that it is given; a relay is the whole server here."""
    started = "import os, runpy, sys; print(os.getpid(), file=open(sys.argv[1], 'a')); sys.argv[1:] = sys.argv[2:]; "
    started += f"runpy.run_path({null_server.__file__!r}, run_name='__main__')"
    command = [sys.executable, "-c", started, str(tmp_path / "pids"), "--port", "{port}", "--delay-ms"]
    status, said = ended(
        "gate", "--base", shlex.join([*command, "5"]), "--head", shlex.join([*command, "1"]),
        "--url", "http://127.0.0.1:{port}/do", "--file", body, "--seconds", 20,
    )  # fmt: skip
    assert status == 0 and "PASSED: head is " in said and "% faster than base" in said
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) >= 8, "the probe starts both, and so do three visits or more"
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(("options", "said"), [
    (["--base-url", "http://127.0.0.1:1"], "Name two servers with --base-url and --head-url, or two commands"),
    (["--base", "a", "--head", "b", "--url", "http://127.0.0.1:80/x"], r"write \{port\} in --url"),
    (["--base", "no-such", "--head", "b", "--url", "http://127.0.0.1:{port}/x"],
     "'no-such' ended while it started: .*No such file"),
    (["--base", "echo broken", "--head", "b", "--url", "http://127.0.0.1:{port}/embed"],
     "'echo broken' ended while it started: broken"),
    (["--base-url", "http://127.0.0.1:1/x", "--head-url", "http://127.0.0.1:1/x", "--file", __file__],
     "Nothing answers at"),
])  # fmt: skip
def test_a_gate_that_cannot_measure_is_one_sentence(options, said):
    with one_sentence(said):
        ended("gate", *options)


def test_nothing_is_asked_of_a_server_that_says_nothing():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        with pytest.raises(PhotodupError, match="did not answer in time: is it busy or still starting"):
            load(f"http://127.0.0.1:{mute.getsockname()[1]}/embed", "--timeout", 1)
