"""Judge the published claims against the points of a run: reproduced, contradicted, inconclusive, not measured.

A claim carries a predicate over points (`photodup.study.predicates`). The claims themselves are in
`photodup.study.claims_list`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.study.predicates import (
    NOT_MEASURED,
    PAIR_KEYS,
    VERDICTS,
    Predicate,
    is_main,
    matching_pairs,
)
from photodup.study.published import evaluate, load_measurements

if TYPE_CHECKING:
    import pandas as pd


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
        topology = ("channel", "devices", "arrangement", "batching", "compute_ms")
        keys = ["backend", *(k for k in (*PAIR_KEYS, *topology) if k in usable)]
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
