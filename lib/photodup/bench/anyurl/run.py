"""Run `photodup load`: one load, several in turns, or a comparison of two servers; print and keep the result.

Exit statuses: 0 the question was answered, 1 a limit of `--fail-if` was violated, 2 nothing could be measured.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from photodup.bench import Columns
from photodup.bench.anyurl import page as pages
from photodup.bench.anyurl import report
from photodup.bench.anyurl.comparison import SIDES, compare_servers
from photodup.bench.anyurl.measure import LoadSpec, LoadTarget, MeasuredLoad, measure_loads, notes
from photodup.bench.anyurl.watch import Watcher, stoppable
from photodup.bench.record.json_files import to_json_value
from photodup.bench.stats.sentence import number
from photodup.core.errors import PhotodupError
from photodup.core.pages import render_page

PAGE = Path(__file__).with_name("page.html")
ANSWERED, LIMIT_VIOLATED, NOT_MEASURED = 0, 1, 2
_LIMIT = re.compile(r"(p50|p95|p99|max|rate|errors)\s*([<>])\s*(\d+(?:\.\d+)?)\s*(ms|s|%|/s)?")


@dataclass(frozen=True)
class Limit:
    """A limit whose violation fails a load, such as `p95>100ms`.

    Attributes:
        figure: of `MeasuredLoad.figures`.
        value: in ms, requests/s, or a share of all requests.
    """

    text: str
    figure: str
    is_upper: bool
    value: float

    def violation(self, figures: Mapping[str, float]) -> str:
        """Return a sentence if the limit is violated or the figure is not known; else nothing."""
        value = figures.get(self.figure)
        if value is not None and (value <= self.value if self.is_upper else value >= self.value):
            return ""
        if value is None:
            text = "not known"
        elif self.figure == "errors":
            text = f"{value:.2%}"
        else:
            text = f"{number(value)} {'requests/s' if self.figure == 'rate' else 'ms'}"
        return f"Failed by --fail-if {self.text!r}: {self.figure} is {text}."


def limit_of(text: str) -> Limit:
    """Read `--fail-if`.

    Raises:
        PhotodupError: it is written otherwise.
    """
    match = _LIMIT.fullmatch(text.strip().lower())
    units = {"rate": ("/s", None), "errors": ("%",)}.get(match[1], ("ms", "s")) if match else ()
    if not match or match[4] not in units:
        raise PhotodupError(
            f"A limit is written p95>100ms (p50, p95, p99, max), errors>1% or rate<50, not {text!r}."
        )
    value = float(match[3]) * {"s": 1000, "%": 0.01}.get(match[4] or "", 1)
    return Limit(text, match[1], match[2] == ">", value)


@dataclass(frozen=True)
class Job:
    """One or more loads on a server, or one on two servers, and where the result goes.

    Attributes:
        specs: loads that take turns; one for a comparison.
        out: folder for the files.
        show: prints a line for a person.
        show_json: prints the whole result; None does not.
    """

    servers: Sequence[LoadTarget]
    specs: Sequence[LoadSpec]
    out: Path
    watcher: Watcher
    show: Callable[[str], None]
    show_json: Callable[[str], None] | None = None
    limits: Sequence[Limit] = ()

    @property
    def description(self) -> str:
        """The loads and their seed in one clause."""
        labels, first = ", ".join(spec.label for spec in self.specs), self.specs[0]
        return f"{f'{labels} in turns' if len(self.specs) > 1 else first.description}, seed {first.seed}"

    def opening(self, description: str) -> None:
        for place, server in enumerate(self.servers, start=1):
            prefix = f"Server {place}: " if len(self.servers) > 1 else ""
            way = server.target.method if server.target.protocol == "post" else server.target.protocol
            self.show(f"{prefix}{server.target.name} ({way}): {description}; {server.payloads.description}.")

    def close(
        self,
        title: str,
        sentences: Sequence[str],
        wrong: Sequence[str],
        charts: Sequence[tuple[str, str]],
        *,
        more: Mapping[str, Any],
        rows: report.Table,
        tables: Mapping[str, Sequence[Mapping[str, Any]]],
        headlines: Sequence[tuple[str, Mapping[str, float]]] = (),
        is_measured: bool,
    ) -> int:
        """Print and keep what was measured; return the status to end with.

        Args:
            headlines: what a sentence about a load begins with, and its figures, which the limits are checked against.
            wrong: what is wrong with the figures.
        """
        violations = [
            prefix + text
            for limit in self.limits
            for prefix, head in headlines
            if (text := limit.violation(head))
        ]
        status = NOT_MEASURED if not is_measured else LIMIT_VIOLATED if violations else ANSWERED
        sentences = [*sentences, *violations]
        for line in (*sentences, *(f"Note: {note}" for note in wrong)):
            self.show(line)
        payload = "; ".join(dict.fromkeys(r.payloads.description for r in self.servers))
        facts = report.result_facts([r.target.columns() for r in self.servers], self.description, payload)
        facts |= {"status": status, "found": sentences, "notes": list(wrong)}
        facts["headlines"] = [head for _, head in headlines]
        page = render_page(
            PAGE, title=title, facts=facts, sentences=sentences, notes=wrong, tables=tables, charts=charts
        )
        result = {**facts, **more}
        paths = report.write(self.out, result, rows, page)
        self.show(f"Kept: {', '.join(str(path) for path in paths)}")
        if self.show_json:
            self.show_json(json.dumps(result, default=str, allow_nan=False))
        return status


def _record(load: MeasuredLoad) -> Columns:
    """Return the figures of a load, and under `windows` those of each window."""
    windows = [{name: value for name, value in w.columns.items() if name != "raw"} for w in load.windows]
    return {**to_json_value(load.columns), "windows": [to_json_value(window) for window in windows]}


def run_load(job: Job) -> int:
    """Measure the loads of one server in turns; return the status to end with."""
    server, first, is_sweep = job.servers[0], job.specs[0], len(job.specs) > 1
    url = server.target.name
    server.try_once(first.batch)
    job.opening(f"{job.description}, {first.n_visits} visits of {first.window().seconds:.2g} s")
    with stoppable(job.watcher):
        measured = measure_loads(server, job.specs, job.watcher)
    sentences, wrong, headlines = [], [], []
    for load in measured:
        prefix = f"{load.spec.label}: " if is_sweep else ""
        sentences += [f"{prefix}{line}" for line in load.lines() + server_lines(load)]
        wrong += [f"{prefix}{note}" for note in notes(load, server.target, job.watcher)]
        headlines.append((prefix, load.figures()))
    if any(load.requests_per_s[1] is not None for load in measured):
        sentences.append("In brackets: 95% intervals between visits.")
    return job.close(
        url,
        sentences,
        wrong,
        pages.frontier_charts(measured) if is_sweep else pages.latency_charts(measured[0]),
        more={"measurements": [{"url": url, **_record(load)} for load in measured]},
        rows=report.request_rows(url, measured),
        tables={"Measurements": [pages.measurement_row(load) for load in measured]},
        headlines=headlines,
        is_measured=any(load.n_answered for load in measured),
    )


STAGES = ("receive", "queue", "decode", "compute_input", "compute_infer", "compute_output", "respond")


def server_lines(load: MeasuredLoad) -> list[str]:
    """Return the server's own counters and its usage in the same windows, as lines for a person."""
    columns, lines = load.columns, []
    if requests := columns.get("server_requests"):
        means = [(stage.replace("_", " "), columns.get(f"server_{stage}_ms_mean")) for stage in STAGES]
        parts = [f"{stage} {number(value)}" for stage, value in means if value is not None]
        if batch := columns.get("server_batch_mean"):
            parts.append(f"mean batch {number(batch)} in {columns['server_executions']:,.0f} executions")
        lines.append(f"server's counters, {requests:,.0f} requests, mean ms: {', '.join(parts)}")
    cores, memory = (columns.get(name) for name in ("server_cpu_cores", "server_memory_mib"))
    if cores is not None and memory is not None:
        own_cores = columns.get("client_cpu_cores", 0.0)
        lines.append(
            f"server process: {cores:.2f} cores, {memory:,.0f} MiB; this generator: {own_cores:.2f} cores"
        )
    return lines


def run_comparison(job: Job) -> int:
    """Compare two servers; return the status to end with."""
    first, second = job.servers
    for server in job.servers:
        server.try_once(job.specs[0].batch)
    job.opening(job.description)
    with stoppable(job.watcher):
        comparison = compare_servers(first, second, job.specs[0], job.watcher)
    more = {
        "comparisons": [outcome.columns() for outcome in comparison.outcomes],
        "visits": [{k: v for k, v in visit.as_record().items() if k != "raw"} for visit in comparison.visits],
        "seconds": comparison.seconds,
    }
    return job.close(
        f"{first.target.name} and {second.target.name}",
        comparison.sentences,
        comparison.notes,
        pages.comparison_charts(comparison),
        more=more,
        rows=report.answer_rows(comparison.visits, SIDES),
        tables={"Comparisons": pages.comparison_rows(comparison)},
        is_measured=comparison.outcomes[1].is_measured,
    )
