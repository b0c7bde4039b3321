"""The servers of notebook 13: weights in the forms that they read, how each is started, and what is read of the records."""

import json
import re
import runpy
from dataclasses import replace

import numpy as np
import pytest
from support.paths import ROOT
from support.visits import planted_visit

from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.record.record import RunStore
from photodup.bench.stats.comparison import Verdict, has_failed
from photodup.bench.verify.verify import Checked, VerifiedServer
from photodup.core.errors import PhotodupError
from photodup.study.notebook.run import Run, open_run
from photodup.study.peers import figures, peers, stage
from photodup.study.peers.outcomes import compared, rates, verified
from photodup.study.peers.weights import _descriptions, hugging_face_names

NAMES = [name for name, server in peers.SERVERS.items() if not server.is_ours]


@pytest.fixture(scope="module")
def clip():
    from photodup.embedding.engines.weights import random_clip

    return random_clip("ViT-B-32", "random:0")


def test_hugging_faces_layout_computes_the_same_embeddings(clip):
    """The layout's own arithmetic, written out: `transformers` itself is in Infinity's environment alone."""
    import torch
    from torch.nn import functional

    weights = hugging_face_names(clip.state_dict())
    pixels = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    config = json.loads(_descriptions(clip)["config.json"])["vision_config"]

    def linear(name, x):
        return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(name, x):
        return functional.layer_norm(
            x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5
        )

    kernel = weights["vision_model.embeddings.patch_embedding.weight"]
    patches = functional.conv2d(pixels, kernel, stride=config["patch_size"])
    first = weights["vision_model.embeddings.class_embedding"].expand(2, 1, -1)
    x = torch.cat([first, patches.flatten(2).transpose(1, 2)], dim=1)
    x = norm("vision_model.pre_layrnorm", x + weights["vision_model.embeddings.position_embedding.weight"])
    heads = config["num_attention_heads"]
    for layer in range(config["num_hidden_layers"]):
        at = f"vision_model.encoder.layers.{layer}"
        y = norm(f"{at}.layer_norm1", x)
        q, k, v = (
            linear(f"{at}.self_attn.{p}_proj", y).unflatten(-1, (heads, -1)).transpose(1, 2) for p in "qkv"
        )
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + linear(f"{at}.self_attn.out_proj", y)
        x = x + linear(
            f"{at}.mlp.fc2", functional.gelu(linear(f"{at}.mlp.fc1", norm(f"{at}.layer_norm2", x)))
        )
    theirs = linear("visual_projection", norm("vision_model.post_layernorm", x[:, 0]))
    with torch.inference_mode():
        ours = clip.visual.eval()(pixels)
    assert config["hidden_act"] == "gelu"
    np.testing.assert_allclose(theirs.numpy(), ours.numpy(), atol=1e-4)
    weights["vision_model.encoder.layers.0.self_attn.q_proj.weight"] *= 0  # a planted mistake would show
    assert len(weights) == 398


def test_the_tokens_are_those_of_open_clip():
    from photodup.embedding.engines.weights import import_open_clip
    from photodup.study.peers.weights import _tokens

    theirs = import_open_clip().tokenizer.SimpleTokenizer()
    files = _tokens()
    vocabulary = json.loads(files["vocab.json"])
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    assert {names.get(token, token): number for token, number in theirs.encoder.items()} == vocabulary
    merges = [tuple(line.split()) for line in files["merges.txt"].splitlines()[1:]]
    assert merges == sorted(theirs.bpe_ranks, key=theirs.bpe_ranks.get)


def test_each_peer_has_its_lock_file_its_server_and_its_version():
    assert sorted(runpy.run_path(str(ROOT / "tools" / "peers" / "make.py"))["MODULES"]) == sorted(NAMES)
    for name in NAMES:
        server = peers.SERVERS[name]
        lines = (ROOT / "tools" / "peers" / f"{name}.txt").read_text().splitlines()
        pinned = [line for line in lines if not line.startswith("#")]
        assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!-]+", line) for line in pinned), name
        assert "torch==2.13.0" in pinned and re.fullmatch(r"\d+\.\d+\.\d+", server.version)
        assert server.how and server.ready.startswith("/")
        assert name == "infinity" or (ROOT / "tools" / "peers" / f"{name}_server.py").is_file()


