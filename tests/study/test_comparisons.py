"""Comparisons of a run: declared, visited, recorded, and read from the records alone."""

import contextlib
import json
import random
import re
import threading
import time
from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from support.dummy import Dummy
from support.visits import opened, plant_visits, planted_visit

from photodup.bench.pairs import declared
from photodup.bench.pairs.alternate import LiveSide, VisitPlan, measure_visit, palindrome
from photodup.bench.pairs.read import figures as figures_of
from photodup.bench.pairs.read import notes_on_visits, observed
from photodup.bench.record.store import load_records
from photodup.bench.stats.comparison import Verdict, does_decide
from photodup.bench.stats.metrics import Load
from photodup.core.errors import PhotodupError
from photodup.embedding.backends import COLUMNS
from photodup.serving.embedded import MODELS
from photodup.serving.endpoints import from_ports
from photodup.serving.triton.config import parse_config
from photodup.serving.triton.copies import configure
from photodup.study.comparisons import measure, outcome_charts, outcomes
from photodup.study.comparisons.measure import Amount, amount_of, measure_comparisons
from photodup.study.notebook import points
from photodup.study.notebook.files import notebooks
from photodup.study.notebook.run import REFERENCE, folder_of, read_run
from tools.readme import agreement_lines

SIDES = {
    "slow": {"label": "slow", "backend": "local-pytorch-fp32", "options": {"delay_ms": 20.0}},
    "fast": {"label": "fast", "backend": "local-pytorch-fp32", "options": {"delay_ms": 5.0}},
    "absent": {"label": "absent", "backend": "triton-trt-fp16-http-fp32"},
}
ONE = {"loads": ["one"], "primary": ["one"]}
TAIL = "latency_ms_p95"
HALVED = {"name": "halved", "a": "slow", "b": "fast", **ONE, "loads": ["one", "four"], "quick": ["one"]}
ELSEWHERE = {"name": "elsewhere", "a": "fast", "b": "absent", **ONE}
DATA = {
    "sides": SIDES,
    "loads": {"one": {"scenario": "single_stream"}, "four": {"scenario": "closed_loop", "concurrency": 4}},
    "comparisons": {"06": [{**HALVED, "also": [TAIL]}, ELSEWHERE]},
    "nulls": [{"side": "fast", "loads": ["one"], "quick": ["one"]}],
}
SIZES = Amount(3, VisitPlan(palindromes=3, block_s=0.05, min_waves=2, alone_s=0.1, warmup_s=0.05))


@pytest.fixture(scope="module", autouse=True)
def answers_and_delays_are_known():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "adapter", lambda backend, url, **options: Dummy(**options))
        patch.setattr(measure, "check_answers", lambda *_: None)
        yield


@pytest.fixture
def declare(tmp_path):
    def write(data):
        path = tmp_path / "comparisons.yaml"
        path.write_text(yaml.safe_dump(data))
        declared._read.cache_clear()
        return declared.declarations(path)

    return write


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    path = folder / "comparisons.yaml"
    path.write_text(yaml.safe_dump(DATA))
    found, directory = declared.declarations(path), folder / "run"
    run = opened(directory)
    with run.store:
        measure_comparisons(run, [*found.pairs, *found.nulls], SIZES)
    return directory, found, outcomes.read_comparisons(run, "06", declared=found)


@pytest.fixture(scope="module")
def planted(measured, tmp_path_factory):
    """The same comparisons with visits as planted: the verdict of measured ones depends on how busy this machine is."""
    found, directory = measured[1], tmp_path_factory.mktemp("planted") / "run"
    for pair, ratio in zip((*found.pairs[:2], *found.nulls), (0.25, 4.0, 1.0), strict=True):
        plant_visits(directory, pair, ratio, visits=3, halves=4)
    return outcomes.read_comparisons(opened(directory, measure=False), "06", declared=found)


