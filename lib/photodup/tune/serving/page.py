"""What a search leaves: the chosen settings as files, and a page with the finalists and every short trial."""

from __future__ import annotations

import base64
import html
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from photodup.files import write_atomically
from photodup.study.notebook import charts
from photodup.tune.serving.candidates import Setting
from photodup.tune.serving.found import Found, Tuned

_STYLE = (
    "body{font:16px/1.5 system-ui;max-width:52rem;margin:2rem auto;padding:0 1rem}"
    "td,th{padding:.2rem .6rem;text-align:left}img{max-width:100%}"
)


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
    rows = "".join(
        f"<tr><td>{html.escape(f.setting.name)}</td><td>{html.escape(f.rate)}</td><td>{html.escape(f.because)}</td></tr>"
        for f in tuned.finalists
    )
    failed = [t for t in tuned.trials if t["why"]]
    missing = "".join(f"<li>{html.escape(t['setting'])}: {html.escape(t['why'])}</li>" for t in failed)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>photodup tune</title><style>{_STYLE}</style><h1>The fastest way to serve under a bound</h1>"
        f"<p>{html.escape(tuned.sentence())}</p>"
        f"<p>{tuned.n_settings} settings took part. The search measured {tuned.measured_s / 60:.1f} minutes; exact "
        f"rates of all would have taken {tuned.exhaustive_s / 60:.0f}.</p>"
        f"<h2>Exact rates</h2><table><tr><th>setting<th>highest rate [95 %]<th>why not</tr>{rows}</table>"
        f"<h2>Short trials</h2><img alt='Latency against throughput of every short trial' "
        f"src='data:image/png;base64,{_figure(tuned)}'>"
        + (f"<h2>Could not be measured</h2><ul>{missing}</ul>" if missing else "")
        + "</html>\n"
    )


def _figure(tuned: Tuned) -> str:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(8, 4.5))
    drawn = set()
    for trial in tuned.trials:
        engine, precision = trial["engine"], trial["precision"]
        for seen in trial["seen"]:
            label = f"{engine} {precision}"
            color = charts.engine_color(engine)
            fade = {"int8": 1.0, "bf16": 0.7}.get(precision, 0.4)
            marker = "o" if trial["server"] == "fastapi" else "s"
            # One request is one photograph, so that a rate offered and a throughput share an axis.
            ax.plot(
                seen["rate_per_s"] if "rate_per_s" in seen else seen["images_per_s"],
                seen["latency_ms"],
                marker,
                color=color,
                alpha=fade,
                markersize=4 + 2 * trial["rung"],
                label=None if label in drawn else label,
            )
            drawn.add(label)
    ax.axhline(tuned.bound.bound_ms, color=charts.BAD, linewidth=1)
    ax.set(
        xlabel="images/s (answered in a closed loop, or offered)",
        ylabel=f"p{tuned.bound.percentile:g} of latency (ms)",
        yscale="log",
    )
    ax.set_title(f"Every trial; the line is the bound of {tuned.bound.bound_ms:g} ms")
    if drawn:
        ax.legend(fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110, bbox_inches="tight")
    plt.close(figure)
    return base64.b64encode(out.getvalue()).decode()
