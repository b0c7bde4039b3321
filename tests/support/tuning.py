"""A whole search for the fastest setting whose measurements are planted, so that it takes no second."""

import os
from pathlib import Path
from unittest import mock

from support.visits import planted_visit

from photodup.bench.record.record import RunStore
from photodup.bench.stats.slo import LatencyBound, RateSeen, SloRate
from photodup.serving.endpoints import from_ports
from photodup.study.notebook.run import Run
from photodup.tune.serving import candidates, search
from photodup.tune.serving.found import write_result

BOUND = LatencyBound(95, 100)


def search_once(folder: Path, measured: Path = Path(os.devnull)) -> str:
    """Search, or go on with what is in `folder`; return what was found. Each measurement adds a letter to `measured`."""
    field = candidates.candidates(2)[:9]

    def planted(made):
        def measure(_run, settings, *rest, **_):
            with measured.open("a") as file:
                file.write("x")
            return made(settings, *rest)

        return measure

    def exact(settings, *_):
        rates = [60.0 - field.index(setting) for setting in settings]
        return [SloRate(rate, rate - 9, 70.0, BOUND, (RateSeen(50.0, 90.0, 80.0, 95.0),)) for rate in rates]

    seen = {"in_flight": 2, "latency_ms": 30.0, "images_per_s": 30.0}
    measures = {
        "quick_trial": lambda setting, *_: {"score": 10.0 + field.index(setting), "seen": [seen]},
        "exact_trials": exact,
        "measure_finalists": lambda _s, _load, _plan, seed: planted_visit([20.0, 20.0], seed).as_record(),
    }
    made = {name: planted(one) for name, one in measures.items()}
    with mock.patch.multiple(search, RUNG_SECONDS=(1.0,), **made), RunStore(folder) as store:
        run = Run("t", folder, from_ports("127.0.0.1", 1, 0, 0, 0), store)
        tuned = search.tune(run, field, BOUND)
    write_result(tuned, folder)
    return f"{tuned.sentence()} {len(tuned.trials)} trials, {tuned.measured_s:g} s"