def test_a_planted_difference_is_found_under_both_loads(measured, planted):
    one, four = (measured[2][f"halved, {load}"] for load in ("one", "four"))
    assert one.effect < 0 < four.effect
    assert (one.n, one.n_visits, four.n) == (18, 3, 6), "an exploratory one takes fewer palindromes"
    assert one.null is not None and one.null.comparison.name == "null of fast, one"
    one, four = (planted[f"halved, {load}"] for load in ("one", "four"))
    assert one.verdict is Verdict.BEYOND and one.effect < -0.7 and one.decides
    assert four.verdict is Verdict.BEYOND and four.effect > 2
    said = planted.sentence("halved, one")
    assert said.startswith("1 in flight: Fast takes ") and said.endswith(" ms).")
    assert " less time than slow [" in said
    assert "% higher throughput than slow [" in planted.sentence("halved, four")
    tail = planted[f"halved, one, {TAIL}"]
    assert tail.effect == pytest.approx(-0.75, abs=0.02) and not tail.comparison.is_primary
    assert " less time (95th percentile of latency) than slow [" in planted.sentence(f"halved, one, {TAIL}")


def test_every_answer_counts_in_a_sides_figures(measured):
    directory, _, compared = measured
    fast = compared.side_figures.set_index(["side", "load"]).loc["fast", "one"]
    assert fast.latency_ms_p50_ci_low <= fast.latency_ms_p50 <= fast.latency_ms_p50_ci_high
    assert fast.n_visits == 6, "three of the comparison and three of the null"
    visits = [record for record in load_records(directory) if record["kind"] == "visit"]
    assert len(visits) == 9 and all(record["status"] == "ok" for record in visits)


def test_what_the_servers_do_not_have_is_named_and_counts_in_no_family(measured):
    compared = measured[2]
    missing = compared["elsewhere, one"]
    assert missing.verdict is Verdict.NOT_MEASURED and not missing.decides
    assert "has no triton-trt-fp16-http-fp32" in compared.sentence("elsewhere, one")
    assert compared.measured() == ["halved, one", "halved, four"]
    assert compared["halved, one"].confidence == pytest.approx(0.95), "Holm counts what was tried"
    assert compared["halved, four"].confidence == pytest.approx(0.95), "an exploratory one stands alone"


def test_reading_needs_no_server_and_says_the_same(measured, tmp_path):
    directory, found, compared = measured
    before = sorted(path.name for path in (directory / "records").iterdir())
    again = outcomes.read_comparisons(opened(directory, measure=False), "06", declared=found)
    assert again.sentences() == compared.sentences() and len(again.outcome_table()) == 5
    nothing = outcomes.read_comparisons(opened(tmp_path, measure=False), "06", declared=found)
    assert nothing.sentences()[-1] == "This run leaves out 4 of 5 comparisons." and nothing.nulls == ()
    assert sorted(path.name for path in (directory / "records").iterdir()) == before


def test_a_pass_that_was_cut_off_measures_the_visits_that_are_missing(measured, tmp_path):
    directory, found, _ = measured
    copy = tmp_path / "run"
    (copy / "records").mkdir(parents=True)
    kept = [path for path in (directory / "records").iterdir() if path.suffix == ".json"]
    lost = [p for p in kept if json.loads(p.read_text())["config"]["visit"] == 2 and "halved" in p.name]
    assert len(lost) == 2
    for path in set(kept) - set(lost):
        (copy / "records" / path.name).write_bytes(path.read_bytes())
    run = opened(copy)
    with run.store:
        measure_comparisons(run, [*found.pairs, *found.nulls], SIZES)
    changed = {p.name for p in kept if p.read_bytes() != (copy / "records" / p.name).read_bytes()}
    assert changed == {p.name for p in lost}, "what is there is never measured twice"


