"""Judge the published claims against the points of a run: reproduced, contradicted, inconclusive, not measured.

A claim carries a predicate over points (`photodup.study.claims.predicates`). The claims themselves are in
`photodup.study.claims.claims_list`.
"""

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.study.claims.claim import NONE_WRITTEN, Claim
from photodup.study.claims.evidence import load_evidence as load_evidence
from photodup.study.claims.predicates import (
    CONTRADICTED,
    INCONCLUSIVE,
    NOT_MEASURED,
    REPRODUCED,
    VERDICTS,
    Outcome,
)
from photodup.study.claims.selection import PAIR_KEYS, matching_pairs, once_as_deployed
from photodup.study.published.published import evaluate, load_measurements

if TYPE_CHECKING:
    import pandas as pd


def judge(
    claims: Iterable[Claim], points: "pd.DataFrame", noise_floor: float = 0.05, *, run: str | None = None
) -> "pd.DataFrame":
    """Judge every claim on every run among the points.

    A claim is judged where its subject allows (each link, each engine) and then as a whole: see `combine`.

    Args:
        noise_floor: largest |ln ratio| between a backend and itself; see `photodup.bench.judge.stats.noise_floor`.
        run: name for the rows when there are no points at all.

    Returns:
        One row per claim and run: `claim`, `statement`, `source`, `published`, `here`, `verdict`, `effect`,
        `effect_low`, `effect_high`, `effect_published`, `unit`, `because`, `rival`, `but`, `needs`, `run`,
        `link` (where, in words), `noise_floor`, and `breakdown`: a list of one dictionary per place with `where`,
        `verdict`, `here` and `because`.
    """
    import pandas as pd

    rows = load_measurements()
    claims = list(claims)
    runs = sorted(points["run"].dropna().unique()) if "run" in points and len(points) else [run or ""]
    found = []
    for name in runs:
        mine = points[points["run"] == name] if len(points) and "run" in points else points
        found += [_judge_one(claim, mine, noise_floor, name, rows) for claim in claims]
    return pd.DataFrame(found)


def _judge_one(
    claim: Claim, points: "pd.DataFrame", noise_floor: float, run: str, rows: "pd.DataFrame"
) -> dict[str, Any]:
    published = evaluate(claim.published, rows)[0] if claim.published else None
    places = _judge_places(claim, points, noise_floor)
    whole = combine(places) if places else claim.predicate.judge(points, noise_floor)
    return {
        "claim": claim.id,
        "statement": claim.statement,
        "source": claim.source,
        "published": number(published, claim.unit),
        "here": number(whole.effect, claim.unit, whole.low, whole.high),
        "verdict": whole.verdict,
        "effect": whole.effect,
        "effect_low": whole.low,
        "effect_high": whole.high,
        "effect_published": published,
        "unit": claim.unit,
        "because": whole.because,
        "rival": claim.rival,
        "but": "" if whole.verdict == NOT_MEASURED else claim.objections.get(whole.verdict, NONE_WRITTEN),
        "needs": claim.needs,
        "run": run,
        "link": next(iter(places)) if len(places) == 1 else f"{len(places)} places" if places else "",
        "noise_floor": noise_floor,
        "breakdown": [
            {
                "where": where,
                "verdict": o.verdict,
                "here": number(o.effect, claim.unit, o.low, o.high),
                "because": o.because,
            }
            for where, o in places.items()
        ],
    }


def _judge_places(claim: Claim, points: "pd.DataFrame", noise_floor: float) -> dict[str, Outcome]:
    """Judge each link (and engine) of its own; places without the points for it are left out."""
    columns = [column for column in claim.by if column in points]
    if not columns:
        return {}
    found = {}
    for values, group in points.groupby([points[c].map(_word) for c in columns], sort=True):
        outcome = claim.predicate.judge(group, noise_floor)
        if outcome.verdict != NOT_MEASURED:
            found[", ".join(v for v in values if v)] = outcome
    return found


def _word(value: object) -> str:
    return "" if value is None or value != value else str(value)


