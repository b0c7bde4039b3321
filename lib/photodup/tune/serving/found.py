"""What a search finds: the sentence that says it, the chosen settings as files, and a page with every short trial."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from photodup.bench.anyurl import page as pages
from photodup.bench.stats.comparison import Outcome
from photodup.bench.stats.sentence import sentence
from photodup.bench.stats.slo import LatencyBound, rate_words
from photodup.files import write_atomically
from photodup.study.notebook import charts
from photodup.tune.serving.candidates import Setting


@dataclass(frozen=True)
class Found:
    """What a setting is worth.

    Attributes:
        rate_per_s, low, high: the highest rate under the bound with its interval; None where there is none, and for an
            upper end that was not reached.
        because: why there is none.
        outcome: of measuring it in turns with the finalist that has the highest rate; None for that one.
    """

    setting: Setting
    rate_per_s: float | None
    low: float | None
    high: float | None
    because: str = ""
    outcome: Outcome | None = None

    @property
    def rate(self) -> str:
        """The rate in words."""
        return rate_words(self.rate_per_s, self.low, self.high)

    def overlaps(self, other: Found) -> bool:
        """Return whether the intervals of both rates have something in common."""
        ends = [
            (one.low or math.inf, (one.high or math.inf) if one.rate_per_s else 0) for one in (self, other)
        ]
        return min(high for _, high in ends) >= max(low for low, _ in ends)


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        bound: what was to be kept.
        finalists: best first; those without a rate last.
        trials: name of the setting, rung, score, for every short trial.
        n_settings: how many took part.
        measured_s: seconds of measured windows, all trials.
        in_flight: requests in flight with which the finalists took turns.
        exhaustive_s: what exact rates of all settings would have taken.
    """

    bound: LatencyBound
    finalists: tuple[Found, ...]
    trials: tuple[dict[str, Any], ...]
    n_settings: int
    measured_s: float
    exhaustive_s: float
    in_flight: int = 1

    @property
    def best(self) -> Found | None:
        return next((found for found in self.finalists if found.rate_per_s), None)

    def sentence(self) -> str:
        """Return the choice in one sentence, and whether the runner-up could be as good."""
        best = self.best
        if best is None:
            whys = {found.because for found in self.finalists if found.because} or {
                "no setting met it in a short trial"
            }
            return f"No setting was found that keeps {self.bound}: {sorted(whys)[0]}"
        said = f"Serve {best.setting.name}: it keeps {self.bound} up to {best.rate}"
        if best.because:
            said += f" ({best.because.rstrip('.')})"
        for outcome in (found.outcome for found in self.finalists if found.outcome):
            said += f". In turns, with {self.in_flight} in flight: {sentence(outcome).rstrip('.')}"
        near = [f for f in self.finalists if f is not best and f.overlaps(best)]
        if rivals := [f for f in near if not any(o and o.is_different for o in (f.outcome, best.outcome))]:
            said += f". {rivals[0].setting.name} may be as good"
        return said + "."


def write_result(tuned: Tuned, folder: Path) -> Path:
    """Write `chosen.json`, the service's variables or Triton's settings, and a page; return the page."""
    best = tuned.best
    chosen = {
        "sentence": tuned.sentence(),
        "bound": asdict(tuned.bound),
        "chosen": None if best is None else {**best.setting.as_record(), "rate_per_s": best.rate_per_s},
        "finalists": [_columns(found) for found in tuned.finalists],
        "trials": list(tuned.trials),
    }
    write_atomically(folder / "chosen.json", json.dumps(chosen, indent=1) + "\n", within=folder)
    if best is not None and best.setting.server == "fastapi":
        lines = [f"{name}={value}" for name, value in best.setting.environment.items()]
        write_atomically(folder / "service.env", "\n".join(lines) + "\n", within=folder)
    elif best is not None:
        write_atomically(folder / "config.pbtxt", triton_lines(best.setting), within=folder)
    path = folder / "index.html"
    write_atomically(path, page(tuned), within=folder)
    return path


def _columns(found: Found) -> dict[str, Any]:
    names = ("rate_per_s", "low", "high", "because")
    compared = found.outcome.columns() if found.outcome else None
    return {"setting": found.setting.name, **{n: getattr(found, n) for n in names}, "in_turns": compared}


def triton_lines(setting: Setting) -> str:
    """Return the lines of `config.pbtxt` that this setting changes."""
    return (
        f"# {setting.side.configured_model}, chosen by `photodup tune`: put these lines in place of those in its "
        "config.pbtxt.\n"
        f"dynamic_batching {{ max_queue_delay_microseconds: {setting.wait_us} }}\n"
        f"instance_group [ {{ count: {setting.instances} kind: KIND_CPU }} ]\n"
        f'parameters {{ key: "threads" value {{ string_value: "{setting.threads}" }} }}\n'
    )


def page(tuned: Tuned) -> str:
    """Return one offline HTML page."""
    return pages.page(
        "The fastest way to serve under a bound",
        {"made_by": "photodup tune", "finished": datetime.now(UTC).isoformat(timespec="seconds")},
        [
            tuned.sentence(),
            f"{tuned.n_settings} settings took part. The search measured {tuned.measured_s / 60:.1f} minutes; exact "
            f"rates of all would have taken {tuned.exhaustive_s / 60:.0f}.",
        ],
        [f"{t['setting']} could not be measured: {t['why']}" for t in tuned.trials if t["why"]],
        {
            "Exact rates": [
                {"setting": f.setting.name, "highest rate [95 %]": f.rate, "why not": f.because}
                for f in tuned.finalists
            ]
        },
        [_figure(tuned)],
    )


def _figure(tuned: Tuned) -> tuple[str, str]:
    figure, axes = pages.axes_of(
        "images/s (answered in a closed loop, or offered)", f"p{tuned.bound.percentile:g} of latency, ms"
    )
    drawn = set()
    for trial in tuned.trials:
        engine, precision = trial["engine"], trial["precision"]
        label = f"{engine} {precision}"
        for seen in trial["seen"]:
            # One request is one photograph, so that a rate offered and a throughput share an axis.
            axes.plot(
                seen["rate_per_s"] if "rate_per_s" in seen else seen["images_per_s"],
                seen["latency_ms"],
                "o" if trial["server"] == "fastapi" else "s",
                color=charts.engine_color(engine),
                alpha={"int8": 1.0, "bf16": 0.7}.get(precision, 0.4),
                markersize=4 + 2 * trial["rung"],
                label=None if label in drawn else label,
            )
            drawn.add(label)
    axes.axhline(tuned.bound.bound_ms, color=charts.BAD, linewidth=1)
    axes.set_yscale("log")
    if drawn:
        axes.legend(fontsize=8)
    caption = f"Every short trial; the line is the bound of {tuned.bound.bound_ms:g} ms."
    return caption, pages.svg(figure)
