"""Configurations as Triton's schema sees them, and the repository rendered for each target."""

from pathlib import Path

import pytest

from photodup.core.errors import PhotodupError
from photodup.embedding.backends import backend_of_model, parse_backend, served_models
from photodup.embedding.engines.model import digest_at
from photodup.embedding.engines.reduced import source_of
from photodup.serving.triton.config import BATCHING, parse_config, read_config, set_batching, write_config
from photodup.serving.triton.repository import add_version, committed_models, link_weights, render_repository


def test_every_committed_configuration_is_valid_and_for_a_gpu_with_the_stock_backend(root: Path) -> None:
    assert len(committed_models()) == 10
    for name in committed_models():
        folder = root / "model_repository" / name
        config = read_config(folder / "config.pbtxt")
        assert config.name == name and (config.backend or config.platform)
        assert config.max_batch_size == 32
        if (backend := backend_of_model(name)) and not config.platform:
            assert config.parameters["engine"].string_value == backend.engine
            assert config.parameters["precision"].string_value == backend.precision
            assert config.backend == "onnxruntime"
            assert list(config.input[0].dims) == [3, 224, 224]
            assert list(config.output[0].dims) == [512]
            assert not config.dynamic_batching.preferred_batch_size
        if config.platform != "ensemble":
            policy = config.dynamic_batching.default_queue_policy
            assert (policy.max_queue_size, policy.default_timeout_microseconds) == (256, 2_000_000)
            assert policy.timeout_action == policy.REJECT


def test_tensorrt_profiles_cover_every_batch(root: Path) -> None:
    config = read_config(root / "model_repository/openclip_vit_b32_trt/config.pbtxt")
    options = config.optimization.execution_accelerators.gpu_execution_accelerator[0].parameters
    assert options["trt_profile_min_shapes"] == "image:1x3x224x224"
    assert options["trt_profile_max_shapes"] == f"image:{config.max_batch_size}x3x224x224"
    assert options["trt_engine_cache_enable"] == "true"


# Options of ONNX Runtime's CUDA provider that Triton passes on (its documentation, section "Configuration Options").
CUDA_OPTIONS = {
    "device_id", "user_compute_stream", "do_copy_in_default_stream", "use_ep_level_unified_stream", "gpu_mem_limit",
    "arena_extend_strategy", "cudnn_conv_algo_search", "cudnn_conv_use_max_workspace", "cudnn_conv1d_pad_to_nc1d",
    "enable_cuda_graph", "enable_skip_layer_norm_strict_mode", "use_tf32", "gpu_external_alloc", "prefer_nhwc",
    "gpu_external_free", "gpu_external_empty_cache", "fuse_conv_bias", "sdpa_kernel", "tunable_op_enable",
    "tunable_op_tuning_enable", "tunable_op_max_tuning_duration_ms",
}  # fmt: skip
# The table "Parameter mapping" of triton-inference-server/onnxruntime_backend's README.
TENSORRT_OPTIONS = {
    "max_workspace_size_bytes", "trt_max_partition_iterations", "trt_min_subgraph_size", "precision_mode",
    "int8_calibration_table_name", "int8_use_native_calibration_table", "trt_dla_enable", "trt_dla_core",
    "trt_engine_cache_enable", "trt_engine_cache_path", "trt_engine_cache_prefix", "trt_dump_subgraphs",
    "trt_force_sequential_engine_build", "trt_context_memory_sharing_enable", "trt_layer_norm_fp32_fallback",
    "trt_timing_cache_enable", "trt_timing_cache_path", "trt_force_timing_cache", "trt_detailed_build_log",
    "trt_build_heuristics_enable", "trt_sparsity_enable", "trt_builder_optimization_level",
    "trt_auxiliary_streams", "trt_tactic_sources", "trt_extra_plugin_lib_paths", "trt_profile_min_shapes",
    "trt_profile_max_shapes", "trt_profile_opt_shapes", "trt_cuda_graph_enable", "trt_dump_ep_context_model",
    "trt_ep_context_file_path", "trt_ep_context_embed_mode",
}  # fmt: skip


def accelerators(root: Path, name: str) -> dict[str, dict[str, str]]:
    config = read_config(root / "model_repository" / name / "config.pbtxt")
    rows = config.optimization.execution_accelerators.gpu_execution_accelerator
    return {row.name: dict(row.parameters) for row in rows}


@pytest.mark.parametrize("name", committed_models())
def test_accelerator_options_are_documented_ones(root: Path, name: str) -> None:
    """Triton passes an unknown one on, and the model fails when it is loaded: on the machine with the GPU."""
    known = {"cuda": CUDA_OPTIONS, "tensorrt": TENSORRT_OPTIONS}
    for accelerator, options in accelerators(root, name).items():
        assert options.keys() <= known[accelerator]


