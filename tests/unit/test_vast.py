"""Renting at Vast.ai, against a stand-in for the SDK's client: its answers have the documented shape.

There is no account to test with: nothing here shows that Vast.ai itself behaves so.
"""

import inspect
import json
import subprocess
import sys
import time
import types

import pytest
from support.vast import ROW, SECRET
from typer.testing import CliRunner

from photodup.errors import PhotodupError
from photodup.serving import commands, vast
from photodup.serving.control_key import VARIABLE
from photodup.serving.endpoints import load_endpoints
from photodup.serving.vast import find_offers


class HTTPError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"{status} for https://console.vast.ai/api/v0/instances/?api_key={SECRET}")
        self.response = type("Response", (), {"status_code": status})


class Account:
    """Stands in for `vastai.VastAI`: keeps instances, and counts what was asked."""

    def __init__(self) -> None:
        self.instances: dict[int, dict] = {}
        self.asked: list[tuple[str, dict]] = []
        self.fail: dict[str, Exception] = {}
        self.rows = [ROW]
        self.destroy_works = True

    def _note(self, method: str, **arguments):
        self.asked.append((method, arguments))
        if method in self.fail:
            raise self.fail[method]

    def search_offers(self, query, order, limit, storage):
        self._note("search_offers", query=query, order=order)
        offer = {"id": 42, "gpu_name": "RTX 4090", "dph_total": 0.41239, "geolocation": "Texas, US"}
        return [offer | {"reliability2": 0.99, "inet_down": 900.0}]

    def create_instance(self, id, image, disk, env, label, runtype, args, cancel_unavail):
        self.instances[ROW["id"]] = {"id": ROW["id"], "label": label}
        self._note("create_instance", id=id, env=env, label=label, runtype=runtype, args=args)
        return {"success": True, "new_contract": ROW["id"], "instance_api_key": SECRET}

    def show_instance(self, id):
        self._note("show_instance")
        if id not in self.instances:
            return None
        return self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]

    def show_instances(self):
        self._note("show_instances")
        return list(self.instances.values())

    def destroy_instance(self, id):
        self._note("destroy_instance", id=id)
        if self.destroy_works:
            self.instances.pop(id, None)
        return {"success": True}


@pytest.fixture
def account(tmp_path, monkeypatch) -> Account:
    (tmp_path / "notebooks" / "endpoints").mkdir(parents=True)
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    monkeypatch.setenv("VAST_API_KEY", SECRET)
    return Account()


def rent(account: Account, **options):
    ready = [{"ok": True, "backend": "any", "finding": "ready"}]
    options = {"check": lambda endpoints: ready, "watch": False, "poll_s": 0.01, "wait_s": 5} | options
    return vast.up(
        account, 42, "registry/photodup-all-in-one", "rtx4090", options.pop("max_hours", 2), **options
    )


def record(tmp_path) -> dict:
    return json.loads((tmp_path / "build" / "vast" / "rtx4090.json").read_text())


def test_offers_ask_for_what_the_image_needs(account):
    rows = find_offers(account, "RTX 4090", 0.6)
    assert rows[0]["offer"] == 42 and rows[0]["price_per_hour_usd"] == 0.4124
    query = account.asked[0][1]["query"]
    assert "gpu_name=RTX_4090" in query and "direct_port_count>=4" in query and "dph_total<=0.6" in query
    assert "num_gpus=1 " in query and rows[0]["gpus"] == 1
    assert "cuda_max_good>=13.0" in query and "disk_space>=80" in query and "inet_down>=200" in query
    (row,) = find_offers(account, "RTX 4090", gpus=4)
    assert "num_gpus=4 " in account.asked[1][1]["query"] and row["gpus"] == 4


def test_the_rented_triton_is_controlled_with_a_key_of_its_own(account, tmp_path):
    account.rows = [ROW | {"num_gpus": 4}]
    path = rent(account)
    order = next(arguments for method, arguments in account.asked if method == "create_instance")
    endpoints = load_endpoints(path)
    assert len(order["env"][VARIABLE]) == 64
    assert endpoints.triton_control_key.get_secret_value() == order["env"][VARIABLE]
    assert endpoints.gpus == 4
    for file in (path, tmp_path / "build" / "vast" / "rtx4090.json"):
        assert file.stat().st_mode & 0o077 == 0, file.name
    again = vast.write_endpoints(account, "rtx4090")  # ports change when a machine restarts, the key does not
    assert load_endpoints(again).triton_control_key == endpoints.triton_control_key


