"""The one place where a judgement becomes a sentence: notebooks, README, report and slides print what this returns."""

from photodup.bench.stats.compare import MOST_ROUNDS, Outcome
from photodup.bench.stats.facts import Figure, metric_named
from photodup.bench.stats.point import Point


def comparison_sentence(outcome: Outcome) -> str:
    """Return one sentence for a comparison: its verdict, the effect with its interval, the rounds, the spread."""
    comparison, metric = outcome.comparison, outcome.metric
    a, b = comparison.a.side.label, comparison.b.side.label
    if comparison.is_check:
        b = f"{a} again"
    if outcome.verdict is None:
        return f"{_capital(metric.words)} of {b} and {a}: not compared. {outcome.because}"
    figures = f"{_number(outcome.value_b)} against {_number(outcome.value_a)} {metric.unit}"
    unsteady = f", {outcome.n_unsteady} of them not steady" if outcome.n_unsteady else ""
    measured = f"{outcome.n_rounds} rounds{unsteady}, spread between rounds {outcome.spread:.1%}"
    interval = f"[{outcome.low:+.1%}, {outcome.high:+.1%}]"
    subject = f"{_capital(metric.words)} of {b} against {a}"
    if outcome.verdict == "different":
        direction = "higher" if outcome.effect > 0 else "lower"
        said = f"different by {outcome.effect:+.1%} {interval} ({direction}: {figures}; {measured})"
    elif outcome.verdict == "equal":
        said = f"equal within {metric.margin:.0%} ({outcome.effect:+.1%} {interval}: {figures}; {measured})"
    else:
        said = f"undecided; {remedy(outcome)} ({outcome.effect:+.1%} {interval}: {figures}; {measured})"
    return f"{subject}: {said}."


def plain_sentence(outcome: Outcome) -> str:
    """Return a comparison as an answer says it, with one number; the rest of it is in `comparison_row`."""
    a, b, metric = outcome.comparison.a.side.label, outcome.comparison.b.side.label, outcome.metric
    because = outcome.because.removesuffix(".")
    if outcome.verdict is None:
        return f"The {metric.words} of {b} and {a} was not compared: {because}."
    if outcome.verdict == "equal":
        return f"The {metric.words} of {b} and {a} is equal within {metric.margin:.0%}."
    if outcome.verdict == "different":
        direction = "higher" if outcome.effect > 0 else "lower"
        return f"The {metric.words} of {b} is {abs(outcome.effect):.0%} {direction} than that of {a}."
    return f"Whether the {metric.words} of {b} is higher than that of {a} is undecided: {remedy(outcome)}."


def comparison_row(outcome: Outcome) -> dict[str, str]:
    """Return what `comparison_sentence` says as the cells of a table's row."""
    told, metric = outcome.verdict is not None, outcome.metric
    unsteady = f", {outcome.n_unsteady} not steady" if told and outcome.n_unsteady else ""
    decide = remedy(outcome) if outcome.verdict == "undecided" else ""
    figures = f"{_number(outcome.value_b)} against {_number(outcome.value_a)} {metric.unit}" if told else ""
    return {
        "figure": metric.words,
        "verdict": outcome.verdict or "not compared",
        "effect": f"{outcome.effect:+.1%} [{outcome.low:+.1%}, {outcome.high:+.1%}]" if told else "",
        "values": figures,
        "rounds": f"{outcome.n_rounds}{unsteady}",
        "spread between rounds": f"{outcome.spread:.1%}" if told else "",
        "what would decide": decide if told else outcome.because,
    }


def figure_sentence(point: Point, metric: str) -> str:
    """Return one sentence for a point's figure: value, interval, unit, answers; or why there is none."""
    known = metric_named(metric)
    figure: Figure | None = point.figures.get(metric)
    if figure is None:
        because = point.because or f"the sample is too small for it ({known.min_answers} answers are needed)"
        return f"{_capital(known.words)}: not given, {because}."
    hollow = "" if point.verdict == "valid" else f"; {point.verdict}, {point.because}"
    return (
        f"{_capital(known.words)}: {_number(figure.value)} {known.unit} "
        f"[{_number(figure.low)}, {_number(figure.high)}] ({figure.n_answers} answers, worth "
        f"{figure.n_effective:.0f} independent ones{hollow})."
    )


def remedy(outcome: Outcome) -> str:
    """Return why an undecided comparison is that, or how many rounds would decide it."""
    if outcome.because:
        return outcome.because
    if outcome.rounds_to_decide is None:
        return f"more than {MOST_ROUNDS} rounds would be needed"
    return f"about {outcome.rounds_to_decide} rounds would decide"


def _number(value: float) -> str:
    """Three significant digits, and no digit of a large number taken away."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
