"""Renting against a real HTTP server that answers in the shape of Vast.ai's API; no account, no money.

There is no account to test with: nothing here shows that Vast.ai itself behaves so. The paths and fields are those that
the SDK (vastai 1.9.1) sends and reads. The SDK itself is tried where it is installed (it pins another Pillow, so it is
not in this project's environment); the container's own watchman always.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import types

import httpx
import pytest
import yaml
from packaging.requirements import Requirement
from support.command import running
from support.http_server import Handler, serving
from support.paths import ROOT
from support.service import until
from typer.testing import CliRunner

from photodup.errors import PhotodupError
from photodup.serving import commands, gpu_image, vast
from photodup.serving.control_key import VARIABLE
from photodup.serving.endpoints import load_endpoints
from photodup.serving.vast import find_offers

SECRET = "key-that-must-not-leak"
ROW = {
    "id": 7835610, "actual_status": "running", "public_ipaddr": " 203.0.113.7 ",
    "ports": {f"{port}/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(30000 + port)}] for port in vast.PORTS},
    "gpu_name": "RTX 4090", "dph_total": 0.412, "geolocation": "Texas, US", "jupyter_token": SECRET,
    "start_date": 0.0, "extra_env": [["END_AT", "1"]],
}  # fmt: skip
OFFER = {
    "id": 42, "gpu_name": "RTX 4090", "num_gpus": 1, "dph_total": 0.41239, "geolocation": "Texas, US",
    "reliability2": 0.9931, "inet_down": 812.4, "inet_up": 500.1, "inet_down_cost": 0.004, "inet_up_cost": 0.006,
    "disk_space": 412.0, "cuda_max_good": 13.0, "driver_version": "580.95.05", "direct_port_count": 99,
}  # fmt: skip


class VastApi(Handler):
    protocol_version = "HTTP/1.0"  # the SDK leaves its connections open

    def answer(self, body, status=200):
        self.reply(json.dumps(body).encode(), status, "application/json")

    def serve(self):
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or b"{}")
        api, path = self.server.api, self.path.split("?")[0]
        api.asked.append((self.command, path, body, self.headers.get("Authorization")))
        dies = api.victim and len(api.asked) == api.dies_at
        if dies and not api.dies_late:
            return api.victim.kill()
        if dies:  # what it asked for is done, and it never learns so
            self.answer = lambda body, status=200: api.victim.kill()
        ordered = "/asks/" in path and not api.taken
        if ordered:
            api.rows[ROW["id"]] = {**ROW, "label": body["label"]}
        # Of an order only the answer is lost.
        if api.refuse and re.search(api.refuse, f"{self.command} {path}"):
            return self.answer({"msg": "later"}, api.refuse_status)
        if path.endswith("/bundles/"):
            return self.answer({"offers": [api.offer]})
        if "/asks/" in path:
            told = {"success": ordered, "new_contract": ROW["id"], "instance_api_key": SECRET}
            return self.answer({} if api.says_nothing else told)
        if path.startswith("/api/v1/instances"):
            return self.answer({"instances": list(api.rows.values()), "next_token": None})
        instance = int(path.strip("/").split("/")[-1])
        if self.command == "DELETE":
            if instance not in api.rows:
                return self.answer({"error": "no_such_instance"}, 404)
            if not api.keeps:
                api.rows.pop(instance, None)
            return self.answer({"success": True})
        shown = api.shown.pop(0) if len(api.shown) > 1 else api.shown[0]
        return self.answer({"instances": shown if instance in api.rows else None})

    do_GET = do_PUT = do_POST = do_DELETE = serve


class Api:
    def __init__(self):
        self.rows, self.shown, self.offer, self.asked = {}, [ROW], OFFER, []
        self.refuse, self.refuse_status, self.taken, self.keeps = "", 503, False, False
        self.says_nothing = False
        self.victim: subprocess.Popen | None = None
        # At its nth request the victim is killed, before or after it is done.
        self.dies_at, self.dies_late, self.url = 0, False, ""

    def order(self):
        return next(body for verb, _, body, _ in self.asked if verb == "PUT")


class Client:
    """The SDK's methods over HTTP, where the SDK is not installed; errors hold the address, with the key in it."""

    def __init__(self, url):
        self.http = httpx.Client(base_url=f"{url}/api", timeout=60, params={"api_key": SECRET})

    def _ask(self, verb, path, body=None):
        return self.http.request(verb, path, json=body).raise_for_status().json()

    def search_offers(self, **query):
        return self._ask("POST", "/v0/bundles/", query)["offers"]

    def create_instance(self, id, **order):
        return self._ask("PUT", f"/v0/asks/{id}/", order)

    def show_instance(self, id):
        return self._ask("GET", f"/v0/instances/{id}/")["instances"]

    def show_instances(self):
        return self._ask("GET", "/v1/instances/")["instances"]

    def destroy_instance(self, id):
        return self._ask("DELETE", f"/v0/instances/{id}/")