def test_up_waits_and_writes_the_port_map_with_price_and_place(account, tmp_path):
    account.rows = [{"id": ROW["id"], "actual_status": "loading"}, ROW | {"ports": {}}, ROW]
    lines: list[str] = []
    endpoints = load_endpoints(rent(account, progress=lines.append))
    assert endpoints.backends["fastapi-pytorch-fp32-http-jpeg"] == "http://203.0.113.7:38002"
    assert endpoints.backends["triton-onnx-fp32-http-fp32"] == "http://203.0.113.7:38003"
    assert endpoints.backends["triton-trt-fp16-grpc-fp32"] == "203.0.113.7:38004"
    assert endpoints.metrics["triton"] == "http://203.0.113.7:38005/metrics"
    assert (endpoints.gpu, endpoints.price_per_hour_usd) == ("RTX 4090", 0.412)
    assert endpoints.location == "Vast.ai, Texas, US"
    assert any("port 8002 is not mapped" in line or "no address" in line for line in lines)
    order = next(arguments for method, arguments in account.asked if method == "create_instance")
    assert {f"-p {port}:{port}" for port in vast.PORTS} <= order["env"].keys()
    assert order["runtype"] == "args" and order["args"] == ["start-all"]
    for end in (record(tmp_path)["until"], float(order["env"]["END_AT"])):
        assert end == pytest.approx(time.time() + 7200, abs=60)


LOADING = [{"ok": False, "backend": "b", "finding": "loading"}]


@pytest.mark.parametrize(
    ("there", "options", "message"),
    [
        ({}, {"check": lambda e: LOADING, "wait_s": 0.05}, "in time"),
        ({}, {"check": lambda e: (_ for _ in ()).throw(KeyboardInterrupt)}, None),
        ({}, {"check": lambda e: 1 / 0}, None),
        ({"rows": [ROW | {"actual_status": "exited"}]}, {}, "is exited"),
        ({"create_instance": lambda **order: {"success": False}}, {}, "may be taken"),
        ({"fail": {"create_instance": TimeoutError()}}, {}, "create instance"),  # its answer was lost
    ],
)
def test_whatever_goes_wrong_the_machine_is_given_back(account, tmp_path, there, options, message):
    vars(account).update(there)
    with pytest.raises((PhotodupError, KeyboardInterrupt, ZeroDivisionError), match=message):
        rent(account, **options)
    assert account.instances == {}
    assert not list((tmp_path / "build" / "vast").glob("*.json"))


def test_an_order_and_a_listing_that_both_fail_leave_a_record_and_a_watchdog(account, tmp_path):
    """Nothing answers: what was ordered is still destroyed, by its label, as soon as something does."""
    account.fail = {"create_instance": TimeoutError(), "show_instances": TimeoutError()}
    with pytest.raises(PhotodupError, match="create instance"):
        rent(account)
    assert account.instances and record(tmp_path)["instance"] is None
    assert record(tmp_path)["label"] == "photodup-rtx4090"
    assert record(tmp_path)["until"] < time.time() + 700

    account.fail = {}
    assert vast.unnoticed(account) == []
    vast.destroy_overdue(account, now=time.time() + 700)
    assert account.instances == {} and not list((tmp_path / "build" / "vast").glob("*.json"))


def test_the_record_is_written_before_the_order(account, tmp_path):
    seen = []
    real = account.create_instance
    account.create_instance = lambda **order: seen.append(record(tmp_path)) or real(**order)
    rent(account)
    assert seen[0]["instance"] is None and seen[0]["label"] == "photodup-rtx4090"
    assert record(tmp_path)["instance"] == ROW["id"]


@pytest.mark.parametrize("max_hours", [0, -1, 1000, float("nan")])
def test_nothing_is_rented_without_an_end(account, max_hours):
    with pytest.raises(PhotodupError, match="--max-hours"):
        rent(account, max_hours=max_hours)
    assert account.asked == []


def test_one_name_is_not_rented_twice(account):
    rent(account)
    with pytest.raises(PhotodupError, match="already rented"):
        rent(account)


