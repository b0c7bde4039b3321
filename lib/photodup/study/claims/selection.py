"""Which points a claim is about, by their columns, and which two of them may be compared.

A condition on a column is a value, a list of allowed values, a range (`{at_least: 20, at_most: 30}`) or words that
a name holds (`{contains: [A100]}`). A value that is missing satisfies none of them unless a range says so.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, model_validator

from photodup.serving.endpoints import UNKNOWN_GPU

if TYPE_CHECKING:
    import pandas as pd

BACKEND_KEYS = ("server", "engine", "precision", "protocol", "wire", "channel")
TOPOLOGY = ("arrangement", "devices", "batching", "compute_ms")  # of emulated devices
PAIR_KEYS = (
    "run", "link", "scenario", "batch", "concurrency", "connection", "span", "offered_per_s",
    *TOPOLOGY,
)  # fmt: skip


class Strict(BaseModel):
    """A record of the claims' file: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Range(Strict):
    """Allowed numbers, both ends included; at least one end is given. `or_unknown` lets a missing value pass."""

    at_least: float | None = None
    at_most: float | None = None
    or_unknown: bool = False

    @model_validator(mode="after")
    def _has_an_end(self) -> "Range":
        if self.at_least is None and self.at_most is None:
            raise ValueError("a range needs at_least, at_most or both")
        return self

    def holds(self, value: object) -> bool:
        if value is None or value != value:
            return self.or_unknown
        if not isinstance(value, (int, float)):
            return False
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )


class Naming(Strict):
    """A text that holds one of these words, whatever its case: a GPU's name as a driver or a renter writes it."""

    contains: list[str]

    def holds(self, value: object) -> bool:
        return isinstance(value, str) and any(word.lower() in value.lower() for word in self.contains)


Scalar = bool | int | float | str
Where = dict[str, Scalar | list[Scalar] | Range | Naming]  # column -> condition


def satisfies(column: "pd.Series", condition: Scalar | list[Scalar] | Range | Naming) -> "pd.Series":
    """Return True for each value of a column that meets a condition."""
    if isinstance(condition, (Range, Naming)):
        return column.map(condition.holds).astype(bool)
    return column.isin(condition if isinstance(condition, list) else [condition])


def meeting(points: "pd.DataFrame", where: Mapping[str, Any]) -> "pd.Series":
    """Return True for each point that meets every condition; a column that is absent is unknown of all points."""
    import pandas as pd

    keep, unknown = (pd.Series(value, index=points.index, dtype=object) for value in (True, None))
    for column, condition in where.items():
        keep &= satisfies(points.get(column, unknown), condition)
    return keep.astype(bool)


def select(points: "pd.DataFrame", where: Mapping[str, Any]) -> "pd.DataFrame":
    """Return the valid points that meet every condition.

    Repeats are left out, and so are points of a server configured otherwise than it is deployed, unless `where`
    names their `label`.
    """
    if "valid" not in points or not len(points):
        return points.iloc[0:0]
    keep = points["valid"].eq(True) & once_as_deployed(points, any_configuration="label" in where)
    return points[keep & meeting(points, where)]


def once_as_deployed(points: "pd.DataFrame", *, any_configuration: bool = False) -> "pd.Series":
    """Return True for each point that is a first measurement of a server as it is deployed (or in any configuration)."""
    import pandas as pd

    every = pd.Series(True, index=points.index)
    once = points["repeat"].fillna(0).eq(0) if "repeat" in points else every
    deployed = (
        points["as_deployed"].isna() | points["as_deployed"].eq(True) if "as_deployed" in points else every
    )
    # the second arms of A/A checks
    checks = points["label"].astype(str).str.endswith("again") if "label" in points else ~every
    return once & ~checks & (deployed | any_configuration)


def device_class(points: "pd.DataFrame") -> "pd.Series":
    """Return what computed each point: `gpu`, `cpu`, `emulated`, `simulated`, `control plane`, `none` or `unknown`.

    An emulated GPU waits as long as a GPU would compute; an autoscaler's replay and answers rounded to another
    precision are simulations, and a control plane without containers scales by metrics that we serve; a message's body
    and a bare link need no device.
    """

    import numpy as np
    import pandas as pd

    engine, device, backend = (
        points[c].map(lambda value: value if isinstance(value, str) else "")
        if c in points
        else pd.Series("", index=points.index)
        for c in ("engine", "device", "backend")
    )
    kinds = {
        "emulated": engine.str.startswith("emulated"),
        "simulated": backend.str.startswith(("simulated-", "rounded-")),
        "control plane": backend.str.startswith("control-plane-"),
        "none": backend.str.startswith(("body-", "network-")),
        "cpu": device.eq("cpu"),
        "gpu": ~device.isin(["", UNKNOWN_GPU]),
    }
    return pd.Series(np.select(list(kinds.values()), list(kinds), "unknown"), index=points.index)


def pairing_keys(points: "pd.DataFrame", *sides: Mapping[str, Any]) -> list[str]:
    """Return the columns in which two compared points must agree: all but those that a side is chosen by.

    HTTP has no channels, so where the server or the protocol differs the channel may differ, too.
    """
    apart = {column for side in sides for column in side}
    if apart & {"server", "protocol", "backend"}:
        apart.add("channel")
    if "backend" in apart:
        apart |= set(BACKEND_KEYS)
    return [key for key in (*PAIR_KEYS, *BACKEND_KEYS) if key in points and key not in apart]


def matching_pairs(
    top: "pd.DataFrame", bottom: "pd.DataFrame", keys: Sequence[str], column: str
) -> list[tuple[Any, Any]]:
    """Return every (point of `top`, point of `bottom`) that agree in `keys` and carry `column`.

    An absent condition (no offered rate, no span) equals another absent one, and nothing else.
    """
    if not len(top) or not len(bottom):
        return []
    index: dict[tuple, list] = {}
    for _, point in bottom[bottom[column].notna()].iterrows():
        index.setdefault(_key(point, keys), []).append(point)
    return [(a, b) for _, a in top[top[column].notna()].iterrows() for b in index.get(_key(a, keys), [])]


def _key(point: "pd.Series", keys: Sequence[str]) -> tuple:
    return tuple(None if point[k] is None or point[k] != point[k] else point[k] for k in keys)