@pytest.fixture
def api(tmp_path, monkeypatch):
    (tmp_path / "notebooks" / "endpoints").mkdir(parents=True)
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    monkeypatch.setenv("VAST_API_KEY", SECRET)
    with serving(VastApi, api=Api()) as server:
        server.api.url = f"http://127.0.0.1:{server.server_port}"
        yield server.api


@pytest.fixture
def client(api):
    return Client(api.url)


def rent(client, *, max_hours: float = 2, **options):
    ready = [{"ok": True, "backend": "any", "finding": "ready"}]
    options = {"check": lambda endpoints: ready, "watch": False, "poll_s": 0.01, "wait_s": 5} | options
    return vast.up(client, 42, "registry/photodup-all-in-one", "rtx4090", max_hours, **options)


def record(tmp_path) -> dict:
    return json.loads((tmp_path / "build" / "vast" / "rtx4090.json").read_text())


def test_offers_ask_for_what_the_image_needs(api, client):
    rows = find_offers(client, "RTX 4090", 0.6)
    assert rows[0]["offer"] == 42 and rows[0]["price_per_hour_usd"] == 0.4124
    assert rows[0]["pull_usd"] == pytest.approx(25 * 0.004)
    assert rows[0]["pull_minutes"] == pytest.approx(25 * 8000 / 812.4 / 60)
    query = api.asked[0][2]["query"]
    assert "gpu_name=RTX_4090" in query and "direct_port_count>=4" in query and "dph_total<=0.6" in query
    assert "num_gpus=1 " in query and rows[0]["gpus"] == 1
    assert "cuda_max_good>=13.0" in query and "disk_space>=80" in query and "inet_down>=200" in query
    api.offer = OFFER | {"num_gpus": 4}
    (row,) = find_offers(client, "RTX 4090", gpus=4)
    assert "num_gpus=4 " in api.asked[1][2]["query"] and row["gpus"] == 4


def test_the_rented_triton_is_controlled_with_a_key_of_its_own(api, client, tmp_path):
    api.shown = [ROW | {"num_gpus": 4}]
    path = rent(client)
    order = api.order()
    endpoints = load_endpoints(path)
    assert len(order["env"][VARIABLE]) == 64
    assert endpoints.triton_control_key.get_secret_value() == order["env"][VARIABLE]
    assert endpoints.gpus == 4
    for file in (path, tmp_path / "build" / "vast" / "rtx4090.json"):
        assert file.stat().st_mode & 0o077 == 0, file.name
    again = vast.write_endpoints(client, "rtx4090")  # ports change when a machine restarts, the key does not
    assert load_endpoints(again).triton_control_key == endpoints.triton_control_key


