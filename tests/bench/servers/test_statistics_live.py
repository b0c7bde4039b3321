"""Delays planted in real servers: the relay adds what it should, and the records become outcomes."""

import contextlib
import json
from contextlib import ExitStack
from functools import partial

import pytest

from benchmarks import null_server, statistics_live
from photodup.bench.record.store import RunStore


@pytest.mark.long  # part of `make judge`
def test_a_relay_plants_a_share_of_the_servers_time(tmp_path, monkeypatch, figure):
    monkeypatch.setattr(statistics_live, "SECONDS", 6.0)
    with ExitStack() as stack:
        url = stack.enter_context(null_server.running(delay_ms=12))
        batch = partial(statistics_live.measure_batch, partial(statistics_live.relay, stack, url), 1, 1.0)
        store = stack.enter_context(RunStore(tmp_path))
        store.measure_or_load("batch", batch, config={"batch": 1}, kind=statistics_live.KIND)
    outcomes = statistics_live.outcomes_of(tmp_path)
    effects = {planted: of[0].effect for planted, of in outcomes.items()}
    assert list(effects) == ["null", "delay of 100%", "delay of 200%, busy loop"]
    assert effects["null"] < effects["delay of 100%"], "nothing was planted in one of them"
    figure(effects["null"] < 0.3 < effects["delay of 100%"] < 1.3, effects)
    figure(0.4 < effects["delay of 200%, busy loop"] < 2.6, effects)
    assert all(of[0].n_visits >= 3 for of in outcomes.values())
    # How sure the statistics are depends on the machine; how they are counted does not.
    null, delay, _ = statistics_live.summary(outcomes)
    assert " of 1 pairs with equal servers " in null and null.endswith(" by more than 2%.")
    assert " of 1 pairs with a delay of 100% " in delay and delay.endswith(" by more than 2%.")


@pytest.mark.long  # gates of some seconds, beside a busy core
def test_each_gate_is_recorded_and_counted_and_measured_once(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics_live, "GATE_S", 4.0)
    monkeypatch.setattr(statistics_live, "GATE_MS", 2.0)
    null, delay = statistics_live.measure_gates(2, tmp_path)
    paths = sorted(tmp_path.glob("records/*.json"))
    records = [json.loads(path.read_text()) for path in paths]
    assert sorted(record["config"]["delay"] for record in records) == [0, 0, statistics_live.GATE_DELAY]
    for said, share, n in ((null, 0, 2), (delay, statistics_live.GATE_DELAY, 1)):
        of = [r["result"].get("failed") for r in records if r["config"]["delay"] == share]
        assert said.endswith(f": {of.count(True)} of {n} failed, {of.count(None)} were not measured.")
    done = {p: p.stat().st_mtime_ns for p, r in zip(paths, records, strict=True) if r["status"] == "ok"}
    monkeypatch.setattr(statistics_live, "measure_gate", lambda *what, **more: pytest.fail("measured again"))
    with contextlib.suppress(pytest.fail.Exception):  # what a busy machine could not measure is asked again
        assert statistics_live.measure_gates(2, tmp_path) == [null, delay]
    assert {path: path.stat().st_mtime_ns for path in done} == done
