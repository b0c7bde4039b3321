"""What the command does with a URL: one load, a search for a rate, or a comparison of two; printed and kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from photodup.bench.anyurl import page as pages
from photodup.bench.anyurl import report
from photodup.bench.anyurl.measure import (
    Asked,
    Measured,
    adapter_of,
    measure_load,
    notes,
    plain_columns,
    try_once,
)
from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.anyurl.rate import highest_rate
from photodup.bench.anyurl.target import Target
from photodup.bench.anyurl.versus import SIDES, Competitor, compare
from photodup.bench.anyurl.watch import Watcher, stoppable
from photodup.bench.stats.slo import LatencyBound


@dataclass(frozen=True)
class Request:
    """One server with what it is sent."""

    target: Target
    payloads: Payloads
    shapes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    encoding: str = "float"

    def maker(self, batch: int) -> Callable[[], object]:
        """Return what makes a new adapter, after one request has shown that it works.

        Raises:
            PhotodupError: it does not; one sentence.
        """

        def make() -> object:
            return adapter_of(
                self.target,
                self.payloads,
                shapes=self.shapes,
                inputs=self.inputs,
                encoding=self.encoding,
                batch=batch,
            )

        try_once(make(), self.payloads, batch)
        return make


def run_load(
    request: Request, asked: Asked, out: Path, watcher: Watcher, show: Callable[[str], None]
) -> bool:
    """Measure one load; return whether its point is valid."""
    make = request.maker(asked.batch)
    _opening(request, asked.words, show)
    with stoppable(watcher):
        one = measure_load(make, request.payloads, asked, watcher)
    sentences = report.figure_lines(one, request.payloads.kind)
    wrong = notes(one, request.target, watcher)
    _keep(request.target.name, request, asked, sentences, wrong, [one], pages.load_figures(one), out, show)
    return one.point.verdict == "valid"


def run_rate(
    request: Request,
    bound: LatencyBound,
    asked: Asked,
    out: Path,
    watcher: Watcher,
    show: Callable[[str], None],
    *,
    budget_s: float,
) -> bool:
    """Search the highest rate under a bound; return whether one was found."""
    make = request.maker(asked.batch)
    _opening(request, f"the highest rate with {bound}, in at most {budget_s / 60:.0f} minutes", show)
    with stoppable(watcher):
        found = highest_rate(make, request.payloads, bound, asked, watcher, budget_s=budget_s)
    figures = pages.rate_figures(found)
    title = f"{request.target.name}: highest rate with {bound}"
    _keep(title, request, asked, [found.sentence], found.notes, found.measured, figures, out, show)
    return found.rate is not None and found.rate.rate_per_s == found.rate.rate_per_s


def run_versus(
    requests: Sequence[Request], asked: Asked, out: Path, watcher: Watcher, show: Callable[[str], None]
) -> bool:
    """Compare two servers; return whether the difference in the usual metric was decided."""
    first, second = (Competitor(r.target, r.maker(asked.batch), r.payloads) for r in requests)
    for number, request in enumerate(requests, start=1):
        _opening(request, asked.words, show, f"Server {number}: ")
    with stoppable(watcher):
        versus = compare(first, second, asked, watcher)
    title = f"{requests[0].target.name} and {requests[1].target.name}"
    more = {
        "comparisons": [outcome.columns() for outcome in versus.outcomes],
        "visits": [{k: v for k, v in visit.as_record().items() if k != "raw"} for visit in versus.visits],
        "seconds": versus.seconds,
    }
    tables = {"Comparisons": pages.comparison_rows(versus), "Visits": pages.visit_rows(versus)}
    figures = pages.versus_figures(versus)
    rows = report.turns(versus.visits, SIDES)
    _close(title, requests, asked, versus.sentences, versus.notes, more, rows, tables, figures, out, show)
    return versus.outcomes[1].decides


def _opening(request: Request, words: str, show: Callable[[str], None], which: str = "") -> None:
    show(f"{which}{request.target.name} ({request.target.protocol}): {words}; {request.payloads.words}.")


def _keep(
    title: str,
    request: Request,
    asked: Asked,
    sentences: Sequence[str],
    wrong: Sequence[str],
    measured: Sequence[Measured],
    figures: Sequence[tuple[str, str]],
    out: Path,
    show: Callable[[str], None],
) -> None:
    """Keep measurements of one server."""
    url = request.target.name
    more = {"measurements": [{"url": url, **plain_columns(one)} for one in measured]}
    tables = {"Measurements": [pages.measurement_row(url, one) for one in measured]}
    rows = report.requests(url, measured)
    _close(title, [request], asked, sentences, wrong, more, rows, tables, figures, out, show)


def _close(
    title: str,
    requests: Sequence[Request],
    asked: Asked,
    sentences: Sequence[str],
    wrong: Sequence[str],
    more: Mapping[str, Any],
    rows: report.Rows,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    figures: Sequence[tuple[str, str]],
    out: Path,
    show: Callable[[str], None],
) -> None:
    for sentence in sentences:
        show(sentence)
    for note in wrong:
        show(f"Note: {note}")
    payload = "; ".join(dict.fromkeys(r.payloads.words for r in requests))
    facts = report.about([r.target.columns() for r in requests], asked.words, payload)
    facts |= {"found": list(sentences), "notes": list(wrong)}
    html = pages.page(title, facts, sentences, wrong, tables, figures)
    paths = report.write(out, {**facts, **more}, rows, html)
    show(f"Kept: {', '.join(str(path) for path in paths)}")