def test_up_waits_and_writes_the_port_map_with_price_and_place(api, client, tmp_path):
    api.shown = [{"id": ROW["id"], "actual_status": "loading"}, ROW | {"ports": {}}, ROW]
    lines: list[str] = []
    endpoints = load_endpoints(rent(client, progress=lines.append))
    assert endpoints.backends["fastapi-pytorch-fp32-http-jpeg"] == "http://203.0.113.7:38002"
    assert endpoints.backends["triton-onnx-fp32-http-fp32"] == "http://203.0.113.7:38003"
    assert endpoints.backends["triton-trt-fp16-grpc-fp32"] == "203.0.113.7:38004"
    assert endpoints.metrics["triton"] == "http://203.0.113.7:38005/metrics"
    assert (endpoints.gpu, endpoints.price_per_hour_usd) == ("RTX 4090", 0.412)
    assert endpoints.location == "Vast.ai, Texas, US"
    assert any("port 8002 is not mapped" in line or "no address" in line for line in lines)
    order = api.order()
    assert {f"-p {port}:{port}" for port in vast.PORTS} <= order["env"].keys()
    assert order["runtype"] == "args" and order["args"] == ["start-all"]
    for end in (record(tmp_path)["until"], float(order["env"]["END_AT"])):
        assert end == pytest.approx(time.time() + 7200, abs=60)


LOADING = [{"ok": False, "backend": "b", "finding": "loading"}]


@pytest.mark.parametrize(("there", "options", "message"), [
    ({}, {"check": lambda e: LOADING, "wait_s": 0.05}, "in time"),
    ({}, {"check": lambda e: (_ for _ in ()).throw(KeyboardInterrupt)}, None),
    ({}, {"check": lambda e: 1 / 0}, None),
    ({"shown": [ROW | {"actual_status": "exited"}]}, {}, "is exited"),
    ({"taken": True}, {}, "may be taken"),
    ({"says_nothing": True}, {}, "may be taken"),
    ({"refuse": "PUT"}, {}, "create instance"),  # its answer was lost
])  # fmt: skip
def test_whatever_goes_wrong_the_machine_is_given_back(api, client, tmp_path, there, options, message):
    vars(api).update(there)
    with pytest.raises((PhotodupError, KeyboardInterrupt, ZeroDivisionError), match=message):
        rent(client, **options)
    assert api.rows == {}
    assert not list((tmp_path / "build" / "vast").glob("*.json"))


def test_an_order_and_a_listing_that_both_fail_leave_a_record_and_a_watchdog(api, client, tmp_path):
    """Nothing answers: what was ordered is still destroyed, by its label, as soon as something does."""
    api.refuse = "PUT|GET .*/v1/"
    with pytest.raises(PhotodupError, match="create instance"):
        rent(client)
    assert api.rows and record(tmp_path)["instance"] is None
    assert record(tmp_path)["label"] == "photodup-rtx4090"
    assert record(tmp_path)["until"] < time.time() + 700
    api.refuse = ""
    assert vast.unnoticed(client) == []
    vast.destroy_overdue(client, now=time.time() + 700)
    assert api.rows == {} and not list((tmp_path / "build" / "vast").glob("*.json"))


def test_the_record_is_written_before_the_order(client, tmp_path):
    seen = []
    real = client.create_instance
    client.create_instance = lambda **order: seen.append(record(tmp_path)) or real(**order)
    rent(client)
    assert seen[0]["instance"] is None and seen[0]["label"] == "photodup-rtx4090"
    assert record(tmp_path)["instance"] == ROW["id"]


@pytest.mark.parametrize("max_hours", [0, -1, 1000, float("nan")])
def test_nothing_is_rented_without_an_end(api, client, max_hours):
    with pytest.raises(PhotodupError, match="--max-hours"):
        rent(client, max_hours=max_hours)
    assert api.asked == []


def test_one_name_is_not_rented_twice(client):
    rent(client)
    with pytest.raises(PhotodupError, match="already rented"):
        rent(client)


def test_down_believes_the_list_and_not_the_answer(api, client, tmp_path):
    rent(client)
    api.keeps = True
    with pytest.raises(PhotodupError, match="COSTS MONEY"):
        vast.down(client, "rtx4090")
    assert record(tmp_path)["instance"] == ROW["id"]
    api.keeps = False
    vast.down(client, "rtx4090")
    vast.down(client, "rtx4090")
    assert api.rows == {} and not (tmp_path / "build/vast/rtx4090.json").exists()


