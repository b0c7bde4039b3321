"""Renting against a real HTTP server that answers in the shape of Vast.ai's API; no account, no money.

The paths and fields are those that the SDK (vastai 1.9.1) sends and reads. The SDK itself is tried where it is
installed (it pins another Pillow, so it is not in this project's environment); the container's own watchman always.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

import httpx
import pytest
import yaml
from packaging.requirements import Requirement
from support.http_server import Handler, serving
from support.paths import ROOT
from support.service import until
from support.vast import ROW, SECRET

from photodup.errors import PhotodupError
from photodup.serving import gpu_image, vast
from photodup.serving.vast import find_offers

OFFER = {
    "id": 42, "gpu_name": "RTX 4090", "num_gpus": 1, "dph_total": 0.41239, "geolocation": "Texas, US",
    "reliability2": 0.9931, "inet_down": 812.4, "inet_up": 500.1, "inet_down_cost": 0.004, "inet_up_cost": 0.006,
    "disk_space": 412.0, "cuda_max_good": 13.0, "driver_version": "580.95.05", "direct_port_count": 99,
}  # fmt: skip
FULL_ROW = {**ROW, "start_date": 0.0, "extra_env": [["END_AT", "1"]]}


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
        if api.refuse and re.search(api.refuse, f"{self.command} {path}"):
            return self.answer({"msg": "later"}, 503)
        if path.endswith("/bundles/"):
            return self.answer({"offers": [OFFER]})
        if "/asks/" in path:
            api.rows[ROW["id"]] = {**FULL_ROW, "label": body["label"]}
            if api.swallow_order:
                return self.answer({"msg": "gateway"}, 502)
            return self.answer({"success": True, "new_contract": ROW["id"], "instance_api_key": SECRET})
        if self.command == "DELETE":
            api.rows.pop(int(path.strip("/").split("/")[-1]), None)
            return self.answer({"success": True})
        if path.startswith("/api/v1/instances"):
            return self.answer({"instances": list(api.rows.values()), "next_token": None})
        return self.answer({"instances": api.rows.get(int(path.strip("/").split("/")[-1]))})

    do_GET = do_PUT = do_POST = do_DELETE = serve


class Api:
    def __init__(self):
        self.rows, self.asked, self.refuse, self.swallow_order = {}, [], "", False
        self.victim: subprocess.Popen | None = None
        # At its nth request the victim is killed, before or after it is done.
        self.dies_at, self.dies_late, self.url = 0, False, ""


@pytest.fixture
def api(tmp_path, monkeypatch):
    (tmp_path / "notebooks" / "endpoints").mkdir(parents=True)
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    with serving(VastApi, api=Api()) as server:
        server.api.url = f"http://127.0.0.1:{server.server_port}"
        yield server.api


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
    api.rows[ROW["id"]] = FULL_ROW
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
    api.rows[ROW["id"]], api.refuse = FULL_ROW, "DELETE"
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
    pins = [
        Requirement(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line[:1].isalpha()
    ]
    pinned = {pin.name: str(pin.specifier).removeprefix("==") for pin in pins}
    versions = {part: version for part, (version, _) in gpu_image.BUILT_ON.items()}
    tag = re.search(r"tritonserver:([\d.]+)-py3", (ROOT / "docker" / "triton.Dockerfile").read_text())[1]

    assert versions == {"torch": pinned["torch"], "tritonserver": tag}
    # torch's wheels bring the bindings of the CUDA they are built on.
    assert int(pinned["cuda-bindings"].split(".")[0]) == gpu_image.BUILT_ON["torch"][1][0]
    assert gpu_image.cuda_needed() == "13.0"


class Client:
    """The SDK's methods over HTTP, where the SDK is not installed."""

    def __init__(self, url):
        self.http = httpx.Client(base_url=f"{url}/api", timeout=60)

    def create_instance(self, id, **order):
        return self.http.put(f"/v0/asks/{id}/", json=order).raise_for_status().json()

    def show_instance(self, id):
        return self.http.get(f"/v0/instances/{id}/").raise_for_status().json()["instances"]

    def show_instances(self):
        return self.http.get("/v1/instances/").raise_for_status().json()["instances"]

    def destroy_instance(self, id):
        return self.http.delete(f"/v0/instances/{id}/").raise_for_status().json()


UP_RUN_DOWN = """
import sys
from test_vast_http import Client
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
            record = json.loads((tmp_path / "build" / "vast" / "rtx4090.json").read_text())
            assert record["label"] == "photodup-rtx4090" and record["until"] < time.time() + 2 * 3600
        vast.destroy_overdue(Client(api.url), now=time.time() + 2 * 3600 + 1)
        assert api.rows == {} and not list((tmp_path / "build" / "vast").glob("*.json"))
    assert killed >= 4 and billed >= 2, "an order, a wait, an end and its listing"
    assert api.rows == {}, "not killed, it gave the machine back"


# With the SDK, where it is installed.


@pytest.fixture
def sdk(api, monkeypatch):
    vastai = pytest.importorskip("vastai", reason="vastai pins another Pillow: an environment of its own")
    return vastai.VastAI(api_key=SECRET, server_url=api.url, retry=1, quiet=True)


def rent(client, **options):
    ready = [{"ok": True, "backend": "any", "finding": "ready"}]
    options = {"check": lambda endpoints: ready, "watch": False, "poll_s": 0.01, "wait_s": 5} | options
    return vast.up(client, 42, "registry/image", "rtx4090", 2, **options)


def test_sdk_search_sends_the_floors_and_shows_the_price_of_the_pull(api, sdk):
    (row,) = find_offers(sdk, "RTX 4090", 0.6)
    sent = api.asked[0][2]

    assert float(sent["cuda_max_good"]["gte"]) == 13.0
    assert float(sent["inet_down"]["gte"]) == 200.0
    assert float(sent["disk_space"]["gte"]) == gpu_image.DISK_GB
    assert row["reliability"] == 0.9931 and row["down_mbit_per_s"] == 812.4
    assert row["pull_usd"] == pytest.approx(25 * 0.004)
    assert row["pull_minutes"] == pytest.approx(25 * 8000 / 812.4 / 60)


def test_sdk_rents_and_gives_back(api, sdk, tmp_path):
    path = rent(sdk)
    order = next(body for verb, path_, body, _ in api.asked if verb == "PUT")

    assert yaml.safe_load(path.read_text())["price_per_hour_usd"] == 0.412
    assert float(order["env"]["END_AT"]) == pytest.approx(time.time() + 7200, abs=60)
    vast.down(sdk, "rtx4090")
    assert api.rows == {}


def test_sdk_an_order_and_a_listing_that_both_fail_leave_a_record(api, sdk, tmp_path):
    api.swallow_order, api.refuse = True, "GET"
    with pytest.raises(PhotodupError):
        rent(sdk)
    record = json.loads((tmp_path / "build" / "vast" / "rtx4090.json").read_text())
    assert (record["label"], record["instance"]) == ("photodup-rtx4090", None)
    assert api.rows

    api.refuse = ""
    assert vast.destroy_overdue(sdk, now=time.time() + 601) == ["rtx4090"]
    assert api.rows == {}
