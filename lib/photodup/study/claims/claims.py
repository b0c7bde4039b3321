"""Hold the published claims against a run.

A claim that a comparison of this repository answers rests on that comparison's outcome, and on nothing else. The others
rest on points, each with its own interval, or on the study's own rows. A claim says itself what is asked
(`photodup.study.claims.predicates`) and what it may be judged on; the claims are `results/published/claims.yaml`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.bench.pairs.read import between
from photodup.bench.stats.interval import Interval
from photodup.files import write_atomically
from photodup.study.claims.claim import NONE_WRITTEN, Claim
from photodup.study.claims.predicates import Bounded, Comparison, Goal
from photodup.study.claims.reading import (
    CONTRADICTED,
    GOAL_MET,
    GOAL_MISSED,
    INCONCLUSIVE,
    NOT_TESTABLE,
    REPRODUCED,
    VERDICTS,
    Reading,
    effect_text,
)
from photodup.study.claims.selection import device_class, meeting
from photodup.study.published.published import evaluate, load_measurements

if TYPE_CHECKING:
    import pandas as pd

RESTS_ON: dict[type, str] = {Goal: "the study's own rows", Comparison: "a comparison"}
PRETENDED = {
    "emulated": "an emulated device",
    "simulated": "a simulation",
    "control plane": "a real control plane, its load simulated",
}
WORDS = {"connection": "{} connection", "batch": "batch {:g}", "concurrency": "{:g} in flight"}


def judge(claims: Iterable[Claim], points: "pd.DataFrame", *, run: str = "") -> "pd.DataFrame":
    """Judge every claim on a run.

    Args:
        points: what `photodup.study.claims.evidence.load_evidence` returns of it.
        run: name for the rows.

    Returns:
        One row per claim: `claim`, `statement`, `quotes`, `source`, `published`, `here`, `verdict`, `because`,
        `rests_on` (a comparison, points, or the study's own rows), `rival`, `but`, `needs`, `run`, `where`, `effects`
        ([value, low, high] of each judged reading), `shown` (of the others) and `not_judged` (these in words, with the
        reason), `effect_published`, `unit`, and `readings`: of each place `where`, `here`, `not_judged` (why, or empty),
        `verdict` and `records`.
    """
    import pandas as pd

    rows = load_measurements()
    if len(points):
        points = points.reset_index(drop=True).copy()  # in one piece: the table is wide
        points["device_class"] = device_class(points)
    return pd.DataFrame([_judge_one(claim, points, run, rows) for claim in claims])


def _judge_one(claim: Claim, points: "pd.DataFrame", run: str, rows: "pd.DataFrame") -> dict[str, Any]:
    published = Interval(*evaluate(claim.published, rows)) if claim.published else None
    read = claim.evidence.readings(points, published.value if published else None) if len(points) else []
    readings = [(_place(claim, reading), _why_not(claim, reading), reading) for reading in read]
    # What was not measured and may not be judged either is no news.
    readings = [one for one in readings if not one[1] or one[2].effect.value == one[2].effect.value]
    judged = [(where, reading) for where, why_not, reading in readings if not why_not]
    if isinstance(claim.evidence, Goal):
        assert published is not None
        verdict, because = _goal(claim, claim.evidence, published)
    elif judged:
        verdict, because = _together(claim, judged)
    else:
        reasons = ", ".join(dict.fromkeys(one for _, why_not, _ in readings for one in why_not.split(", ")))
        because = f"this run has it only on {reasons}" if reasons else "this run has no such points"
        verdict = NOT_TESTABLE
    effects = [reading.effect for _, reading in judged if reading.effect.value == reading.effect.value]
    is_bare = verdict == NOT_TESTABLE or (judged and not effects)  # nothing that could be objected to
    places = dict.fromkeys(where for where, _ in judged)
    return {
        "claim": claim.id,
        "statement": claim.statement,
        "quotes": [quote.model_dump() for quote in claim.quotes],
        "source": claim.source,
        "published": _plain(published.value, claim.unit) if published else "–",
        "here": effect_text(effects, claim.unit),
        "verdict": verdict,
        "because": because,
        "rests_on": RESTS_ON.get(type(claim.evidence), "points"),
        "rival": claim.rival,
        "but": "" if is_bare else claim.objections.get(verdict, NONE_WRITTEN),
        "needs": claim.needs,
        "run": run,
        "where": ", ".join(places) if len(judged) < 3 else f"{len(judged)} places",
        "effects": [[one.value, one.low, one.high] for one in effects],
        "not_judged": _not_judged(claim, readings),
        "shown": [[r.effect.value, r.effect.low, r.effect.high] for _, why_not, r in readings if why_not],
        "effect_published": published.value if published else None,
        "unit": claim.unit,
        "readings": [
            {
                "where": where,
                "not_judged": why_not,
                "verdict": NOT_TESTABLE if why_not else reading.verdict or verdict,
                "here": effect_text([reading.effect], claim.unit),
                "records": _records(reading.points),
            }
            for where, why_not, reading in readings
        ],
    }


def _not_judged(claim: Claim, readings: Sequence[tuple[str, str, Reading]]) -> str:
    """Return what the run shows and may not be judged, and why: "3.9× (an emulated device)"."""
    by_reason: dict[str, list[Interval]] = {}
    for _, why_not, reading in readings:
        if why_not:
            by_reason.setdefault(why_not, []).append(reading.effect)
    return "; ".join(f"{effect_text(effects, claim.unit)} ({why})" for why, effects in by_reason.items())


def _records(points: "pd.DataFrame") -> list[str]:
    keys = points["key"].tolist() if "key" in points else []
    return list(dict.fromkeys(key for key in keys if isinstance(key, str)))


def _place(claim: Claim, reading: Reading) -> str:
    """Return where a reading was made, in the words of the columns that the claim names."""
    first = reading.points.iloc[0]
    known = [(c, value) for c in claim.by if (value := first.get(c)) is not None and value == value]
    return ", ".join(WORDS.get(c, "{}").format(value) for c, value in known) or "this machine"


def _why_not(claim: Claim, reading: Reading) -> str:
    """Return why a reading may not be judged: a device that only pretends, or a condition that its points do not meet."""
    points, kinds = reading.points, reading.points["device_class"]
    reasons = [words for kind, words in PRETENDED.items() if kinds.eq(kind).any()]
    real = points[~kinds.isin(PRETENDED)]
    failed = {c for c, wanted in claim.judged_on.items() if not meeting(real, {c: wanted}).all()}
    reasons += ["another device"] if failed & {"device_class", "device", "devices"} else []
    reasons += ["another link"] if failed & {"rtt_ms", "rate_mbit_s", "link"} else []
    return ", ".join(reasons) or (f"another {', '.join(sorted(failed))}" if failed else "")


def _goal(claim: Claim, goal: Goal, published: Interval) -> tuple[str, str]:
    """Judge a goal by the study's own rows, within the rounding of what it prints."""
    verdict = {REPRODUCED: GOAL_MET, CONTRADICTED: GOAL_MISSED}.get(goal.verdict_of(published), INCONCLUSIVE)
    wanted = [
        f"{words} {_plain(end, claim.unit)}"
        for words, end in zip(("at least", "at most"), goal.bounds, strict=True)
        if abs(end) != float("inf")
    ]
    its = _plain(published.value, claim.unit)
    return verdict, f"its own rows give {its} where it asked for {' and '.join(wanted)}"


def _plain(value: float, unit: str) -> str:
    return effect_text([Interval(value, value, value)], unit)


def _together(claim: Claim, judged: Sequence[tuple[str, Reading]]) -> tuple[str, str]:
    """Return one verdict of several readings, and why.

    Readings that decide must agree and be more than half of all. Figures that were recorded without an interval are read
    together: the interval is then between them, and one alone decides nothing.
    """
    bare = [reading.effect.value for _, reading in judged if not reading.verdict]
    if bare and isinstance(claim.evidence, Bounded):
        if len(bare) == 1:
            return INCONCLUSIVE, "one comparison of figures that were recorded without an interval"
        effect = Interval(*between(bare))
        said = f"{len(bare)} comparisons; interval between them {effect_text([effect], claim.unit)}"
        return claim.evidence.verdict_of(effect), said
    if len(judged) == 1:
        return judged[0][1].verdict, judged[0][1].because or "one point, with its own interval"
    by_verdict = {v: [where for where, r in judged if r.verdict == v] for v in VERDICTS}
    yes, no = by_verdict[REPRODUCED], by_verdict[CONTRADICTED]
    verdict = INCONCLUSIVE
    if not (yes and no) and 2 * len(yes or no) > len(judged):
        verdict = REPRODUCED if yes else CONTRADICTED
    said = "; ".join(
        f"{word} in {len(where)}{' (' + ' and '.join(where) + ')' if len(where) <= 2 else ''}"
        for word, where in by_verdict.items()
        if where
    )
    return verdict, f"{len(judged)} readings: {said}" + (": it depends on the place" if yes and no else "")


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


def counts(verdicts: "pd.DataFrame") -> dict[str, int]:
    """Return how many rows have each verdict, all always present."""
    return {verdict: int((verdicts["verdict"] == verdict).sum()) for verdict in VERDICTS}


def write_verdicts(verdicts: "pd.DataFrame", directory: Path) -> Path:
    """Write `verdicts.json` beside a run's records, for the report; return its path. Quotes and single readings stay out."""
    path = directory / "verdicts.json"
    text = verdicts.drop(columns=["quotes", "readings"]).to_json(
        orient="records", indent=1, force_ascii=False
    )
    write_atomically(path, f"{text}\n", within=directory.parent)
    return path
