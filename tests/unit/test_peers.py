"""The servers of notebook 13: weights in the forms that they read, how each is started, and what is read of the records."""

import json
import re

import numpy as np
import pytest
from support.paths import ROOT

from photodup.bench.anyurl.payloads import Payloads
from photodup.errors import PhotodupError
from photodup.study.notebook.run import Run, open_run
from photodup.study.peers import figures, peers, stage, tables
from photodup.study.peers.outcomes import compared, rates
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

    patches = functional.conv2d(
        pixels, weights["vision_model.embeddings.patch_embedding.weight"], stride=config["patch_size"]
    )
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
    import open_clip.tokenizer

    from photodup.study.peers.weights import _tokens

    files = _tokens()
    theirs = open_clip.tokenizer.SimpleTokenizer()
    vocabulary = json.loads(files["vocab.json"])
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    assert {names.get(token, token): number for token, number in theirs.encoder.items()} == vocabulary
    merges = [tuple(line.split()) for line in files["merges.txt"].splitlines()[1:]]
    assert merges == sorted(theirs.bpe_ranks, key=theirs.bpe_ranks.get)


def test_each_peer_has_its_lock_file_its_server_and_its_version():
    import importlib.util

    spec = importlib.util.spec_from_file_location("make", ROOT / "tools" / "peers" / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    assert sorted(make.MODULES) == sorted(NAMES)
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
    with (
        pytest.raises(PhotodupError, match=r"Ray Serve is not installed here: python3.11"),
        peers.started(peers.SERVERS["ray"], "random:0"),
    ):
        pass
    assert peers.SERVERS["fastapi"].missing == ""


def test_each_server_is_asked_in_its_own_form():
    payloads = Payloads("images", (b"jpeg",), "one", "image/jpeg")
    sent = {}
    for name in [n for n in peers.SERVERS if n != "triton"]:  # which needs its server for that
        head, body = peers.adapter(peers.SERVERS[name], "http://127.0.0.1:1", payloads).prepare([b"jpeg"])
        sent[name] = (head.split(b" ")[1].decode(), body)
    assert sent["mosec"] == ("/inference", b"jpeg") and sent["ray"] == ("/embed", b"jpeg")
    assert sent["infinity"][0] == "/embeddings" and json.loads(sent["infinity"][1])["modality"] == "image"
    assert sent["fastapi"] == sent["litserve"] == sent["bentoml"] and b'name="files"' in sent["fastapi"][1]


def test_rows_alone_are_an_answer_to_a_form_and_anything_else_is_named():
    asks = peers.adapter(
        peers.SERVERS["bentoml"], "http://127.0.0.1:1", Payloads("images", (b"jpeg",), "one", "image/jpeg")
    )
    np.testing.assert_array_equal(asks.protocol.decode((200, b"[[1.0, 2.0]]")), [[1.0, 2.0]])
    np.testing.assert_array_equal(asks.protocol.decode((200, b'{"embeddings": [[3.0]]}')), [[3.0]])
    with pytest.raises(PhotodupError, match="is the protocol right"):
        asks.protocol.decode((200, b'["a"]'))


@pytest.fixture
def recorded(tmp_path, monkeypatch) -> Run:
    """A run with made-up rounds: LitServe is 20 % slower than ours, mosec the same, and Ray was planned and broke."""
    from dataclasses import replace

    from photodup.bench.record.record import RunStore

    monkeypatch.setenv("MODEL_PRETRAINED", "random:0")
    run = open_run("made-up")
    run = replace(run, directory=tmp_path / "made-up", store=RunStore(tmp_path / "made-up"))
    random = np.random.default_rng(0)
    names, factor = ["fastapi", "litserve", "mosec", "ray"], {"litserve": 1.2}
    declared = stage.declared(names, run.name, stage.PASSES["fp32"])
    checks = [{"server": "fastapi", "load": "one", "metric": "latency_ms_p50"}]
    checks += [{"server": "fastapi", "load": "eight", "metric": "throughput_images_per_s"}]
    plan = {
        "servers": names,
        "rounds": 8,
        "kept": [d.name for d in declared],
        "checks": checks,
        "dropped": [],
    }
    config = stage.plan_config(stage.PASSES["fp32"], "random:0")
    run.measure_or_load(stage.PLAN, lambda: dict(plan), config=config)
    for name in names[:3]:
        for load in stage.PASSES["fp32"].loads:
            for number in range(1, 9):
                for again in (False, True) if name == "fastapi" else (False,):
                    slower = factor.get(name, 1.0) * random.normal(1, 0.005)
                    latency = 100 * slower * random.normal(1, 0.05, 120)
                    point = {"valid": True, "verdict": "valid", "latency_ms_p50": 100 * slower}
                    point["throughput_images_per_s"] = 20 / slower
                    config = stage.round_config(peers.SERVERS[name], load, number, again, "random:0")
                    found = {"point": point, "raw": {"latency_ms": latency}}
                    run.measure_or_load(
                        stage.round_key(peers.SERVERS[name], load),
                        lambda found=found: dict(found),
                        config=config,
                    )
    return run


def test_what_was_planted_in_the_rounds_is_what_the_judge_says(recorded):
    found = compared(recorded)
    assert found.outcomes["LitServe, one"].verdict == "different"
    assert found.outcomes["LitServe, one"].effect == pytest.approx(0.2, abs=0.02)
    assert found.outcomes["mosec, one"].verdict == "equal"
    assert found.outcomes["Ray Serve, one"].verdict is None
    row = found.arms.set_index("server").loc["litserve"]
    assert row.one == pytest.approx(120, rel=0.02) and row.one_low < row.one < row.one_high
    assert row.p99_low < row.p99 < row.p99_high and row.p99 > row.one
    said = figures.answer(found)
    assert said.startswith(
        "In FP32 no server is found to take less time for one photograph than FastAPI (ours)"
    )
    assert "; undecided: Ray Serve." in said and "Undecided with eight in flight: Ray Serve." in said
    assert "no server is found to give more" in said
    told = figures.answer_table(found)
    assert told.loc["LitServe"].iloc[0].startswith("different, +20") and "[+" in told.loc["LitServe"].iloc[0]
    assert told.loc["LitServe"].iloc[1].startswith("different, -1")
    assert told.loc["mosec"].iloc[0].startswith("equal, ")
    assert told.loc["Ray Serve"].tolist() == ["not compared"] * 2
    assert len(recorded.points()) == 0  # these are no points of the study's own backends


def test_a_run_without_servers_says_so(tmp_path):
    from dataclasses import replace

    import matplotlib.pyplot as plt

    from photodup.bench.record.record import RunStore

    empty = replace(open_run("made-up"), directory=tmp_path / "none", store=RunStore(tmp_path / "none"))
    found = compared(empty)
    assert found.servers == () and len(found.missing) == len(peers.SERVERS)
    assert figures.answer(found) == "Not measured: no server was measured in this run."
    figure, ax = plt.subplots()
    assert figures.draw_servers(ax, found, "one") == 0
    assert [t.get_text() for t in ax.texts] == ["not measured"] * len(peers.SERVERS)
    plt.close(figure)
    assert (
        figures.costs(found).iloc[0, 0]
        == figures.overload(found).iloc[0, 0]
        == "none was measured in this run"
    )


def test_each_server_at_its_fastest_is_beside_its_fp32_figures(recorded):
    """Rounds at the fastest precision are passes of their own: other records, other arms, the same judge."""
    _record_fastest(recorded, "fastest")
    fp32, fast = compared(recorded), compared(recorded, passes=("fastest", "many"))

    assert fp32.outcomes["LitServe, one"].effect == pytest.approx(0.2, abs=0.02), "as without the other pass"
    assert fast.outcomes["LitServe, one"].effect == pytest.approx(1.5, abs=0.05)
    assert figures.fastest_sentence(fast).endswith(
        "in INT8 is found faster than LitServe with 1 and 8 in flight."
    )
    assert figures.engines(fast) == "OpenVINO INT8: FastAPI (ours); PyTorch BF16: LitServe."
    table = tables.at_fastest(fp32, fast).set_index("server")
    assert list(table["precision, engine"]) == ["int8, openvino", "bf16, pytorch"]
    assert float(table["÷ FP32's latency"]["FastAPI (ours)"]) == pytest.approx(0.2, abs=0.01)
    assert float(table["÷ FP32's throughput"]["LitServe"]) == pytest.approx(2.4, abs=0.03)
    assert set(table["thirty-two in flight (images/s)"]) == {"–"}

    _record_fastest(recorded, "many")
    fast = compared(recorded, passes=("fastest", "many"))
    assert figures.fastest_sentence(fast).endswith("than LitServe with 1, 8 and 32 in flight.")
    table = tables.at_fastest(fp32, fast).set_index("server")
    assert table["thirty-two in flight (images/s)"]["FastAPI (ours)"].startswith(("100", "99", "101"))


def _record_fastest(run: Run, name: str) -> None:
    """Record made-up rounds of a pass at the fastest precision: ours 5 times, LitServe twice as fast as 100 ms."""
    names, planned = ["fastapi", "litserve"], stage.PASSES[name]
    checks = [
        {"server": s, "load": load, "metric": stage.METRIC[load]} for s in names for load in planned.loads
    ]
    plan = {"servers": names, "rounds": 6, "checks": checks, "dropped": []}
    plan["kept"] = [d.name for d in stage.declared(names, run.name, planned)]
    run.measure_or_load(stage.PLAN, lambda: plan, config=stage.plan_config(planned, "random:0"))
    random = np.random.default_rng(1)
    for server, quicker in ((planned.server("fastapi"), 5.0), (planned.server("litserve"), 2.0)):
        for load in planned.loads:
            for number, again in ((n, again) for n in range(1, 7) for again in (False, True)):
                near = random.normal(1, 0.005)
                point = {"valid": True, "verdict": "valid", "latency_ms_p50": 100 / quicker * near}
                point["throughput_images_per_s"] = 20 * quicker * near
                found = {"point": point, "raw": {"latency_ms": np.full(30, 100 / quicker)}}
                config = stage.round_config(server, load, number, again, "random:0")
                run.measure_or_load(
                    stage.round_key(server, load), lambda found=found: dict(found), config=config
                )


def test_a_rate_under_the_bound_or_the_reason_is_shown(recorded):
    rate = {"rate_per_s": 9.5, "low": 9.0, "high": 10.1, "because": "", "seen": [{"rate_per_s": 9.0}]}
    none = {
        "rate_per_s": None,
        "low": None,
        "high": None,
        "because": "Even 2 requests/s do not meet 250 ms.",
        "seen": [],
    }
    for name, found in (("fastapi", rate), ("mosec", none)):
        config = stage.rate_config(peers.fastest(peers.SERVERS[name]), "random:0")
        recorded.measure_or_load(stage.RATE, lambda found=found: dict(found), config=config)
    table = tables.under_bound(rates(recorded)).set_index("server")
    assert table["highest rate (requests/s)"].to_dict() == {"FastAPI (ours)": "9.5", "mosec": "–"}
    assert "do not meet" in table["why not"]["mosec"]
    assert tables.under_bound({}).iloc[0, 0] == "none was measured in this run"
