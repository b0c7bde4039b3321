"""Rent a machine on Vast.ai, write its endpoints file, and give it back. Not run here: no account was at hand.

Money is the danger, so an instance is written down *before it is ordered*, by its label, in build/vast/NAME.json with
the time it must be gone. Four things hold to that time: a process that `up` leaves behind, every later `photodup vast`
command, `down`, which believes only that the instance is no longer listed, and the container itself (docker/end-itself.sh).

The API key is read by the SDK itself (VAST_API_KEY, or the file that `vastai set api-key` writes). It is never
printed or stored here. Answers of the API hold tokens too, so only named fields are kept. The machine's Triton gets a
control key of its own, made here, kept beside the record and in the endpoints file, both readable for this user alone.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from photodup.errors import PhotodupError
from photodup.files import write_atomically
from photodup.paths import build_dir, project_root
from photodup.serving.check import check as ask_servers
from photodup.serving.control_key import VARIABLE, new_key
from photodup.serving.endpoints import UNKNOWN_GPU, Endpoints, from_ports, save_endpoints
from photodup.serving.gpu_image import DISK_GB, DOWN_MBIT_PER_S, IMAGE_GB, cuda_needed
from photodup.settings import inherited

PORTS = (8002, 8003, 8004, 8005)
CONSOLE = "https://cloud.vast.ai/instances/"
_LABEL = "photodup-"
_LATE_S = 600.0  # how long an order without an answer may take to appear


def connect() -> Any:
    """Return the SDK's client.

    Raises:
        PhotodupError: the SDK is not installed, or finds no API key.
    """
    try:
        import tritonclient.grpc  # noqa: F401  (asks the rented machine later; not to be missed when it costs)
        from vastai import VastAI
    except ImportError as error:
        raise PhotodupError(
            f"Renting needs {(error.name or 'vastai').split('.')[0]}: in a second environment (the SDK pins another "
            "Pillow), pip install vastai 'tritonclient[grpc]' and photodup itself."
        ) from None
    try:
        return VastAI(quiet=True)
    except RuntimeError:
        raise PhotodupError(
            "Vast.ai's SDK finds no API key: set VAST_API_KEY or run `vastai set api-key`."
        ) from None


def up(
    client: Any,
    offer: int,
    image: str,
    name: str,
    max_hours: float,
    *,
    wait_s: float = 1800,
    pretrained: str = "laion2b_s34b_b79k",
    poll_s: float = 10,
    check: Callable[[Endpoints], list[dict[str, Any]]] | None = None,
    watch: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Path:
    """Rent `offer`, wait until every backend answers, and return the endpoints file.

    Whatever goes wrong after the machine was rented, Ctrl-C too, it is destroyed again.

    Args:
        max_hours: It is destroyed after this long. There is no default: nobody knows it but you.
        wait_s: Longest wait until ready; the image is many gigabytes and TensorRT compiles at the first start.
        check: As `serving.check.check`.
        watch: Leave a process behind that destroys the instance when its time is over.
    """
    if not 0 < max_hours <= 72:
        raise PhotodupError(
            f"--max-hours {max_hours:g}: give the hours after which it is destroyed, up to 72."
        )
    Endpoints(
        name=name, backends={"fastapi-pytorch-fp32-http-jpeg": "http://h:1"}
    )  # a bad name must not cost anything
    if _record_path(name).exists():
        raise PhotodupError(
            f"{name} is already rented: `photodup vast down {name}` first, or choose another name."
        )
    until = time.time() + max_hours * 3600
    env = {f"-p {port}:{port}": "1" for port in PORTS} | {"MODEL_PRETRAINED": pretrained}
    key = new_key()
    env |= {"END_AT": str(round(until)), VARIABLE: key}  # docker/end-itself.sh, docker/start-triton.sh
    # runtype "args" keeps the image's own entry point; "ssh" and "jupyter" would replace it.
    order = {"id": offer, "image": image, "disk": DISK_GB, "env": env, "label": _LABEL + name}
    # Before the order: whatever becomes of its answer, the name, the label and the time are known here.
    _write_record(name, None, until, key)
    if watch:
        _leave_watchdog(name)
    try:
        answer = ask(
            client, "create_instance", **order, runtype="args", args=["start-all"], cancel_unavail=True
        )
    except BaseException:
        _undo_order(client, name)
        raise
    if not (answer.get("success") and answer.get("new_contract")):
        if answer.get("success") is False:
            _forget(name, True)
        else:  # neither a no nor a number
            _undo_order(client, name)
        raise PhotodupError(
            f"Vast.ai did not rent offer {offer}: it may be taken; see `photodup vast offers`."
        )
    instance = int(answer["new_contract"])
    try:
        _write_record(name, instance, until, key)
        progress(f"instance {instance} is rented; it is destroyed after {max_hours:g} h")
        return _wait(
            client, name, instance, time.monotonic() + wait_s, poll_s, check or ask_servers, progress
        )
    except BaseException:
        progress(f"destroying instance {instance}")
        _destroy(client, name, instance)
        raise


def write_endpoints(client: Any, name: str) -> Path:
    """Write `notebooks/endpoints/NAME.yaml` from the port map, price and place of a rented instance."""
    record = _read_record(name)
    instance = record["instance"]
    row = ask(client, "show_instance", id=instance) if instance is not None else None
    if not row:
        raise PhotodupError(f"{name} is no longer rented: `photodup vast down {name}` tidies up.")
    path = project_root() / "notebooks" / "endpoints" / f"{name}.yaml"
    save_endpoints(endpoints_of(row, name, record.get("control_key")), path)
    return path


def endpoints_of(row: dict[str, Any], name: str, key: str | None = None) -> Endpoints:
    """Translate the SDK's description of an instance; `key` opens its Triton's control.

    Raises:
        PhotodupError: it has no address yet, or a port is not mapped.
    """
    host, ports = (row.get("public_ipaddr") or "").strip(), row.get("ports") or {}
    missing = [port for port in PORTS if not ports.get(f"{port}/tcp")]
    if not host or missing:
        what = f"port {missing[0]} is not mapped" if host else "it has no address"
        raise PhotodupError(f"Instance {row.get('id')} cannot be reached yet: {what}.")
    # Every port is mapped to a random one of the host, the same for IPv4 and IPv6.
    outside = [int(ports[f"{port}/tcp"][0]["HostPort"]) for port in PORTS]
    return from_ports(
        host,
        *outside,
        name=name,
        gpu=row.get("gpu_name") or UNKNOWN_GPU,
        gpus=row.get("num_gpus") or 1,
        engines=("onnx", "trt"),
        price_per_hour_usd=row.get("dph_total"),
        location=f"Vast.ai, {row.get('geolocation') or 'place unknown'}",
        triton_control_key=key,
    )


def down(client: Any, name: str, now: float | None = None) -> None:
    """Destroy the instance and make sure that it is gone; nothing to do is no error.

    An order whose answer never came may still appear: where nothing of its label is listed before its time is over, the
    record stays for ten minutes more, for the watchdog and every later command.

    Raises:
        PhotodupError: it is still listed. It costs money until it is destroyed in the console.
    """
    if not _record_path(name).exists():
        return
    now = time.time() if now is None else now
    record = _read_record(name)
    if record["instance"] is not None:
        _destroy(client, name, int(record["instance"]))
    else:
        _forget(name, _destroy_labelled(client, name) > 0 or record["until"] <= now)


def destroy_overdue(client: Any, now: float | None = None) -> list[str]:
    """Destroy what is past its time and return the names; called before each command.

    Raises:
        PhotodupError: some are still there; the others are destroyed all the same.
    """
    now = time.time() if now is None else now
    names = [path.stem for path in sorted(_folder().glob("*.json"))]
    overdue = [name for name in names if _read_record(name)["until"] <= now]
    failures = []
    for name in overdue:
        try:
            down(client, name, now)
        except PhotodupError as error:
            failures.append(str(error))
    if failures:
        raise PhotodupError(" ".join(failures))
    return overdue


def unnoticed(client: Any) -> list[int]:
    """List instances that carry our label but are written down nowhere on this machine."""
    known = {_LABEL + path.stem for path in _folder().glob("*.json")}
    rows = ask(client, "show_instances")
    labels = {row["id"]: str(row.get("label") or "") for row in rows}
    return [i for i, label in labels.items() if label.startswith(_LABEL) and label not in known]


def watchdog(
    name: str, connect: Callable[[], Any] = connect, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until the time of `name` is over, then destroy it; ends early when `down` has removed the record.

    Tries again for ever: the network may be away, and giving up costs money.
    """
    while _record_path(name).exists():
        left = _read_record(name)["until"] - time.time()
        if left <= 0:
            try:
                down(connect(), name)
            except PhotodupError as error:
                print(error, file=sys.stderr, flush=True)
        sleep(min(max(left, 60), 300))  # short naps: a laptop that slept wakes up late


