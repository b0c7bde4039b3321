"""Configurations as Triton's schema sees them, and the repository rendered for each target."""

from pathlib import Path

import pytest
from triton_fixture import tiny_exports

from photodup.errors import PhotodupError
from photodup.serving.triton.config import (
    BATCHING,
    check_config,
    parse_config,
    read_config,
    set_batching,
    write_config,
)
from photodup.serving.triton.repository import WEIGHTS, add_version, link_weights, render_repository


def test_every_committed_configuration_is_valid(root: Path) -> None:
    folders = sorted(p.parent for p in (root / "model_repository").glob("*/config.pbtxt"))
    assert {folder.name for folder in folders} == set(WEIGHTS)
    for folder in folders:
        check_config(read_config(folder / "config.pbtxt"), folder)


def test_committed_encoders_are_for_a_gpu_with_the_stock_backend(root: Path) -> None:
    for name, weights in WEIGHTS.items():
        config = read_config(root / "model_repository" / name / "config.pbtxt")
        assert config.max_batch_size == 32
        if weights:
            assert config.backend == "onnxruntime"
            assert list(config.input[0].dims) == [3, 224, 224]
            assert list(config.output[0].dims) == [512]
            assert config.HasField("dynamic_batching")
            assert not config.dynamic_batching.preferred_batch_size


def test_tensorrt_profiles_cover_every_batch(root: Path) -> None:
    config = read_config(root / "model_repository/openclip_vit_b32_trt/config.pbtxt")
    options = config.optimization.execution_accelerators.gpu_execution_accelerator[0].parameters
    assert options["trt_profile_min_shapes"] == "image:1x3x224x224"
    assert options["trt_profile_max_shapes"] == f"image:{config.max_batch_size}x3x224x224"
    assert options["trt_engine_cache_enable"] == "true"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("max_batch_size: 32", "max_batch_size: 0"), "max_batch_size"),
        (('backend: "onnxruntime"', ""), "no backend"),
        (("dynamic_batching { }", "dynamic_batching { preferred_batch_size: [64] }"), "above max_batch_size"),
        (("dynamic_batching { }", "optimization { cuda { graphs: true } }"), "graphs does nothing"),
        (('name: "openclip_vit_b32"', 'name: "other"'), "must be the folder's"),
    ],
)
def test_check_refuses_what_triton_would_misread(root: Path, change: tuple[str, str], message: str) -> None:
    folder = root / "model_repository" / "openclip_vit_b32"
    text = (folder / "config.pbtxt").read_text()
    assert change[0] in text
    with pytest.raises(PhotodupError, match=message):
        check_config(parse_config(text.replace(*change)), folder)


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text('name: "a"\nmax_batch_sizes: 4\n')
    with pytest.raises(PhotodupError, match=r"config\.pbtxt.*line 2.*max_batch_sizes"):
        read_config(tmp_path / "config.pbtxt")


def test_published_batching_is_the_published_one() -> None:
    config = parse_config('name: "m" max_batch_size: 32 dynamic_batching { }')
    set_batching(config, "published")
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 8, 16, 32]
    assert config.dynamic_batching.max_queue_delay_microseconds == 10_000
    set_batching(config, "published-early")
    assert list(config.dynamic_batching.preferred_batch_size) == [8, 16, 32]
    assert config.dynamic_batching.max_queue_delay_microseconds == 5_000
    set_batching(config, "off")
    assert not config.HasField("dynamic_batching")
    set_batching(config, "dynamic_batching { max_queue_delay_microseconds: 2000 }")
    assert config.dynamic_batching.max_queue_delay_microseconds == 2000
    with pytest.raises(PhotodupError, match="publish' is unknown"):
        set_batching(config, "publish")
    assert BATCHING["default"] == "dynamic_batching { }"


@pytest.mark.parametrize("target", ["cpu-embedded", "cuda", "tensorrt"])
def test_a_target_is_rendered_complete(target: str, tmp_path: Path) -> None:
    out = render_repository(
        target, tmp_path, tiny_exports(), instances=3, model_digest="abc", pretrained="random:0"
    )
    names = {folder.name for folder in out.iterdir()}
    assert ("openclip_vit_b32_trt" in names) == (target == "tensorrt")
    assert ("openclip_vit_b32_openvino" in names) == (target == "cpu-embedded")
    for name in names:
        config = read_config(out / name / "config.pbtxt")
        if WEIGHTS[name]:
            assert (out / name / "1" / "model.onnx").samefile(tiny_exports()[WEIGHTS[name]])
            assert config.instance_group[0].count == 3
            assert config.parameters["model_digest"].string_value == "abc"
            assert config.parameters["pretrained"].string_value == "random:0"
            assert config.backend == ("python" if target == "cpu-embedded" else "onnxruntime")
            assert (out / name / "1" / "model.py").exists() == (target == "cpu-embedded")