def test_servers_are_started_anew_between_rounds_of_visits(declare, tmp_path):
    """Not before the first, and not where nothing is left to measure; a server that died comes back."""
    found, run, once, said = declare(DATA), opened(tmp_path / "run"), opened(tmp_path / "once"), []

    def restarted(start):
        assert start == len(said) + 2
        said.append(sum(record["status"] == "ok" for record in load_records(run.directory)))
        return run

    with run.store, once.store:
        for _ in range(2):
            measure_comparisons(run, found.pairs[:2], SIZES, restarted=restarted)
        measure_comparisons(once, found.pairs[:1], replace(SIZES, starts=1), restarted=restarted)
    assert said == [2, 4], "after each round of both comparisons; never where one start is asked for"


def test_a_visit_mirrors_the_one_before_and_a_pass_has_its_own_order(declare, tmp_path, monkeypatch):
    """What favours the side that starts, warms up or has its turn first is no part of a comparison."""
    found, events, reach = declare(DATA), [], measure.reach
    pairs, drawn = found.pairs[:1], []

    def reached(run, side, *more):
        events.append(("start", side.name))
        return reach(run, side, *more)

    def noting(backend, url, *, delay_ms):
        turn = ("turn", "slow" if delay_ms == 20 else "fast")
        return Dummy(delay_of=lambda number: events.append(turn) or delay_ms)

    monkeypatch.setattr(measure, "reach", reached)
    monkeypatch.setattr(measure, "adapter", noting)
    for name in ("first", "second"):
        run, orders = replace(opened(tmp_path / name), name=name), []
        for visits in (1, 2):
            with run.store:
                measure_comparisons(run, pairs, replace(SIZES, visits=visits))
            orders.append([event for event, _ in groupby(events)])
            events.clear()
        others = {"slow": "fast", "fast": "slow"}
        assert [(kind, others[side]) for kind, side in orders[0]] == orders[1]
        assert orders[0][:2] == [("start", "slow"), ("start", "fast")]
        halved = outcomes.read_comparisons(run, "06", declared=found)["halved, one"]
        assert max(halved.comparison.observed.visit_means) < -0.5, "its sides are those declared"
        empty = replace(run, store=opened(tmp_path / "none").store)
        rounds = [pair.name for _, pair in measure.missing_visits(empty, found.pairs[:2] * 9, SIZES)]
        drawn.append((rounds, [record["result"]["seed"] for record in load_records(run.directory)]))
    assert drawn[0][0] != drawn[1][0] and not {*drawn[0][1]} & {*drawn[1][1]}


def test_the_two_processes_of_a_null_change_places(declare, tmp_path, monkeypatch):
    """One may be slower for as long as it lives; that is no fault of the instrument."""
    found, run = declare(DATA), opened(tmp_path / "run")
    slow, reach = found.sides["slow"], measure.reach

    def reached(run, side, is_second, servers):
        return reach(run, slow if is_second else side, False, servers)

    monkeypatch.setattr(measure, "reach", reached)
    with run.store:
        measure_comparisons(run, found.nulls, SIZES)
    (null,) = outcomes.read_comparisons(run, "06", declared=found).nulls
    first, second, third = null.comparison.observed.visit_means
    assert first > 0.5 and second < -0.5 and third > 0.5 and not null.is_different


def test_a_visit_takes_about_as_long_as_is_announced(measured, monkeypatch, figure):
    directory, found, compared = measured

    def tried(backend, url, load, *options):
        return points.tried_answer_s(backend, "http://nobody", load, *options)

    monkeypatch.setattr(points.adapters, "adapter", lambda backend, url, **options: Dummy(**options))
    monkeypatch.setattr(measure, "tried_answer_s", tried)
    slow_s = tried(Dummy.backend, "", Load("closed_loop", concurrency=4), ("delay_ms", 80.0))
    assert slow_s >= 0.02
    for pair in found.pairs[:2]:
        announced_s = SIZES.visit_s(opened(directory, measure=False), pair)
        ratio = announced_s / np.median([visit.seconds for visit in compared.visits[pair.name]])
        figure(slow_s < 0.03 and 0.4 < ratio < 2.5, (pair.name, slow_s, ratio))


