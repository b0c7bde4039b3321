"""The one place where an outcome becomes a sentence: notebooks, README, report and `photodup load` print what it returns."""

from photodup.bench.stats.comparison import Outcome, Verdict


def sentence(outcome: Outcome) -> str:
    """Return an outcome as one sentence: direction, size with interval, both values with their unit.

    Where no difference was found, the sentence says which one is excluded.
    """
    if not outcome.is_measured:
        return _clause(outcome)
    values = f"{number(outcome.value_b)} against {number(outcome.value_a)} {outcome.metric.unit}"
    if outcome.is_different:
        return f"{_clause(outcome)} ({outcome.metric.label} {values})."
    if outcome.verdict is Verdict.EQUAL:
        return f"{_clause(outcome)}: {outcome.effect:+z.1%} {_interval(outcome, signed=True)} ({values})."
    return f"{_clause(outcome)} ({values})."


def load_of(outcome: Outcome) -> str:
    """Return the load in words: images a request where they are several, requests in flight, and the emulated link."""
    load, link = outcome.comparison.requests, outcome.comparison.link
    images = f"{load.batch} images a request, " if load.batch > 1 else ""
    return f"{images}{load.concurrency} in flight{f', over {link}' if link else ''}"


def brief(outcome: Outcome) -> str:
    """Return the sentence of an outcome without the values of its sides."""
    return _clause(outcome) + ("." if outcome.is_measured else "")


def _clause(outcome: Outcome) -> str:
    metric, a, b = outcome.metric, outcome.comparison.label_a, outcome.comparison.label_b
    if not outcome.is_measured:
        return f"{_capital(metric.label)} of {b} and {a}: {outcome.verdict}. {_capital(outcome.reason)}"
    if outcome.is_different:
        return f"{_capital(b)} {_differs(outcome)} {a} {_interval(outcome)}"
    if outcome.verdict is Verdict.EQUAL:
        return f"{_capital(b)} and {a} have the same {metric.label} within {metric.margin:.0%}"
    excluded = f"anything beyond {percent(outcome.excludes_beyond)} is excluded"
    return f"No difference in {metric.label} was found between {b} and {a}: {excluded}"


def _differs(outcome: Outcome) -> str:
    size = percent(outcome.effect)
    if outcome.metric.quantity == "throughput":
        return f"has {size} {'higher' if outcome.effect > 0 else 'lower'} throughput than"
    figure = "" if outcome.comparison.metric == "latency_ms_p50" else f" ({outcome.metric.label})"
    return f"takes {size} {'longer' if outcome.effect > 0 else 'less time'}{figure} than"


def _interval(outcome: Outcome, *, signed: bool = False) -> str:
    low, high = 100 * outcome.low, 100 * outcome.high
    if signed:
        return f"[{low:+z.1f}, {high:+z.1f}]"
    low, high = sorted((abs(low), abs(high)))
    return f"[{low:.1f}, {high:.1f}]"


def cells_of(outcome: Outcome) -> dict[str, str]:
    """Return an outcome as the cells of a table's row."""
    metric, measured = outcome.metric, outcome.is_measured
    values = f"{number(outcome.value_b)} against {number(outcome.value_a)} {metric.unit}"
    null = f"{outcome.null.effect:+z.1%} {_interval(outcome.null, signed=True)}" if outcome.null else ""
    return {
        "figure": metric.label,
        "verdict": str(outcome.verdict),
        "difference": f"{outcome.effect:+z.1%} {_interval(outcome, signed=True)}" if measured else "",
        "values": values if measured else "",
        "level": f"{outcome.confidence:.1%}" if measured else "",
        "visits": str(outcome.n_visits),
        "two equal processes": null,
        "notes": " ".join((*outcome.notes, outcome.reason)).strip(),
    }


def percent(fraction: float) -> str:
    """Return a fraction without its sign in per cent: two digits below ten, whole numbers above."""
    value = abs(100 * fraction)
    return f"{value:.1f}%" if value < 9.95 else f"{value:.0f}%"


def number(value: float) -> str:
    """Return a number with three significant digits; from 100 on, as a whole number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
