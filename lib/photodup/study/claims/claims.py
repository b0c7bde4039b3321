"""Judge the published claims against the points of a run.

*reproduced*, *contradicted* or *undecided* where the run has what the claim is about; *not testable here* where it
has another device, another link or only a simulation; *own goal met* or *missed* for what the study set itself. A
claim carries its predicate (`photodup.study.claims.predicates`) and what it may be judged on; the claims themselves
are `results/published/claims.yaml`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.files import write_atomically
from photodup.study.claims.claim import NONE_WRITTEN, Claim
from photodup.study.claims.evidence import load_evidence as load_evidence
from photodup.study.claims.outcome import (
    CONTRADICTED,
    GOAL_MET,
    GOAL_MISSED,
    NOT_TESTABLE,
    REPRODUCED,
    UNDECIDED,
    VERDICTS,
    NoiseFloors,
    Outcome,
    number,
)
from photodup.study.claims.predicates import WIDEST, Bounded
from photodup.study.claims.selection import (
    BACKEND_KEYS,
    PAIR_KEYS,
    device_class,
    matching_pairs,
    meeting,
    once_as_deployed,
)
from photodup.study.published.published import evaluate, load_measurements

if TYPE_CHECKING:
    import pandas as pd

PRETENDED = {"sleeping": "a device that sleeps", "simulated": "a simulation"}
PLACE_WORDS = {
    "connection": "{} connection",
    "batch": "batch {:g}",
    "concurrency": "{:g} in flight",
}


def judge(
    claims: Iterable[Claim],
    points: "pd.DataFrame",
    floors: NoiseFloors | None = None,
    *,
    run: str | None = None,
) -> "pd.DataFrame":
    """Judge every claim on every run among the points.

    A claim is judged where its subject allows (each link, each engine) and then as a whole: see `combine`.

    Args:
        floors: what no difference exceeds between a backend and itself; see `noise_floors_of`.
        run: name for the rows when there are no points at all.

    Returns:
        One row per claim and run: `claim`, `statement`, `quotes`, `source`, `published`, `here`, `verdict`,
        `effect`, `effect_low`, `effect_high` (an interval where there is one comparison, the range of the effects
        where there are several: then `effect` is None), `effects` (each comparison's [effect, low, high]),
        `effect_published`, `unit`, `because`, `rival`, `but`, `needs`, `run`, `link` (where, in words) and
        `breakdown`: a list of one dictionary per place with `where`, `verdict`, `here`, `because` and `records`.
    """
    import pandas as pd

    rows, floors = load_measurements(), floors or NoiseFloors()
    claims = list(claims)
    if len(points):
        points = points.assign(device_class=device_class(points))
    runs = sorted(points["run"].dropna().unique()) if "run" in points and len(points) else [run or ""]
    found = []
    for name in runs:
        mine = points[points["run"] == name] if len(points) and "run" in points else points
        found += [_judge_one(claim, mine, floors, name, rows) for claim in claims]
    return pd.DataFrame(found)


def _judge_one(
    claim: Claim, points: "pd.DataFrame", floors: NoiseFloors, run: str, rows: "pd.DataFrame"
) -> dict[str, Any]:
    published = evaluate(claim.published, rows) if claim.published else (None, None, None)
    places = _judge_places(claim, points, floors)
    judged = {where: o for where, o in places.items() if o.verdict != NOT_TESTABLE}
    whole = combine(judged) if judged else _untested(places)
    if claim.goal:
        whole = _goal(claim, published, whole)
    return {
        "claim": claim.id,
        "statement": claim.statement,
        "quotes": [quote.model_dump() for quote in claim.quotes],
        "source": claim.source,
        "published": number(published[0], claim.unit),
        "here": whole.text(claim.unit),
        "verdict": whole.verdict,
        "effect": whole.effect,
        "effect_low": whole.low,
        "effect_high": whole.high,
        "effects": [[one.effect, one.low, one.high] for one in whole.seen],
        "effect_published": published[0],
        "unit": claim.unit,
        "because": whole.because,
        "rival": claim.rival,
        "but": "" if whole.verdict == NOT_TESTABLE else claim.objections.get(whole.verdict, NONE_WRITTEN),
        "needs": claim.needs,
        "run": run,
        "link": next(iter(judged)) if len(judged) == 1 else f"{len(judged)} places" if judged else "",
        "breakdown": [
            {
                "where": where,
                "verdict": _AS_GOAL.get(o.verdict, o.verdict) if claim.goal else o.verdict,
                "here": o.text(claim.unit),
                "because": o.because,
                "records": o.records,
            }
            for where, o in places.items()
        ],
    }


def _judge_places(claim: Claim, points: "pd.DataFrame", floors: NoiseFloors) -> dict[str, Outcome]:
    """Judge each link (and engine) of its own; places without the points for it are left out.

    What the claim may not be judged on is asked the same question, so that its number can be shown, and has the
    verdict "not testable here" with the reason.
    """
    if not len(points):
        return {}
    columns = [column for column in claim.by if column in points]
    fits = meeting(points, claim.judged_on) & ~points["device_class"].isin(PRETENDED)
    groups = points.groupby(columns, dropna=False, sort=True) if columns else [((), points)]
    found = {}
    for values, group in groups:
        words = [place_word(column, value) for column, value in zip(columns, values, strict=True)]
        where = ", ".join(word for word in words if word) or "this machine"
        for part in (group[fits[group.index]], group[~fits[group.index]]):
            outcome = claim.predicate.judge(part, floors) if len(part) else None
            if outcome is None or outcome.verdict == NOT_TESTABLE:
                continue
            if not fits[part.index].all():
                why = _why_not(claim, _behind(outcome, part))
                outcome = replace(
                    outcome, verdict=NOT_TESTABLE, because=f"{why}: shown, not judged; {outcome.because}"
                )
            found[where + (" (not judged)" if where in found else "")] = outcome
    return found


def place_word(column: str, value: object) -> str:
    """Return how a place is named after one of its columns; nothing for a value that is missing."""
    if value is None or value != value:
        return ""
    return PLACE_WORDS.get(column, "{}").format(value)


def _behind(outcome: Outcome, part: "pd.DataFrame") -> "pd.DataFrame":
    """Return the points an outcome rests on, or all of them where they carry no keys."""
    mine = part[part["key"].isin(outcome.records)] if "key" in part and outcome.records else part
    return mine if len(mine) else part


def _why_not(claim: Claim, points: "pd.DataFrame") -> str:
    """Say why points may not be judged: a pretended device, or a condition that they do not meet."""
    kinds = points["device_class"]
    reasons = [words for kind, words in PRETENDED.items() if kinds.eq(kind).any()]
    real = points[~kinds.isin(PRETENDED)]
    failed = {c for c, wanted in claim.judged_on.items() if not meeting(real, {c: wanted}).all()}
    reasons += ["another device"] if failed & {"device_class", "device", "devices"} else []
    reasons += ["another link"] if failed & {"rtt_ms", "rate_mbit_s", "link"} else []
    return ", ".join(reasons) or f"another {', '.join(sorted(failed))}"


def _untested(places: Mapping[str, Outcome]) -> Outcome:
    reasons = dict.fromkeys(
        reason for o in places.values() for reason in o.because.partition(": shown")[0].split(", ")
    )
    had = f"this run has it only on {', '.join(reasons)}" if reasons else "this run has no such points"
    return Outcome(NOT_TESTABLE, because=had)


# What a study wished for is met or missed; only what it says to have found is reproduced or contradicted.
_AS_GOAL = {REPRODUCED: GOAL_MET, CONTRADICTED: GOAL_MISSED}


def _goal(claim: Claim, published: tuple, here: Outcome) -> Outcome:
    """Judge a goal by the study's own rows; what this run has of it is shown beside it."""
    assert isinstance(claim.predicate, Bounded)
    value, low, high = published
    judged = claim.predicate.place(low, high)
    verdict = _AS_GOAL.get(judged, UNDECIDED)
    at_least, at_most = claim.predicate.bounds
    wanted = [f"at least {number(at_least, claim.unit)}"] if at_least > -WIDEST else []
    wanted += [f"at most {number(at_most, claim.unit)}"] if at_most < WIDEST else []
    because = f"its own rows give {number(value, claim.unit)} where it asked for {' and '.join(wanted)}"
    return Outcome(verdict, here.seen if here.verdict != NOT_TESTABLE else (), because)


def combine(places: Mapping[str, Outcome]) -> Outcome:
    """Make one outcome of several places.

    The places that decide must agree, and be at least half of all; otherwise the claim is undecided, and `because`
    says what it depends on. Effects of several places stay several: unlike links have no mean.
    """
    if len(places) == 1:
        return next(iter(places.values()))
    by_verdict = {v: [w for w, o in places.items() if o.verdict == v] for v in VERDICTS}
    yes, no = by_verdict[REPRODUCED], by_verdict[CONTRADICTED]
    decided = yes or no
    split = (yes and no) or any(o.split for o in places.values())
    verdict = UNDECIDED
    if not split and 2 * len(decided) >= len(places) and decided:
        verdict = REPRODUCED if yes else CONTRADICTED
    said = "; ".join(
        f"{word} on {len(where)}{' (' + ' and '.join(where) + ')' if len(where) <= 2 else ''}"
        for word, where in by_verdict.items()
        if where
    )
    because = f"of {len(places)} places {said}" + (": it depends on the place" if split else "")
    return Outcome(verdict, tuple(one for o in places.values() for one in o.seen), because)


def noise_floor_of(
    points: "pd.DataFrame", *, default: float = 0.05, metric: str = "latency_ms_p50"
) -> tuple[float, str]:
    """Return a run's noise floor in one metric as |ln ratio| and where it comes from.

    An A/A comparison is a repeat beside the point that it repeats: the same backend under the same conditions.
    Without one it is `default`, and called assumed.
    """
    from photodup.bench.stats.stats import noise_floor

    if {"repeat", "backend", "valid", metric} <= set(points.columns):
        usable = points[points["valid"].eq(True) & points[metric].notna()]
        first = usable[once_as_deployed(usable)]
        again = usable[(usable["repeat"] > 0) & once_as_deployed(usable.assign(repeat=0))]
        keys = [k for k in ("backend", *PAIR_KEYS, *BACKEND_KEYS) if k in usable]
        pairs = [(float(a[metric]), float(b[metric])) for a, b in matching_pairs(first, again, keys, metric)]
        if pairs:
            return noise_floor(pairs), f"largest of {len(pairs)} A/A comparisons"
    return default, NoiseFloors.source


def noise_floors_of(points: "pd.DataFrame", *, default: float = 0.05) -> NoiseFloors:
    """Return a run's noise floors, one for latencies and one for throughputs."""
    latency, source = noise_floor_of(points, default=default)
    throughput, _ = noise_floor_of(points, default=default, metric="throughput_images_per_s")
    return NoiseFloors(latency, throughput, source)


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
    """Return the claims that could not be tested, by the sentence that says what would decide them."""
    found: dict[str, list[str]] = {}
    for _, row in verdicts[verdicts["verdict"] == NOT_TESTABLE].iterrows():
        found.setdefault(row["needs"], []).append(row["claim"])
    return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))


def counts(verdicts: "pd.DataFrame") -> dict[str, int]:
    """Return how many rows have each verdict, all always present."""
    return {verdict: int((verdicts["verdict"] == verdict).sum()) for verdict in VERDICTS}


def write_verdicts(verdicts: "pd.DataFrame", directory: Path) -> Path:
    """Write `verdicts.json` beside a run's records, for the report; return its path."""
    path = directory / "verdicts.json"
    text = verdicts.to_json(orient="records", indent=1, force_ascii=False)
    write_atomically(path, f"{text}\n", within=directory.parent)
    return path