def test_a_machine_that_slept_marks_its_visits(monkeypatch):
    """The wall clock runs on while the monotonic one stands; nothing is left out."""
    wall = time.time
    began = wall()
    monkeypatch.setattr(time, "time", lambda: wall() + 3600 * (wall() - began > 0.1))
    slept = visit(Dummy(5.0), Dummy(5.0))
    monkeypatch.undo()
    seen = visit(Dummy(5.0), Dummy(5.0))
    assert slept.clock_jump_s > 3000 > 1 > seen.clock_jump_s and len(slept.log_ratios(1)) == 4
    assert any("slept or its clock was set by 3600 s" in line for line in notes_on_visits([slept, seen]))
    assert not any("slept" in line for line in notes_on_visits([seen]))


def test_outcomes_are_written_for_every_measured_comparison(measured, monkeypatch):
    directory, found, compared = measured
    monkeypatch.setattr(outcomes, "declarations", lambda: found)
    outcomes.write_outcomes(opened(directory))
    rows = json.loads((directory / "outcomes.json").read_text())
    rows = [row for row in rows if row["metric"] != TAIL]
    assert [r["name"] for r in rows] == ["halved, one", "halved, four", "elsewhere, one", "null of fast, one"]
    row, outcome = rows[0], compared["halved, one"]
    assert (row["primary"], row["load"], row["unit"], row["n"]) == (True, "one", "ms", 18)
    assert row["low"] == outcome.low and row["excludes_beyond"] == outcome.excludes_beyond
    assert row["null_low"] < row["null_high"]
    assert rows[2]["verdict"] == "not measured" and "has no" in rows[2]["because"]
    assert rows[2]["effect"] is None
    for row in rows[:3]:
        assert does_decide(row["verdict"], row["excludes_beyond"]) == compared[row["name"]].decides


def test_the_outcomes_of_the_reference_run_are_those_of_its_records(tmp_path):
    run = read_run(folder_of(REFERENCE))
    outcomes.write_outcomes(replace(run, directory=tmp_path))
    texts = [(folder / "outcomes.json").read_text() for folder in (tmp_path, run.directory)]
    found, committed = (re.sub(r"(\.\d{6})\d+", r"\1", text) for text in texts)
    assert found == committed, "write them again: `photodup study render`"


def dies(number):
    if number > 40:
        raise ConnectionRefusedError("nobody listens")
    return 1.0


def test_a_side_that_dies_is_named_by_its_pairs_and_the_others_go_on(declare, tmp_path, monkeypatch):
    pair = {"a": "fast", "loads": ["one"]}
    pairs = [{"name": "dying", "b": "slow", **pair}, {"name": "well", "b": "same", **pair}]
    sides = SIDES | {"same": {**SIDES["fast"], "options": {"delay_ms": 4.0}}}
    found = declare({"sides": sides, "loads": DATA["loads"], "comparisons": {"06": pairs}})
    run = opened(tmp_path / "run")

    def adapter(backend, url, **options):
        return Dummy(delay_of=dies) if options == SIDES["slow"]["options"] else Dummy(**options)

    monkeypatch.setattr(measure, "adapter", adapter)
    with run.store:
        measure_comparisons(run, found.pairs, SIZES)
    compared = outcomes.read_comparisons(run, "06", declared=found)
    assert "failed 20 requests in a row: ConnectionRefusedError" in compared.sentence("dying, one")
    assert compared["well, one"].n_visits == SIZES.visits


def test_nothing_measured_is_no_verdict(declare, tmp_path):
    found = outcomes.read_comparisons(opened(tmp_path / "run", measure=False), "06", declared=declare(DATA))
    assert {o.verdict for o in found.outcomes.values()} == {Verdict.NOT_MEASURED}
    assert found.side_figures.empty and len(found.outcome_table()) == 5
    # A notebook computes with the frame of nothing as with any other.
    assert {*COLUMNS, "throughput_images_per_s"} <= set(found.side_figures)
    assert outcome_charts.draw_sides(found) is None


