"""Shares of a device's limit: known numbers, and faults that must show."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photodup.errors import PhotodupError
from photodup.study.published import roofline


def test_known_limits():
    """Worked by hand: 312 TFLOP/s over 8.82 GFLOP."""
    assert roofline.share_of_peak(35_374, "A100 SXM4 80GB", "fp16") == pytest.approx(1, rel=1e-3)
    assert roofline.share_of_peak(32 / 5.614, "RTX A4000", "fp32") == pytest.approx(0.0026, rel=0.02)
    assert roofline.cpu_peak_tflops(2, 3.0) == pytest.approx(0.192)


@given(st.floats(0.1, 1e5), st.integers(1, 8))
def test_the_peak_throughput_is_a_share_of_one(factor, gpus):
    peak = 165.2 * 1000 / 8.82 * gpus
    share = roofline.share_of_peak(peak * factor, "RTX 4090", "fp16", gpus=gpus)
    assert share == pytest.approx(factor, rel=1e-6)


def test_the_model_alone_reaches_a_plausible_share_and_no_server_did():
    public = roofline.load_model_throughput()
    shares = [
        roofline.share_of_peak(r.throughput_images_per_s, r.device, r.precision) for r in public.itertuples()
    ]
    assert all(0.5 < share < 0.75 for share in shares)
    published = roofline.published_shares()
    assert len(published) == 53
    assert published["share_of_peak"].max() < 0.05


def test_a_wrong_unit_shows_as_an_impossible_share():
    points = pd.DataFrame({"throughput_images_per_s": [10.0, 10_000.0], "valid": True, "precision": "fp32"})
    shares = roofline.measured_shares(points, peaks_tflops={"fp32": roofline.cpu_peak_tflops(2, 3.0)})
    assert shares["share_of_peak"].iloc[-1] > 1 >= shares["share_of_peak"].iloc[0]


def test_invalid_missing_and_other_points_are_left_out():
    rates = {"throughput_images_per_s": [5.0, 6.0, None, 7.0], "valid": [True, False, True, True]}
    servers = [*["triton"] * 3, "local"]
    points = pd.DataFrame(rates | {"server": servers, "engine": "onnx", "precision": "fp32"})
    # What the client computed in its own process is no share of the peak of servers elsewhere.
    for elsewhere, n in ((False, 2), (True, 1)):
        shares = roofline.measured_shares(points, peaks_tflops={"fp32": 1.0}, elsewhere=elsewhere)
        assert len(shares) == n
    assert roofline.measured_shares(pd.DataFrame(), peaks_tflops={"fp32": 1.0}).empty


def test_a_precision_is_divided_by_its_own_peak_or_not_at_all():
    rates = {"throughput_images_per_s": 100.0, "valid": True, "precision": ["fp32", "fp16", "int8"]}
    shares = roofline.measured_shares(pd.DataFrame(rates), peaks_tflops={"fp32": 1.0, "fp16": 2.0})
    assert shares.set_index("precision")["share_of_peak"].to_dict() == pytest.approx(
        {"fp16": 0.441, "fp32": 0.882}
    )


def test_unknown_devices_are_named():
    with pytest.raises(PhotodupError, match="Abacus"):
        roofline.share_of_peak(1.0, "Abacus", "fp32")
    with pytest.raises(PhotodupError, match="fp8"):
        roofline.share_of_peak(1.0, "H200", "fp8")


def test_a_run_s_peaks_are_its_gpu_s_or_its_cores():
    peaks, how = roofline.peaks_of({"gpus": [{"name": "NVIDIA H200"}], "cores": 16}, ghz=3, flop_per_cycle=32)
    assert (peaks["fp32"], peaks["fp16"], how) == (67.0, 989.4, "H200, data sheet")
    peaks, how = roofline.peaks_of({"gpus": [], "cores": 2}, ghz=3, flop_per_cycle=64)
    assert peaks == {"fp32": pytest.approx(0.384)} and "assumed" in how
    peaks, _ = roofline.peaks_of({"gpus": [{"name": "NVIDIA GeForce RTX 4080"}]}, ghz=3, flop_per_cycle=32)
    assert peaks["fp32"] == 48.7
    client = {"gpus": [], "cores": 2}
    servers = {"gpu": "Tesla T4", "gpus": 2}  # the client's cores are not what computes
    peaks, how = roofline.peaks_of(client | {"servers": servers}, ghz=3, flop_per_cycle=32)
    assert (peaks["fp32"], how) == (16.2, "2 × T4, data sheet")
    for gpu in ("unknown", "none"):
        peaks, how = roofline.peaks_of(client | {"servers": {"gpu": gpu}}, ghz=3, flop_per_cycle=32)
        assert peaks == {} and "unknown" in how


def test_a_gpu_that_nobody_listed_is_measured_without_a_share():
    peaks, how = roofline.peaks_of({"gpus": [{"name": "Tesla V100"}]}, ghz=3, flop_per_cycle=32)
    assert peaks == {} and "Tesla V100" in how
    points = pd.DataFrame({"throughput_images_per_s": [50.0], "valid": [True], "precision": "fp32"})
    assert roofline.measured_shares(points, peaks_tflops=peaks).empty


@pytest.mark.parametrize(("gpu", "device"), [
    ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
    ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
    ("NVIDIA A100-SXM4-40GB", "A100 SXM4 80GB"),
    ("NVIDIA H200", "H200"),
    ("NVIDIA GeForce RTX 4080", "RTX 4080"),
    ("NVIDIA RTX A4000", "RTX A4000"),
    ("Tesla T4", "T4"),
    ("NVIDIA A10", "A10"),
    ("NVIDIA A10G", None),
    ("NVIDIA A40", "A40"),
    ("NVIDIA L4", "L4"),
    ("NVIDIA L40", None),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Workstation"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", None),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None),
    ("Quadro RTX 6000", None),
    ("NVIDIA RTX 6000 Ada Generation", None),
    ("NVIDIA H100 PCIe", None),
    ("NVIDIA H200 NVL", None),
    ("NVIDIA GeForce RTX 4080 SUPER", None),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ("NVIDIA GeForce RTX 3090 Ti", None),
    ("NVIDIA RTX 4000 Ada Generation", None),
    ("NVIDIA L40S", None),
    ("NVIDIA B200", None),
    ("Tesla V100-SXM2-16GB", None),
])  # fmt: skip
def test_a_gpu_is_taken_for_itself_only(gpu, device):
    """An "80GB" in both names made an H100 an A100."""
    assert roofline.device_named(gpu) == device
    assert bool(roofline.makers_peaks(gpu)) == (device is not None)


def test_makers_peaks_are_by_precision():
    assert roofline.makers_peaks("NVIDIA H200") == {"fp32": 67, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4}
