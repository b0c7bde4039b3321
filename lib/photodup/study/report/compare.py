"""Put runs side by side: the load points they share, and what became of the claims in each.

A ratio is always "that run ÷ the first one". Nothing is called a difference inside the larger of both noise floors,
and a number that is not valid, or that a run does not have, is never stood in for.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from photodup.study.report.sides import Side

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("latency_ms_p50", "latency_ms_p99", "throughput_images_per_s")
# What a config may hold without making another load point: how long was measured, and what was added up after.
NOT_CONDITIONS = ("run", "stopping", "slo_ms", "seed", "n_requests")


def shared_points(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return every load point that two runs or more have, by link, backend and load.

    Two points are the same when every condition agrees: the backend, the load, the link and whatever else a
    config holds, except how long was measured. An open-loop rate set as a share of each server's own capacity is
    paired by that share. Where a run measured a point more than once, the longest valid measurement stands.

    Returns:
        Per point: `condition` (name -> value), `points` (one mapping or None per run) and `changes`: per run and
        metric what `photodup.bench.stats.stats.difference` says of it against the first run, None for a missing one.
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
    return (
        link != "loopback",
        link,
        *words,
        *numbers,
        str(asked.get("label", "")),
        float(asked.get("repeat") or 0),
        str(key),
    )


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
        left_out = {"offered_per_s"} if point.get("load_share") else set()
        left_out |= set() if point.get("repeat") else {"repeat"}
        key = tuple((n, v) for n in sorted(names - left_out) if (v := point.get(n)) not in (None, ""))
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
    found = {}
    for metric in METRICS:
        floor = max(side.noise_floors.of(metric) for side in (sides[0], sides[index]))
        found[metric] = change(first, other, floor, metric)
    return found


def change(first: Mapping[str, Any], other: Mapping[str, Any], floor: float, metric: str) -> dict[str, Any]:
    """Return `stats.difference`, and a bare ratio judged by the noise floor where a point has no interval."""
    import math

    from photodup.bench.stats.stats import difference

    found = difference(first, other, floor, metric)
    before, after = first.get(metric), other.get(metric)
    are_valid = first.get("valid") and other.get("valid")
    if found["ratio"] is not None or not are_valid or not before or not after:
        return found
    ratio = after / before
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
        not alike) and `runs`: per run the list of its judgements {`verdict`, `here`, `link`}, empty when not testable there.
    """
    from photodup.study.claims.claim import load_claims
    from photodup.study.claims.claims import judge
    from photodup.study.claims.outcome import NOT_TESTABLE

    claims = load_claims()
    rows: dict[str, dict[str, Any]] = {
        claim.id: {"statement": claim.statement, "published": "–", "runs": [[] for _ in sides]}
        for claim in claims
    }
    for index, side in enumerate(sides):
        for found in judge(claims, side.evidence, side.noise_floors, run=side.name).to_dict("records"):
            row = rows[found["claim"]]
            row["published"] = found["published"]
            if found["verdict"] != NOT_TESTABLE:
                row["runs"][index].append({name: found[name] for name in ("verdict", "here", "link")})
    judged = [row for row in rows.values() if any(row["runs"])]
    for row in judged:
        words = [frozenset(one["verdict"] for one in run) for run in row["runs"] if run]
        row["changed"] = len(set(words)) > 1
    return judged