def combine(places: Mapping[str, Outcome]) -> Outcome:
    """Make one outcome of several places.

    The places that decide must agree, and be at least half of all; otherwise the claim is inconclusive, and
    `because` says what it depends on. The effect is the median over the places that carry the verdict, its
    interval covers them all.
    """
    if len(places) == 1:
        return next(iter(places.values()))
    by_verdict = {v: [w for w, o in places.items() if o.verdict == v] for v in VERDICTS}
    yes, no = by_verdict[REPRODUCED], by_verdict[CONTRADICTED]
    decided = yes or no
    split = (yes and no) or any(o.split for o in places.values())
    verdict = INCONCLUSIVE
    if not split and 2 * len(decided) >= len(places) and decided:
        verdict = REPRODUCED if yes else CONTRADICTED
    said = "; ".join(
        f"{word} on {len(where)}{' (' + ' and '.join(where) + ')' if len(where) <= 2 else ''}"
        for word, where in by_verdict.items()
        if where
    )
    carrying = [places[w] for w in decided] if verdict != INCONCLUSIVE else list(places.values())
    carrying = [o for o in carrying if o.effect is not None]
    because = f"of {len(places)} places {said}" + (": it depends on the place" if split else "")
    if not carrying:
        return Outcome(verdict, because=because, split=bool(split))
    return Outcome(
        verdict,
        statistics.median(o.effect for o in carrying if o.effect is not None),
        min(o.effect if o.low is None else o.low for o in carrying),
        max(o.effect if o.high is None else o.high for o in carrying),
        because,
        bool(split),
    )


def number(value: float | None, unit: str, low: float | None = None, high: float | None = None) -> str:
    """Return a value with its unit and, where it has one, its interval; "–" for none."""
    if value is None or value != value:
        return "–"
    space = "" if unit in ("×", "%") else " "
    text = f"{_digits(value)}{space}{unit}"
    return (
        text if low is None or high is None or low == high else f"{text} ({_digits(low)} to {_digits(high)})"
    )


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def noise_floor_of(
    points: "pd.DataFrame", *, default: float = 0.05, metric: str = "latency_ms_p50"
) -> tuple[float, str]:
    """Return a run's noise floor as |ln ratio| and where it comes from.

    An A/A comparison is a repeat beside the point that it repeats: the same backend under the same conditions.
    Without one it is `default`, and called assumed.
    """
    from photodup.bench.judge.stats import noise_floor

    if {"repeat", "backend", "valid", metric} <= set(points.columns):
        usable = points[points["valid"].eq(True) & points[metric].notna()]
        first = usable[once_as_deployed(usable)]
        again = usable[(usable["repeat"] > 0) & once_as_deployed(usable.assign(repeat=0))]
        keys = ["backend", *(k for k in (*PAIR_KEYS, "channel") if k in usable)]
        pairs = [(float(a[metric]), float(b[metric])) for a, b in matching_pairs(first, again, keys, metric)]
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
    for key in ("name", "pretrained", "digest"):
        by_value: dict[str, list[str]] = {}
        for name, model in models.items():
            by_value.setdefault(str(model.get(key) or "unknown"), []).append(name)
        if len(by_value) > 1:
            held = "; ".join(f"{', '.join(names)}: {value}" for value, names in sorted(by_value.items()))
            sentences.append(
                f"The runs hold different models, by {key}: {held}. Compare timings, not answers."
            )
    return sentences


def missing(verdicts: "pd.DataFrame") -> dict[str, list[str]]:
    """Return the claims that were not measured, by what a run would need for them."""
    found: dict[str, list[str]] = {}
    for _, row in verdicts[verdicts["verdict"] == NOT_MEASURED].iterrows():
        found.setdefault(row["needs"] or "points that this run lacks", []).append(row["claim"])
    return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))


def counts(verdicts: "pd.DataFrame") -> dict[str, int]:
    """Return how many rows have each verdict, all four always present."""
    return {verdict: int((verdicts["verdict"] == verdict).sum()) for verdict in VERDICTS}


def write_verdicts(verdicts: "pd.DataFrame", directory: Path) -> Path:
    """Write `verdicts.json` beside a run's records, for the report; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "verdicts.json"
    path.write_text(verdicts.to_json(orient="records", indent=1, force_ascii=False) + "\n", encoding="utf-8")
    return path
