"""The search for the fastest setting: who takes part, who stays in the race, what is chosen and written."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import one_sentence, run_program
from support.tuning import search_once
from support.visits import planted_visit

from photodup.bench.backends.adapter import Dummy
from photodup.bench.record.record import RunStore
from photodup.bench.stats import slo
from photodup.bench.stats.slo import LatencyBound, bound_of
from photodup.errors import PhotodupError
from photodup.serving.endpoints import from_ports
from photodup.serving.triton.config import parse_config
from photodup.study.notebook.run import Run
from photodup.tune.serving import candidates, search, trial
from photodup.tune.serving import found as results

BOUND = LatencyBound(95, 100)


@pytest.fixture
def every(monkeypatch):
    monkeypatch.setattr(candidates, "can_compute", lambda precision: True)
    return candidates.candidates(2)


def test_each_setting_is_there_once_and_can_be_named(every):
    assert len({s.name for s in every}) == len(every) == len(set(every)) > 30
    assert {(s.server, s.precision) for s in every} >= {("fastapi", "int8"), ("triton", "bf16")}
    assert {(s.instances, s.threads) for s in every} == {(1, 2), (2, 1)}
    assert all(s.instances == 1 for s in every if s.server == "fastapi" and s.engine != "openvino")
    assert not [s for s in candidates.candidates(2, int8=False) if s.precision == "int8"]


def test_what_the_processor_cannot_do_takes_no_part(monkeypatch):
    monkeypatch.setattr(candidates, "can_compute", lambda precision: precision == "fp32")
    assert {s.precision for s in candidates.candidates(8)} == {"fp32"}


@given(
    st.lists(st.floats(0.1, 100), min_size=1, max_size=40, unique=True), st.integers(1, 5), st.integers(1, 4)
)
def test_without_noise_the_best_wins_and_few_are_measured_often(scores, keep, rungs):
    asked = []

    def measure(who, rung):
        asked.append((who, rung))
        return scores[who]

    last = search.halve(range(len(scores)), measure, rungs=rungs, keep=keep)
    ranked = sorted(range(len(scores)), key=lambda i: -scores[i])
    assert last == ranked[: min(keep, len(scores))]
    assert len(asked) == len(set(asked)) <= len(scores) * rungs
    for rung in range(1, rungs):
        before, now = (sum(r == n for _, r in asked) for n in (rung - 1, rung))
        assert now <= max(keep, -(-before // 3))


def test_who_is_useless_never_goes_on():
    asked = []
    assert search.halve("abc", lambda who, rung: asked.append(who) or 0.0, rungs=3) == []
    assert asked == ["a", "b", "c"]
    with pytest.raises(PhotodupError, match="one to keep"):
        search.halve([], lambda who, rung: 1.0)


@pytest.mark.parametrize("text", ["p95=100ms", " P95=100 ms ", "p95=100.0ms", "p95=0.1s", "p95<=100ms"])
def test_a_bound_is_read(text):
    assert bound_of(text) == BOUND and str(BOUND) == "p95 ≤ 100 ms"


@pytest.mark.parametrize("text", ["", "95=100ms", "p95", "p95=soon", "p0=10ms", "p100=10ms", "p95=-1ms"])
def test_another_bound_is_refused_in_one_sentence(text):
    with pytest.raises(PhotodupError, match="such as p95=100ms"):
        bound_of(text)


def found(setting, rate, low=None, high=None, because=""):
    return results.Found(setting, rate, low, high, because)


def tuned(*finalists):
    seen = {"in_flight": 1, "latency_ms": 20.0, "images_per_s": 40.0}
    tried = {"rung": 0, "score": 9.0, "why": "", "seconds": 1.0, "seen": [seen]}
    trials = [{"setting": f.setting.name, **f.setting.as_record(), **tried} for f in finalists]
    return results.Tuned(BOUND, tuple(finalists), tuple(trials), 40, 200.0, 3200.0)


def test_a_rival_that_may_be_as_good_is_named(every):
    triton = next(s for s in every if s.server == "triton")
    fastapi = next(s for s in every if s.server == "fastapi")
    said = tuned(found(triton, 50.0, 47.0, 53.0), found(fastapi, 46.0, 44.0, 48.0)).sentence()
    assert f"Serve {triton.name}" in said and "50 requests/s [47, 53]" in said
    assert f"{fastapi.name} may be as good" in said
    clear = tuned(found(triton, 50.0, 47.0, 53.0), found(fastapi, 30.0, 28.0, 32.0)).sentence()
    assert "may be as good" not in clear
    none = tuned(
        found(triton, None, because="Even 3 requests/s do not meet 100 ms: search from a lower rate.")
    )
    assert none.best is None and "do not meet 100 ms" in none.sentence()


@pytest.mark.parametrize(("rival", "throughput", "is_chosen", "words"), [
    ((46.0, 44.0, 48.0), 1.2, True, "has 20 % higher throughput than"),
    ((46.0, 44.0, 48.0), 0.8, False, "has 20 % lower throughput than"),
    ((46.0, 44.0, 48.0), 1.0, False, "have the same throughput within 5%"),
    ((30.0, 28.0, 32.0), 1.2, False, "has 20 % higher throughput than"),
])  # fmt: skip
def test_turns_decide_between_rates_that_overlap_and_only_there(
    every, run, monkeypatch, rival, throughput, is_chosen, words
):
    asked = []

    def visit(run, settings, load, plan, seed):
        asked.append((settings, load.concurrency, seed))
        return planted_visit([20.0, 20.0 * throughput], seed).as_record()

    monkeypatch.setattr(search, "measure_finalists", visit)
    field = [found(every[0], 50.0, 47.0, 53.0), found(every[1], *rival), found(every[2], None, because="no")]
    with run() as opened:
        best, second, last = search.in_turns(opened, field, 8, lambda line: None)[0]
        again, seconds = search.in_turns(opened, field, 8, lambda line: None)
    assert asked == [(every[:2], 8, number) for number in range(1, search.VISITS + 1)], "once, and read again"
    assert (best.setting is every[1]) == is_chosen and last.setting is every[2] and seconds == 160.0
    assert again[0].setting == best.setting
    said = tuned(best, second).sentence()
    assert words in said and f"Serve {best.setting.name}" in said
    assert ("may be as good" in said) == (throughput == 1.0)


def test_what_is_chosen_can_be_used(every, tmp_path):
    triton = next(s for s in every if s.server == "triton" and s.instances == 2 and s.wait_us)
    written = results.write_result(tuned(found(triton, 50.0, 47.0, 53.0)), tmp_path / "t").read_text()
    config = parse_config((tmp_path / "t" / "config.pbtxt").read_text())
    assert config.instance_group[0].count == 2 and config.parameters["threads"].string_value == "1"
    assert config.dynamic_batching.max_queue_delay_microseconds == triton.wait_us
    assert "Serve triton" in written and "<svg" in written
    assert "http" not in written.replace("http://www.w3.org", "").split("<svg")[0]
    assert 'href="http' not in written
    assert json.loads((tmp_path / "t" / "chosen.json").read_text())["chosen"]["server"] == "triton"
    fastapi = next(s for s in every if s.server == "fastapi" and s.precision == "int8")
    results.write_result(tuned(found(fastapi, 50.0, 47.0, 53.0)), tmp_path / "f")
    said = dict(line.split("=") for line in (tmp_path / "f" / "service.env").read_text().splitlines())
    assert said["PRECISION"] == "int8" and said["THREADS"] == "2"


@pytest.fixture
def run(tmp_path):
    """Open a run whose servers nobody asks."""

    @contextlib.contextmanager
    def run():
        with RunStore(tmp_path / "run") as store:
            yield Run("t", tmp_path / "run", from_ports("127.0.0.1", 1, 0, 0, 0), store)

    return run


def test_a_search_goes_on_where_it_ended_and_survives_a_setting_that_is_not_served(every, run, monkeypatch):
    broken, asked = every[0], []

    def quick(run, setting, bound, seconds):
        asked.append((setting, seconds))
        if setting == broken:
            raise PhotodupError("it does not start: no memory.")
        return {"score": 10.0 + every.index(setting), "seen": []}

    def no_room(*what):
        raise PhotodupError("Both do not fit into the memory.")

    rate = slo.SloRate(40.0, 38.0, 42.0, BOUND)
    monkeypatch.setattr(search, "quick_trial", quick)
    monkeypatch.setattr(search, "exact_trials", lambda run, settings, *a, **k: [rate] * len(settings))
    monkeypatch.setattr(search, "measure_finalists", no_room)

    def once():
        with run() as opened:
            return search.tune(opened, every[:9], BOUND)

    first = once()
    made = len(asked)
    said = [t["why"] for t in first.trials if t["setting"] == broken.name]
    assert said == ["it does not start: no memory."]
    assert first.best.setting == every[8]
    assert "not measured. Both do not fit into the memory" in first.sentence()
    assert f"{every[7].name} may be as good" in first.sentence()
    assert once().sentence() == first.sentence()
    assert len(asked) == made + 1, "only what failed is tried again"


def test_a_search_that_is_killed_goes_on_and_counts_right(tmp_path):
    assert int(run_program("trash_kills", "tune", tmp_path)) > 8


RATE = {"rate_per_s": 1e300, "low": 1, "high": 1, "seen": []}
ODD = [("trial-0", {"score": "\x1b[2J"}), ("trial-0", {"seen": 5}), ("trial-0", {"status": "failed"})]
ODD += [("rate-", {"rates": [{}]}), ("rate-", {"rates": [RATE]})]
ODD += [("finalists", {"log_ratios": [[1e999]]}), ("finalists", {"errors": []})]


@pytest.mark.parametrize(("kind", "change"), ODD)
def test_an_altered_record_is_one_sentence_and_costs_nothing(tmp_path, kind, change):
    said = search_once(tmp_path / "run")
    records = {path: path.read_bytes() for path in (tmp_path / "run" / "records").glob("*.json")}
    path = min(path for path in records if path.name.startswith(kind))
    given = json.loads(records[path])
    given["result"] |= change
    for altered in (json.dumps(given).encode(), b"[" * 100_000, None):
        path.unlink()
        path.write_bytes(altered) if altered else path.symlink_to("/nowhere")
        with one_sentence(path.name):
            search_once(tmp_path / "run", tmp_path / "measured")
    path.unlink()
    path.write_bytes(records[path])
    assert {p: p.read_bytes() for p in records} == records and not (tmp_path / "measured").exists()
    assert search_once(tmp_path / "run") == said


def test_random_arrivals_and_not_the_closed_loop_choose_the_last(every, run, monkeypatch):
    """The setting that answers most in a closed loop keeps the bound at the lowest rate of those left."""
    offered, turns = [], []

    def exact(run, settings, bound, about, *, seconds, n_measurements, **_):
        offered.append((tuple(settings), seconds, n_measurements))
        seen = (slo.RateSeen(50.0, 90.0, 80.0, 95.0),) * n_measurements
        rates = [60.0 - every.index(setting) for setting in settings]
        return [slo.SloRate(rate, rate - 2, rate + 2, bound, seen) for rate in rates]

    def quick(run, setting, *_):
        seen = [{"in_flight": n, "latency_ms": 30.0 * n, "images_per_s": 30.0} for n in (8, 2)]
        return {"score": 10.0 + every.index(setting), "seen": seen}

    def visit(run, settings, load, *_):
        turns.append((settings, load.concurrency))
        return planted_visit([20.0, 20.0]).as_record()

    monkeypatch.setattr(search, "exact_trials", exact)
    monkeypatch.setattr(search, "quick_trial", quick)
    monkeypatch.setattr(search, "measure_finalists", visit)
    monkeypatch.setattr(search, "RUNG_SECONDS", (1.0,))
    with run() as opened:
        found = search.tune(opened, every[:9], BOUND)
    assert found.best.setting == every[6], "the best of the three that go on"
    assert [n for _, _, n in offered] == [search.OPEN_MEASUREMENTS] * 3 + [search.EXACT_MEASUREMENTS]
    assert offered[-1][0] == (every[6], every[7]), "the finalists' rates are measured in turns"
    assert turns == [([every[6], every[7]], 2)] * search.VISITS, "with as many in flight as kept the bound"
    assert found.measured_s == 9 * 2.0 + 3 * 24.0 + 2 * 80.0 + search.VISITS * 40.0


def test_the_quick_trial_backs_off_until_the_bound_is_kept_and_waits_for_a_slow_server(run, monkeypatch):
    """A real load on a dummy that sleeps; for two answers of 0.4 s the window is as long as the bound needs."""

    def trial_of(delay_ms: float, bound: LatencyBound, *in_flight: int) -> dict:
        monkeypatch.setattr(trial, "IN_FLIGHT", in_flight)
        lane = trial.Lane(Dummy(delay_ms=delay_ms))
        monkeypatch.setattr(trial, "at_once", lambda run, settings: contextlib.nullcontext([lane]))
        with run() as opened:
            return trial.quick_trial(opened, candidates.candidates(2)[0], bound, 0.5)

    kept, missed = (trial_of(10.0, LatencyBound(50, bound_ms), 4, 1) for bound_ms in (200, 1))
    assert kept["score"] > 0 and kept["seen"][0]["in_flight"] == 4
    assert missed["score"] == 0 and [s["in_flight"] for s in missed["seen"]] == [4, 1]
    assert trial_of(400.0, LatencyBound(95, 600), 1)["score"] > 0


def test_a_rate_without_an_upper_end_is_said_so_and_wins(every):
    better = found(every[0], 50.0, 50.0, None, because="all rates offered met the bound; the time was over.")
    said = tuned(better, found(every[1], 30.0, 28.0, 32.0)).sentence()
    assert "up to at least 50 requests/s (all rates offered met the bound; the time was over)" in said
    assert "may be as good" not in said


def test_when_the_minutes_are_over_the_best_so_far_get_their_rates(every, run, monkeypatch):
    monkeypatch.setattr(search, "quick_trial", lambda *_: {"score": 9.0, "seen": []})
    rate = slo.SloRate(40.0, 38.0, 42.0, BOUND)
    monkeypatch.setattr(search, "exact_trials", lambda run, settings, *a, **k: [rate] * len(settings))
    monkeypatch.setattr(search, "measure_finalists", lambda *_: planted_visit([20.0, 20.0]).as_record())
    said = []
    with run() as opened:
        tuned = search.tune(opened, every[:9], BOUND, minutes=0, say=said.append)
    assert len(tuned.trials) == 1 and tuned.best.setting == every[0]
    assert said[0].startswith("tune: trial 1 of 14 at most, ")
    with run() as opened:
        search.tune(opened, every[:9], BOUND, minutes=0, say=said.append)
    assert any("trial 1 of 14 at most (from the records)" in line for line in said)