def test_what_was_destroyed_in_the_console_is_forgotten(api, client, tmp_path):
    rent(client)
    api.rows.clear()
    vast.down(client, "rtx4090")
    assert not (tmp_path / "build/vast/rtx4090.json").exists()


def test_an_order_that_appears_after_down_is_destroyed_too(api, client, tmp_path):
    """`up` was killed while it ordered, and nothing is listed yet."""
    vast._write_record("rtx4090", None, time.time() + 7200)
    vast.down(client, "rtx4090")
    assert record(tmp_path)["until"] < time.time() + 700
    api.rows[ROW["id"]] = {**ROW, "label": "photodup-rtx4090"}
    assert vast.destroy_overdue(client, now=time.time() + 700) == ["rtx4090"]
    assert api.rows == {} and not (tmp_path / "build/vast/rtx4090.json").exists()


def test_one_that_cannot_be_destroyed_keeps_no_other_alive(api, client, monkeypatch):
    monkeypatch.setattr(vast, "connect", lambda: client)
    rent(client)
    vast._write_record("another", 1, time.time() - 1)
    api.rows[1], api.refuse = {"id": 1, "label": "photodup-another"}, "DELETE .*/1/"
    with pytest.raises(PhotodupError, match="INSTANCE 1 IS STILL THERE"):
        vast.destroy_overdue(client, now=time.time() + 7300)
    assert list(api.rows) == [1]
    rent(client)
    told = CliRunner().invoke(commands.vast, ["down", "rtx4090"])
    assert list(api.rows) == [1] and "INSTANCE 1 IS STILL THERE" in told.stderr


def test_destroyed_only_when_the_time_is_over(api, client):
    rent(client)
    assert vast.destroy_overdue(client) == [] and api.rows
    assert vast.destroy_overdue(client, now=time.time() + 7300) == ["rtx4090"]
    assert api.rows == {}


def test_watchdog_destroys_tries_again_and_ends(api, client, tmp_path):
    rent(client)
    path = tmp_path / "build" / "vast" / "rtx4090.json"
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 1:  # it was not time yet; now it is, but the network is away
            assert api.rows
            path.write_text(json.dumps(record(tmp_path) | {"until": time.time() - 1}))
            api.refuse = "DELETE"
        if len(naps) == 2:
            assert api.rows
            api.refuse = ""

    vast.watchdog("rtx4090", lambda: client, sleep)
    assert api.rows == {} and len(naps) == 3 and max(naps) <= 300


def test_up_leaves_a_real_process_that_ends_with_the_record(client, tmp_path, monkeypatch):
    started: list[subprocess.Popen] = []
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[-1])
    rent(client, watch=True)
    try:
        time.sleep(1)
        assert started[0].poll() is None, (tmp_path / "build/vast/rtx4090.log").read_text()
    finally:
        started[0].terminate()
        started[0].wait(120)
    vast.down(client, "rtx4090")
    command = [sys.executable, "-m", "photodup.serving.vast", "rtx4090"]
    assert subprocess.run(command, timeout=300).returncode == 0


def test_the_process_that_up_leaves_destroys_what_is_overdue(api, client, tmp_path, monkeypatch):
    rent(client)
    (tmp_path / "build/vast/rtx4090.json").write_text(
        json.dumps(record(tmp_path) | {"until": time.time() - 1})
    )
    # A stand-in for the SDK, as it is imported there.
    sdk = f"from test_vast import Client\nVastAI = lambda quiet: Client({api.url!r})\n"
    (tmp_path / "vastai.py").write_text(sdk)
    path = (tmp_path, ROOT / "tests" / "servers", ROOT / "tests", ROOT / "lib")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, path)))
    with running([sys.executable, "-m", "photodup.serving.vast", "rtx4090"]) as process:
        until(lambda: not api.rows or process.poll() is not None)
    assert api.rows == {}


