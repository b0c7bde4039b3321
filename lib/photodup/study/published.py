"""The published study as data, under `results/published/`: its numbers, the ratios that it prints, and its claims."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from photodup.core.errors import PhotodupError
from photodup.core.paths import project_root

if TYPE_CHECKING:
    import pandas as pd


class PublishedError(PhotodupError):
    """The published data is damaged, or asked for a row it does not hold."""


def published_dir() -> Path:
    """Return the folder that holds the published study's tables."""
    return project_root() / "results" / "published"


def _read(name: str, key: str, numeric: Iterable[str]) -> "pd.DataFrame":
    """Return a file's rows, indexed by `key`, with numbers in the `numeric` columns."""
    import pandas as pd

    path = published_dir() / name
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise PublishedError(f"{path} cannot be read ({error}): restore it from the repository.") from None
    if missing := {key, *numeric} - set(table.columns):
        raise PublishedError(f"{path} lacks the column {min(missing)!r}: restore it from the repository.")
    for column in numeric:
        parsed = pd.to_numeric(table[column].replace("", None), errors="coerce")
        wrong = table[(table[column] != "") & parsed.isna()]
        if len(wrong):
            row = wrong.iloc[0]
            raise PublishedError(f"{name}: {row[key]} has {column} = {row[column]!r}, which is no number.")
        table[column] = parsed
    if (repeated := table[key][table[key].duplicated()]).size:
        raise PublishedError(f"{name}: the row {repeated.iloc[0]!r} appears twice.")
    return table.set_index(key)


def load_measurements() -> "pd.DataFrame":
    """Return every published number, one row each, indexed by `row_id`.

    `value` is in the unit that `quantity` names; `value_high` closes a printed range; `resolution` is one unit of the last
    printed digit; `value_text` is what the document prints; `also_in` lists the other places that print it.

    Raises:
        PublishedError: a damaged file, a repeated id, a value that is no number.
    """
    return _read(
        "measurements.csv", "row_id", ("value", "value_high", "resolution", "gpus", "batch", "concurrency")
    )


def load_ratios() -> "pd.DataFrame":
    """Return every printed ratio with its expression over row ids, indexed by `ratio_id`.

    Raises:
        PublishedError: as for `load_measurements`.
    """
    return _read("ratios.csv", "ratio_id", ("printed_low", "printed_high", "printed_step", "approximate"))


def load_claims() -> "pd.DataFrame":
    """Return every claim of `claims.yaml`, indexed by `id`; what a claim does not state is None.

    Columns: `statement`, `document`, `section`, `quote`, `published` (arithmetic over row ids), `unit`, `tests` (a list of
    comparisons with the bounds that the claim expects), `needs` and `goal`.

    Raises:
        PublishedError: a damaged file.
    """
    import pandas as pd

    path = published_dir() / "claims.yaml"
    columns = ["statement", "document", "section", "quote", "published", "unit", "tests", "needs", "goal"]
    try:
        table = pd.DataFrame(yaml.safe_load(path.read_text(encoding="utf-8")), dtype=object).set_index("id")
    except (OSError, ValueError, KeyError, yaml.YAMLError) as error:
        raise PublishedError(f"{path} cannot be read ({error}): restore it from the repository.") from None
    table = table.reindex(columns=columns)
    return table.where(table.notna(), None)


def value(row_id: str, rows: "pd.DataFrame | None" = None) -> float:
    """Return the published value of `row_id`, in the unit its quantity names.

    Raises:
        PublishedError: no such row.
    """
    rows = load_measurements() if rows is None else rows
    if row_id not in rows.index:
        raise PublishedError(
            f"No published row is called {row_id!r}: see results/published/measurements.csv."
        )
    return float(rows.at[row_id, "value"])
