"""Both sides of every declared pair run the same engine with the same settings, or their labels name the difference.

Read from the servers: `runtime` of FastAPI's /info, `photodup_runtime` of Triton's metrics.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import numpy as np
import psutil
import pytest
import yaml
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from skimage import data
from support.hostile_images import encode
from support.images import photographs
from support.paths import ROOT
from support.processor import needs_int8
from support.service import Running, as_files, start
from support.triton import infer, needs_triton

from photodup.bench.anyurl.target import target_of
from photodup.bench.verify.checks import verify_server
from photodup.embedding.backends import parse_backend
from photodup.embedding.engines import model as engines
from photodup.embedding.engines.quantise import quantise
from photodup.embedding.engines.reduced import source_of
from photodup.serving.triton.repository import render_repository, with_steps
from photodup.serving.triton.server import EmbeddedTriton

DECLARED = yaml.safe_load((ROOT / "notebooks" / "comparisons.yaml").read_text())
# What a label says of a side, where it says it: HTTP, a JPEG and FP32 are what is usual.
WORDS = {
    "server": {"fastapi": "FastAPI", "triton": "Triton"},
    "engine": {"pytorch": "PyTorch", "onnx": "ONNX Runtime", "openvino": "OpenVINO", "trt": "TensorRT"},
    "precision": {"fp32": "", "bf16": "BF16", "int8": "INT8", "fp16": "FP16"},
    "protocol": {"http": "", "grpc": "gRPC"},
    "wire": {"jpeg": "", "fp32": "tensor", "json": "JSON"},
}
SETTINGS = {"instances": "instance", "threads": "thread", "delay_us": "batch", "preferred": "batch"}
# What an engine brings with it; the threads and the decoder are nobody's but the servers'.
OF_THE_ENGINE = {"library", "version", "spinning", "streams", "computes_in"}
pytestmark = [needs_int8, needs_triton()]


def pairs() -> list[tuple[str, str]]:
    rows = [row for rows in DECLARED["comparisons"].values() for row in rows]
    found = [pair for row in rows for pair in ([row["a"], row["b"]], *row.get("alternatives", []))]
    return sorted({(a, b) for a, b in found})


def unnamed(a: dict, b: dict, labels: tuple[str, str], settings: tuple[dict, dict]) -> list[str]:
    """Return in what two sides differ and no label says so; `a` and `b` are parts of a backend's name and a report.

    TensorRT and an emulated device are not run here and report nothing; their names are compared.
    """
    missing = []
    for key in a.keys() | b.keys() if ("library" in a) == ("library" in b) else WORDS.keys():
        if a.get(key) == b.get(key) or (key in OF_THE_ENGINE and a["engine"] != b["engine"]):
            continue
        if key == "computes_in" and a["precision"] != b["precision"]:
            continue
        words = [WORDS.get(key, {}).get(side.get(key)) for side in (a, b)]
        if None in words or not all(word in label for word, label in zip(words, labels, strict=True)):
            missing.append(f"{key}: {a.get(key)} and {b.get(key)}")
    for key in settings[0].keys() | settings[1].keys():
        if settings[0].get(key) != settings[1].get(key) and not all(SETTINGS[key] in one for one in labels):
            missing.append(f"{key} of the settings")
    return missing


class Both:
    """A FastAPI for each engine and precision, one Triton with all of them, and what they report."""

    def __init__(self, folder, exports, stack: ExitStack, pytorch: Running) -> None:
        self.choices = [("onnx", "fp32"), ("openvino", "fp32"), ("openvino", "int8")]
        self.choices += [("openvino", "bf16")] if engines.can_compute("bf16") else []
        source = source_of(exports["fp32"])
        self.weights = f"onnx:{source.path}"
        made = quantise(source, photographs(32), engine="openvino", directory=folder / "build" / "models")
        self.services, names = {}, []
        for engine, precision in self.choices:
            computes = {"ENGINE": engine, "PRECISION": precision}
            service = start(folder, MODEL_PRETRAINED=self.weights, **computes, PHOTODUP_ROOT=folder)
            stack.callback(service.stop)
            self.services[engine, precision] = service
            names.append(parse_backend(f"triton-{engine}-{precision}-http-jpeg").triton_model)
        self.services["pytorch", "fp32"] = pytorch
        files = exports | {"openvino-int8": made}
        repository = render_repository("cpu-embedded", folder / "repository", files, models=names)
        self.triton = stack.enter_context(EmbeddedTriton(repository, with_steps(names)))
        for service in self.services.values():
            service.wait()

    def report(self, engine: str, precision: str, server: str) -> dict[str, str]:
        """Return what a server says of its engine; empty for what is not here (TensorRT, an emulated device)."""
        if server == "fastapi":
            return httpx.get(f"{self.services[engine, precision].url}/info").json()["runtime"]
        model = parse_backend(f"triton-{engine}-{precision}-http-jpeg").triton_model
        page = text_string_to_metric_families(httpx.get(self.triton.metrics_url).text)
        rows = [s.labels for family in page if family.name == "photodup_runtime" for s in family.samples]
        mine = [row for row in rows if row["model"] == model.removesuffix("_jpeg") + "_uint8"]
        return {key: value for row in mine for key, value in row.items() if not key.startswith("model")}


@pytest.fixture(scope="module")
def both(tmp_path_factory, tiny_exports, real_service) -> Iterator[Both]:
    with ExitStack() as stack:
        yield Both(tmp_path_factory.mktemp("both"), tiny_exports, stack, real_service)


def test_both_sides_of_every_pair_are_alike_or_labelled(both):
    facts = {}
    for name, side in DECLARED["sides"].items():
        backend = parse_backend(side["backend"])
        parts = {key: getattr(backend, key) for key in WORDS}
        here = (backend.engine, backend.precision) in both.services
        facts[name] = parts | (both.report(backend.engine, backend.precision, backend.server) if here else {})
    compared = 0
    for a, b in pairs():
        sides = DECLARED["sides"][a], DECLARED["sides"][b]
        labels, settings = (side["label"] for side in sides), (side.get("settings", {}) for side in sides)
        assert not unnamed(facts[a], facts[b], tuple(labels), tuple(settings)), (a, b)
        compared += facts[a].get("library") == facts[b].get("library") is not None
    assert compared > 10
    # The reports are of what runs, and a difference is seen: another version, other threads, a word that is missing.
    one, other = facts["fastapi-onnx"], facts["triton-onnx"]
    assert (one["library"], one["spinning"], other["spinning"]) == ("onnxruntime", "off", "off")
    labels = (DECLARED["sides"]["fastapi-onnx"]["label"], DECLARED["sides"]["triton-onnx"]["label"])
    for planted in (
        {"version": "1.24.1"}, {"threads": "9"}, {"spinning": "on"}, {"pillow": "1"}, {"wire": "fp32"},
    ):  # fmt: skip
        assert unnamed(one, other | planted, labels, ({}, {})), planted
    assert unnamed(one, other, ("ONNX Runtime in FastAPI", "ONNX Runtime"), ({}, {}))
    assert unnamed(one, one, labels, ({"threads": 1}, {"threads": 2}))


def test_both_servers_embed_a_photograph_alike(both):
    """Decoding, resizing and normalisation together; the graph is of the same file."""
    photos = [encode(image, "JPEG", quality=q) for image, q in zip(_pictures(), (60, 85, 95), strict=True)]
    for engine, precision in both.choices:
        got = httpx.post(f"{both.services[engine, precision].url}/embed", files=as_files(photos), timeout=120)
        one = np.array(got.json()["embeddings"], np.float32)
        model = parse_backend(f"triton-{engine}-{precision}-http-jpeg").triton_model
        other = infer(both.triton, model, np.array(photos, object).reshape(-1, 1))
        assert np.abs(one - other).max() < 1e-6, (engine, precision)
        assert np.abs(one[0] - one[1]).max() > 1e-3


def _pictures():
    return [Image.fromarray(array) for array in (data.astronaut(), data.coffee(), data.cat())]


@pytest.mark.figures
def test_an_idle_server_leaves_the_other_its_turn(both):
    """CPU of each server in the half second after an answer; ONNX Runtime's spinning took 45 ms of it."""
    photo = encode(_pictures()[0], "JPEG")
    model = parse_backend("triton-onnx-fp32-http-jpeg").triton_model
    asks = {
        both.triton.pid: lambda: infer(both.triton, model, np.array([[photo]], object)),
        **{
            one.process.pid: lambda u=one.url: httpx.post(f"{u}/embed", files=as_files([photo]), timeout=60)
            for one in both.services.values()
        },
    }
    for pid, ask in asks.items():
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        spent = []
        for _ in range(10):
            ask()
            time.sleep(0.02)  # what is left of the answer itself
            before = sum(sum(one.cpu_times()[:2]) for one in family)
            time.sleep(0.5)
            spent.append(sum(sum(one.cpu_times()[:2]) for one in family) - before)
        assert np.mean(spent[2:]) < 0.02 * 0.5, (family[0].cmdline(), spent)