def test_instances_of_another_machine_are_named(api, client):
    api.rows = {n: {"id": n, "label": name} for n, name in enumerate(("photodup-x", "other", None), 1)}
    assert vast.unnoticed(client) == [1]


def test_the_key_is_neither_printed_nor_stored(api, client, tmp_path, monkeypatch):
    monkeypatch.setattr(vast, "connect", lambda: client)
    output = []
    rent(client, progress=output.append)
    api.refuse, api.refuse_status = "GET .*/v0/", 401
    result = CliRunner().invoke(commands.vast, ["endpoints", "rtx4090"])
    assert isinstance(result.exception, PhotodupError)
    assert str(result.exception) == "Vast.ai refused show instance (HTTP 401). Is the API key right?"
    assert result.exception.__cause__ is None and result.exception.__suppress_context__
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 2
    assert SECRET not in "".join([*written, *output, result.output, str(result.exception)])


def test_commands(api, client, monkeypatch):
    monkeypatch.setattr(vast, "connect", lambda: client)
    run = CliRunner()
    offers = run.invoke(commands.vast, ["offers", "--gpu", "RTX 4090"]).output
    assert "42  1 × RTX 4090" in offers and "812 Mbit/s  reliability 99.3%" in offers
    assert "for the image in 4 min" in offers and "Traffic is billed apart" in offers
    assert run.invoke(commands.vast, ["up", "42", "--image", "i", "--name", "n"]).exit_code == 2  # no end
    rent(client)
    assert "rtx4090.yaml" in run.invoke(commands.vast, ["endpoints", "rtx4090"]).output
    assert "destroyed" in run.invoke(commands.vast, ["down", "rtx4090"]).output
    assert api.rows == {}


@pytest.mark.parametrize("missing", ["vastai", "tritonclient.grpc"])
def test_what_renting_needs_is_missed_before_anything_costs(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, "vastai", types.ModuleType("vastai"))
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(PhotodupError, match=f"needs {missing.split('.')[0]}: .*pip install vastai"):
        vast.connect()


