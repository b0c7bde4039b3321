"""The runs of a comparison, and what makes them unlike: machine, model, sizes, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from photodup.bench.record.record import load_points, load_records
from photodup.errors import PhotodupError
from photodup.study.notebook.files import study_rows
from photodup.study.notebook.run import describe_machine, read_environment, run_directory

_PLACES = ("RUN", "ENDPOINTS", "HOST")  # parameters that say where, not how much


@dataclass(frozen=True)
class ComparedRun:
    """One run, read for a comparison.

    Attributes:
        environment: the model's digest comes from its reference embeddings where it is not there.
        parameters: that the run gave to each notebook, other than where its servers are.
    """

    name: str
    directory: Path
    records: list[dict[str, Any]]
    points: pd.DataFrame
    environment: dict[str, Any]
    parameters: dict[str, dict[str, Any]]

    def conditions(self) -> set[str]:
        """Names of what its load points were asked for, whatever the notebooks put into a record's config."""
        return {
            name for record in self.records for name in record["config"] if "scenario" in record["config"]
        }


def open_sides(names: Sequence[str]) -> list[ComparedRun]:
    """Return the runs to compare, the one that ratios refer to first.

    Raises:
        PhotodupError: fewer than two, one of them twice, no such run, or the published study named as a run.
    """
    if len(names) < 2 or len(set(names)) < len(names):
        raise PhotodupError("A comparison needs two different runs or more: photodup report --compare A B.")
    if "published" in names:
        raise PhotodupError(
            "The published study is no run: its tables state no link, interval or validity, so no load point of a "
            "run equals one of theirs; notebook 12 compares their claims with a run."
        )
    return [_read(name, run_directory(name)) for name in names]


def _read(name: str, directory: Path) -> ComparedRun:
    environment = _model_environment(directory) if read_environment(directory) else {}
    parameters = {
        row["notebook"]: {
            name: value
            for name, value in row.get("parameters", {}).items()
            if name not in _PLACES and not name.endswith("_PORT")
        }
        for row in study_rows(directory)
    }
    records, points = list(load_records(directory)), load_points(directory)
    return ComparedRun(name, directory, records, points, environment, parameters)


def warnings(sides: Sequence[ComparedRun]) -> list[str]:
    """Return one sentence for each reason why these runs are not simply comparable; empty when there is none."""
    found = [f"{s.name} left no environment record." for s in sides if not s.environment]
    machines = {s.name: describe_machine(s.environment) for s in sides if s.environment}
    if len(set(machines.values())) > 1:
        held = "; ".join(f"{name}: {machine}" for name, machine in machines.items())
        found.append(f"The runs were made on different machines. {held}.")
    found += _unlike({s.name: s.environment for s in sides})
    for side in sides:
        if others := sorted(side.directory.glob("environment-*.json")):
            found.append(
                f"{side.name} was measured in {1 + len(others)} environments: the first is shown here."
            )
    found += _sizes(sides)
    return found


def _sizes(sides: Sequence[ComparedRun]) -> list[str]:
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


def _stopping_rules(side: ComparedRun) -> str:
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


def environment_rows(sides: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Return one row per fact of the environments: `fact`, `values` (one per run), `same`; differences first."""
    flat = [_flatten(side.environment) for side in sides]
    rows = []
    for fact in sorted(set().union(*flat)):
        values = [str(facts.get(fact, "not recorded")) for facts in flat]
        rows.append({"fact": fact, "values": values, "same": len(set(values)) == 1})
    return sorted(rows, key=lambda row: row["same"])


def _flatten(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts within facts under both names, and lists as text."""
    flat = pd.json_normalize(dict(facts), sep=" ").to_dict("records")[0] if facts else {}
    listed = {name: ", ".join(map(str, v)) or "none" for name, v in flat.items() if isinstance(v, list)}
    return {str(name): value for name, value in (flat | listed).items()}


def _model_environment(directory: Path) -> dict[str, Any]:
    """Return a run's environment with its model's digest, from the reference embeddings where it is only there."""
    facts = read_environment(directory)
    computed: dict[str, Any] = next(
        (r["result"] for r in load_records(directory) if r["key"] == "reference-embeddings"), {}
    )
    known = {name: computed[name] for name in ("pretrained", "digest") if computed.get(name)}
    return facts | {"model": known | facts.get("model", {})} if facts or known else {}


def _unlike(environments: Mapping[str, Mapping[str, Any]]) -> list[str]:
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