@pytest.mark.parametrize(("address", "every_precision"), [
    ("{fastapi}", True),
    ("{http}/v2/models/{model}", False),
    ("grpc://{grpc}/{model}", True),
])  # fmt: skip
def test_verify_raises_no_false_alarm(both, address, every_precision):
    """FP32, BF16 and INT8: each right in everything, and what is broken refused as the client's fault."""
    for (engine, precision), service in both.services.items():
        if precision == "fp32" and engine != "onnx":  # PyTorch is OpenCLIP itself, which takes a minute
            continue
        if precision != "fp32" and not every_precision:
            continue
        model = parse_backend(f"triton-{engine}-{precision}-http-jpeg").triton_model
        urls = {"fastapi": service.url, "http": both.triton.http_url, "grpc": both.triton.grpc_url}
        url = address.format(**urls, model=model)
        found = verify_server(target_of(url), both.weights)
        assert not [row for row in found.rows if row.verdict != "right"], url
        assert len(found.rows) == 22
        tensor = model.removesuffix("_jpeg") + "_uint8"
        if "{model}" in address:
            rows = verify_server(target_of(address.format(**urls, model=tensor)), both.weights).rows
            assert [r.verdict for r in rows if r.verdict != "right"] == ["not asked"] and len(rows) == 7, rows
