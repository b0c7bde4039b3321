"""Reads the records of the first edition (schema version 1) in today's form.

Those records hold some facts only inside names and labels: the backend's parts, a repeat ("again 2"), a share of the
load ("50% load"), a link's round trip. This is the one place where such a text is taken apart, and it may go when
no run of that time is kept. Newer records carry the facts as columns.
"""

import re
from collections.abc import Mapping
from typing import Any

from photodup.embedding.backends import Backend, parse_backend
from photodup.errors import PhotodupError

FIELDS: dict[str, type | tuple[type, ...]] = {
    "schema_version": int,
    "key": str,
    "config": dict,
    "status": str,
    "error": (str, type(None)),
    "result": dict,
    "raw_file": (str, type(None)),
    "started_at": str,
    "duration_s": (int, float),
    "photodup_version": str,
    "git_commit": (str, type(None)),
    "git_dirty": (bool, type(None)),
    "environment_digest": str,
}
# Beginning of a key → kind of the record.
_KINDS = {
    "point-": "point",
    "devices-": "point",
    "kube-pod-": "point",
    "ladder-": "ladder",
    "link-trial-": "link_trial",
    "parallel-": "link_trial",
    "link-calibration-": "link_calibration",
    "cold-start-": "cold_start",
    "serialization-b": "bodies",
    "onnx-parity": "export_parity",
    "triton-parity": "server_parity",
    "precision-": "precision",
    "onnx-profile": "session",
    "kube-replay": "replay",
    "path-to-servers": "way",
}
# The emulated links of that time: rtt_ms, rate_mbit_s. Loss 0, cubic, initial window 10, slow start after idle.
_PRESETS = {
    "datacentre": (0.5, 10_000.0),
    "metro": (5.0, 500.0),
    "us-east": (25.0, 210.0),
    "cross-country": (70.0, 210.0),
    "home-uplink": (25.0, 20.0),
    "published-6a": (21.0, 210.0),
}
_LINK = ("rtt_ms", "rate_mbit_s", "loss", "initcwnd", "congestion", "slow_start_after_idle")
_REPEAT = re.compile(r"(.*?)[ -]?again(?: (\d+))?")
# A label that says "as deployed": none, the default among several configurations, or a share of the load.
_AS_DEPLOYED = re.compile(r"|.*\bdefault|.*\bload")


def upgrade(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of schema version 1 as one of version 2: the same measurement, its facts in columns.

    What the first edition did not record (the smallest and largest payload, the rate of an open loop as it really
    was) is left out; `payload_bytes` is that of the first request.
    """
    new = {name: value for name, value in record.items() if name != "raw_file"}
    key, config, result = record["key"], dict(record["config"]), _renamed(record["result"])
    kind = next((kind for begins, kind in _KINDS.items() if key.startswith(begins)), "")
    if kind == "cold_start":
        name, _, repeat = key.removeprefix("cold-start-").rpartition("-")
        config = {"backend": parse_backend(name).name, "repeat": int(repeat)}
        key = f"cold-start-{config['backend']}-{repeat}"
    elif "label" in config:
        key, config, result = _point(key, config, result)
    elif "scenario" in result:  # of one pod: measured without a label
        result = {**result, **_facts(result, "")}
    if spec := config.get("spec"):
        columns = {name: spec[name] for name in _LINK}
        result = {**result, **columns} if "rows" not in result else result
        result |= {"rows": [{**row, **columns} for row in result["rows"]]} if "rows" in result else {}
    return new | {
        "schema_version": 2,
        "key": key,
        "kind": kind,
        "config": config,
        "result": result,
        "has_raw": record["raw_file"] is not None,
    }


def _point(key: str, config: dict, result: dict) -> tuple[str, dict, dict]:
    old, label, repeat = str(config["backend"]), str(config["label"]), 0
    if match := _REPEAT.fullmatch(label):
        repeat = int(match[2] or 1)
        # The one repeat of a named configuration repeated the first delay of a sweep, none.
        label = "delay-0ms" if match[1] == "delay" else match[1]
        key = key.removesuffix(config["label"]).removesuffix("-") + (f"-{label}" if label else "")
        key += f"-repeat-{repeat}"
    backend = parse_backend(old)
    key = key.replace(f"-{old}-", f"-{backend.name}-", 1)
    config = config | {"backend": backend.name, "label": label, "repeat": repeat}
    facts = _facts({**config, **result}, str(label)) | {"label": label, "repeat": repeat, "round": repeat}
    return key, config, {**result, **facts}


def _facts(point: Mapping[str, Any], label: str) -> dict[str, Any]:
    """The columns that this point's names and label stand for."""
    facts = parse_backend(point["backend"]).columns() | _way(point.get("link") or "loopback")
    facts["device"] = parse_backend(point["backend"]).emulated_device or None
    share = re.fullmatch(r"(?:.*\D)?(\d+)% load", label)
    facts["load_share"] = int(share[1]) / 100 if share else None
    return facts | {"as_deployed": _AS_DEPLOYED.fullmatch(label) is not None}


def _way(link: str) -> dict[str, Any]:
    nothing = dict.fromkeys(_LINK)
    if link in _PRESETS:
        rtt_ms, rate_mbit_s = _PRESETS[link]
        return {"link": link, **dict(zip(_LINK, (rtt_ms, rate_mbit_s, 0.0, 10, "cubic", True), strict=True))}
    if link == "loopback":
        return {"link": link, **nothing, "rtt_ms": 0.0}
    network = re.fullmatch(r"network(?:-([\d.]+)ms)?", link)
    named_ms = float(network[1]) if network and network[1] else None
    return {"link": "network" if network else link, **nothing, "rtt_ms": named_ms}


def _renamed(value: Any) -> Any:
    """Write the backends in a result as they are written now, wherever they stand in it."""
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {name: _renamed(item) for name, item in value.items()}
    if isinstance(name := found.get("backend"), str) and (backend := _backend(name)):
        found["backend"] = backend.name
        if found.get("server"):
            found["server"] = backend.server
    return found


def _backend(name: str) -> Backend | None:
    try:
        return parse_backend(name)
    except PhotodupError:  # a result may call something else its backend, such as a library
        return None
