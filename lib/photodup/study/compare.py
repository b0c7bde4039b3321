"""Put runs side by side: how they were made, the load points they share, what became of the claims in each.

A ratio is always "that run ÷ the first one". Nothing is called a difference inside the larger of both noise floors,
and a number that is not valid, or that a run does not have, is never stood in for.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.errors import PhotodupError
from photodup.paths import project_root
from photodup.study.run import describe_machine, read_environment

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("latency_ms_p50", "latency_ms_p99", "throughput_images_per_s")
# What a config may hold without making another load point: how long was measured, and what was added up after.
NOT_CONDITIONS = ("run", "stopping", "slo_ms", "seed", "n_requests")
_PLACES = ("RUN", "ENDPOINTS", "HOST")  # parameters that say where, not how much


@dataclass(frozen=True)
class Side:
    """One run, read for a comparison."""

    name: str
    directory: Path

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        from photodup.bench.record import load_records

        return list(load_records(self.directory))

    @cached_property
    def points(self) -> pd.DataFrame:
        from photodup.bench.record import load_points

        return load_points(self.directory)

    @cached_property
    def evidence(self) -> pd.DataFrame:
        from photodup.study.claims import load_evidence

        return load_evidence(self.directory)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The run's environment; the model's digest comes from its reference embeddings where it is not there."""
        facts = read_environment(self.directory)
        computed = next((r["result"] for r in self.records if r["key"] == "reference-embeddings"), {})
        known = {name: computed[name] for name in ("pretrained", "digest") if computed.get(name)}
        return {**facts, "model": {**known, **facts.get("model", {})}} if facts else {}

    @cached_property
    def noise_floor(self) -> tuple[float, str]:
        """Largest |ln ratio| between a backend and itself in this run, and where it comes from."""
        from photodup.study.claims import noise_floor_of

        return noise_floor_of(self.points)

    @cached_property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """Parameters that the run gave to each notebook, other than where its servers are."""
        import json

        path = self.directory / "study.json"
        rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        return {
            row["notebook"]: {
                name: value
                for name, value in row.get("parameters", {}).items()
                if name not in _PLACES and not name.endswith("_PORT")
            }
            for row in rows
        }

    def conditions(self) -> set[str]:
        """Names of what its load points were asked for, whatever the notebooks put into a record's config."""
        return {
            name for record in self.records for name in record["config"] if "scenario" in record["config"]
        }


def open_sides(names: Sequence[str]) -> list[Side]:
    """Return the runs to compare, the one that ratios refer to first.

    Raises:
        PhotodupError: fewer than two, one of them twice, no such run, or the published study named as a run.
    """
    if len(names) < 2 or len(set(names)) < len(names):
        raise PhotodupError("A comparison needs two different runs or more: photodup report --compare A B.")
    if "published" in names:
        raise PhotodupError(
            "The published study is no run: its tables state no link, interval or validity, so no load point of a "
            "run equals one of theirs; `photodup audit RUN` holds a run against them, claim by claim."
        )
    results = project_root() / "results"
    known = sorted(path.parent.name for path in results.glob("*/records"))
    for name in names:
        if name not in known:
            raise PhotodupError(
                f"There is no run {name!r} with records under results/: there are {', '.join(known) or 'none'}."
            )
    return [Side(name, results / name) for name in names]


def warnings(sides: Sequence[Side]) -> list[str]:
    """Return one sentence for each reason why these runs are not simply comparable; empty when there is none."""
    from photodup.study.claims import unlike

    found = [f"{s.name} left no environment record." for s in sides if not s.environment]
    machines = {s.name: describe_machine(s.environment) for s in sides if s.environment}
    if len(set(machines.values())) > 1:
        held = "; ".join(f"{name}: {machine}" for name, machine in machines.items())
        found.append(f"The runs were made on different machines. {held}.")
    found += unlike({s.name: s.environment for s in sides})
    for side in sides:
        if others := sorted(side.directory.glob("environment-*.json")):
            found.append(
                f"{side.name} was measured in {1 + len(others)} environments: the first is shown here."
            )
    found += _sizes(sides)
    return found


def _sizes(sides: Sequence[Side]) -> list[str]:
    first, *others = sides
    found = []
    for other in others:
        both = sorted(first.parameters.keys() & other.parameters.keys())
        unlike = [name[:2] for name in both if first.parameters[name] != other.parameters[name]]
        if unlike:
            found.append(
                f"{other.name} ran at other sizes than {first.name} (parameters of notebooks {', '.join(unlike)})."
            )
    rules = {side.name: _stopping_rules(side) for side in sides}
    if len(set(rules.values())) > 1:
        held = "; ".join(f"{name}: {rule}" for name, rule in rules.items())
        found.append(f"The runs stopped measuring a point by different rules. Least asked for, {held}.")
    return found


def _stopping_rules(side: Side) -> str:
    rules = [record["config"].get("stopping") for record in side.records]
    rules = [rule for rule in rules if isinstance(rule, Mapping)]
    ranges = [
        (min(values), max(values), unit)
        for name, unit in (("min_duration_s", "s"), ("min_requests", "requests"))
        if (values := [rule[name] for rule in rules if name in rule])
    ]
    texts = [
        f"{low:g} {unit}" if low == high else f"{low:g} to {high:g} {unit}" for low, high, unit in ranges
    ]
    return " and ".join(texts) or "not recorded"


