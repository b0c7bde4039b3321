"""The servers of notebook 13: weights in the forms that they read, how each is started, and what is read of the records."""

import json
import re
import runpy
from dataclasses import replace

import numpy as np
import pytest
from support.paths import ROOT
from support.visits import opened, planted_visit

from photodup.bench.pairs.declared import Pair
from photodup.bench.stats.comparison import Verdict
from photodup.bench.verify.checks import CheckRow, VerifiedServer
from photodup.core.errors import PhotodupError
from photodup.study.comparisons.compare import compare
from photodup.study.comparisons.measure import Amount, missing_visits, visit_config, visit_key
from photodup.study.comparisons.outcomes import read_comparisons
from photodup.study.peers import alone, servers, tables
from tools.peers.weights import _descriptions, hugging_face_names

FAMILIES = ("13_compare_servers", "13_compare_servers, fastest")


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
    patches = functional.conv2d(pixels, kernel, stride=32)
    first = weights["vision_model.embeddings.class_embedding"].expand(2, 1, -1)
    x = torch.cat([first, patches.flatten(2).transpose(1, 2)], dim=1)
    x = norm("vision_model.pre_layrnorm", x + weights["vision_model.embeddings.position_embedding.weight"])
    for layer in range(12):
        at = f"vision_model.encoder.layers.{layer}"
        y = norm(f"{at}.layer_norm1", x)
        q, k, v = (
            linear(f"{at}.self_attn.{p}_proj", y).unflatten(-1, (12, -1)).transpose(1, 2) for p in "qkv"
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
    from tools.peers.weights import _tokens

    theirs = import_open_clip().tokenizer.SimpleTokenizer()
    files = _tokens()
    vocabulary = json.loads(files["vocab.json"])
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    assert {names.get(token, token): number for token, number in theirs.encoder.items()} == vocabulary
    merges = [tuple(line.split()) for line in files["merges.txt"].splitlines()[1:]]
    assert merges == sorted(theirs.bpe_ranks, key=theirs.bpe_ranks.get)


@pytest.fixture
def peers():
    """Server's name → its sides, the fastest one last."""
    by_server = {}
    for side in servers.declared().sides.values():
        by_server.setdefault(side.server.name, []).append(side)
    return by_server


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A build folder in which no peer is installed; the function that is returned installs one."""
    monkeypatch.setattr(servers, "build_dir", lambda: tmp_path)

    def install(name: str) -> None:
        (tmp_path / "peers" / name).mkdir(parents=True)
        (tmp_path / "peers" / name / "made").write_text("here")

    return install


def test_each_peer_has_its_lock_file_its_server_and_its_version(peers):
    names = sorted(name for name, sides in peers.items() if sides[0].server.command)
    assert sorted(runpy.run_path(str(ROOT / "tools" / "peers" / "make.py"))["MODULES"]) == names
    for name in names:
        server = peers[name][0].server
        lines = (ROOT / "tools" / "peers" / f"{name}.txt").read_text().splitlines()
        pinned = [line for line in lines if not line.startswith("#")]
        assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!-]+", line) for line in pinned), name
        assert "torch==2.13.0" in pinned and re.fullmatch(r"\d+\.\d+\.\d+", servers.version(server))
        for script in re.findall(r"\{tools\}/(\w+\.py)|(\w+_server):", server.command):
            assert (ROOT / "tools" / "peers" / (script[0] or f"{script[1]}.py")).is_file()


def test_a_command_gets_its_places_and_a_precision_its_type(peers, installed, monkeypatch, tmp_path):
    monkeypatch.setattr(servers, "weights_in", lambda form: f"{tmp_path}/{form}")
    command, variables = servers.command_of(peers["infinity"][-1], 4711)
    assert command[0] == str(tmp_path / "peers" / "infinity" / "bin" / "infinity_emb")
    assert command[command.index("--model-id") + 1].endswith("hugging-face")
    assert command[command.index("--port") + 1] == "4711" and variables["HF_HUB_OFFLINE"] == "1"
    command, variables = servers.command_of(peers["litserve"][-1], 4711)
    assert variables["PORT"] == "4711" and variables["PEER_DTYPE"] == "bfloat16"
    assert command[1:] == [str(ROOT / "tools" / "peers" / "litserve_server.py")]


def test_what_is_not_installed_is_said_in_one_sentence(peers, installed, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("PHOTODUP_MEASURE", raising=False)
    monkeypatch.setattr(servers, "open_run", lambda name: opened(tmp_path / name))
    installed("ray")
    (tmp_path / "peers" / "mosec.error").write_text("No matching distribution found for mosec==0.9.8")
    run = servers.open_peers("mine")
    (line,) = capsys.readouterr().out.splitlines()
    assert "mosec is not installed here (No matching distribution found for mosec==0.9.8); " not in line[:40]
    assert "(No matching distribution found for mosec==0.9.8)" in line and "Ray" not in line
    assert line.endswith(": `python3.11 tools/peers/make.py` installs them.")
    asked = missing_visits(run, servers.declared().pairs_of(FAMILIES), Amount(3))
    assert {pair.b.server.name for _, pair in asked} == {"ray"}, (
        "what is installed is measured, and nothing else"
    )
    litserve = servers.started(peers["litserve"][0])
    with pytest.raises(PhotodupError, match=r"^LitServe is not installed here\.$"), litserve:
        pass


def test_without_any_peer_nothing_is_measured(installed, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("PHOTODUP_MEASURE", raising=False)
    monkeypatch.setattr(servers, "open_run", lambda name: opened(tmp_path / name))
    run = servers.open_peers("mine")
    found = compare(run, FAMILIES[0], declared=servers.declared())
    assert not alone.start_costs(run) and not alone.verified(run)
    assert not any((run.directory / "records").glob("*"))
    assert all(o.verdict is Verdict.NOT_MEASURED for o in found.outcomes.values())
    assert "LitServe is not installed here." in found.sentence("LitServe, one")
    assert tables.server_costs({}).empty and tables.verdicts({}).empty
    assert tables.faults({}) == []
    assert tables.answer(found.outcomes, found.outcomes, {}) == "No servers were compared in this run."


def test_both_loads_of_two_servers_are_visited_together(installed, tmp_path, peers):
    for name in ("infinity", "litserve", "bentoml", "mosec", "ray"):
        installed(name)
    declared = servers.declared()
    pairs = [*declared.pairs_of(FAMILIES), *declared.nulls]
    order = [(n, p.a.name, p.b.label) for n, p in missing_visits(opened(tmp_path / "run"), pairs, Amount(3))]
    starts = sum(before != after for before, after in zip([None, *order], order, strict=False))
    assert len(order) == 3 * 24 and starts == len(set(order)) == 3 * 12


def test_each_server_is_asked_in_its_own_form(peers, monkeypatch):
    jpeg = servers.Payloads("images", (b"jpeg",), "one", "image/jpeg")
    monkeypatch.setattr(servers, "payloads", lambda: jpeg)
    sent = {}
    for name in [n for n in peers if n != "triton"]:  # which needs its server for that
        client = servers.LiveServer(peers[name][0], "http://127.0.0.1:1", 0.0, 0).adapter()
        head, body = client.prepare([b"jpeg"])
        sent[name] = (head.split(b" ")[1].decode(), body)
    assert sent["mosec"] == ("/inference", b"jpeg") and sent["ray"] == ("/embed", b"jpeg")
    assert sent["infinity"][0] == "/embeddings" and json.loads(sent["infinity"][1])["modality"] == "image"
    assert sent["fastapi"] == sent["litserve"] == sent["bentoml"] and b'name="files"' in sent["fastapi"][1]
    # Rows alone are an answer to a form; anything else is named.
    decode = servers.LiveServer(peers["bentoml"][0], "http://127.0.0.1:1", 0.0, 0).adapter().protocol.decode
    np.testing.assert_array_equal(decode((200, b"[[1.0, 2.0]]")), [[1.0, 2.0]])
    np.testing.assert_array_equal(decode((200, b'{"embeddings": [[3.0]]}')), [[3.0]])
    with pytest.raises(PhotodupError, match="is the protocol right"):
        decode((200, b'["a"]'))


def plant(run, pair: Pair, speed_a: float, speed_b: float, spinning: float = 0.0) -> None:
    """Record three visits of two servers, of which one photograph takes 100 ms divided by a server's speed."""
    in_flight = pair.load.concurrency
    values = [100 / s if in_flight == 1 else 20 * s for s in (speed_a, speed_b)]
    for number in (1, 2, 3):
        visit = replace(
            planted_visit(values, number, in_flight=in_flight, n_answers=10), carried_over=[0.0, spinning]
        )
        config = visit_config(pair, number)
        run.measure_or_load(visit_key(pair), visit.as_record, config=config, kind="visit")


@pytest.fixture
def run(tmp_path):
    """In FP32 LitServe takes 20% longer than ours, mosec as long, Ray Serve spins; with INT8 ours is five times as fast."""
    filled = opened(tmp_path / "run")
    speeds = {"infinity": 1.0, "litserve": 1 / 1.2, "bentoml": 1 / 1.1, "mosec": 1.0, "ray": 1.0}
    for pair in servers.declared().pairs:
        if "fastest" in pair.notebook:
            a, b = ((pair.a, pair.b), *pair.alternatives)[-1]  # as a processor without BF16 has it
            plant(filled, replace(pair, a=a, b=b), 5.0, speeds[b.server.name])
        else:
            plant(filled, pair, 1.0, speeds[pair.b.name], spinning=0.1 * (pair.b.name == "ray"))
    for null in servers.declared().nulls:
        plant(filled, null, 1.0, 1.0)
    return filled


def test_what_was_planted_in_the_visits_is_what_is_found(run):
    fp32, fastest = (read_comparisons(run, family, declared=servers.declared()) for family in FAMILIES)
    litserve, mosec, ray = (fp32[f"{name}, one"] for name in ("LitServe", "mosec", "Ray Serve"))
    assert litserve.verdict is Verdict.BEYOND and litserve.effect == pytest.approx(0.2, abs=0.02)
    assert mosec.verdict is Verdict.EQUAL and mosec.n_visits == 3 and litserve.null is not None
    assert (
        ray.verdict is Verdict.REFUSED
        and "measured and refused. One side computed for 10%" in fp32.sentence("Ray Serve, one")
    )
    assert fastest["LitServe at its fastest, one"].effect == pytest.approx(5, abs=0.1)
    text = tables.answer(fp32.outcomes, fastest.outcomes, {})
    assert text.splitlines()[0].startswith(
        "In FP32, against FastAPI (ours), slower: LitServe and BentoML with one and eight in flight; equal: "
    )
    assert text.splitlines()[1].startswith("In FP32 all are slower than FastAPI (ours) with INT8; nearest: ")
    assert len(text.split()) <= 60
    assert text.splitlines()[2] == "Measured and refused: Ray Serve with one and eight in flight."
    assert set(fp32.side_figures.label) == {
        "FastAPI (ours)",
        "Infinity",
        "LitServe",
        "BentoML",
        "mosec",
        "Ray Serve",
    }


def test_a_faster_server_is_named(tmp_path):
    run, (pair, *_) = opened(tmp_path / "run"), servers.declared().pairs
    plant(run, pair, 1.0, 1.5)
    fp32 = read_comparisons(run, FAMILIES[0], declared=servers.declared())
    assert (
        tables.answer(fp32.outcomes, {}, {})
        == "In FP32, against FastAPI (ours), faster: Infinity with one in flight."
    )


def test_a_rotation_of_several_servers_counts_once_in_the_figures_of_ours(tmp_path):
    run, declared = opened(tmp_path / "run"), servers.declared()
    for number in (1, 2, 3):
        rotation = planted_visit([100.0 + number, 120.0, 90.0], number)
        for index, name in ((1, "Infinity, one"), (2, "mosec, one")):
            pair = next(pair for pair in declared.pairs if pair.name == name)
            config = visit_config(pair, number)
            run.measure_or_load(visit_key(pair), rotation.against(index).as_record, config=config)
    sides = read_comparisons(run, FAMILIES[0], declared=declared).side_figures.set_index("side")
    assert dict(sides.n_visits) == {"fastapi": 3, "infinity": 3, "mosec": 3}


def record(run, key: str, side, **columns) -> None:
    run.measure_or_load(key, lambda: dict(columns), config=alone.config_of(side), may_fail=True)


def test_each_verdict_of_a_check_stands_under_its_server_and_a_finding_is_told_once(
    tmp_path, peers, installed
):
    run = opened(tmp_path / "run")
    turned = CheckRow("EXIF orientation", "wrong", "as if EXIF's orientation was not applied", 0.9)
    rows = {"fastapi": (CheckRow("CMYK", "right", ""),), "mosec": (turned,), "ray": (turned,)}
    for name, checks in rows.items():
        server = VerifiedServer("http://127.0.0.1:1/embed", "post", "the same", checks)
        record(run, "server-verify", peers[name][0], **server.as_record())
    record(run, "server-verify", peers["litserve"][0], status="failed", error="nothing answers")
    verified = alone.verified(opened(tmp_path / "run", measure=False))
    table = tables.verdicts(verified)
    assert dict(table["FastAPI (ours)"])["CMYK"] == "right"
    assert dict(table["Ray Serve"])["EXIF orientation"] == "wrong" and "BentoML" not in table
    assert table["LitServe"]["every check"] == "not checked"
    assert tables.faults(verified) == [
        "every check: not checked, nothing answers (LitServe)",
        "EXIF orientation: wrong, as if EXIF's orientation was not applied (mosec and Ray Serve)",
    ]
    assert "`photodup verify` finds faults in 3 of 4 servers." in tables.answer({}, {}, verified)


def test_memory_start_and_overload_of_each_server_are_in_a_table(tmp_path, peers, installed):
    run = opened(tmp_path / "run")
    load = {"offered_per_s": 20.0, "answered": 30, "failed": 7, "latency_ms_p50": 1556.9, "error": ""}
    for name, mib, first in (("mosec", 1170.2, [3, 9, 4]), ("ray", 900.0, [17, 16, 18])):
        overload = {"overload": load | {"recovered_s": None}}
        record(run, "server-alone", peers[name][0], memory_loaded_mib=mib, first_answer_s=first, **overload)
    run = opened(tmp_path / "run", measure=False)
    table = tables.server_costs(alone.start_costs(run))
    assert table["first answer (s), median"]["mosec"] == "4" and table["memory (MiB)"]["Ray Serve"] == "900"
    assert set(table["as before after (s)"]) == {"more than 30"}