def test_down_believes_the_list_and_not_the_answer(account, tmp_path):
    rent(account)
    account.destroy_works = False
    with pytest.raises(PhotodupError, match="COSTS MONEY"):
        vast.down(account, "rtx4090")
    assert record(tmp_path)["instance"] == ROW["id"]
    account.destroy_works = True
    vast.down(account, "rtx4090")
    vast.down(account, "rtx4090")
    assert account.instances == {} and not (tmp_path / "build/vast/rtx4090.json").exists()


def test_destroyed_only_when_the_time_is_over(account):
    rent(account)
    assert vast.destroy_overdue(account) == [] and account.instances
    assert vast.destroy_overdue(account, now=time.time() + 7300) == ["rtx4090"]
    assert account.instances == {}


def test_watchdog_destroys_tries_again_and_ends(account, tmp_path):
    rent(account)
    path = tmp_path / "build" / "vast" / "rtx4090.json"
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 1:  # it was not time yet; now it is, but the network is away
            assert account.instances
            path.write_text(json.dumps(record(tmp_path) | {"until": time.time() - 1}))
            account.fail = {"destroy_instance": ConnectionError()}
        if len(naps) == 2:
            assert account.instances
            account.fail = {}

    vast.watchdog("rtx4090", lambda: account, sleep)
    assert account.instances == {} and len(naps) == 3 and max(naps) <= 300


def test_up_leaves_a_real_process_that_ends_with_the_record(account, tmp_path, monkeypatch):
    started: list[subprocess.Popen] = []
    real = subprocess.Popen
    monkeypatch.setattr(
        vast.subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[-1]
    )
    rent(account, watch=True)
    try:
        time.sleep(1)
        assert started[0].poll() is None, (tmp_path / "build/vast/rtx4090.log").read_text()
    finally:
        started[0].terminate()
        started[0].wait(120)
    vast.down(account, "rtx4090")
    command = [sys.executable, "-m", "photodup.serving.vast", "rtx4090"]
    assert subprocess.run(command, timeout=300).returncode == 0


def test_instances_of_another_machine_are_named(account):
    account.instances = {
        1: {"id": 1, "label": "photodup-x"},
        2: {"id": 2, "label": "other"},
        3: {"id": 3, "label": None},
    }
    assert vast.unnoticed(account) == [1]


def test_the_key_is_neither_printed_nor_stored(account, tmp_path, monkeypatch):
    monkeypatch.setattr(vast, "connect", lambda: account)
    output = []
    rent(account, progress=output.append)
    account.fail = {"show_instance": HTTPError(401)}
    result = CliRunner().invoke(commands.vast, ["endpoints", "rtx4090"])
    assert isinstance(result.exception, PhotodupError)
    assert str(result.exception) == "Vast.ai refused show instance (HTTP 401). Is the API key right?"
    assert result.exception.__cause__ is None and result.exception.__suppress_context__
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 2
    assert SECRET not in "".join([*written, *output, result.output, str(result.exception)])


def test_commands(account, monkeypatch):
    monkeypatch.setattr(vast, "connect", lambda: account)
    run = CliRunner()
    offers = run.invoke(commands.vast, ["offers", "--gpu", "RTX 4090"]).output
    assert "42  1 × RTX 4090" in offers and "900 Mbit/s  reliability 99.0%" in offers
    assert "for the image in 4 min" in offers and "Traffic is billed apart" in offers
    assert (
        run.invoke(commands.vast, ["up", "42", "--image", "i", "--name", "n"]).exit_code == 2
    )  # no --max-hours
    rent(account)
    assert "rtx4090.yaml" in run.invoke(commands.vast, ["endpoints", "rtx4090"]).output
    assert "destroyed" in run.invoke(commands.vast, ["down", "rtx4090"]).output
    assert account.instances == {}


@pytest.mark.parametrize("missing", ["vastai", "tritonclient.grpc"])
def test_what_renting_needs_is_missed_before_anything_costs(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, "vastai", types.ModuleType("vastai"))
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(PhotodupError, match=f"needs {missing.split('.')[0]}: .*pip install vastai"):
        vast.connect()


def test_the_sdk_has_the_methods_and_arguments_we_use():
    client = pytest.importorskip(
        "vastai", reason="vastai pins another Pillow: an environment of its own"
    ).VastAI
    for name in ("search_offers", "create_instance", "show_instance", "show_instances", "destroy_instance"):
        ours = set(inspect.signature(getattr(Account, name)).parameters)
        assert ours <= set(inspect.signature(getattr(client, name)).parameters), name