def test_a_server_that_is_not_installed_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "build_dir", lambda: tmp_path)
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "mosec.error").write_text("No matching distribution found for mosec==0.9.8")
    why = "mosec is not installed here (No matching distribution found for mosec==0.9.8)"
    assert peers.SERVERS["mosec"].missing == f"{why}: python3.11 tools/peers/make.py mosec"
    ray = peers.started(peers.SERVERS["ray"], "random:0")
    with pytest.raises(PhotodupError, match=r"Ray Serve is not installed here: python3.11"), ray:
        pass
    assert peers.SERVERS["fastapi"].missing == ""


def test_each_server_is_asked_in_its_own_form():
    payloads = Payloads("images", (b"jpeg",), "one", "image/jpeg")
    sent = {}
    for name in [n for n in peers.SERVERS if n != "triton"]:  # which needs its server for that
        asks = peers.Started(peers.SERVERS[name], "http://127.0.0.1:1", 0.0, 0).adapter(payloads)
        head, body = asks.prepare([b"jpeg"])
        sent[name] = (head.split(b" ")[1].decode(), body)
    assert sent["mosec"] == ("/inference", b"jpeg") and sent["ray"] == ("/embed", b"jpeg")
    assert sent["infinity"][0] == "/embeddings" and json.loads(sent["infinity"][1])["modality"] == "image"
    assert sent["fastapi"] == sent["litserve"] == sent["bentoml"] and b'name="files"' in sent["fastapi"][1]


def test_rows_alone_are_an_answer_to_a_form_and_anything_else_is_named():
    up = peers.Started(peers.SERVERS["bentoml"], "http://127.0.0.1:1", 0.0, 0)
    asks = up.adapter(Payloads("images", (b"jpeg",), "one", "image/jpeg"))
    np.testing.assert_array_equal(asks.protocol.decode((200, b"[[1.0, 2.0]]")), [[1.0, 2.0]])
    np.testing.assert_array_equal(asks.protocol.decode((200, b'{"embeddings": [[3.0]]}')), [[3.0]])
    with pytest.raises(PhotodupError, match="is the protocol right"):
        asks.protocol.decode((200, b'["a"]'))


# As a processor with BF16 gives it, whatever this one has.
REDUCED = {"fastapi": {"engine": "openvino", "precision": "int8"}}
REDUCED |= {name: {"engine": "pytorch", "precision": "bf16"} for name in ("litserve", "infinity")}


def record(run: Run, name: str, speeds: dict[str, float], lost: dict[str, str] | None = None) -> None:
    """Record four visits of a pass in which one photograph takes 100 ms divided by a server's speed."""
    for load in stage.PASSES[name].loads:
        for number in range(1, 5):
            by = [speed for server, speed in speeds.items() if number < 3 or server not in (lost or {})]
            values = [100 / speed if load == "one" else 20 * speed for speed in by]
            found = planted_visit(values, number).as_record()
            found |= {"servers": [s for s in speeds if number < 3 or s not in (lost or {})]}
            found |= {"lost": lost or {} if number > 2 else {}}
            found |= {"about": REDUCED if stage.PASSES[name].is_fastest else {}}
            config = stage.visit_config(name, load, "random:0", number)
            run.measure_or_load(
                stage.visit_key(load), lambda found=found: dict(found), config=config, kind="server-visit"
            )


@pytest.fixture
def empty(tmp_path, monkeypatch) -> Run:
    monkeypatch.setenv("MODEL_PRETRAINED", "random:0")
    run = open_run("made-up")
    return replace(run, directory=tmp_path / "made-up", store=RunStore(tmp_path / "made-up"))


@pytest.fixture
def recorded(empty) -> Run:
    """LitServe takes 20 % longer than ours, mosec as long, Ray Serve died after two visits, BentoML before the first."""
    speeds = {"fastapi": 1, "litserve": 1 / 1.2, "ray": 1.0, "mosec": 1.0, stage.AGAIN: 1.0}
    record(empty, "fp32", speeds, {"ray": "ray failed 20 requests in a row: refused", "bentoml": "no port"})
    return empty