def test_the_quick_study_measures_what_is_marked(declare):
    found = declare(DATA)
    quick = found.pairs_of(["06"], quick=True)
    assert [pair.name for pair in quick] == ["halved, one"]
    assert [null.name for null in found.nulls_of(quick, quick=True)] == ["null of fast, one"]
    assert amount_of({"visits": 2, "block_s": 0.5}, visits=3) == Amount(3, VisitPlan(block_s=0.5))


@pytest.mark.parametrize("n_sides", range(2, 9))
def test_turns_are_palindromes_in_which_each_side_has_two(n_sides):
    first = set()
    for seed in range(200):
        order = palindrome(n_sides, random.Random(seed))
        assert order == order[::-1] and sorted(order) == sorted([*range(n_sides)] * 2)
        first.add(order[0])
    assert first == set(range(n_sides)), "each side begins now and then"


@pytest.mark.parametrize("n_sides", range(2, 9))
def test_over_all_rows_each_side_follows_each_other_side_equally_often(n_sides):
    def drawing(row):
        return SimpleNamespace(randrange=lambda n: row, sample=lambda names, n: list(names))

    rows = [palindrome(n_sides, drawing(row))[:n_sides] for row in range(n_sides)]
    follows = Counter(pair for row in rows for half in (row, row[::-1]) for pair in pairwise(half))
    assert all(sorted(row) == list(range(n_sides)) for row in rows)
    assert set(follows.values()) == {2} and len(follows) == n_sides * (n_sides - 1)


def visit(a, b, load=None, serve=None, **sizes):
    short = {"palindromes": 2, "block_s": 0.05, "min_answers": 3, "min_waves": 2, "alone_s": 0, "warmup_s": 0}
    plan = VisitPlan(**(short | sizes))
    photos = [bytes([n]) * 64 for n in range(8)]
    load = load or Load("single_stream")
    return measure_visit([LiveSide(a), LiveSide(b)], photos, load, plan, seed=1, serve=serve)


def test_of_three_sides_each_is_compared_with_the_first(figure):
    """The third takes twice as long, under both loads; as two sides the answers of the others are gone."""
    plan = VisitPlan(2, 0.05, 3, 2, alone_s=0, warmup_s=0)
    for load in (Load("single_stream"), Load("closed_loop", concurrency=4)):
        sides = [LiveSide(Dummy(delay_ms=ms)) for ms in (10.0, 10.0, 40.0)]
        whole = measure_visit(sides, [b"a", b"b"], load, plan, seed=1)
        null, slow = whole.against(1), whole.against(2)
        sign = 1 if load.concurrency == 1 else -1
        figure(all(sign * ratio > 0.5 for ratio in slow.log_ratios(1)), slow.log_ratios(1))
        figure(max(abs(null.log_ratios(1))) < 0.5, null.log_ratios(1))
        assert slow.n_requests == np.bincount(slow.side.astype(int)).tolist()
        assert slow.n_requests == [whole.n_requests[0], whole.n_requests[2]]
        medians_ms = [np.median(slow.latencies(side)) for side in (0, 1)]
        assert medians_ms[0] >= 10 and medians_ms[1] >= 40, "of its own answers"
        usual = load.usual_metric
        assert observed([null], load, usual).n == observed([slow], load, usual).n == 4


def test_both_sides_get_the_same_photographs_in_the_same_order():
    class Noting(Dummy):
        def request(self, prepared):
            vars(self).setdefault("seen", []).append(prepared[0])
            return super().request(prepared)

    a, b = Noting(1.0), Noting(1.0)
    visit(a, b, block_s=0)
    assert a.seen == b.seen and len(a.seen) == 3 + 4 * (3 + 3) and len({*a.seen}) > 1


