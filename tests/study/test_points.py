"""Figures of servers: a rotation of all specs in every visit, resumed where it ended, and the mean over visits."""

import contextlib
from functools import partial

import numpy as np
import pandas as pd
import pytest
from support.visits import opened

from photodup.bench.load.plan import WindowPlan
from photodup.bench.stats.metrics import Load
from photodup.core.errors import PhotodupError
from photodup.study.notebook import points
from photodup.study.notebook.gaps import NotMeasured
from photodup.study.notebook.points import FigureSpec, measure_figures
from photodup.study.notebook.run import open_run
from photodup.study.notebook.table import measured, with_intervals


def planted(monkeypatch, latency_ms):
    """Let every window have these latencies, whatever is asked; return the specs that were, in order."""
    asked = []

    def window(spec, plan, *args, **kwargs):
        asked.append(spec)
        raw = {"latency_ms": np.array(latency_ms(len(asked))), "finished_s": np.arange(4.0)}
        mean = float(raw["latency_ms"].mean())
        return {"latency_ms_mean": mean, "latency_ms_p50": mean, "throughput_images_per_s": 1000 / mean,
                "n_requests": 4, "n_errors": 0, "seed": plan.seed, "notes": "", "raw": raw}  # fmt: skip

    monkeypatch.setattr(points, "_window", window)
    # Nobody listens, and nobody is asked.
    monkeypatch.setattr(points, "ready_to_measure", lambda run, **_: run)
    monkeypatch.setattr(points, "tried_answer_s", lambda *_: 0.0)
    return asked


def specs_of(batches=(1, 4, 8, 16), backends=("local-pytorch-fp32", "local-onnx-fp32"), **more):
    return [
        FigureSpec(b, Load("offline", batch=n), is_checked=False, **more) for b in backends for n in batches
    ]


def test_a_record_answers_for_a_backend_that_is_not_listed_here(tmp_path, monkeypatch):
    monkeypatch.setenv("PHOTODUP_ROOT", str(tmp_path))
    elsewhere = "name: there\nbackends:\n  triton-onnx-fp32-http-fp32: http://127.0.0.1:1\n"
    (tmp_path / "elsewhere.yaml").write_text(elsewhere)
    nowhere = "name: nowhere\nbackends:\n  fastapi-pytorch-fp32-http-jpeg: http://127.0.0.1:1\n"
    (tmp_path / "nowhere.yaml").write_text(nowhere)
    there = open_run("mine", endpoints=tmp_path / "elsewhere.yaml")
    here = open_run("mine", endpoints=tmp_path / "nowhere.yaml")
    spec = specs_of([1], ["triton-onnx-fp32-http-fp32"])
    lacking = measure_figures(here, spec)
    assert (
        lacking.status.tolist() == ["missing"] and "has no triton-onnx-fp32-http-fp32" in lacking.because[0]
    )
    planted(monkeypatch, lambda n: [7.0] * 4)
    measure_figures(there, spec)
    assert measure_figures(here, spec).latency_ms_p50.tolist() == [pytest.approx(7)]
    there.store.close()


def test_every_visit_takes_all_specs_in_another_order_and_rows_come_as_asked(monkeypatch, tmp_path):
    run, specs = opened(tmp_path), specs_of()
    asked = planted(monkeypatch, lambda n: [10.0] * 4)
    with run.store:
        table = measure_figures(run, specs, visits=3)
    assert list(zip(table.backend, table.batch, strict=True)) == [(s.backend, s.load.batch) for s in specs]
    orders = [[specs.index(spec) for spec in asked[i : i + 8]] for i in (0, 8, 16)]
    assert [sorted(order) for order in orders] == 3 * [list(range(8))]
    assert len({tuple(order) for order in orders}) == 3
    assert set(table.n_visits) == {3} and set(table.status) == {"ok"} and not table.because.any()


