"""The gate for a slower server: how often it errs where the truth was planted, and what it writes."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest

from photodup.bench.anyurl import gate
from photodup.bench.anyurl.gate import GateResult, Slowdown, decide, failure_rate, normal_draw
from photodup.core.errors import PhotodupError

LIMIT, VISITS = 0.05, gate.VISITS


@pytest.mark.parametrize("spread", [0.005, 0.01, 0.02])
def test_a_head_at_the_limit_hardly_fails_and_one_ten_per_cent_beyond_does(spread):
    assert failure_rate(normal_draw(spread, VISITS), LIMIT, 0.0) <= 0.005
    assert failure_rate(normal_draw(spread, VISITS), LIMIT, LIMIT) * 400 <= 28
    assert failure_rate(normal_draw(spread, VISITS), LIMIT, LIMIT + 0.10) >= 0.95


def test_looking_twice_at_the_whole_error_is_found_out(monkeypatch):
    monkeypatch.setattr(gate, "LEVELS", (0.05, 0.05))
    assert failure_rate(normal_draw(0.02, VISITS), LIMIT, LIMIT) > 0.06


def test_a_clear_case_ends_at_the_first_look_and_an_open_one_does_not():
    generator = np.random.default_rng(0)

    def looked(planted: float, look: int = 1) -> Slowdown:
        ratios = [math.log1p(planted) + v for v in normal_draw(0.01, VISITS)(look, generator)]
        return decide(ratios, LIMIT, look)

    assert looked(0.0).verdict == "passed" and looked(0.3).verdict == "failed"
    assert looked(0.05).verdict == "open" and looked(0.05, 2).verdict == "passed"
    assert looked(0.3).slower == pytest.approx(0.3, abs=0.03)


def test_what_is_simulated_has_the_spread_that_was_measured():
    drawn = normal_draw(0.03, 100)(2, np.random.default_rng(0))
    assert len(drawn) == 200 and np.std(drawn) == pytest.approx(0.03, rel=0.15)


@pytest.fixture
def gated():
    def gated(verdict: str, reason: str = "") -> GateResult:
        slowdown = Slowdown(LIMIT, 0.16, 0.13, 0.19, 1, verdict)
        rates = {0.0: 0.0, 0.05: 0.04, 0.15: 0.99}
        return GateResult(
            slowdown, (20.0, 23.2), "ms", 20, 4, 41.0, 0.02, rates, ("a <note> & more",), reason
        )

    return gated


def test_the_reports_say_what_the_status_says(gated, tmp_path):
    cases = ((gated("failed"), "1"), (gated("passed"), "0"), (gated("passed", "Half of it fails."), "1"))
    for one, failures in cases:
        gate.write_junit(one, tmp_path / "j.xml")
        suite = ElementTree.parse(tmp_path / "j.xml").getroot()
        assert (suite.get("failures"), len(suite.findall(".//failure"))) == (failures, int(failures))
        assert "a <note> & more" in suite.find(".//system-out").text
        assert one.sentences()[0].startswith("FAILED" if one.has_failed else "PASSED")
        assert "one 15% slower in 99.0%" in one.sentences()[-1]
        assert json.loads(json.dumps(one.as_record()))["failed"] is one.has_failed
        assert "head is 16.0% slower than base (23.2 against 20 ms)" in one.sentences()[0]
    with pytest.raises(PhotodupError, match="cannot be written: "):
        gate.write_junit(gated("failed"), tmp_path / "j.xml" / "k.xml")