def test_k_requests_are_in_flight_during_a_slice_of_one_side_and_none_of_the_other():
    busy, most, both = [0, 0], [0, 0], []
    lock = threading.Lock()

    class Counting(Dummy):
        def request(self, prepared):
            side = sides.index(self)
            with lock:
                busy[side] += 1
                most[side] = max(most[side], busy[side])
                both.append(busy[1 - side])
            try:
                return super().request(prepared)
            finally:
                with lock:
                    busy[side] -= 1

    sides = [Counting(2.0), Counting(2.0)]
    found = visit(*sides, Load("closed_loop", concurrency=4))
    assert most == [4, 4] and not any(both)
    assert all(n % 4 == 0 and n > 0 for n in found.n_requests), "whole waves alone are counted"
    assert len(found.log_ratios(1)) == 4


def test_failed_requests_are_counted_and_have_no_latency():
    def delay(number):
        if number % 5 == 4:
            raise ConnectionResetError("gone")
        return 1.0

    found = visit(Dummy(1.0), Dummy(delay_of=delay))
    assert found.n_failed[0] == 0 and found.n_failed[1] > 0 and "gone" in found.errors[1]
    assert len(found.log_ratios(1)) == 4 and np.isfinite(found.log_ratios(1)).all()
    assert np.isfinite(found.latency_ms).all()


@pytest.mark.parametrize("load", [Load("single_stream"), Load("closed_loop", concurrency=3)])
def test_a_side_that_dies_in_the_middle_is_named_once(load):
    with pytest.raises(PhotodupError, match="failed 20 requests in a row: ConnectionRefusedError"):
        visit(Dummy(1.0), Dummy(delay_of=dies), load, palindromes=50)


@pytest.mark.parametrize("load", [Load("single_stream"), Load("closed_loop", concurrency=3)])
def test_sides_that_cannot_both_be_up_are_measured_one_after_the_other_and_say_so(load):
    up, order = set(), []

    @contextlib.contextmanager
    def serve(side):
        assert not up, "one at a time"
        up.add(side)
        order.append(side)
        yield
        up.discard(side)

    found = visit(Dummy(5.0), Dummy(25.0), load, serve)
    assert not found.is_interleaved and len(found.log_ratios(1)) == 4
    assert all((ratio > 0) == (load.concurrency == 1) for ratio in found.log_ratios(1))
    assert order[:4] == order[:4][::-1] and order[4:] == order[4:][::-1]


def test_what_is_answered_after_the_cut_counts_for_nobody():
    """Requests 12 to 15 are in flight when two whole waves after the first have been counted, and take much longer."""
    side = LiveSide(Dummy(delay_of=lambda number: 300.0 if number >= 12 else 1.0))
    side.connections, side.requests = [side.adapter.open() for _ in range(4)], [[b"a"]] * 100
    answers = side.run_block(Load("closed_loop", concurrency=4), 0.0, (4, 8))
    assert len(answers) == 8 and max(latency_ms for _, latency_ms in answers) < 300


def test_a_block_of_slow_answers_ends_by_time(monkeypatch):
    """Of 13 answers the first two take the time, and three are counted after them."""
    monkeypatch.setattr("photodup.bench.pairs.alternate.LONGEST_S", 0.3)
    found = visit(Dummy(1.0), Dummy(200.0), block_s=0, min_answers=10, palindromes=1)
    assert found.n_requests == [20, 6] and len(found.log_ratios(1)) == 2


def test_the_first_answers_of_a_block_count_for_nobody():
    """Another server ran before: its successor's first answers are slower than it is."""

    class Disturbed(Dummy):
        last_asked = None

        def request(self, prepared):
            if Disturbed.last_asked is not self:
                Disturbed.last_asked, self.n_slow = self, 3
            time.sleep(0.02 if self.n_slow > 0 else 0.002)
            self.n_slow -= 1
            return super().request(prepared)

    disturbed = visit(Disturbed(0.0), Disturbed(0.0), alone_s=0.01)
    assert np.median(disturbed.latency_ms) < 10 and max(disturbed.alone) < 10