def _wait(client, name, instance, deadline, poll_s, check, progress) -> Path:
    problem, began = "it has not started", time.monotonic()
    while time.monotonic() < deadline:
        row = ask(client, "show_instance", id=instance) or {}
        if row.get("actual_status") in ("exited", "offline"):
            raise PhotodupError(f"Instance {instance} is {row['actual_status']}: see its log at {CONSOLE}.")
        try:
            endpoints = endpoints_of(row, name)
            bad = [r for r in check(endpoints) if not r["ok"]]
            if not bad:
                progress(f"every backend answers {time.monotonic() - began:.0f} s after the order")
                return write_endpoints(client, name)
            problem = f"{bad[0]['backend']}: {bad[0]['finding']}"
        except PhotodupError as error:
            problem = str(error)
        progress(f"{row.get('actual_status') or 'provisioning'}: {problem}")
        time.sleep(poll_s)
    raise PhotodupError(f"Instance {instance} was not ready in time and is destroyed again. Last: {problem}")


def _undo_order(client: Any, name: str) -> None:
    """Destroy what an order left behind although its answer was lost; it may still appear, as `down` says."""
    try:
        found = _destroy_labelled(client, name)
    except PhotodupError:
        found = 0
    _forget(name, found > 0)


def _forget(name: str, is_gone: bool) -> None:
    """Remove the record of a machine that is gone, or keep it for as long as one may still appear."""
    if is_gone:
        _record_path(name).unlink(missing_ok=True)
    else:
        _write_record(name, None, time.time() + _LATE_S)