def test_rendering_twice_touches_nothing(tmp_path: Path) -> None:
    render_repository("cpu-embedded", tmp_path, tiny_exports())
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    render_repository("cpu-embedded", tmp_path, tiny_exports())
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before
    render_repository("cpu-embedded", tmp_path, tiny_exports(), variant="published")
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} != before


def test_an_ensemble_brings_its_steps(tmp_path: Path) -> None:
    render_repository("cpu-embedded", tmp_path, tiny_exports(), models=["openclip_vit_b32_jpeg"])
    assert {folder.name for folder in tmp_path.iterdir()} == {
        "openclip_vit_b32_jpeg",
        "openclip_vit_b32_preprocess",
        "openclip_vit_b32_uint8",
    }


def test_dali_is_rendered_when_asked_for_only(tmp_path: Path) -> None:
    render_repository("cuda", tmp_path / "all", tiny_exports())
    assert not any(folder.name.endswith("_dali") for folder in (tmp_path / "all").iterdir())
    render_repository("cuda", tmp_path / "dali", tiny_exports(), models=["openclip_vit_b32_jpeg_dali"])
    assert (tmp_path / "dali" / "openclip_vit_b32_preprocess_dali" / "1" / "pipeline.py").exists()
    assert (tmp_path / "dali" / "openclip_vit_b32_uint8" / "1" / "model.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "gpu"}, "unknown: use cpu-embedded, cuda, tensorrt"),
        ({"models": ["openclip_vit_l14"]}, "no model 'openclip_vit_l14'"),
        ({"models": ["openclip_vit_b32_trt"]}, "for tensorrt only"),
        ({"models": ["openclip_vit_b32_jpeg_dali"]}, "for cuda and tensorrt only"),
        ({"models": ["emulated_h900"]}, "no emulated model 'emulated_h900'"),
        ({"target": "cuda", "models": ["emulated_a100"]}, "stands for a GPU"),
        ({"exported": {}, "models": ["openclip_vit_b32"]}, "needs the exported graph 'fp32'"),
        ({"exported": {"fp32": Path("gone.onnx")}, "models": ["openclip_vit_b32"]}, "gone.onnx is missing"),
        ({"decoder": "magick"}, "Decoder 'magick' is unknown"),
        ({"instances": 0}, "at least one instance"),
    ],
)
def test_a_wrong_request_is_refused_in_words(arguments: dict, message: str, tmp_path: Path) -> None:
    arguments = {"target": "cpu-embedded", "exported": tiny_exports()} | arguments
    with pytest.raises(PhotodupError, match=message):
        render_repository(arguments.pop("target"), tmp_path, arguments.pop("exported"), **arguments)


def test_new_weights_replace_old_ones(tmp_path: Path) -> None:
    old, new = tmp_path / "old.onnx", tmp_path / "new.onnx"
    old.write_bytes(b"old")
    new.write_bytes(b"new")
    link_weights(old, tmp_path / "m" / "1")
    link_weights(new, tmp_path / "m" / "1")
    assert (tmp_path / "m" / "1" / "model.onnx").read_bytes() == b"new"
    assert old.read_bytes() == b"old"


def test_a_version_is_added_and_rendering_starts_from_version_1_again(tmp_path: Path) -> None:
    render_repository("cpu-embedded", tmp_path, tiny_exports(), models=["openclip_vit_b32"])
    folder = add_version(tmp_path, "openclip_vit_b32", 2, tiny_exports()["fp32"])
    assert {path.name for path in folder.iterdir()} == {"model.onnx", "model.py"}
    with pytest.raises(PhotodupError, match="no model other"):
        add_version(tmp_path, "other", 2, tiny_exports()["fp32"])
    render_repository("cpu-embedded", tmp_path, tiny_exports(), models=["openclip_vit_b32"])
    assert not folder.exists()


def test_writing_reads_back(tmp_path: Path, root: Path) -> None:
    config = read_config(root / "model_repository/openclip_vit_b32/config.pbtxt")
    write_config(config, tmp_path / "config.pbtxt", "a note")
    assert read_config(tmp_path / "config.pbtxt") == config
    assert (tmp_path / "config.pbtxt").read_text().startswith("# a note\n")