def test_one_side_alone_is_visited_too():
    plan = VisitPlan(2, 0.05, 3, 2, warmup_s=0)
    alone = measure_visit([LiveSide(Dummy(2.0))], [b"a"], Load("single_stream"), plan, seed=1)
    assert alone.n_sides == 1 and alone.alone is None and len(alone.blocks(0)) == 4
    assert figures_of([(alone, 0), (alone, 0)])["latency_ms_p50"] >= 2


def test_throughput_is_that_of_littles_law():
    busy = visit(Dummy(8.0), Dummy(16.0), Load("closed_loop", concurrency=4, batch=2))
    for side, most in enumerate((4 * 2 * 1000 / 8, 4 * 2 * 1000 / 16)):
        mean_ms = busy.latencies(side).mean()
        assert busy.values()[side] == pytest.approx(8 * 1000 / mean_ms) and busy.values()[side] <= most


def test_an_open_loop_takes_no_turns():
    with pytest.raises(PhotodupError, match="closed loop"):
        visit(Dummy(1.0), Dummy(1.0), Load("server", offered_per_s=10))


def test_percentiles_are_of_a_visit_and_small_samples_carry_none():
    load = Load("single_stream")
    visits = [visit(Dummy(1.0), Dummy(4.0), block_s=0.15) for _ in range(3)]
    tail = observed(visits, load, "latency_ms_p90")
    assert not isinstance(tail, str) and tail.value_b > tail.value_a and tail.mean > 0 and tail.n == 3
    assert "662 are needed" in observed(visits, load, "latency_ms_p99")
    with pytest.raises(PhotodupError, match="name a percentile"):
        observed(visits, load, "latency_ms_mean")
    assert figures_of([(v, 1) for v in visits])["latency_ms_p99"] is None


def test_the_tail_of_a_side_is_pooled_over_its_visits():
    """A pause of the machine is 3% of one visit's answers and 1% of all: pooled it is the 99th percentile."""
    latencies = [np.linspace(10, 20, 400) for _ in range(3)]
    latencies[0][-12:] = 500.0
    visits = [replace(planted_visit([1.0]), latency_ms=ms) for ms in latencies]
    of_side = figures_of([(v, 0) for v in visits])
    assert of_side["latency_ms_p99"] > 20 > of_side["latency_ms_p95"] > of_side["latency_ms_p50"]
    assert of_side["latency_ms_p99_ci_low"] < of_side["latency_ms_p99"] < of_side["latency_ms_p99_ci_high"]


def test_two_passes_agree_where_their_intervals_overlap(planted):
    outcome = planted["halved, one"]

    def moved(by):
        return replace(outcome, effect=outcome.effect + by, low=outcome.low + by, high=outcome.high + by)

    text, _, *rows = agreement_lines([(outcome, moved(1e-6)), (outcome, moved(3.0))])
    assert (
        "repeats 2 of their verdicts" in text and "intervals overlap in 1, and 1 differ in opposite" in text
    )
    assert [row.split(" | ")[-1] for row in rows[2:]] == ["yes |", "opposite |"]


@pytest.mark.parametrize(("spoil", "said"), [
    (lambda d: d["comparisons"]["06"][0].update(a="nobody"), "compares 'nobody'"),
    (lambda d: d["comparisons"]["06"][0].update(loads=["two"]), "asks for the load 'two'"),
    (lambda d: d["comparisons"]["06"].append(dict(d["comparisons"]["06"][0])), "two comparisons are called"),
    (lambda d: d["sides"]["fast"].update(backend="triton-magic"), "names no backend"),
    (lambda d: d["sides"]["fast"].update(settings={"speed": 2}), "sets 'speed', which is none of"),
])  # fmt: skip
def test_a_slip_in_the_file_is_one_sentence(declare, spoil, said):
    data = json.loads(json.dumps(DATA))
    spoil(data)
    with pytest.raises(PhotodupError, match=said):
        declare(data)


