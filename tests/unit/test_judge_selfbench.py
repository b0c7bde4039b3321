"""The judge measured on recorded points, at small sizes; the whole measurement is `python -m photodup.selfbench.stats`."""

import json

import numpy as np
import pytest

from photodup.bench.stats.compare import EXTENDED
from photodup.paths import project_root
from photodup.selfbench.stats.__main__ import main
from photodup.selfbench.stats.report import measure_judge
from photodup.selfbench.stats.simulate import coverage, verdicts
from photodup.selfbench.stats.traces import Source, disturbed, read_traces, sources

RUN = project_root() / "results" / "reference-cpu"


@pytest.fixture(scope="module")
def recorded() -> list[Source]:
    return sources(read_traces(RUN))


def test_points_that_a_burst_was_cut_through_are_not_valid():
    """REVIEW R1: valid at 22.88/s with windows of 13.7 and 171.9 images/s; five or eleven waves are no steady state."""
    points = {t.key: t for t in read_traces(RUN)}
    key = "point-triton-openvino-fp32-http-fp32-closed_loop-b1-c32"
    assert points[key].was_valid
    assert points[key].judge().verdict == "imprecise"


def test_every_valid_recorded_point_lies_within_its_intervals():
    traces = list(read_traces(RUN))
    points = [trace.judge() for trace in traces]
    assert len(points) > 300
    for point in points:
        for figure in point.figures.values():
            assert figure.low <= figure.value <= figure.high
        if point.verdict == "valid":
            assert point.figures["throughput_images_per_s"].half_width <= 0.05


def test_resampling_keeps_the_truth_of_its_source(recorded):
    source = recorded[0]
    sample = source.draw(200_000, np.random.default_rng(0))
    assert abs(sample.latency_ms.mean() / source.truth("latency_ms_mean") - 1) < 0.01
    rate = len(sample.latency_ms) / sample.finished_s[-1]
    assert abs(rate / source.truth("throughput_images_per_s") - 1) < 0.01


def test_a_planted_spell_slows_what_it_hits(recorded):
    sample = recorded[0].draw(1000, np.random.default_rng(0))
    slow = disturbed(sample, np.random.default_rng(1), drift=0.0, spells=1, slowdown=2.0)
    hit = ~np.isclose(slow.latency_ms, sample.latency_ms)
    assert 10 <= hit.sum() <= 50
    assert np.allclose(slow.latency_ms[hit], 2 * sample.latency_ms[hit])


def test_no_difference_is_made_up_and_large_ones_are_found(recorded):
    nothing = verdicts(recorded, np.random.default_rng(1), planted=0.0, n=30)
    assert nothing.wrong == 0 and nothing.different == 0 and nothing.equal > 5
    much = verdicts(recorded, np.random.default_rng(2), planted=0.25, n=15)
    assert much.wrong == 0 and much.different >= 9
    extended = verdicts(recorded, np.random.default_rng(3), planted=0.0, n=10, plan=EXTENDED)
    assert extended.wrong == 0 and extended.plan == (6, 12)


def test_intervals_of_simulated_points_hold_their_truth(recorded):
    held = coverage(recorded, np.random.default_rng(6), n_valid=250)
    assert held.n_valid == 250
    assert held.share["latency_ms_mean"] >= 0.90
    assert held.share["latency_ms_p50"] >= 0.90


def test_the_command_says_what_it_found_the_same_twice(tmp_path, capsys, monkeypatch):
    from photodup.selfbench.stats import report

    monkeypatch.setattr(report, "EFFECTS", (0.0, 0.10))
    small = {"seed": 3, "n": 3, "n_intervals": 8}
    first = measure_judge(RUN, **small)
    monkeypatch.setattr(
        "photodup.selfbench.stats.__main__.measure_judge", lambda run, seed, n: measure_judge(run, **small)
    )
    code = main([str(RUN), "--json", str(tmp_path / "judge.json")])
    written = json.loads((tmp_path / "judge.json").read_text())
    assert json.loads(json.dumps(first, default=list)) == {name: written[name] for name in first}
    assert code == (0 if written["passed"] else 1)
    assert "goal false_claims: met" in capsys.readouterr().out


def test_a_run_without_raw_latencies_is_refused_in_one_sentence(tmp_path, capsys):
    (tmp_path / "records").mkdir()
    assert main([str(tmp_path)]) == 2
    assert "has no point with raw latencies" in capsys.readouterr().err
