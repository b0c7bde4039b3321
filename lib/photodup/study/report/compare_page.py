"""Write the page that puts runs side by side: `results/<first>/compare-<others>.html`."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from photodup.bench.stats.sentence import number
from photodup.embedding.backends import engine_family
from photodup.files import real_path, write_atomically
from photodup.serving.endpoints import NO_GPU
from photodup.study.comparisons import agreement
from photodup.study.notebook.run import describe_machine, describe_weights, read_run
from photodup.study.report import compare
from photodup.study.report.cells import filled
from photodup.study.report.sides import ComparedRun, environment_rows, open_sides, warnings

LOAD = ("scenario", "batch", "concurrency", "connection", "offered_per_s", "link", "label", "repeat")
# Others are called as they are.
SCENARIOS = {"single_stream": "one at a time", "closed_loop": "closed loop", "server": "open loop"}


def write_comparison(names: Sequence[str], output: Path | None = None) -> Path:
    """Write one self-contained page about two runs or more and return its path.

    Args:
        names: runs under results/; ratios refer to the first.
        output: file to write instead of `results/<first>/compare-<others>.html`.

    Raises:
        PhotodupError: an unknown run, or fewer than two; a link in the run's folder where the page goes, or no regular
            file at the name given.
    """
    sides = open_sides(names)
    rows = compare.shared_points(sides)
    facts = environment_rows(sides)
    page = filled(
        "compare.html",
        runs=[_about(side) for side in sides],
        warnings=warnings(sides),
        facts=facts,
        n_same=sum(row["same"] for row in facts),
        rows=[_row(row) for row in rows],
        comparisons=[_comparisons(sides[0], side) for side in sides[1:]],
        summary=summary(rows, sides),
        only_in={name: n for name, n in compare.only_in(sides).items() if n},
        figure=_figure(sides, rows),
    )
    if output is not None:  # a link that the user names is his; one in the folder of a run may be anybody's
        write_atomically(real_path(output), page)
        return output
    path = sides[0].directory / f"compare-{'-'.join(names[1:])}.html"
    write_atomically(path, page, within=path.parent.parent)
    return path


def summary(rows: Sequence[Mapping[str, Any]], sides: Sequence[ComparedRun]) -> list[str]:
    """Return one sentence per further run: of how many shared points its latency was higher, lower or neither."""
    found = []
    for index, side in enumerate(sides[1:], start=1):
        both = [row["changes"][index]["latency_ms_p50"] for row in rows if row["changes"][index]]
        n = {
            word: sum(c.verdict == word for c in both)
            for word in ("lower", "higher", "no difference", "unknown")
        }
        unknown = (
            f"; {n['unknown']} cannot be compared, because one of the two is not valid or has no interval"
        )
        found.append(
            f"{side.name} against {sides[0].name}: {len(both)} shared points, p50 lower in {n['lower']}, "
            f"higher in {n['higher']}, no difference in {n['no difference']}{unknown if n['unknown'] else ''}."
        )
    return found


def _comparisons(first: ComparedRun, other: ComparedRun) -> dict[str, Any]:
    """Return the comparisons that both runs measured: a sentence, and a row for each."""
    both = agreement.twice(read_run(first.directory), read_run(other.directory))
    rows = [one.cells for one in both]
    return {"names": (first.name, other.name), "summary": agreement.summary(both), "rows": rows}


def _about(side: ComparedRun) -> dict[str, str]:
    model = side.environment.get("model", {})
    return {
        "name": side.name,
        "machine": describe_machine(side.environment) or "no environment record",
        "weights": describe_weights(side.environment) if side.environment else "not recorded",
        "digest": str(model.get("digest", "not recorded"))[:12],
        "points": str(len(side.points)),
        **_fastest(side),
    }


def _fastest(side: ComparedRun) -> dict[str, str]:
    """Return what a run's fastest valid point costs and what its GPUs did in it, as text.

    A point in the client's own process costs nothing of a price that is paid for servers elsewhere.
    """
    names = ("backend", "server", "engine", "valid", "throughput_images_per_s")
    servers = side.environment.get("servers") or {}
    has_gpu = side.environment.get("gpus") or servers.get("gpu", NO_GPU) != NO_GPU
    unknown = "not measured" if has_gpu else "not run here"
    used = ("gpu_memory_before_mib", "gpu_memory_mib", "gpu_utilization", "gpu_power_w")
    points = side.points.reindex(columns=[*names, *used])
    is_served = points["valid"].eq(True) & ~points["engine"].map(engine_family).eq("emulated")
    is_served &= ~(points["server"].eq("local") & bool(servers))
    rates = points["throughput_images_per_s"][is_served].dropna()
    if rates.empty:
        return {"cost": "not measured", "gpu": unknown}
    best, price = points.loc[rates.idxmax()], servers.get("price_per_hour_usd")
    cost = f"{best.backend}, {number(rates.max())} images/s: "
    cost += f"{price / 3600e-6 / rates.max():.2f} USD per million" if price else "no price is named"
    if best[list(used)].isna().any():
        return {"cost": cost, "gpu": unknown}
    before, most, share, watts = best[list(used)]
    return {"cost": cost, "gpu": f"{before:,.0f} to {most:,.0f} MiB, {share:.0%} busy, {watts:.0f} W"}


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    condition = row["condition"]
    rest = [
        f"{n} {v:g}" if isinstance(v, float) else f"{n} {v}" for n, v in condition.items() if n not in LOAD
    ]
    rest = [text for text in rest if not text.startswith(("backend ", "span "))]
    return {
        "backend": condition.get("backend", ""),
        "load": describe_load(condition),
        "rest": ", ".join(rest),
        "points": [_cells(point) for point in row["points"]],
        "changes": row["changes"][1:],
    }


def describe_load(condition: Mapping[str, Any]) -> str:
    """Return a load in a few words: `closed loop, 8 in flight, us-east`."""
    rate = condition.get("offered_per_s")
    parts = [
        SCENARIOS.get(str(condition.get("scenario")), str(condition.get("scenario"))),
        f"batch {condition['batch']:g}" if (condition.get("batch") or 1) > 1 else "",
        f"{condition['concurrency']:g} in flight" if condition.get("scenario") == "closed_loop" else "",
        f"{rate:g} per s" if rate else "",
        str(condition.get("connection", "")).replace("warm", ""),
        str(condition.get("link", "")).replace("loopback", ""),
        str(condition.get("label", "")),
        f"repeat {condition['repeat']:g}" if condition.get("repeat") else "",
    ]
    return ", ".join(part for part in parts if part)


def _cells(point: Mapping[str, Any] | None) -> dict[str, Any]:
    """A point's three numbers as text, or one text that says why there are none."""
    if point is None:
        return {"gap": "not measured", "why": ""}
    if not point.get("valid"):
        return {"gap": "not valid", "why": str(point.get("invalid_because") or "")}
    values = [point.get(metric) for metric in compare.METRICS]
    return {"numbers": ["–" if value is None else number(value) for value in values]}