def test_a_figure_is_the_mean_over_visits_with_its_interval(monkeypatch, tmp_path):
    run = opened(tmp_path)
    planted(monkeypatch, lambda n: [10.0 * 1.1 ** (n - 2)] * 4)  # 9.1, 10 and 11 ms
    with run.store:
        alone = measure_figures(run, specs_of([1], ["local-onnx-fp32"]), visits=1)
        three = measure_figures(run, specs_of([1], ["local-onnx-fp32"]), visits=3).iloc[0]
    assert alone.latency_ms_mean_ci_low.isna().all(), "one visit has no interval"
    assert three.latency_ms_mean == pytest.approx(10)
    reach = np.exp(4.302653 * np.log(1.1) / np.sqrt(3))  # t with two degrees of freedom
    assert three.latency_ms_mean_ci_high == pytest.approx(10 * reach)
    assert three.latency_ms_mean_ci_low == pytest.approx(10 / reach)


def test_what_was_interrupted_goes_on_where_it_ended(monkeypatch, tmp_path):
    run, specs = opened(tmp_path), specs_of()

    def until_the_fifth(n):
        if n == 5:
            raise KeyboardInterrupt
        return [10.0] * 4

    asked = planted(monkeypatch, until_the_fifth)
    with run.store:
        with pytest.raises(KeyboardInterrupt):
            measure_figures(run, specs, visits=2)
        measure_figures(run, specs, visits=2)
        assert len(asked) == 5 + 12
        measure_figures(run, specs, visits=2)
        assert len(asked) == 5 + 12, "everything is read"
        measure_figures(run, specs, WindowPlan(seconds=4), visits=2)
        assert len(asked) == 5 + 12 + 16, "another length is another figure"


def test_a_server_is_configured_once_a_label_and_visit_and_its_refusal_is_a_sentence(monkeypatch, tmp_path):
    run, entered = opened(tmp_path), []

    @contextlib.contextmanager
    def configured(name):
        entered.append(name)
        if name == "refused":
            raise PhotodupError("its control needs a key")
        yield
        entered.append(f"{name} left")

    specs = [spec for name in ("a", "b", "refused")
             for spec in specs_of([1, 2], ["local-onnx-fp32"], label=name, setting=partial(configured, name))]  # fmt: skip
    asked = planted(monkeypatch, lambda n: [10.0] * 4)
    with run.store:
        table = measure_figures(run, specs, visits=2)
        again = measure_figures(run, specs, visits=2)
    assert sorted(entered) == sorted(2 * ["a", "a left", "b", "b left"] + 4 * ["refused"]), (
        "tried again, once each"
    )
    assert {spec.label for spec in asked} == {"a", "b"} and len(asked) == 8
    assert table.status.tolist() == ["ok"] * 4 + ["failed"] * 2
    assert set(table.because[4:]) == {"its control needs a key"}
    pd.testing.assert_frame_equal(table, again)


def test_what_was_not_measured_is_said_once_and_left_out(monkeypatch, tmp_path, capsys):
    run = opened(tmp_path)
    planted(monkeypatch, lambda n: [10.0] * 4)
    absent = specs_of(backends=["triton-trt-fp16-http-fp32"])
    with run.store:
        figures = measure_figures(run, [*specs_of(), *absent], visits=1)
        assert len(measured(figures)) == 8
        assert capsys.readouterr().out.count("has no triton-trt-fp16-http-fp32") == 1
        with pytest.raises(NotMeasured, match="has no triton-trt-fp16-http-fp32"):
            measured(measure_figures(run, absent, visits=1))
    unread = opened(tmp_path / "other", measure=False)
    row = measure_figures(unread, [FigureSpec("local-onnx-fp32", Load("single_stream"))]).iloc[0]
    assert row["status"] == "missing" and row["because"] == "not measured in this run"


def test_intervals_are_written_where_there_are_some():
    ends = {"x_ci_low": [1.5, np.nan], "x_ci_high": [2.5, np.nan]}
    assert with_intervals(pd.DataFrame({"x": [2.0, 3.0], **ends}), "x").tolist() == ["2 [1.5, 2.5]", "3"]
    assert (
        with_intervals(pd.DataFrame({"x": [np.nan], "x_ci_low": [np.nan], "x_ci_high": [np.nan]}), "x")[0]
        == ""
    )
