"""INT8 files: they say what they were made from, and are refused for anything else."""

import numpy as np
import pytest
from support.command import one_sentence, run_python
from support.images import photographs
from support.processor import needs_int8
from support.triton import save_graph, tiny_embedding, tiny_graph

from photodup.core.errors import PhotodupError
from photodup.embedding.engines import reduced
from photodup.embedding.engines.encoder import load_model
from photodup.embedding.engines.openvino import read_network
from photodup.embedding.engines.quantise import MIN_PHOTOGRAPHS, images_digest, quantise
from photodup.embedding.imaging import normalize
from photodup.study.accuracy.pictures import choose_pictures

pytestmark = needs_int8


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8")
    source = reduced.source_of(tiny_graph(folder / "tiny.onnx"))
    both = ("openvino", "onnx")
    files = {engine: quantise(source, photographs(40), engine=engine, directory=folder) for engine in both}
    return source, folder, files


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
def test_an_int8_file_is_nearly_the_encoder_it_was_made_from(made, engine):
    source, folder, files = made
    images = photographs(9, seed=1)
    wanted = tiny_embedding(images)
    model = load_model(f"onnx:{source.path}", engine=engine, precision="int8", device="cpu", directory=folder)
    found = model.embed(images)
    assert (found * wanted).sum(axis=1).min() > 0.99
    assert np.abs(found - wanted).max() > 1e-4, "nothing was quantised"
    assert model.path == files[engine] and model.precision == "int8"
    assert model.source_digest == source.model_digest != model.digest


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
def test_it_says_inside_and_beside_itself_what_it_was_made_from(made, engine):
    source, _, files = made
    notes = reduced.read_notes(files[engine])
    assert notes.model_digest == source.model_digest and notes.sha256
    assert notes.calibration["photographs"] == 40
    assert notes.calibration["digest"] == images_digest(photographs(40)[::-1])
    assert notes.calibration["digest"] != images_digest(photographs(39))
    assert notes.accuracy_check is None
    if engine == "openvino":
        from photodup.embedding.engines.openvino import read_metadata

        inside = read_metadata(read_network(files[engine]))
    else:
        import onnx

        inside = {prop.key: prop.value for prop in onnx.load(files[engine]).metadata_props}
    assert inside["precision"] == "int8" and inside["model_digest"] == source.model_digest
    assert inside["calibration_digest"] == notes.calibration["digest"]


def test_another_calibration_gives_other_digests(made, tmp_path):
    source, folder, _ = made
    quantise(source, photographs(40, seed=5) * 0.5, directory=tmp_path)
    how = {"engine": "openvino", "precision": "int8"}
    a, b = (load_model(f"onnx:{source.path}", **how, directory=where) for where in (folder, tmp_path))
    assert a.digest != b.digest and a.source_digest == b.source_digest


def test_a_file_made_from_other_weights_is_refused(made, tmp_path):
    _, _, files = made
    other = tiny_graph(tmp_path / "other.onnx", seed=1)
    for engine, file in files.items():
        with pytest.raises(PhotodupError, match=r"There is no INT8 file .* or use bf16 or fp32"):
            load_model(f"onnx:{other}", engine=engine, precision="int8", directory=file.parent)


def test_a_damaged_or_unexplained_file_is_refused(made, tmp_path):
    source, _, files = made
    copy = tmp_path / files["openvino"].name
    for suffix in (".xml", ".bin", ".json"):
        copy.with_suffix(suffix).write_bytes(files["openvino"].with_suffix(suffix).read_bytes())
    weights = copy.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\1\2\3")
    options = {"engine": "openvino", "precision": "int8", "directory": tmp_path}
    with pytest.raises(PhotodupError, match="is not what was written there"):
        load_model(f"onnx:{source.path}", **options)
    copy.with_suffix(".json").unlink()
    with pytest.raises(PhotodupError, match="does not say that it was made from"):
        load_model(f"onnx:{source.path}", **options)


def test_an_int8_file_is_not_taken_for_float(made):
    _, _, files = made
    with pytest.raises(PhotodupError, match=r"is quantised to int8, and fp32 was asked for"):
        load_model(f"onnx:{files['onnx']}", precision="fp32")
    with pytest.raises(PhotodupError, match="is int8 already"):
        reduced.source_of(files["onnx"])


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
def test_too_few_photographs_are_one_sentence(made, tmp_path, engine):
    source, _, _ = made
    with one_sentence(rf"at least {MIN_PHOTOGRAPHS} photographs .* there are 3: .*bf16"):
        quantise(source, photographs(3), engine=engine, directory=tmp_path)
    assert not any(tmp_path.iterdir())


def test_what_the_tool_cannot_quantise_is_one_sentence(made, tmp_path):
    source, _, _ = made
    with one_sentence(r"NNCF cannot quantise tiny\.onnx .*: use bf16 or fp32"):
        quantise(source, photographs(40)[:, :1], directory=tmp_path)


def test_depthwise_layers_stay_float(tmp_path):
    nodes = [
        ("Conv", ["image", "each"], "filtered", {"group": 3, "strides": [32, 32]}),
        ("Conv", ["filtered", "across"], "mixed"),
        ("Flatten", ["mixed"], "flat"),
        ("LpNormalization", ["flat"], "embedding", {"axis": 1, "p": 2}),
    ]
    rng = np.random.default_rng(0)
    weights = {"each": rng.random((3, 1, 8, 8), np.float32), "across": rng.random((8, 3, 1, 1), np.float32)}
    ends = ("image", ["n", 3, 224, 224]), ("embedding", ["n", 392])
    source = reduced.source_of(save_graph(tmp_path / "depthwise.onnx", nodes, *ends, weights))
    operations = read_network(quantise(source, photographs(40), directory=tmp_path)).get_ops()
    takes = {o.get_type_name(): o.input_value(0).get_node().get_type_name() for o in operations if o.inputs()}
    assert (takes["GroupConvolution"], takes["Convolution"]) == ("Parameter", "FakeQuantize")


def test_quantising_reports_to_nobody():
    code = (
        "from photodup.embedding.engines.quantise import _import_nncf; _import_nncf(); "
        "from nncf.telemetry import wrapper; print(type(wrapper.telemetry).__name__)"
    )
    done = run_python(code, check=True)
    assert done.stdout.split()[-1] == "MagicMock"


@pytest.mark.long  # the tiny encoder has the same test above
def test_openclip_in_int8_is_nearly_openclip(tmp_path, real_exports):
    """The real ViT-B/32, quantised on the demonstration photographs; as measured: .995 at random weights."""
    source = reduced.source_of(real_exports["fp32"])
    pictures = choose_pictures(edits=["crop 90%"])
    quantise(source, normalize(pictures.calibration), directory=tmp_path)
    images = pictures.pixels()
    wanted = load_model(f"onnx:{source.path}", engine="openvino").embed_pixels(images)
    model = load_model(f"onnx:{source.path}", engine="openvino", precision="int8", directory=tmp_path)
    cosine = (model.embed_pixels(images) * wanted).sum(axis=1)
    assert model.is_random and cosine.min() > 0.98 and np.median(cosine) > 0.995
