"""The command line itself: versions, lines of progress in a log, sentences about parameters and addresses."""

import os
import re
import socket
import subprocess
import sys

import pytest
from support.command import run_python

from photodup.bench.backends.http_connection import HttpConnection
from photodup.core import settings
from photodup.core.addresses import grpc_address, http_address
from photodup.core.errors import PhotodupError
from photodup.core.paths import project_root
from photodup.core.progress import Loop, bar
from photodup.serving.endpoints import from_ports
from photodup.study.notebook import run


def test_the_version_and_the_package_as_a_program():
    command = [sys.executable, "-m", "photodup", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("photodup") and not done.stderr


@pytest.mark.parametrize(("modules", "heavy"), [
    ("cli", "numpy torch pandas PIL httpx fastapi tqdm"),
    (
        "embedding.engines.encoder embedding.engines.export embedding.engines.quantise embedding.client.embedder "
        "bench.load.window bench.load.counters bench.backends.server_adapters bench.anyurl.run",
        "torch open_clip onnx onnxruntime openvino nncf tritonclient grpc scipy pandas matplotlib pyarrow",
    ),
], ids=["cli", "engines and load"])  # fmt: skip
def test_importing_loads_nothing_heavy(modules, heavy):
    program = f"import sys, photodup.{', photodup.'.join(modules.split())}\n"
    program += f"print(set({heavy.split()}) & set(sys.modules))"
    done = run_python(program, check=True)
    assert done.stdout == "set()\n"


def test_progress_is_lines_where_there_is_no_terminal(capsys, monkeypatch):
    assert isinstance(bar([1], total=1, desc="scan", unit="photo"), Loop)
    capsys.readouterr()
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr("photodup.core.progress.time.monotonic", lambda: float(next(clock)))
    assert list(bar(range(10), total=10, desc="scan", unit="photo")) == list(range(10))
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "scan: 0 of 10 photos" and said[-1].startswith("scan: 10 of 10 photos, ")
    assert 3 <= len(said) <= 6, said  # every 15 s, not at each photo
    with bar(total=4, desc="embed", unit="photo") as shown:
        shown.update(4)
    assert capsys.readouterr().err.count("\n") == 2
    list(bar(range(3), total=3, desc="scan", unit="photo", disable=True))
    list(bar([], total=0, desc="scan", unit="photo"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("rule", "url", "clean"), [
    (http_address, "http://gpu:8002/", "http://gpu:8002"),
    (http_address, "https://gpu.example.com", "https://gpu.example.com"),
    (http_address, "http://[::1]:8002", "http://[::1]:8002"),
    (grpc_address, "grpc://gpu:8004", "gpu:8004"),
    (grpc_address, "[::1]:8004", "[::1]:8004"),
])  # fmt: skip
def test_addresses_that_can_work(rule, url, clean):
    assert rule(url) == clean


def test_addresses_that_cannot():
    for url in ("", "gpu:8002", "ftp://gpu:1", "http://", "http://gpu:port", "http://gpu:0", "http://[::1"):
        with pytest.raises(PhotodupError, match=r"is no HTTP address for x: use http://host:port\.$"):
            http_address(url, "x")
    for url in ("", "gpu", "http://gpu:8004", "gpu:99999", "gpu:0", "[::1"):
        with pytest.raises(PhotodupError, match="is no gRPC address: use host:port"):
            grpc_address(url)


def test_a_refused_connection_names_the_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ConnectionRefusedError, match=f"connecting to 127.0.0.1:{port}"):
        HttpConnection(f"http://127.0.0.1:{port}").connect()
    with pytest.raises(OSError, match=r"nonesuch\.invalid:80"):
        HttpConnection("http://nonesuch.invalid:80").connect()


def test_the_header_of_a_run_on_servers_elsewhere_claims_neither_processor_nor_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("MODEL_PRETRAINED", "random:0")
    found = {}
    for host in ("203.0.113.7", "127.0.0.1"):
        folder = tmp_path / host.replace(".", "-")
        servers, store = from_ports(host), run.RunStore(folder)
        found[host] = run.Run(folder.name, folder, servers, store)._repr_markdown_()
    assert "measured from" in found["203.0.113.7"] and "random" not in found["203.0.113.7"]
    assert "no server has said" in found["203.0.113.7"]
    assert "measured on" in found["127.0.0.1"] and "random:0" in found["127.0.0.1"]


def test_nothing_else_reads_the_environment():
    lib = project_root() / "lib" / "photodup"
    reading = re.compile(r"os\.(environ|getenv|putenv)|from os import .*environ")
    found = {str(path.relative_to(lib)) for path in lib.rglob("*.py") if reading.search(path.read_text())}
    assert found == {"core/settings.py"}


def test_what_is_not_set_is_empty_or_the_default(monkeypatch):
    for name in ("MODEL_PRETRAINED", "MODEL_NAME", "PHOTODUP_MEASURE"):
        monkeypatch.delenv(name, raising=False)
    seen = settings.environment()
    assert (seen.model_pretrained, seen.weights, seen.architecture) == ("", "laion2b_s34b_b79k", "ViT-B-32")
    assert seen.may_measure
    monkeypatch.setenv("MODEL_PRETRAINED", "random:0")
    monkeypatch.setenv("PHOTODUP_MEASURE", "0")
    seen = settings.environment()
    assert seen.weights == "random:0" and not seen.may_measure


def test_keys_are_not_printed(monkeypatch):
    monkeypatch.setenv("PHOTODUP_API_KEY", "secret-one")
    monkeypatch.setenv("PHOTODUP_TRITON_CONTROL_KEY", "secret-two")
    assert settings.environment().api_key == "secret-one"
    assert "secret" not in repr(settings.environment())


def test_variables_are_as_before_after_a_block(monkeypatch):
    monkeypatch.setenv("PHOTODUP_A", "before")
    monkeypatch.delenv("PHOTODUP_B", raising=False)
    with settings.variables(PHOTODUP_A="", PHOTODUP_B="inside"):
        assert "PHOTODUP_A" not in os.environ and settings.variable("PHOTODUP_B") == "inside"
        assert settings.inherited(PHOTODUP_B="child")["PHOTODUP_B"] == "child"
    assert settings.variable("PHOTODUP_A") == "before" and "PHOTODUP_B" not in os.environ