def _figure(sides: Sequence[ComparedRun], rows: Sequence[Mapping[str, Any]]) -> str:
    """Draw p50 of every shared valid point, first run across, the others up; return a PNG as base64 or ""."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from photodup.study.notebook import charts

    pairs = [[_pair(row, index) for row in rows] for index in range(1, len(sides))]
    columns = [[pair for pair in column if pair] for column in pairs]
    if not any(columns):
        return ""
    charts.use_style()
    figure, axes = plt.subplots(1, len(columns), figsize=(5.2 * len(columns) + 0.8, 5), squeeze=False)
    for axis, side, column in zip(axes[0], sides[1:], columns, strict=True):
        if column:
            ends = [min(min(x, y) for x, y, _ in column) * 0.8, max(max(x, y) for x, y, _ in column) * 1.25]
            axis.plot(ends, ends, color="#6b7280", linewidth=0.8)
        for engine in sorted({engine for _, _, engine in column}):
            mine = [(x, y) for x, y, e in column if e == engine]
            axis.scatter(
                *zip(*mine, strict=True), s=26, color=charts.engine_color(engine), label=engine, alpha=0.8
            )
        axis.set(
            xscale="log", yscale="log", xlabel=f"{sides[0].name}: p50, ms", ylabel=f"{side.name}: p50, ms"
        )
        if column:
            axis.legend(loc="upper left")
    text = f"Valid points that both runs have ({', '.join(str(len(c)) for c in pairs)}). On the line: equal; above it: "
    charts.caption(figure, text + "slower than the first run.", width=84 * len(pairs))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()


def _pair(row: Mapping[str, Any], index: int) -> tuple[float, float, str] | None:
    first, other = row["points"][0], row["points"][index]
    if not (first and other and first.get("valid") and other.get("valid")):
        return None
    values = first.get("latency_ms_p50"), other.get("latency_ms_p50")
    engine = engine_family(str(first.get("engine") or "unknown"))
    return (*values, engine) if all(values) else None