def test_what_was_planted_in_the_visits_is_what_is_found(recorded):
    found = compared(recorded)
    litserve, mosec, ray = (found.outcomes[f"{s}, one"] for s in ("LitServe", "mosec", "Ray Serve"))
    assert litserve.verdict is Verdict.BEYOND and litserve.effect == pytest.approx(0.2, abs=0.02)
    assert mosec.verdict is Verdict.EQUAL and abs(mosec.effect) < 0.02 and mosec.n_visits == 4
    assert ray.n_visits == 2 and ray.notes[0].startswith("It was left out of later visits: ray failed 20")
    assert found.outcomes["BentoML, one"].because == "no port"
    assert [c.question.name for c in found.checks] == [
        f"FastAPI (ours) again, {load}" for load in ("one", "eight")
    ]
    assert not any(map(has_failed, found.checks)) and litserve.null == found.checks[0]
    row = found.arms.set_index("server").loc["litserve"]
    assert row.one == pytest.approx(120, rel=0.02) and row.one_low < row.one < row.one_high
    assert row.p99_low < row.p99 < row.p99_high and row.p99 > row.one
    said = figures.answer(found)
    assert said.startswith(
        "In FP32 with one request in flight no server was measurably faster than FastAPI (ours)."
    )
    assert "Not measured with eight requests in flight: BentoML." in said
    told = figures.answer_table(found)
    assert told.loc["LitServe"].iloc[0].startswith("different by more than 2 %, +2")
    assert told.loc["LitServe"].iloc[1].startswith("different by more than 2 %, -1")
    assert told.loc["mosec"].iloc[0].startswith("equal, ") and told.loc["BentoML"].iloc[0] == "not measured"
    assert len(recorded.figures()) == 0  # these are no figures of the study's own backends


def test_a_faster_server_is_in_the_answer_with_both_values(empty):
    record(empty, "fp32", {"fastapi": 1.0, "triton": 2.0})
    said = figures.answer_of(empty).splitlines()
    wanted = "In FP32 with one request in flight: Triton (ours) takes 50 % less time than FastAPI (ours) ["
    assert said[0].startswith(wanted)
    assert "(median latency 50 against 100 ms)" in said[0] and "100 % higher throughput" in said[1]
    assert said[2].startswith("Triton computes with ONNX Runtime")


def test_a_run_without_servers_says_so(empty):
    import matplotlib.pyplot as plt

    found = compared(empty)
    assert not len(found.arms) and not found.alone and not found.outcomes
    assert figures.answer(found) == figures.answer_of(empty) == figures.NOT_MEASURED
    figure, ax = plt.subplots()
    figures.draw_servers(ax, found, "one")
    assert [t.get_text() for t in ax.texts] == ["not measured"] * len(peers.SERVERS)
    plt.close(figure)
    none = "none was measured in this run"
    assert figures.costs(found).iloc[0, 0] == figures.overload(found).iloc[0, 0] == none
    assert set(figures.verified(verified(empty)).loc["every check"]) == {figures.NOT_RUN}
    assert figures.why_wrong(verified(empty)) == ["No server was verified in this run."]


def test_each_verdict_of_a_check_stands_under_its_server_and_a_finding_is_told_once(empty):
    turned = Checked("EXIF orientation", "wrong", "as if EXIF's orientation was not applied", 0.9)
    rows = {"fastapi": (Checked("CMYK", "right", ""),), "mosec": (turned,), "ray": (turned,)}
    for name, checks in rows.items():
        found = VerifiedServer("http://127.0.0.1:1/embed", "post", "the same", checks).as_record()
        config = stage.config_of(peers.SERVERS[name], "random:0")
        empty.measure_or_load(stage.VERIFY, lambda found=found: found, config=config)
    table = figures.verified(verified(empty))
    assert dict(table["FastAPI (ours)"]) == {"CMYK": "right", "EXIF orientation": "not asked"}
    assert dict(table["Ray Serve"]) == {"CMYK": "not asked", "EXIF orientation": "wrong"}
    assert set(table["BentoML"]) == {figures.NOT_RUN}
    assert list(table) == [s.label for s in peers.SERVERS.values()]
    seen = "`photodup verify` finds nothing wrong with FastAPI (ours), but faults in mosec and Ray Serve."
    assert figures.answer_of(empty).splitlines() == [figures.NOT_MEASURED, seen, figures.ADVICE]
    (line,) = figures.why_wrong(verified(empty))
    assert line == "EXIF orientation: wrong, as if EXIF's orientation was not applied (mosec and Ray Serve)"