@pytest.mark.parametrize("target", ["cuda", "tensorrt"])
def test_float32_is_not_tf32(root: Path, tmp_path: Path, target: str, tiny_exports) -> None:
    """PyTorch multiplies in float32; ONNX Runtime's CUDA provider would multiply in TF32 unless told not to."""
    render_repository(target, tmp_path, tiny_exports)
    for name in ("openclip_vit_b32", "openclip_vit_b32_fp16", "openclip_vit_b32_uint8"):
        config = read_config(tmp_path / name / "config.pbtxt")
        (row,) = config.optimization.execution_accelerators.gpu_execution_accelerator
        assert (row.name, row.parameters["use_tf32"]) == ("cuda", "0")
    assert accelerators(root, "openclip_vit_b32_tf32") == {"cuda": {"use_tf32": "1"}}


TENSORRT = {f"openclip_vit_b32_trt{wire}" for wire in ("", "_uint8", "_jpeg")}


def test_tensorrt_takes_pixels_and_photographs_as_onnx_runtime_does(root: Path) -> None:
    trt, pixels, plain = (
        read_config(root / f"model_repository/openclip_vit_b32{wire}/config.pbtxt")
        for wire in ("_trt", "_trt_uint8", "_uint8")
    )
    assert pixels.optimization == trt.optimization and pixels.input == plain.input
    assert [w.inputs["image"].data_type for w in pixels.model_warmup] == [plain.input[0].data_type] * 5
    backend = parse_backend("triton-trt-fp16-http-jpeg")
    assert served_models(backend)[1:] == ["openclip_vit_b32_preprocess", "openclip_vit_b32_trt_uint8"]
    assert {
        parse_backend(f"triton-trt-fp16-grpc-{wire}").triton_model for wire in ("fp32", "uint8", "jpeg")
    } == TENSORRT


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


@pytest.mark.parametrize("target", ["cpu-embedded", "cpu", "cuda", "tensorrt"])
def test_a_target_is_rendered_complete(target: str, tmp_path: Path, tiny_exports) -> None:
    out = render_repository(target, tmp_path, tiny_exports, instances=3)
    names = {folder.name for folder in out.iterdir()}
    assert {name for name in names if "_trt" in name} == (TENSORRT if target == "tensorrt" else set())
    assert ("openclip_vit_b32_openvino" in names) == (target == "cpu-embedded")
    for name in names:
        config = read_config(out / name / "config.pbtxt")
        encoder = backend_of_model(name)
        if encoder and encoder.wire != "jpeg":
            policy = config.dynamic_batching.default_queue_policy
            assert policy.max_queue_size == 256  # whatever the variant of the batcher
            assert policy.default_timeout_microseconds == (60e6 if target == "cpu-embedded" else 2e6)
            # The embedded server runs the graph that FastAPI runs, whatever the wire.
            graph = "fp32" if target == "cpu-embedded" else encoder.wire
            assert (out / name / "1" / "model.onnx").samefile(tiny_exports[graph])
            assert config.instance_group[0].count == 3
            source, stated = source_of(tiny_exports["fp32"]), config.parameters
            digest = digest_at(encoder.precision, source.model_digest)
            assert stated["model_digest"].string_value == digest
            assert (digest == source.model_digest) == (encoder.precision == "fp32")
            assert stated["pretrained"].string_value == source.model_pretrained
            assert (stated["engine"].string_value, stated["precision"].string_value) == (
                encoder.engine, encoder.precision,
            )  # fmt: skip
            is_reduced = encoder.precision != "fp32"
            assert stated["accuracy_check"].string_value == ("not asked" if is_reduced else "not needed")
            assert config.backend == ("python" if target == "cpu-embedded" else "onnxruntime")
            assert (out / name / "1" / "model.py").exists() == (target == "cpu-embedded")


def test_the_image_without_a_gpu_keeps_its_backend_and_asks_for_no_device(tmp_path: Path, tiny_exports):
    """Not run here: the embedded server has no onnxruntime backend. What would stop a CPU is what is looked at."""
    out = render_repository("cpu", tmp_path / "shared", tiny_exports)
    for folder in out.iterdir():
        config = read_config(folder / "config.pbtxt")
        assert "KIND_GPU" not in str(config) and "gpu_execution_accelerator" not in str(config), folder.name
    assert len(read_config(out / "openclip_vit_b32" / "config.pbtxt").model_warmup) == 1
    assert "intra_op_thread_count" not in read_config(out / "openclip_vit_b32" / "config.pbtxt").parameters


