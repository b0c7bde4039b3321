"""`photodup verify`: planted faults, each found by its name, and no false alarm on servers of ours."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.command import photodup, run_command
from support.faulty_server import faulty_server, texture_graph

from photodup.bench.verify import pictures
from photodup.bench.verify.checks import find_deviation, reference_of
from photodup.core.errors import PhotodupError
from photodup.embedding.engines.encoder import load_model

MODEL, WRONG, TOLERATED, DEAD = "model and precision", "wrong", "tolerated", "dead"
FAULTS = {
    "BGR": (MODEL, WRONG, "BGR"),
    "ImageNet's mean": (MODEL, WRONG, "ImageNet's values"),
    "0.5 and 0.5": (MODEL, WRONG, "0.5 and 0.5"),
    "not normalised pixels": (MODEL, WRONG, "not normalised"),
    "no centre crop": (MODEL, WRONG, "no centre cut out"),
    "wrong dimension": (MODEL, WRONG, "256 numbers; the model has 512"),
    "NaN": (MODEL, WRONG, "NaN"),
    "dead from the start": (MODEL, DEAD, "/healthz says that all is well"),
    "no JSON": (MODEL, DEAD, "cannot be read"),
    "bilinear": ("resize filter", WRONG, "by bilinear, not bicubic"),
    "Lanczos": ("resize filter", WRONG, "by lanczos, not bicubic"),
    "no smoothing": ("resize filter", WRONG, "bilinear without smoothing"),
    "no EXIF turn": ("EXIF orientation", WRONG, "was not applied"),
    "500 on CMYK": ("CMYK", WRONG, "answered 500"),
    "CMYK inverted": ("CMYK", WRONG, "inverted"),
    "grey in one channel": ("greyscale", WRONG, "unlike"),
    "16 bits clipped": ("16 bits", WRONG, "clipped"),
    "low bytes": ("16 bits", WRONG, "low bytes"),
    "alpha onto black": ("transparency", TOLERATED, "over black"),
    "alpha dropped": ("transparency", TOLERATED, "hidden colours"),
    "alpha dropped after the resize": ("transparency", TOLERATED, "after the resize, as open_clip does"),
    "palette not blended": ("palette", TOLERATED, "not its colours, as open_clip does"),
    "palette misread": ("palette", WRONG, "grey levels"),
    "ICC applied": ("ICC profile", TOLERATED, "profile was applied"),
    "ICC refused": ("ICC profile", TOLERATED, "not taken"),
    "FP16 overflow": ("extreme pixels", WRONG, "NaN"),
    "BF16": (MODEL, TOLERATED, "BF16 or FP16, and the server states no precision"),
    "INT8": (MODEL, TOLERATED, "INT8, and the server states no precision"),
    "shuffled batch": ("batch", WRONG, "place 1 of 8 holds photograph 8's embedding, not 1's"),
    "rows lost": ("batch", WRONG, "4 embeddings came for 8 images"),
    "mixed in a batch": ("batch", WRONG, "another embedding than the photograph gets alone"),
    "swapped": ("concurrency", WRONG, "embedding, not"),
    "not of length 1": ("normalisation", WRONG, "such as 3"),
    "truncated accepted": ("half of a JPEG", WRONG, "nobody would notice"),
    "500 on a broken image": ("a web page named .jpg", WRONG, "not refused as the client's fault"),
    "constant for a failing image": ("an empty file", WRONG, "nobody would notice"),
    "dead worker": ("an empty file", DEAD, "while /healthz says that all is well"),
    "hang on many scans": (pictures.MANY_SCANS, WRONG, "nothing came within 10 s"),
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return texture_graph(tmp_path_factory.mktemp("verify") / "encoder.onnx")


@pytest.fixture(scope="module")
def model(encoder):
    return load_model(f"onnx:{encoder}")


def verified(url: str, encoder: Path, *options: object) -> tuple[int, dict]:
    done = photodup("verify", url, "--weights", f"onnx:{encoder}", "--json", *options)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found_by_its_name(model, encoder, fault):
    name, verdict, words = FAULTS[fault]
    patience = ("--timeout", 10) if fault.startswith("hang") else ()
    with faulty_server(model, fault) as url:
        status, found = verified(url, encoder, *patience)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows[name]["verdict"] == verdict and words in rows[name]["words"], found
    assert status == (verdict != TOLERATED) == found["status"]


def test_a_sound_server_is_right_and_no_file_that_it_names_is_opened(model, encoder):
    with faulty_server(model) as url:
        status, found = verified(url, encoder)
        assert status == 0 and {row["verdict"] for row in found["rows"]} == {"right"}, found
        said = run_command("verify", url, "--weights", f"onnx:{encoder}", "--no-hostile")
        assert "15 right" in said and "the cosines are as of" in said
        with pytest.raises(PhotodupError, match=r"names the weights 'onnx:/etc/passwd'.*--weights"):
            reference_of({"pretrained": "onnx:/etc/passwd"}, None)


@pytest.mark.parametrize(("options", "said"), [
    (["http://127.0.0.1:9"], "Nothing answers"),
    (["{url}", "--precision", "fp7"], "--precision is one of fp32"),
    (["{url}", "--protocol", "openai", "--model", "m"], "openai, embeds no .* its form with --protocol"),
    (["{url}/elsewhere", "--protocol", "multipart"], "embeds no plain photograph"),
])  # fmt: skip
def test_what_cannot_be_checked_is_one_sentence(model, encoder, options, said):
    with faulty_server(model) as url:
        options = [option.format(url=url) for option in options]
        assert re.search(said, run_command("verify", *options, "--weights", f"onnx:{encoder}", status=2))


def test_a_plain_post_carries_one_image_and_is_checked_as_a_form_is(model, encoder):
    with faulty_server(model, "no EXIF turn") as url:
        _, found = verified(url, encoder, "--protocol", "post")
    rows = {row["name"]: (row["verdict"], row["words"]) for row in found["rows"]}
    assert rows.pop("batch") == (TOLERATED, "takes one image a request")
    assert rows.pop("EXIF orientation") == (WRONG, "as if EXIF's orientation was not applied")
    assert {verdict for verdict, _ in rows.values()} == {"right"}, rows


def test_a_stated_precision_is_held_against_the_cosines_and_strict_tolerates_nothing(model, encoder):
    with faulty_server(model, "BF16") as url:
        status, found = verified(url, encoder, "--precision", "fp32", "--no-hostile")
        assert status == 1 and "fp32 is stated, and the cosines are as of BF16" in found["rows"][0]["words"]
        assert verified(url, encoder, "--precision", "bf16", "--no-hostile")[0] == 0
        assert verified(url, encoder, "--no-hostile")[0] == 0
        assert verified(url, encoder, "--no-hostile", "--strict")[0] == 1


@pytest.mark.parametrize("deviation", range(5))
@pytest.mark.parametrize("rounding", [0.0, 0.5, 1.0])
def test_a_deviation_is_told_from_rounding_as_large_as_itself(deviation, rounding):
    """Simulated: never blamed where there is only rounding, found where it is there."""
    random = np.random.default_rng(deviation)
    right, way = (random.normal(size=(6, 512)) for _ in range(2))
    noise = rounding * random.normal(size=(6, 512))
    seen = {"as that": right + way}
    assert find_deviation(right + noise, right, seen, 100.0, 1.0)[0] == ""
    assert find_deviation(right + way + noise, right, seen, 100.0, 1.0)[0] == "as that"