def test_memory_start_and_overload_of_each_server_are_in_tables(empty):
    load = {"offered_per_s": 20.0, "answered": 30, "failed": 7, "latency_ms_p50": 1556.9, "error": ""}
    load |= {"recovered_s": None}
    for name, mib, first in (("mosec", 1170.2, [3, 9, 4]), ("ray", 900.0, [17, 16, 18])):
        alone = {"memory_loaded_mib": mib, "first_answer_s": first, "overload": load}
        config = stage.config_of(peers.SERVERS[name], "random:0")
        empty.measure_or_load(stage.ALONE, lambda alone=alone: alone, config=config)
    found = compared(empty)
    costs = figures.costs(found).set_index("server")
    assert costs["first answer (s), median"]["mosec"] == 4 and costs["memory (MiB)"]["Ray Serve"] == 900
    assert set(figures.overload(found)["as before after (s)"]) == {"more than 30"}


def test_each_server_at_its_fastest_is_beside_its_fp32_figures(recorded):
    """Visits at the fastest precision are passes of their own: other records, other figures."""
    record(recorded, "fastest", {"fastapi": 5.0, "litserve": 2.0})
    fp32, fast = compared(recorded), compared(recorded, passes=("fastest", "many"))
    assert fp32.outcomes["LitServe, one"].effect == pytest.approx(0.2, abs=0.02), "as without the other pass"
    assert fast.outcomes["LitServe, one"].effect == pytest.approx(1.5, abs=0.05)
    told = "OpenVINO INT8: FastAPI (ours); PyTorch BF16: LitServe"
    assert figures.engines(fast) == f"{told}."
    who, by_how_much = figures.fastest_sentences(fast)
    assert who.endswith(f" faster than LitServe with 1 and 8 in flight ({told}).")
    assert by_how_much.startswith("The nearest of these, with one in flight: LitServe takes 15")
    assert figures.visits(fast) == "4 visits"
    table = figures.at_fastest(fp32, fast).set_index("server")
    assert list(table["precision, engine"]) == ["int8, openvino", "bf16, pytorch"]
    assert float(table["÷ FP32's latency"]["FastAPI (ours)"]) == pytest.approx(0.2, abs=0.01)
    assert float(table["÷ FP32's throughput"]["LitServe"]) == pytest.approx(2.4, abs=0.03)
    assert "thirty-two in flight (images/s)" not in table
    record(recorded, "many", {"fastapi": 5.0, "litserve": 2.0})
    fast = compared(recorded, passes=("fastest", "many"))
    assert figures.fastest_sentences(fast)[0].endswith(f"than LitServe with 1, 8 and 32 in flight ({told}).")
    table = figures.at_fastest(fp32, fast).set_index("server")
    assert table["thirty-two in flight (images/s)"]["FastAPI (ours)"].startswith(("100", "99", "101"))


def test_a_rate_under_the_bound_or_the_reason_is_shown(recorded):
    rate = {"rate_per_s": 9.5, "low": 9.0, "high": 10.1, "because": "", "seen": [{"rate_per_s": 9.0}]}
    none = dict.fromkeys(("rate_per_s", "low", "high")) | {"seen": []}
    none |= {"because": "Even 2 requests/s do not meet 250 ms."}
    ours = rate | {"rate_per_s": 80.0, "low": 75.0, "high": 100.0}
    for name, found in (("triton", ours), ("litserve", rate), ("mosec", none)):
        config = stage.rate_config(peers.fastest(peers.SERVERS[name]), "random:0")
        recorded.measure_or_load(stage.RATE, lambda found=found: dict(found), config=config)
    table = figures.under_bound(rates(recorded)).set_index("server")
    shown = table["highest rate (requests/s)"].dropna().to_dict()
    assert shown == {"Triton (ours)": 80.0, "LitServe": 9.5}
    assert table["between"]["Triton (ours)"] == "75 to 100"
    assert "do not meet" in table["why not"]["mosec"]
    assert figures.under_bound({}).iloc[0, 0] == "none was measured in this run"
