"""Server counters are read as differences, from a real Triton and from the real service's own metrics."""

import time

import numpy as np
import pytest
from support.dummy import Dummy
from support.images import photo
from support.triton import loaded, tiny_embedding

from photodup.bench.backends.adapters import LocalAdapter, adapter, check_embeddings
from photodup.bench.load import counters
from photodup.bench.load.counters import CounterError
from photodup.bench.load.plan import WindowPlan
from photodup.bench.load.window import Load, measure
from photodup.core.errors import PhotodupError
from photodup.embedding import imaging
from photodup.embedding.backends import Backend, served_models
from photodup.embedding.wire.wires import jpegs
from photodup.serving.service.counters import ServiceCounters

PHOTOS = [imaging.encode(photo(280 + 20 * seed, 250, seed), "JPEG") for seed in range(6)]
TRITON_PAGE = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="a",version="1"} %d
nv_inference_request_success{model="b",version="1"} 5
# TYPE nv_inference_count counter
nv_inference_count{model="a",version="1"} %d
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="a",version="1"} %d
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{model="a",version="1"} %d
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{model="a",version="1"} %d
"""


def page(*values):
    return counters.parse(TRITON_PAGE % values)


def test_only_the_window_counts_not_what_was_before():
    """A minute of engine building before the window must not show in it: the error of the published means."""
    row = counters.triton_window(page(10, 10, 10, 0, 60_000_000), page(30, 90, 40, 8_000, 60_080_000), ["a"])
    assert row["server_requests"] == 20
    assert row["server_batch_mean"] == pytest.approx(80 / 30)
    assert row["server_queue_ms_mean"] == pytest.approx(0.4)
    assert row["server_compute_infer_ms_mean"] == pytest.approx(4.0)
    assert "server_compute_output_ms_mean" not in row  # not reported is absent, not zero


def test_a_restarted_server_is_noticed():
    with pytest.raises(CounterError, match="restarted"):
        counters.triton_window(page(30, 90, 40, 8_000, 1), page(31, 20, 20, 0, 0), ["a"])


def test_a_model_that_answered_nothing_has_no_columns():
    same = page(10, 10, 10, 0, 0)
    assert counters.triton_window(same, same, ["a"]) == {}
    assert counters.triton_window(same, same, ["typo"]) == {}


def test_something_else_than_metrics_is_named():
    with pytest.raises(CounterError, match="text format"):
        counters.parse("<html><body>404</body></html>")
    with pytest.raises(CounterError, match=r"No metrics at http://127\.0\.0\.1:9/metrics"):
        counters.read_counters("http://127.0.0.1:9")


def test_missing_metrics_leave_the_point_alone():
    point = measure(
        Dummy(2),
        [b"a", b"b"],
        Load("single_stream"),
        WindowPlan(0.2, 20),
        meter=counters.meter("http://127.0.0.1:9", ()),
    )
    assert "No metrics" in point["counters_error"] and point["n_requests"] > 0
    assert "server_queue_ms_mean" not in point


def test_the_service_is_counted_in_the_same_columns():
    served = ServiceCounters()

    def request(queue_s, compute_s):
        served.observe_stage("decode", 0.004)
        served.observe_stage("queue", queue_s)
        served.observe_stage("compute", compute_s)
        served.count_request(200)

    request(9, 9)  # before the window
    before = counters.parse(served.page().decode())
    for _ in range(4):
        request(0.001, 0.020)
    served.count_request(400)
    served.count_execution(4)
    columns = counters.fastapi_window(before, counters.parse(served.page().decode()))
    assert columns["server_requests"] == 4 and columns["server_batch_mean"] == 4
    assert columns["server_queue_ms_mean"] == pytest.approx(1.0)
    assert columns["server_compute_infer_ms_mean"] == pytest.approx(20.0)
    assert columns["server_decode_ms_mean"] == pytest.approx(4.0)
    assert "server_respond_ms_mean" not in columns


def test_a_cold_start_is_taken_apart():
    calls = []

    def request():
        calls.append(1)
        time.sleep({1: 0.1, 3: 0.3, 10: 0.2}.get(len(calls), 0))

    columns = counters.cold_start(lambda: time.sleep(0.15), request)
    # No machine sleeps for less than it is told: lower bounds tell the parts apart.
    assert columns["ready_s"] >= 0.15 and columns["first_answer_ms"] >= 100
    assert columns["third_answer_ms"] >= 300 and columns["tenth_answer_ms"] >= 200
    assert columns["first_answer_s"] >= 0.25


@pytest.fixture(scope="module")
def triton(tiny_triton):
    """The shared server with an emulated accelerator: everything is real but the arithmetic."""
    with loaded(tiny_triton, "emulated_4090", "emulated_4090_uint8", "emulated_4090_jpeg"):
        yield tiny_triton


@pytest.mark.parametrize("channel", ["per-worker", "shared", "http"])
def test_counters_and_client_agree_under_every_channel_policy(triton, channel, figure):
    if channel == "http":
        system = adapter("triton-emulated-4090-fp32-http-uint8", triton.http_url)
    else:
        system = adapter("triton-emulated-4090-fp32-grpc-uint8", triton.grpc_url, channel=channel)
    point = measure(
        system,
        PHOTOS,
        Load("closed_loop", batch=2, concurrency=4, span="prepared"),
        WindowPlan(1, 64),
        meter=counters.meter(triton.metrics_url, served_models(system.backend)),
    )
    assert point.get("status") != "failed", point["error"]
    assert "counters_error" not in point
    assert point["server_requests"] == pytest.approx(point["n_requests"], rel=0.1, abs=8)
    assert point["server_inferences"] == pytest.approx(2 * point["server_requests"], abs=8)
    assert 2 <= point["server_batch_mean"] <= 8
    inside = point["server_queue_ms_mean"] + point["server_compute_infer_ms_mean"]
    assert inside > 0
    figure(inside < point["request_ms_mean"], point)
    assert point["server_compute_infer_ms_mean"] > 0
    figure(point["server_compute_infer_ms_mean"] > 4, point)  # the preset's wait
    assert point["channel"] == (None if channel == "http" else channel)


def test_an_ensemble_is_taken_apart_into_decoding_and_computing(triton, figure):
    system = adapter("triton-emulated-4090-fp32-http-jpeg", triton.http_url)
    point = measure(
        system,
        PHOTOS,
        Load("single_stream", span="prepared"),
        WindowPlan(0.5, 20),
        meter=counters.meter(triton.metrics_url, served_models(system.backend)),
    )
    assert point["server_batch_mean"] == 1
    assert point["server_decode_ms_mean"] > 0
    figure(point["server_decode_ms_mean"] > 0.3, point)  # Pillow on a 224-pixel JPEG
    assert point["server_compute_infer_ms_mean"] > 0
    figure(point["server_compute_infer_ms_mean"] > 4, point)  # the preset's wait, once
    parts = ("queue", "compute_input", "compute_infer", "compute_output", "decode")
    inside = sum(point[f"server_{part}_ms_mean"] for part in parts)
    # The last request may be in one count only.
    figure(inside < point["server_request_ms_mean"] * 1.05, point)
    figure(point["server_request_ms_mean"] < point["request_ms_mean"] * 1.05, point)


@pytest.fixture(scope="module")
def reference(random_model):
    """Embeddings of the pixels that are really sent."""
    local = LocalAdapter(Backend("local", "onnx"), random_model)
    return local.request(local.prepare(jpegs(PHOTOS)))


@pytest.mark.parametrize(("wire", "answer"), [("jpeg", "float"), ("base64", "base64")])
def test_the_real_service_passes_the_gate_and_accounts_for_itself(
    reference, wire, answer, launch, random_onnx, figure
):
    running = launch(
        MODEL_PRETRAINED=random_onnx, MAX_WAIT_S=60
    )  # the shared one counts other tests' requests, too
    running.wait()
    service = running.url
    system = adapter(f"fastapi-onnx-fp32-http-{wire}", service, answer=answer)
    assert check_embeddings(system, PHOTOS, reference, 0.9999, name="service") > 0.9999
    meter = counters.meter(service, ())
    point = measure(system, PHOTOS, Load("offline", batch=2), WindowPlan(0.5, 8), meter=meter)
    assert point.get("status") != "failed", point["error"]
    assert point["server_inferences"] == 2 * point["server_requests"]
    stages = sum(value for name, value in point.items() if name in counters.FASTAPI_STAGES and value)
    assert stages > point["server_compute_infer_ms_mean"] > 0
    figure(0.2 < stages / point["request_ms_mean"] < 1.5, point)  # a handful of requests
    assert (point["server"], point["engine"], point["wire"]) == ("fastapi", "onnx", wire)


@pytest.mark.parametrize(
    ("protocol", "wire"),
    [("http", "json"), *((p, w) for p in ("http", "grpc") for w in ("fp32", "fp16", "uint8", "jpeg"))],
)
def test_each_wire_reaches_the_graph_as_the_pixels_it_stands_for(protocol, wire, tiny_triton):
    """A real ONNX graph small enough to be computed in NumPy as well: transposed or unscaled pixels differ."""
    server = tiny_triton
    address = server.http_url if protocol == "http" else server.grpc_url
    system = adapter(f"triton-onnx-fp32-{protocol}-{wire}", address)
    worker = system.open()
    answer = worker.decode(worker.request(system.prepare(PHOTOS)))
    alone = worker.decode(worker.request(system.prepare(PHOTOS[2:3])))
    worker.close()
    system.close()
    sent = [imaging.client_jpeg(photo, 90) for photo in PHOTOS] if wire == "jpeg" else PHOTOS
    pixels = np.stack([imaging.to_uint8(imaging.decode(photo)) for photo in sent])
    normal = imaging.normalize(pixels).astype(np.float16 if wire == "fp16" else np.float32)
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, tiny_embedding(normal), atol=2e-4)
    np.testing.assert_allclose(answer[2], alone[0], atol=1e-6)


def test_one_channel_is_one_connection_and_own_channels_are_several(triton):
    """Read from the kernel: without a pool of its own, gRPC would quietly share the connection."""
    import psutil

    def connections(channel):
        system = adapter("triton-emulated-4090-fp32-grpc-uint8", triton.grpc_url, channel=channel)
        workers = [system.open() for _ in range(3)]
        prepared = system.prepare(PHOTOS[:1])
        before = established()
        for worker in workers:
            worker.request(prepared)
        count = established() - before
        for worker in workers:
            worker.close()
        system.close()
        return count

    def established():
        mine = psutil.Process().net_connections(kind="tcp")
        return sum(1 for c in mine if c.raddr[1:] == (triton.grpc_port,) and c.status == "ESTABLISHED")

    assert connections("shared") == 1
    assert connections("per-worker") == 3


@pytest.mark.parametrize(("backend", "options", "said"), [
    ("triton-emulated-4090-fp32-http-fp32", {"model": "no_such_model"}, "no_such_model"),
    ("triton-emulated-4090-fp32-grpc-fp32", {"model": "no_such_model"}, "no_such_model"),
    ("triton-emulated-4090-fp32-http-uint8", {"model": "emulated_4090"}, "UINT8"),
])  # fmt: skip
def test_a_wrong_model_or_type_is_a_failed_point_in_the_servers_words(triton, backend, options, said):
    url = triton.grpc_url if "grpc" in backend else triton.http_url
    point = measure(adapter(backend, url, **options), PHOTOS, Load("single_stream"), WindowPlan(0.2, 8))
    assert point["status"] == "failed" and said in point["error"]


@pytest.mark.parametrize("channel", ["per-worker", "shared"])
def test_nobody_at_the_grpc_port_is_a_failed_point(channel):
    system = adapter("triton-onnx-fp32-grpc-uint8", "127.0.0.1:9", channel=channel, timeout_s=5)
    point = measure(system, PHOTOS, Load("closed_loop", concurrency=2), WindowPlan(0.2, 8))
    assert point["status"] == "failed" and "127.0.0.1:9" in point["error"]


def test_a_shared_channel_cannot_be_new_for_each_request(triton):
    system = adapter("triton-emulated-4090-fp32-grpc-fp32", triton.grpc_url, channel="shared")
    with pytest.raises(PhotodupError, match="shares one connection"):
        measure(system, PHOTOS, Load("single_stream", connection="new"))


def test_the_models_that_account_for_a_backend():
    assert served_models("triton-openvino-fp32-http-fp32") == ["openclip_vit_b32_openvino"]
    assert served_models("triton-onnx-fp32-http-json") == ["openclip_vit_b32"]
    steps = ["openclip_vit_b32_jpeg", "openclip_vit_b32_preprocess", "openclip_vit_b32_uint8"]
    assert served_models("triton-onnx-fp32-grpc-jpeg") == steps
