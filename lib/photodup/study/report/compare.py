"""Put runs side by side: the load points they share.

A ratio is always "that run ÷ the first one". Its interval joins those of both points, which cover the window that each was
measured in and not the machine's other minutes; A number
that is not valid, or that a run does not have, is never stood in for.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from photodup.bench.stats.interval import Interval, interval_in
from photodup.study.report.sides import ComparedRun

METRICS = ("latency_ms_p50", "latency_ms_p99", "throughput_images_per_s")
# What a config may hold without making another load point: how long was measured, and what was added up after.
NOT_CONDITIONS = ("run", "stopping", "slo_ms", "seed", "n_requests")


def shared_points(sides: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Return every load point that two runs or more have, by link, backend and load.

    Two points are the same when every condition agrees: the backend, the load, the link and whatever else a
    config holds, except how long was measured. An open-loop rate set as a share of each server's own capacity is
    paired by that share. Where a run measured a point more than once, the longest valid measurement stands.

    Returns:
        Per point: `condition` (name -> value), `points` (one mapping or None per run) and `changes`: per run and
        metric what `change` says of it against the first run, None for a missing one.
    """
    tables = _tables(sides)
    keys = sorted(set(itertools.chain.from_iterable(tables)), key=_reading_order)
    every = [(dict(key), [table.get(key) for table in tables]) for key in keys]
    return [
        {"condition": key, "points": points, "changes": [None, *(_changes(points[0], p) for p in points[1:])]}
        for key, points in every
        if sum(point is not None for point in points) > 1
    ]


def _reading_order(key: tuple) -> tuple:
    """Loopback first, then one backend after the other, from the lightest load to the heaviest; repeats beside it."""
    asked = dict(key)
    link = str(asked.get("link", ""))
    numbers = tuple(float(asked.get(name) or 0) for name in ("batch", "concurrency", "offered_per_s"))
    words = tuple(str(asked.get(name, "")) for name in ("backend", "scenario"))
    which = str(asked.get("label", "")), float(asked.get("repeat") or 0)
    return link != "loopback", link, *words, *numbers, *which, str(key)


def only_in(sides: Sequence[ComparedRun]) -> dict[str, int]:
    """Return for each run how many of its load points no other run has."""
    tables = [set(table) for table in _tables(sides)]
    return {
        side.name: len(mine - set().union(*(other for other in tables if other is not mine)))
        for side, mine in zip(sides, tables, strict=True)
    }


def _tables(sides: Sequence[ComparedRun]) -> list[dict[tuple, dict[str, Any]]]:
    names = set().union(*(side.conditions() for side in sides)) | {"connection", "offered_per_s", "link"}
    return [_by_condition(side.points, names - set(NOT_CONDITIONS)) for side in sides]


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


def _changes(first: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Change] | None:
    return {metric: change(first, other, metric) for metric in METRICS} if first and other else None


@dataclass(frozen=True)
class Change:
    """One figure of a run against the first run's.

    Attributes:
        ratio: that run ÷ the first, with its interval; None where one of both has no such figure.
        verdict: `higher`, `lower`, `no difference` (the interval holds 1) or `unknown`.
        because: why it is unknown.
    """

    ratio: Interval | None
    verdict: str
    because: str = ""


def change(first: Mapping[str, Any], other: Mapping[str, Any], metric: str) -> Change:
    """Return how one point's figure differs from another's; two that were recorded without intervals decide nothing."""
    if not (first.get("valid") and other.get("valid")):
        why = first.get("invalid_because") or other.get("invalid_because") or "a point is missing"
        return Change(None, "unknown", str(why))
    before, after = (interval_in(point, metric) for point in (first, other))
    if not before or not after or before.value <= 0:
        return Change(None, "unknown", f"the sample does not carry {metric}")
    ratio = after / before
    if not ratio.is_known:
        return Change(ratio, "unknown", "no interval is recorded")
    # a rounded end at 1 is the same one way round and the other
    if ratio.low <= 1 + 1e-9 and ratio.high >= 1 - 1e-9:
        return Change(ratio, "no difference")
    return Change(ratio, "higher" if ratio.value > 1 else "lower")
