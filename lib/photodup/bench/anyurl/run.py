"""What the command does with a URL: one load, a search for a rate, or a comparison of two; printed and kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from photodup.bench.anyurl import page as pages
from photodup.bench.anyurl import report
from photodup.bench.anyurl.measure import Asked, Measured, adapter_of, measure_load, notes, try_once
from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.anyurl.rate import highest_rate
from photodup.bench.anyurl.target import Target
from photodup.bench.anyurl.versus import Competitor, compare
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
    _close(request.target.name, [request], asked, sentences, wrong, [one], out, show, pages.load_figures(one))
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
    _close(title, [request], asked, [found.sentence], found.notes, found.measured, out, show, figures)
    return found.rate is not None and found.rate.rate_per_s == found.rate.rate_per_s


def run_versus(
    requests: Sequence[Request],
    asked: Asked,
    out: Path,
    watcher: Watcher,
    show: Callable[[str], None],
    *,
    rounds: int,
) -> bool:
    """Compare two servers; return whether every comparison has a verdict."""
    first, second = (Competitor(r.target, r.maker(asked.batch), r.payloads) for r in requests)
    for request in requests:
        _opening(request, asked.words, show)
    with stoppable(watcher):
        versus = compare(first, second, asked, watcher, rounds=rounds)
    title = f"{requests[0].target.name} and {requests[1].target.name}"
    measured = [m for _, _, m in versus.measured]
    urls = [label for label, _, _ in versus.measured]
    figures = pages.versus_figures(versus)
    _close(title, requests, asked, versus.sentences, versus.notes, measured, out, show, figures, urls)
    return all(o.verdict in ("different", "equal") for o in versus.outcomes)


def _opening(request: Request, words: str, show: Callable[[str], None]) -> None:
    show(f"{request.target.name} ({request.target.protocol}): {words}; {request.payloads.words}.")


def _close(
    title: str,
    requests: Sequence[Request],
    asked: Asked,
    sentences: Sequence[str],
    wrong: Sequence[str],
    measured: Sequence[Measured],
    out: Path,
    show: Callable[[str], None],
    figures: Sequence[tuple[str, str]],
    urls: Sequence[str] = (),
) -> None:
    for sentence in sentences:
        show(sentence)
    for note in wrong:
        show(f"Note: {note}")
    payload = "; ".join(dict.fromkeys(r.payloads.words for r in requests))
    facts = report.about([r.target.columns() for r in requests], asked.words, payload)
    facts |= {"found": list(sentences), "notes": list(wrong)}
    named = list(zip(urls or [requests[0].target.name] * len(measured), measured, strict=True))
    html = pages.page(title, facts, sentences, wrong, named, figures)
    paths = report.write(out, facts, named, html)
    show(f"Kept: {', '.join(str(path) for path in paths)}")