def test_settings_reach_the_model_that_computes():
    """Of an ensemble that takes JPEG files it is the encoder."""
    side = declared.declarations().sides["triton-int8-2x1"]
    assert side.configured_model == "openclip_vit_b32_openvino_int8_uint8"
    config = parse_config("max_batch_size: 32 dynamic_batching { } instance_group [ { count: 1 } ]")
    configure(config, instances=2, threads=1, delay_us=10_000, preferred=4)
    assert config.instance_group[0].count == 2 and config.parameters["threads"].string_value == "1"
    batcher = config.dynamic_batching
    assert (batcher.max_queue_delay_microseconds, list(batcher.preferred_batch_size)) == (10_000, [4])


@pytest.mark.parametrize(("served", "expected"), [
    ('backend: "python" instance_group [ { kind: KIND_CPU } ]', {"threads": "1"}),
    ('backend: "onnxruntime" instance_group [ { kind: KIND_CPU } ]', {"intra_op_thread_count": "1"}),
    ('backend: "onnxruntime" instance_group [ { kind: KIND_GPU } ]', {}),
])  # fmt: skip
def test_threads_are_set_where_the_server_has_them_under_its_own_name(served, expected):
    config = parse_config(served)
    configure(config, instances=2, threads=1)
    assert config.instance_group[0].count == 2
    assert {name: value.string_value for name, value in config.parameters.items()} == expected
    configure(waiting := parse_config('backend: "python"'), delay_us=5)
    assert waiting.dynamic_batching.max_queue_delay_microseconds == 5 and not waiting.instance_group


@pytest.mark.parametrize("notebook", [p.stem for p in notebooks(("04", "06", "07", "08"))])
def test_a_rented_machine_with_fp32_alone_has_both_sides_of_a_comparison(notebook):
    has = from_ports("198.18.0.2", models=MODELS).has
    pairs = [pair.offered(has) for pair in declared.declarations().pairs_of([notebook])]
    assert any(has(pair.a.backend) and has(pair.b.backend) for pair in pairs)


def test_the_repositorys_own_file_is_sound():
    found = declared.declarations()
    assert found.pairs and {p.notebook for p in found.pairs} <= {p.stem for p in notebooks(())}
    primary = [p.notebook for p in found.pairs if p.is_primary]
    assert max(primary.count(name) for name in primary) <= 4
    quick = found.pairs_of({p.notebook for p in found.pairs}, quick=True)
    assert len(quick) <= 8 and all(pair.is_primary for pair in quick)
    assert len(found.nulls_of(quick, quick=True)) <= 3
    # A processor without INT8 has other sides of everything but what compares precisions.
    old = [p.offered(lambda b: b.engine != "trt" and b.precision == "fp32") for p in (*quick, *found.nulls)]
    left = {p.name for p in old if {p.a.backend.precision, p.b.backend.precision} != {"fp32"}}
    assert left == {"INT8 against FP32 in Triton, one"}


def test_servers_that_lack_a_side_are_compared_by_what_they_have(declare, tmp_path):
    """A rented machine has no INT8: its own engine answers, and a reader with other endpoints reads that."""
    other = {**ELSEWHERE, "alternatives": [["slow", "fast"]]}
    found, run = declare({**DATA, "comparisons": {"06": [other]}}), opened(tmp_path / "run")
    with run.store:
        measure_comparisons(run, found.pairs, SIZES)
    everything = from_ports("127.0.0.1", 1, 2, 3, 4, models=["openclip_vit_b32_trt"])
    reader = replace(opened(tmp_path / "run", measure=False), endpoints=everything)
    compared = outcomes.read_comparisons(reader, "06", declared=found)
    (pair,) = compared.pairs
    assert (pair.a.name, pair.b.name) == ("slow", "fast") == tuple(compared.side_figures.side)
    offered = found.pairs[0].offered
    assert offered(lambda b: b.is_local).a.name == "slow" and offered(everything.has).b.name == "absent"