def environment_rows(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return one row per fact of the environments: `fact`, `values` (one per run), `same`; differences first."""
    flat = [_flatten(side.environment) for side in sides]
    rows = []
    for fact in sorted(set().union(*flat)):
        values = [str(facts.get(fact, "not recorded")) for facts in flat]
        rows.append({"fact": fact, "values": values, "same": len(set(values)) == 1})
    return sorted(rows, key=lambda row: row["same"])


def _flatten(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            found |= _flatten(value, f"{prefix}{name} ")
        else:
            found[prefix + name] = ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
    return found


def shared_points(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return every load point that two runs or more have, by link, backend and load.

    Two points are the same when every condition agrees: the backend, the load, the link and whatever else a
    config holds, except how long was measured. An open-loop rate set as a share of each server's own capacity is
    paired by that share. Where a run measured a point more than once, the longest valid measurement stands.

    Returns:
        Per point: `condition` (name -> value), `points` (one mapping or None per run) and `changes`: per run and
        metric what `photodup.bench.stats.difference` says of it against the first run, None for a missing one.
    """
    names = set().union(*(side.conditions() for side in sides)) | {"connection", "offered_per_s", "link"}
    names -= set(NOT_CONDITIONS)
    tables = [_by_condition(side.points, names) for side in sides]
    keys = sorted(set(itertools.chain.from_iterable(tables)), key=_reading_order)
    rows = []
    for key in keys:
        points = [table.get(key) for table in tables]
        if sum(point is not None for point in points) < 2:
            continue
        rows.append(
            {
                "condition": dict(key),
                "points": points,
                "changes": [_changes(sides, points, index) for index in range(len(sides))],
            }
        )
    return rows


def _reading_order(key: tuple) -> tuple:
    """Loopback first, then one backend after the other, from the lightest load to the heaviest; repeats beside it."""
    asked = dict(key)
    link = str(asked.get("link", ""))
    numbers = tuple(float(asked.get(name) or 0) for name in ("batch", "concurrency", "offered_per_s"))
    words = tuple(str(asked.get(name, "")) for name in ("backend", "scenario"))
    return link != "loopback", link, *words, *numbers, str(asked.get("label", "")), str(key)


def only_in(sides: Sequence[Side]) -> dict[str, int]:
    """Return for each run how many of its load points no other run has."""
    names = set().union(*(side.conditions() for side in sides)) - set(NOT_CONDITIONS)
    tables = [
        set(_by_condition(side.points, names | {"connection", "offered_per_s", "link"})) for side in sides
    ]
    return {
        side.name: len(mine - set().union(*(other for other in tables if other is not mine)))
        for side, mine in zip(sides, tables, strict=True)
    }


def _by_condition(points: pd.DataFrame, names: set[str]) -> dict[tuple, dict[str, Any]]:
    found: dict[tuple, dict[str, Any]] = {}
    for row in points.to_dict("records"):
        point = {name: None if value != value else value for name, value in row.items()}
        by_share = str(point.get("label") or "").endswith("load")
        asked = ((n, point.get(n)) for n in sorted(names) if not (by_share and n == "offered_per_s"))
        key = tuple((n, value) for n, value in asked if value not in (None, ""))
        if key not in found or _worth(point) > _worth(found[key]):
            found[key] = point
    return found


def _worth(point: Mapping[str, Any]) -> tuple[bool, float]:
    return bool(point.get("valid")), float(point.get("n_requests") or 0)


def _changes(
    sides: Sequence[Side], points: Sequence[dict[str, Any] | None], index: int
) -> dict[str, dict[str, Any]] | None:
    first, other = points[0], points[index]
    if index == 0 or first is None or other is None:
        return None
    floor = max(sides[0].noise_floor[0], sides[index].noise_floor[0])
    return {metric: change(first, other, floor, metric) for metric in METRICS}


def change(first: Mapping[str, Any], other: Mapping[str, Any], floor: float, metric: str) -> dict[str, Any]:
    """Return `stats.difference`, and a bare ratio judged by the noise floor where a point has no interval."""
    import math

    from photodup.bench.stats import difference

    found = difference(first, other, floor, metric)
    values = [point.get(metric) for point in (first, other)]
    if found["ratio"] is not None or not (first.get("valid") and other.get("valid")) or not all(values):
        return found
    ratio = values[1] / values[0]
    inside = abs(math.log(ratio)) <= floor
    return {
        "ratio": ratio,
        "verdict": "no difference" if inside else ("higher" if ratio > 1 else "lower"),
        "because": f"within the noise floor of {math.expm1(floor):.1%}"
        if inside
        else "no interval is recorded",
    }


def verdict_rows(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return what became of each published claim in each run, judged now by the claims as they stand.

    Returns:
        Per claim that at least one run could judge: `statement`, `published`, `changed` (two runs judged it, and
        not alike) and `runs`: per run the list of its judgements {`verdict`, `here`, `link`}, empty when not measured.
    """
    from photodup.study.claims import judge
    from photodup.study.claims_list import CLAIMS
    from photodup.study.predicates import NOT_MEASURED

    rows = {
        claim.id: {"statement": claim.statement, "published": "–", "runs": [[] for _ in sides]}
        for claim in CLAIMS
    }
    for index, side in enumerate(sides):
        for found in judge(CLAIMS, side.evidence, side.noise_floor[0], run=side.name).to_dict("records"):
            row = rows[found["claim"]]
            row["published"] = found["published"]
            if found["verdict"] != NOT_MEASURED:
                row["runs"][index].append({name: found[name] for name in ("verdict", "here", "link")})
    judged = [row for row in rows.values() if any(row["runs"])]
    for row in judged:
        words = [frozenset(one["verdict"] for one in run) for run in row["runs"] if run]
        row["changed"] = len(set(words)) > 1
    return judged
