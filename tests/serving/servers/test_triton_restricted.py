"""Nobody but our own control loads a model into a Triton that runs: attacks on a real one, from a real browser."""

import base64
import json
import stat
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr, ValidationError
from support.command import one_sentence, run_python
from support.flaky import in_front_of
from support.http_server import Handler, serving
from support.triton import load, loaded, needs_triton

from photodup.core.errors import PhotodupError
from photodup.serving.check import check_all
from photodup.serving.endpoints import Endpoints, load_endpoints, save_endpoints
from photodup.serving.triton import control, control_key
from photodup.serving.triton.repository import render_repository
from photodup.serving.triton.server import EmbeddedTriton
from photodup.study.notebook.run import open_run

pytestmark = needs_triton()
MODEL = "openclip_vit_b32"
GRPC = f"triton-grpc-protocol-{control_key.HEADER}"
REGION = "/dev/shm/photodup_restricted_test"
CHANGES = [  # every request of Triton's HTTP interface that changes the server, and those that only tell of it
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/evil/load"),
    ("POST", f"/v2/repository/models/{MODEL}/unload"),
    ("POST", "/v2/systemsharedmemory/region/x/register"),
    ("POST", "/v2/systemsharedmemory/unregister"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("POST", "/v2/cudasharedmemory/region/x/register"),
    ("POST", "/v2/cudasharedmemory/unregister"),
    ("GET", "/v2/trace/setting"),
    ("POST", "/v2/trace/setting"),
    ("POST", f"/v2/models/{MODEL}/trace/setting"),
    ("GET", "/v2/logging"),
    ("POST", "/v2/logging"),
]


def evil(file: Path) -> dict:
    """A load request that brings its own Python model, which writes `file`."""
    code = (
        f"open({str(file)!r}, 'w').write('run')\n"
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    )
    tensor = [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]
    config = {"name": "evil", "backend": "python", "max_batch_size": 0, "input": tensor, "output": tensor}
    encoded = base64.b64encode(code.encode()).decode()
    return {"parameters": {"config": json.dumps(config), "file:1/model.py": encoded}}


@pytest.fixture
def region():
    """A piece of shared memory that an attacker would like to read through the server."""
    Path(REGION).write_bytes(b"\0" * 64)
    yield {"key": "/" + Path(REGION).name, "offset": 0, "byte_size": 64}
    Path(REGION).unlink()


@pytest.fixture
def triton(tiny_triton):
    """The shared server; whatever an attack brought into it is taken out again."""
    server = tiny_triton
    yield server
    headers = control_key.http_headers(server.http_url) if hasattr(control_key, "http_headers") else {}
    httpx.post(f"{server.http_url}/v2/repository/models/evil/unload", headers=headers)
    httpx.post(f"{server.http_url}/v2/systemsharedmemory/unregister", headers=headers)


def registered(server) -> list:
    url = f"{server.http_url}/v2/systemsharedmemory/status"
    answer = httpx.get(url, headers=control_key.http_headers(server.http_url))
    assert answer.status_code == 200
    return answer.json()


class Page(Handler):
    def do_GET(self):
        self.reply(b"<title>a page of somebody else</title>")


def test_a_web_page_loads_no_model_and_registers_no_memory(browser, triton, region, tmp_path: Path) -> None:
    with serving(Page) as foreign, browser.new_page() as page:
        page.goto(f"http://127.0.0.1:{foreign.server_port}/")
        for path, body in (
            ("/v2/repository/models/evil/load", evil(tmp_path / "written")),
            ("/v2/systemsharedmemory/region/stolen/register", region),
        ):
            sent = page.evaluate(
                """async ([url, body]) => (await fetch(url, {method: "POST", mode: "no-cors",
                    headers: {"Content-Type": "text/plain"}, body})).type""",
                [triton.http_url + path, json.dumps(body)],
            )
            assert sent == "opaque", "it went through to the server, the page just cannot read the answer"
    assert not (tmp_path / "written").exists(), "a web page ran its code as this user"
    assert registered(triton) == []


def test_a_rebound_name_loads_nothing(browser, triton, region, tmp_path: Path) -> None:
    """After DNS rebinding the page is of the server's own origin: the Host is foreign, all answers readable."""
    with browser.new_page() as page:
        assert page.goto(f"http://rebound.example:{triton.http_port}/v2").status == 200
        for path, body in (
            ("/v2/repository/models/evil/load", evil(tmp_path / "written")),
            ("/v2/systemsharedmemory/region/stolen/register", region),
        ):
            status = "async ([path, body]) => (await fetch(path, {method: 'POST', body})).status"
            assert page.evaluate(status, [path, json.dumps(body)]) == 403
    assert not (tmp_path / "written").exists()
    assert registered(triton) == []


def test_grpc_without_the_key_loads_nothing(triton, region, tmp_path: Path) -> None:
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    load = evil(tmp_path / "written")["parameters"]
    files = {"file:1/model.py": base64.b64decode(load["file:1/model.py"])}
    for headers in (None, {GRPC: "0" * 64}, {control_key.HEADER: control_key.key_for(triton.grpc_url)}):
        with InferenceServerClient(triton.grpc_url) as client:
            for call in (
                lambda c, h: c.load_model("evil", config=load["config"], files=files, headers=h),
                lambda c, h: c.unload_model(MODEL, headers=h),
                lambda c, h: c.get_model_repository_index(headers=h),
                lambda c, h: c.register_system_shared_memory("x", region["key"], 64, headers=h),
                lambda c, h: c.get_system_shared_memory_status(headers=h),
                lambda c, h: c.update_trace_settings(settings={"trace_level": "OFF"}, headers=h),
                lambda c, h: c.update_log_settings({"log_verbose_level": 1}, headers=h),
            ):
                with pytest.raises(InferenceServerException, match="is restricted"):
                    call(client, headers)
    assert not (tmp_path / "written").exists()
    assert registered(triton) == []


@pytest.mark.parametrize(("method", "path"), CHANGES, ids=lambda value: value)
def test_each_request_that_changes_the_server_needs_the_key(triton, method: str, path: str) -> None:
    if "unregister" in path or "status" in path or method == "GET":  # harmless with the key: it opens them
        headers = control_key.http_headers(triton.http_url)
        assert httpx.request(method, triton.http_url + path, headers=headers).status_code == 200
    for headers in ({}, {control_key.HEADER: "0" * 64}, {control_key.HEADER: ""}):
        answer = httpx.request(method, triton.http_url + path, headers=headers, content=b"{}")
        assert answer.status_code == 403, (headers, answer.text)


def test_what_measures_and_asks_stays_open(triton) -> None:
    for path in (
        "/v2", "/v2/health/live", "/v2/health/ready", f"/v2/models/{MODEL}", f"/v2/models/{MODEL}/config",
        f"/v2/models/{MODEL}/stats", "/v2/models/stats",
    ):  # fmt: skip
        assert httpx.get(triton.http_url + path).status_code == 200, path


def test_our_own_control_works_and_is_refused_with_one_sentence_without_the_key(triton, monkeypatch) -> None:
    with loaded(triton, "emulated_zero"):
        pass
    for key, said in ((None, "no key is given for it"), ("0" * 64, "the key given for it is wrong")):
        monkeypatch.setattr(control_key, "key_for", lambda _, key=key, **__: key)
        with one_sentence(rf"keeps {MODEL} as it is: its control needs a key, and {said}"):
            control.load_triton_model(triton.grpc_url, MODEL)
        with pytest.raises(PhotodupError, match=said):
            control.unload_triton_model(triton.grpc_url, MODEL)
        with (
            pytest.raises(PhotodupError, match=said),
            # A change that changes nothing needs no control.
            control.temporary_config(triton.grpc_url, MODEL, lambda c: setattr(c, "max_batch_size", 2)),
        ):
            pass


def test_another_process_of_this_user_finds_the_key_and_nobody_else_reads_it(triton) -> None:
    files = sorted(control_key._folder().glob("*.key"))
    ports = {str(triton.http_port), str(triton.grpc_port)}
    mine = [f for f in files if f.name.split("~")[0].rpartition("_")[2] in ports]
    assert len(mine) == 2
    assert {stat.S_IMODE(f.stat().st_mode) for f in mine} == {0o600}
    assert stat.S_IMODE(mine[0].parent.stat().st_mode) == 0o700
    code = "import sys; from photodup.serving.triton.control import load_triton_model as load; load(*sys.argv[1:3])"
    for address in (triton.grpc_url, triton.grpc_url.replace("127.0.0.1", "localhost")):
        done = run_python(code, address, MODEL)
        assert done.returncode == 0, done.stderr


def test_the_key_is_new_at_each_start_and_in_no_log(tmp_path: Path, tiny_exports):
    render_repository("cpu-embedded", tmp_path, tiny_exports, models=[MODEL])
    keys = []
    for _ in range(2):
        lines: list[str] = []
        with EmbeddedTriton(tmp_path, [MODEL], progress=lines.append) as server:
            key = control_key.key_for(server.grpc_url)
            keys.append(key)
            assert key == control_key.key_for(server.http_url)
            load(server, MODEL)
            log = server.log_text()
        assert key not in log and key not in " ".join(lines)
        assert control_key.key_for(server.grpc_url) is None, "its file is gone with the server"
    assert len(set(keys)) == 2 and all(len(key) == 64 for key in keys)


def test_the_key_of_a_server_elsewhere_comes_from_its_endpoints_file(triton, monkeypatch, tmp_path) -> None:
    """Another address of the same server stands for a machine elsewhere: no file of ours knows it."""
    key = control_key.key_for(triton.grpc_url)
    with in_front_of(triton.grpc_url) as other:
        address = other.url.removeprefix("http://")
        with pytest.raises(PhotodupError, match="no key is given for it"):
            control.load_triton_model(address, MODEL)
        file = tmp_path / "rented.yaml"
        file.write_text(
            f"name: rented\nbackends: {{triton-onnx-fp32-grpc-fp32: '{address}'}}\ntriton_control_key: env:RENTED_KEY\n"
        )
        found = load_endpoints(file)
        monkeypatch.setattr(control_key, "_of_endpoints", {})
        found.use_control_key()
        with pytest.raises(PhotodupError, match="environment variable RENTED_KEY: set it"):
            control.load_triton_model(address, MODEL)
        monkeypatch.setenv("RENTED_KEY", key)
        control.load_triton_model(address, MODEL)
        with control.temporary_config(address, MODEL, lambda config: config.ClearField("dynamic_batching")):
            pass
        control_key._of_endpoints.clear()
        monkeypatch.setenv(control_key.VARIABLE, key)
        control.load_triton_model(address, MODEL)
    with in_front_of(triton.http_url) as other:
        asked = Endpoints(name="x", backends={"triton-emulated-a100-fp32-http-jpeg": other.url})
        (check,) = check_all(asked)
        assert "has no model" in check.finding, "that variable's key went to a server merely asked"
        (check,) = check_all(asked.model_copy(update={"triton_control_key": SecretStr(key)}))
        assert "in the repository but not loaded" in check.finding


def test_endpoints_show_no_key(tmp_path: Path) -> None:
    key = "k" * 40
    made = Endpoints(name="x", backends={"triton-onnx-fp32-grpc-fp32": "gpu:8004"}, triton_control_key=key)
    assert key not in repr(made) and key not in str(made.model_dump())
    save_endpoints(made, tmp_path / "x.yaml")
    assert stat.S_IMODE((tmp_path / "x.yaml").stat().st_mode) == 0o600
    assert load_endpoints(tmp_path / "x.yaml") == made
    for bad in ("short", "a key with spaces in it", "env:not a name", "x" * 20 + ",y=z"):
        with pytest.raises(ValidationError, match="env:NAME") as error:
            Endpoints(name="x", backends=made.backends, triton_control_key=bad)
        assert bad not in str(error.value)
        (tmp_path / "bad.yaml").write_text(
            f"name: x\nbackends: {{triton-onnx-fp32-grpc-fp32: 'gpu:8004'}}\ntriton_control_key: '{bad}'\n"
        )
        with pytest.raises(PhotodupError, match="triton_control_key: it should be 16 to 256") as error:
            load_endpoints(tmp_path / "bad.yaml")
        assert bad not in str(error.value)


def test_no_record_of_a_run_holds_the_key(triton, monkeypatch, tmp_path: Path) -> None:
    """Neither a point that worked, nor one that failed for a wrong key, nor the facts about the machine."""
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    monkeypatch.setattr(control_key, "_of_endpoints", {})
    wrong = "w" * 64
    (tmp_path / "keyed.yaml").write_text(
        f"name: keyed\nbackends: {{triton-onnx-fp32-grpc-fp32: '{triton.grpc_url}'}}\ntriton_control_key: {wrong}\n"
    )
    run = open_run("keyed", endpoints=tmp_path / "keyed.yaml")

    def reload() -> dict:
        control.load_triton_model(triton.grpc_url, MODEL)
        return {"done": True}

    failed = run.measure_or_load("wrong-key", reload, may_fail=True)
    assert "the key given for it is wrong" in failed["error"]
    right = httpx.get(f"{triton.http_url}/v2").json()["name"]
    run.measure_or_load("open", lambda: {"server": right, "endpoints": repr(run.endpoints)})
    written = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert len(written) >= 2
    assert not [path for path in written if wrong.encode() in path.read_bytes()]
    assert wrong not in repr(run) + run._repr_markdown_() + str(run.endpoints)


def test_a_triton_without_model_control_says_so(tmp_path: Path, tiny_exports, monkeypatch) -> None:
    """As our images start it when they are given no key."""
    render_repository("cpu-embedded", tmp_path, tiny_exports, models=[MODEL])
    usual = EmbeddedTriton._command

    def without_control(server: EmbeddedTriton, venv: Path, key: str) -> list[str]:
        return [a for a in usual(server, venv, key) if a != "--model-control-mode=explicit"]

    monkeypatch.setattr(EmbeddedTriton, "_command", without_control)
    with (
        EmbeddedTriton(tmp_path, []) as server,
        pytest.raises(PhotodupError, match="it was started without model control"),
    ):
        control.load_triton_model(server.grpc_url, MODEL)


def test_all_addresses_are_as_restricted_as_loopback(tmp_path: Path, tiny_repository) -> None:
    with EmbeddedTriton(tiny_repository, [MODEL], host="0.0.0.0") as server:
        url = f"http://127.0.0.2:{server.http_port}"
        body = evil(tmp_path / "written")
        assert httpx.post(f"{url}/v2/repository/models/evil/load", json=body).status_code == 403
        load(server, MODEL)
    assert not (tmp_path / "written").exists()