def _destroy_labelled(client: Any, name: str) -> int:
    """Destroy every instance with the label of `name`; return how many there were."""
    mine = [row["id"] for row in ask(client, "show_instances") if row.get("label") == _LABEL + name]
    for instance in mine:
        _destroy(client, name, instance)
    return len(mine)


def _destroy(client: Any, name: str, instance: int) -> None:
    refused = ""  # also where it was destroyed in the console: only the list tells
    try:
        ask(client, "destroy_instance", id=instance)
    except PhotodupError as error:
        refused = f"{error} "
    try:
        gone = not any(row["id"] == instance for row in ask(client, "show_instances"))
    except PhotodupError as error:
        raise PhotodupError(f"{error} INSTANCE {instance} MAY STILL COST MONEY: look at {CONSOLE}.") from None
    if not gone:
        raise PhotodupError(
            f"{refused}INSTANCE {instance} IS STILL THERE AND COSTS MONEY: destroy it at {CONSOLE}."
        )
    _forget(name, True)


def _leave_watchdog(name: str) -> None:
    command = [sys.executable, "-P", "-m", "photodup.serving.vast", name]
    env = inherited(PHOTODUP_ROOT=str(project_root()))
    with (_folder() / f"{name}.log").open("a") as log:
        subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env=env
        )


def _folder() -> Path:
    folder = build_dir() / "vast"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _record_path(name: str) -> Path:
    return _folder() / f"{name}.json"


def _write_record(name: str, instance: int | None, until: float, key: str | None = None) -> None:
    when = datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds")
    row = {"label": _LABEL + name, "instance": instance, "until": until, "destroyed_after": when}
    row |= {"control_key": key} if key else {}
    write_atomically(_record_path(name), json.dumps(row), mode=0o600)  # the watchdog reads it at any moment


def _read_record(name: str) -> dict[str, Any]:
    try:
        return json.loads(_record_path(name).read_text())
    except FileNotFoundError:
        raise PhotodupError(f"Nothing called {name} is rented; `photodup vast up` rents it.") from None


def find_offers(
    client: Any,
    gpu: str,
    max_price_per_hour_usd: float | None = None,
    *,
    gpus: int = 1,
) -> list[dict[str, Any]]:
    """List offers that can run the all-in-one image, the cheapest first.

    Args:
        gpus: how many of them one machine has. Only Triton uses more than one: an instance of each model on each.

    Traffic is billed apart from the hourly price, so the pull of the image is priced too (`gpu_image.IMAGE_GB`).

    Returns:
        Rows with `offer`, `gpu`, `gpus`, `price_per_hour_usd` (of all, with the disk), `location`, `reliability` (0 to 1),
        `down_mbit_per_s`, `pull_usd` and `pull_minutes`.
    """
    query = (
        f"gpu_name={gpu.replace(' ', '_')} num_gpus={gpus} direct_port_count>={len(PORTS)} reliability>0.98"
    )
    query += f" cuda_max_good>={cuda_needed()} disk_space>={DISK_GB:g} inet_down>={DOWN_MBIT_PER_S:g}"
    if max_price_per_hour_usd is not None:
        query += f" dph_total<={max_price_per_hour_usd}"
    found = ask(client, "search_offers", query=query, order="dph_total", limit=10, storage=DISK_GB)
    return [
        {
            "offer": offer["id"],
            "gpu": offer["gpu_name"],
            "gpus": offer.get("num_gpus") or gpus,
            "price_per_hour_usd": round(offer["dph_total"], 4),
            "location": offer.get("geolocation") or "",
            "reliability": offer.get("reliability2") or offer.get("reliability"),
            "down_mbit_per_s": offer.get("inet_down"),
            "pull_usd": IMAGE_GB * (offer.get("inet_down_cost") or 0.0),
            "pull_minutes": IMAGE_GB * 8000 / offer["inet_down"] / 60 if offer.get("inet_down") else None,
        }
        for offer in found
    ]


def ask(client: Any, method: str, **arguments: Any) -> Any:
    """Call the SDK. Its exceptions are replaced by their kind and status: their text may hold the key."""
    try:
        return getattr(client, method)(**arguments)
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        detail = f"HTTP {status}" if status else type(error).__name__
        hint = " Is the API key right?" if status in (401, 403) else ""
        raise PhotodupError(f"Vast.ai refused {method.replace('_', ' ')} ({detail}).{hint}") from None


if __name__ == "__main__":
    watchdog(sys.argv[1])
