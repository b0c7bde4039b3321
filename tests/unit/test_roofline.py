"""A GPU's peak rates are its own: known names, and those of its namesakes."""

import pytest

from photodup.study.published import roofline


def test_known_limits():
    """Worked by hand: 312 TFLOP/s over 8.82 GFLOP."""
    assert roofline.achieved_tflops(35_374) == pytest.approx(312, rel=1e-3)


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