def test_rendering_twice_touches_nothing(tmp_path: Path, tiny_exports) -> None:
    render_repository("cpu-embedded", tmp_path, tiny_exports)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    render_repository("cpu-embedded", tmp_path, tiny_exports)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before
    render_repository("cpu-embedded", tmp_path, tiny_exports, variant="published")
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} != before


def test_an_ensemble_brings_its_steps(tmp_path: Path, tiny_exports) -> None:
    render_repository("cpu-embedded", tmp_path, tiny_exports, models=["openclip_vit_b32_jpeg"], device="cuda")
    assert '"cuda"' in (tmp_path / "openclip_vit_b32_uint8" / "config.pbtxt").read_text()
    assert {folder.name for folder in tmp_path.iterdir()} == {
        "openclip_vit_b32_jpeg",
        "openclip_vit_b32_preprocess",
        "openclip_vit_b32_uint8",
    }


def test_tf32_is_rendered_when_asked_for_only(tmp_path: Path, tiny_exports) -> None:
    render_repository("cuda", tmp_path / "all", tiny_exports)
    assert not [p for p in (tmp_path / "all").iterdir() if p.name.endswith("_tf32")]
    render_repository("cuda", tmp_path / "asked", tiny_exports, models=["openclip_vit_b32_tf32"])
    assert (tmp_path / "asked" / "openclip_vit_b32_tf32/1/model.onnx").exists()
    stated = read_config(tmp_path / "asked" / "openclip_vit_b32_tf32" / "config.pbtxt").parameters
    assert stated["precision"].string_value == "tf32" and stated["accuracy_check"].string_value == "not asked"
    assert stated["model_digest"].string_value == digest_at(
        "tf32", source_of(tiny_exports["fp32"]).model_digest
    )


@pytest.mark.parametrize(("arguments", "message"), [
    ({"models": ["openclip_vit_l14"]}, "no model 'openclip_vit_l14'"),
    ({"models": ["openclip_vit_b32_trt"]}, "for tensorrt only"),
    ({"models": ["openclip_vit_b32_tf32"]}, "for cuda and tensorrt only"),
    ({"models": ["emulated_h900"]}, "no model 'emulated_h900'"),
    ({"models": ["emulated_a100_fp16_jpeg"]}, "no model 'emulated_a100_fp16_uint8'"),
    ({"models": ["openclip_vit_b32_tf32_uint8"]}, "no model 'openclip_vit_b32_tf32_uint8'"),
    ({"models": ["openclip_vit_b32_pytorch"]}, "no model 'openclip_vit_b32_pytorch'"),
    ({"models": ["../elsewhere"]}, "no model '../elsewhere'"),
    ({"models": ["openclip_vit_b32_bf16"]}, "onnx does not compute in bf16"),
    ({"target": "cuda", "models": ["emulated_a100"]}, "for cpu-embedded only"),
    ({"exported": {}, "models": ["openclip_vit_b32"]}, "needs the exported graph 'fp32'"),
    ({"exported": {"fp32": Path("gone.onnx")}, "models": ["openclip_vit_b32"]}, "gone.onnx is missing"),
    ({"instances": 0}, "at least one instance"),
])  # fmt: skip
def test_a_wrong_request_is_refused_in_words(arguments: dict, message: str, tmp_path: Path, tiny_exports):
    arguments = {"target": "cpu-embedded", "exported": tiny_exports} | arguments
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


def test_a_version_is_added_and_rendering_starts_from_version_1_again(tmp_path: Path, tiny_exports) -> None:
    render_repository("cpu-embedded", tmp_path, tiny_exports, models=["openclip_vit_b32"])
    folder = add_version(tmp_path, "openclip_vit_b32", 2, tiny_exports["fp32"])
    code = {"model.py", "cpu.py", "imaging.py", "jpeg_scans.py"}
    assert {path.name for path in folder.iterdir()} == {"model.onnx", *code}
    with pytest.raises(PhotodupError, match="no model other"):
        add_version(tmp_path, "other", 2, tiny_exports["fp32"])
    render_repository("cpu-embedded", tmp_path, tiny_exports, models=["openclip_vit_b32"])
    assert not folder.exists()


def test_writing_reads_back(tmp_path: Path, root: Path) -> None:
    config = read_config(root / "model_repository/openclip_vit_b32/config.pbtxt")
    write_config(config, tmp_path / "config.pbtxt", "a note")
    assert read_config(tmp_path / "config.pbtxt") == config
    assert (tmp_path / "config.pbtxt").read_text().startswith("# a note\n")
