"""Judge the published claims against the points of a run: reproduced, contradicted, inconclusive, not measured.

A claim carries a predicate over points. Predicates compare only points that agree in everything but what the
claim is about, call nothing a difference within the noise floor, and return "not measured" when points are
missing: never a guess. The claims themselves are in `photodup.study.claims_list`.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.study.published import evaluate, load_measurements

if TYPE_CHECKING:
    import pandas as pd

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
INCONCLUSIVE, NOT_MEASURED = "inconclusive", "not measured"
VERDICTS = (REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_MEASURED)
PAIR_KEYS = ("run", "link", "scenario", "batch", "concurrency", "connection", "span", "offered_per_s")
LOCAL_LINKS = ("", "loopback", "none")
REMOTE_RTT_MS = 5.0  # a shorter link is a data centre's
_RTT = re.compile(r"(\d+(?:\.\d+)?)[ _-]?ms|rtt[ _-]?(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Outcome:
    """What a predicate saw: the effect in the claim's unit with its interval, and why the verdict."""

    verdict: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    because: str = ""


Predicate = Callable[["pd.DataFrame", float], Outcome]


@dataclass(frozen=True)
class Claim:
    """One published claim.

    Attributes:
        statement: one sentence, in our words.
        source: document and section that makes it.
        rows: published rows it rests on.
        published: arithmetic over row ids that gives the published effect; empty when none is printed.
        predicate: (points, noise floor as |ln ratio|) -> Outcome.
        rival: what else could explain the published observation.
        unit: of the effect: "×", "ms", "%" or a word.
        scope: "link" judges each link of a run on its own, "run" all links together.
    """

    id: str
    statement: str
    source: str
    rows: tuple[str, ...]
    predicate: Predicate
    published: str = ""
    rival: str = ""
    unit: str = "×"
    scope: str = "link"