def watchman(api, **env):
    given = {"END_AT": str(int(time.time()) - 1), "CONTAINER_ID": str(ROW["id"]), "CONTAINER_API_KEY": SECRET}
    given |= {"VAST_API_URL": f"{api.url}/api/v0", "END_RETRY_S": "0.1", **env}
    return subprocess.Popen(
        ["bash", ROOT / "docker" / "end-itself.sh"],
        env={"PATH": os.environ["PATH"]} | {k: v for k, v in given.items() if v is not None},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_container_ends_itself_when_its_time_is_over(api):
    api.rows[ROW["id"]] = ROW
    end = int(time.time()) + 2
    process = watchman(api, END_AT=str(end))
    until(lambda: api.asked)
    assert time.time() >= end, "not before its time"
    said = process.communicate(timeout=120)[1]
    assert api.rows == {} and process.returncode == 0
    assert api.asked[0][:2] == ("DELETE", f"/api/v0/instances/{ROW['id']}/")
    assert api.asked[0][3] == f"Bearer {SECRET}"
    assert SECRET not in said


def test_the_container_tries_again_until_it_is_gone(api):
    api.rows[ROW["id"]], api.refuse = ROW, "DELETE"
    process = watchman(api)
    until(lambda: len(api.asked) >= 2)
    assert api.rows
    api.refuse = ""
    process.communicate(timeout=120)
    assert api.rows == {} and process.returncode == 0


@pytest.mark.parametrize(
    ("env", "says"), [({"END_AT": None}, ""), ({"CONTAINER_API_KEY": None}, "no rented container")]
)
def test_nothing_ends_where_nothing_is_rented(api, env, says):
    process = watchman(api, **env)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 0 and says in said and not api.asked


def test_the_all_in_one_image_starts_the_watchman():
    dockerfile = (ROOT / "docker" / "all-in-one.Dockerfile").read_text()
    assert "COPY docker/end-itself.sh /usr/local/bin/end-itself" in dockerfile
    assert re.search(r"^end-itself & disown$", (ROOT / "docker" / "start-all.sh").read_text(), re.MULTILINE)
    assert os.access(ROOT / "docker" / "end-itself.sh", os.X_OK)


def test_the_drivers_floor_is_that_of_the_images_newest_part():
    """Fails when torch or Triton is raised and nobody looked at the CUDA it is built on."""
    pins = [Requirement(p) for p in (ROOT / "constraints.txt").read_text().splitlines() if p[:1].isalpha()]
    pinned = {pin.name: str(pin.specifier).removeprefix("==") for pin in pins}
    versions = {part: version for part, (version, _) in gpu_image.BUILT_ON.items()}
    tag = re.search(r"tritonserver:([\d.]+)-py3", (ROOT / "docker" / "triton.Dockerfile").read_text())[1]
    assert versions == {"torch": pinned["torch"], "tritonserver": tag}
    # torch's wheels bring the bindings of the CUDA they are built on.
    assert int(pinned["cuda-bindings"].split(".")[0]) == gpu_image.BUILT_ON["torch"][1][0]
    assert gpu_image.cuda_needed() == "13.0"


UP_RUN_DOWN = """
import sys
from test_vast import Client
from photodup.serving import vast
client = Client(sys.argv[1])
ready = [{"ok": sys.argv[2] == "ready", "backend": "any", "finding": "still loading"}]
options = {"check": lambda endpoints: ready, "watch": False, "poll_s": 0.01, "wait_s": 0.05}
vast.up(client, 42, "registry/image", "rtx4090", 2, **options)
vast.down(client, "rtx4090")
"""


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("machine", ["ready", "never ready"])
def test_whenever_up_or_down_is_killed_nothing_is_left_billing(api, tmp_path, machine, late):
    """Killed at each request in turn: what is rented is written down, so a later command destroys it in its time."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT / "tests" / "servers")])}
    killed, billed = 0, 0
    while True:
        api.asked.clear()
        api.dies_at, api.dies_late, api.victim = killed + 1, late, None
        command = [sys.executable, "-c", UP_RUN_DOWN, api.url, machine]
        api.victim = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
        if api.victim.wait(60) != -signal.SIGKILL:
            break
        killed += 1
        billed += bool(api.rows)
        api.victim = None
        if api.rows:
            kept = record(tmp_path)
            assert kept["label"] == "photodup-rtx4090" and kept["until"] < time.time() + 2 * 3600
        vast.destroy_overdue(Client(api.url), now=time.time() + 2 * 3600 + 1)
        assert api.rows == {} and not list((tmp_path / "build" / "vast").glob("*.json"))
    assert killed >= 4 and billed >= 2, "an order, a wait, an end and its listing"
    assert api.rows == {}, "not killed, it gave the machine back"


# With the SDK, where it is installed.


@pytest.fixture
def sdk(api, monkeypatch):
    vastai = pytest.importorskip("vastai", reason="vastai pins another Pillow: an environment of its own")
    return vastai.VastAI(api_key=SECRET, server_url=api.url, retry=1, quiet=True)


def test_sdk_search_sends_the_floors(api, sdk):
    (row,) = find_offers(sdk, "RTX 4090", 0.6)
    sent = api.asked[0][2]
    assert row["reliability"] == 0.9931
    assert float(sent["cuda_max_good"]["gte"]) == 13.0
    assert float(sent["inet_down"]["gte"]) == 200.0
    assert float(sent["disk_space"]["gte"]) == gpu_image.DISK_GB


def test_sdk_rents_and_gives_back(api, sdk, tmp_path):
    path = rent(sdk)
    assert yaml.safe_load(path.read_text())["price_per_hour_usd"] == 0.412
    assert float(api.order()["env"]["END_AT"]) == pytest.approx(time.time() + 7200, abs=60)
    vast.down(sdk, "rtx4090")
    assert api.rows == {}