def load_evidence(directory: Path) -> "pd.DataFrame":
    """Return a run's points and, as backend "network-only", the rows of its link ladders (no server behind them)."""
    import pandas as pd

    from photodup.bench.record import load_points, load_records

    ladder = [
        {
            "run": directory.name,
            "backend": "network-only",
            "scenario": "single_stream",
            "batch": 1,
            "concurrency": 1,
        }
        | {name: value for name, value in row.items() if not isinstance(value, (dict, list))}
        for record in load_records(directory)
        if record["key"].startswith("ladder") and record["status"] == "ok"
        for row in record["result"].get("rows", [])
    ]
    points = load_points(directory)
    tables = [table for table in (points, pd.DataFrame(ladder)) if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else points


def judge(
    claims: Iterable[Claim], points: "pd.DataFrame", noise_floor: float = 0.05, *, run: str | None = None
) -> "pd.DataFrame":
    """Judge every claim on every run (and link) among the points.

    Args:
        noise_floor: largest |ln ratio| between a backend and itself; see `photodup.bench.stats.noise_floor`.
        run: name for the rows when there are no points at all.

    Returns:
        One row per claim, run and link: `claim`, `statement`, `source`, `published`, `here`, `verdict`, `effect`,
        `effect_low`, `effect_high`, `because`, `rival`, `run`, `link`, `noise_floor`. A claim that could not be
        judged on any link of a run has one row, link "".
    """
    import pandas as pd

    rows = load_measurements()
    claims = list(claims)
    runs = sorted(points["run"].dropna().unique()) if "run" in points and len(points) else [run or ""]
    found = []
    for name in runs:
        mine = points[points["run"] == name] if len(points) and "run" in points else points
        for claim in claims:
            found += _judge_one(claim, mine, noise_floor, name, rows)
    return pd.DataFrame(found)


def _judge_one(
    claim: Claim, points: "pd.DataFrame", noise_floor: float, run: str, rows: "pd.DataFrame"
) -> list[dict[str, Any]]:
    published = evaluate(claim.published, rows)[0] if claim.published else None
    outcomes = []
    if claim.scope == "link" and "link" in points:
        for link, group in points.groupby(points["link"].fillna(""), sort=True):
            outcomes.append((str(link), claim.predicate(group, noise_floor)))
        outcomes = [pair for pair in outcomes if pair[1].verdict != NOT_MEASURED]
    if not outcomes:
        outcomes = [("", claim.predicate(points, noise_floor))]
    return [
        {
            "claim": claim.id,
            "statement": claim.statement,
            "source": claim.source,
            "published": _number(published, claim.unit),
            "here": _number(o.effect, claim.unit, o.low, o.high),
            "verdict": o.verdict,
            "effect": o.effect,
            "effect_low": o.low,
            "effect_high": o.high,
            "because": o.because,
            "rival": claim.rival,
            "run": run,
            "link": link,
            "noise_floor": noise_floor,
        }
        for link, o in outcomes
    ]


def _number(value: float | None, unit: str, low: float | None = None, high: float | None = None) -> str:
    if value is None:
        return "–"
    space = "" if unit in ("×", "%") else " "
    text = f"{value:.3g}{space}{unit}" if value < 999.5 else f"{value:,.0f}{space}{unit}"
    return text if low is None or high is None or low == high else f"{text} ({low:.3g} to {high:.3g})"


def noise_floor_of(
    points: "pd.DataFrame", *, default: float = 0.05, metric: str = "latency_ms_p50"
) -> tuple[float, str]:
    """Return a run's noise floor as |ln ratio| and where it comes from.

    An A/A comparison is a point labelled "again" (or "aa") beside the one it repeats: the same backend under the
    same conditions. Without one it is `default`, and called assumed.
    """
    from photodup.bench.stats import noise_floor

    if {"label", "backend", "valid", metric} <= set(points.columns):
        usable = points[points["valid"].eq(True) & points[metric].notna()]
        again = usable[usable["label"].astype(str).str.fullmatch(r"again|aa")]
        first = usable[usable["label"].map(is_main)]
        keys = ["backend", *(k for k in (*PAIR_KEYS, "channel") if k in usable)]
        pairs = [(float(a[metric]), float(b[metric])) for a, b in _pairs(first, again, keys, metric)]
        if pairs:
            return noise_floor(pairs), f"largest of {len(pairs)} A/A comparisons"
    return default, "assumed: the run has no A/A comparison"


def unlike(environments: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one sentence for each way in which runs do not hold the same model, so that it can be said.

    Args:
        environments: run name -> its environment record; an empty one (no records yet) is left out.
    """
    models = {name: env.get("model", {}) for name, env in environments.items() if env}
    sentences = []
    for field in ("name", "pretrained", "digest"):
        by_value: dict[str, list[str]] = {}
        for name, model in models.items():
            by_value.setdefault(str(model.get(field) or "unknown"), []).append(name)
        if len(by_value) > 1:
            held = "; ".join(f"{', '.join(names)}: {value}" for value, names in sorted(by_value.items()))
            sentences.append(
                f"The runs hold different models, by {field}: {held}. Compare timings, not answers."
            )
    return sentences


def counts(verdicts: "pd.DataFrame") -> dict[str, int]:
    """Return how many rows have each verdict, all four always present."""
    return {verdict: int((verdicts["verdict"] == verdict).sum()) for verdict in VERDICTS}


def write_verdicts(verdicts: "pd.DataFrame", directory: Path) -> Path:
    """Write `verdicts.json` beside a run's records, for the report; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "verdicts.json"
    path.write_text(verdicts.to_json(orient="records", indent=1, force_ascii=False) + "\n", encoding="utf-8")
    return path


# --- predicates ------------------------------------------------------------------------------------------------


def select(points: "pd.DataFrame", backend: str, **where: Any) -> "pd.DataFrame":
    """Return the valid points whose backend matches the whole pattern and whose columns match `where`.

    A tuple in `where` lists allowed values; a callable is asked for each value. Points of a server configured in
    another way, and repeats, carry a `label` and are left out unless `where` names it (see `is_main`).
    """
    if not {"backend", "valid"} <= set(points.columns) or not len(points):
        return points.iloc[0:0]
    keep = points["backend"].astype(str).str.fullmatch(backend) & points["valid"].eq(True)
    if "label" in points and "label" not in where:
        keep &= points["label"].map(is_main)
    for column, wanted in where.items():
        if column not in points:
            return points.iloc[0:0]
        if callable(wanted):
            keep &= points[column].map(wanted).astype(bool)
        else:
            keep &= points[column].isin(wanted if isinstance(wanted, tuple) else (wanted,))
    return points[keep]


def is_main(label: object) -> bool:
    """Say whether a point's label means the backend as deployed: none, the default, or a share of its "
    "load."""
    return label is None or label != label or bool(re.fullmatch(r"(.*\bdefault|.*\bload)?", str(label)))


def link_rtt_ms(link: object) -> float:
    """Return the round-trip time in ms of a link's label (`25ms-210mbit-…`); 0 for loopback, NaN for "
    "unknown."""
    if link is None or link != link or str(link).lower() in LOCAL_LINKS:
        return 0.0
    match = _RTT.search(str(link).lower())
    return float(match[1] or match[2]) if match else math.nan


def remote(link: object) -> bool:
    """Say whether a link is a wide-area one: at least `REMOTE_RTT_MS` of round trip."""
    return link_rtt_ms(link) >= REMOTE_RTT_MS


def verdict_of(low: float, high: float, *, at_least: float, at_most: float, noise_floor: float) -> str:
    """Place an interval against a claimed range of a ratio; bounds of 1 are widened by the noise floor."""
    margin = math.exp(noise_floor)
    floor_in = at_least * margin if at_least == 1 else at_least
    floor_out = at_least / margin if at_least == 1 else at_least
    ceiling_in = at_most / margin if at_most == 1 else at_most
    ceiling_out = at_most * margin if at_most == 1 else at_most
    if low >= floor_in and high <= ceiling_in:
        return REPRODUCED
    if high <= floor_out or low >= ceiling_out:
        return CONTRADICTED
    return INCONCLUSIVE


def ratio(
    numerator: str,
    denominator: str,
    metric: str | Sequence[str],
    *,
    at_least: float = 0.0,
    at_most: float = math.inf,
    numerator_where: dict[str, Any] | None = None,
    denominator_where: dict[str, Any] | None = None,
    same_engine: bool = False,
    **where: Any,
) -> Predicate:
    """Claim that `metric` of one backend is between `at_least` and `at_most` times that of another.

    Points are paired where they agree in `PAIR_KEYS`, except in columns that `numerator_where` and
    `denominator_where` set apart; a backend compared with itself is also the same backend and channel, and
    `same_engine` pairs like with like where the patterns match several engines. All pairs must agree; otherwise
    the verdict is inconclusive and says so.
    """

    def predicate(points: "pd.DataFrame", noise_floor: float) -> Outcome:
        column = _column(points, metric)
        if column is None:
            return Outcome(NOT_MEASURED, because=f"no point carries {_names(metric)}")
        apart = set(numerator_where or {}) | set(denominator_where or {})
        itself = ("backend", "channel") if numerator == denominator else ("engine",) if same_engine else ()
        keys = [k for k in (*PAIR_KEYS, *itself) if k in points and k not in apart]
        top = select(points, numerator, **where, **(numerator_where or {}))
        bottom = select(points, denominator, **where, **(denominator_where or {}))
        pairs = _pairs(top, bottom, keys, column)
        if not pairs:
            return Outcome(NOT_MEASURED, because=f"no pair of valid points carries {column}")
        seen = []
        for a, b in pairs:
            effect, low, high, exact = _quotient(a, b, column, noise_floor)
            judged = verdict_of(low, high, at_least=at_least, at_most=at_most, noise_floor=noise_floor)
            seen.append((judged, effect, low, high, exact))
        return _combine(seen, column)

    return predicate


def bound(
    backend: str,
    metric: str | Sequence[str],
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    **where: Any,
) -> Predicate:
    """Claim that `metric` of every matching point lies between two bounds (interval included where there "
    "is one)."""

    def predicate(points: "pd.DataFrame", noise_floor: float) -> Outcome:
        column = _column(points, metric)
        found = select(points, backend, **where) if column else points.iloc[0:0]
        found = found[found[column].notna()] if column else found
        if not len(found):
            return Outcome(NOT_MEASURED, because=f"no valid point carries {_names(metric)}")
        seen = []
        for _, point in found.iterrows():
            value, low, high = _interval(point, column)
            inside, outside = at_least <= low and high <= at_most, high < at_least or low > at_most
            judged = REPRODUCED if inside else CONTRADICTED if outside else INCONCLUSIVE
            seen.append((judged, value, low, high, low != high))
        return _combine(seen, column, geometric=False)

    return predicate


def _pairs(
    top: "pd.DataFrame", bottom: "pd.DataFrame", keys: list[str], column: str
) -> list[tuple[Any, Any]]:
    if not len(top) or not len(bottom):
        return []
    # An absent condition (no offered rate, no span) equals another absent one, and nothing else.
    index: dict[tuple, list] = {}
    for _, point in bottom[bottom[column].notna()].iterrows():
        index.setdefault(_key(point, keys), []).append(point)
    return [(a, b) for _, a in top[top[column].notna()].iterrows() for b in index.get(_key(a, keys), [])]


def _key(point: "pd.Series", keys: list[str]) -> tuple:
    return tuple(None if point[k] is None or point[k] != point[k] else point[k] for k in keys)


def _interval(point: "pd.Series", column: str) -> tuple[float, float, float]:
    value = float(point[column])
    low, high = point.get(f"{column}_ci_low"), point.get(f"{column}_ci_high")
    known = low is not None and high is not None and low == low and high == high
    return (value, float(low), float(high)) if known else (value, value, value)


def _quotient(a: "pd.Series", b: "pd.Series", column: str, floor: float) -> tuple[float, float, float, bool]:
    """Effect a ÷ b and its interval: intervals combined as logarithms, or the noise floor where there is "
    "none."""
    (x, x_low, x_high), (y, y_low, y_high) = _interval(a, column), _interval(b, column)
    if min(x, y, x_low, y_low) <= 0:
        return 0.0, 0.0, math.inf, False
    effect = math.log(x / y)
    if x_low == x_high or y_low == y_high:
        return math.exp(effect), math.exp(effect - floor), math.exp(effect + floor), False
    down = math.hypot(math.log(x / x_low), math.log(y_high / y))
    up = math.hypot(math.log(x_high / x), math.log(y / y_low))
    return math.exp(effect), math.exp(effect - down), math.exp(effect + up), True


def _combine(
    seen: list[tuple[str, float, float, float, bool]], column: str, geometric: bool = True
) -> Outcome:
    verdicts = {s[0] for s in seen}
    effects = [s[1] for s in seen]
    positive = geometric and min(effects) > 0
    mean = math.exp(sum(map(math.log, effects)) / len(effects)) if positive else sum(effects) / len(effects)
    number = f"{len(seen)} comparison{'s' if len(seen) > 1 else ''} of {column}"
    if not all(s[4] for s in seen) and geometric:
        number += ", interval from the noise floor"
    if len(verdicts) == 1:
        verdict = verdicts.pop()
        because = number + (", interval or noise floor reaches the bound" if verdict == INCONCLUSIVE else "")
    else:
        verdict = INCONCLUSIVE
        because = f"{number} disagree: {min(effects):.3g} to {max(effects):.3g}"
    return Outcome(verdict, mean, min(s[2] for s in seen), max(s[3] for s in seen), because)


def _column(points: "pd.DataFrame", metric: str | Sequence[str]) -> str | None:
    names = (metric,) if isinstance(metric, str) else metric
    return next((n for n in names if n in points and points[n].notna().any()), None)


def _names(metric: str | Sequence[str]) -> str:
    return metric if isinstance(metric, str) else metric[0]
