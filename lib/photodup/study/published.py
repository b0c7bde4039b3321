"""The published study as data, under `results/published/`: its numbers, the ratios that it prints, and its claims."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from photodup.core.paths import project_root

if TYPE_CHECKING:
    import pandas as pd


def published_dir() -> Path:
    """Return the folder that holds the published study's tables."""
    return project_root() / "results" / "published"


def _read(name: str, key: str, numeric: Iterable[str]) -> "pd.DataFrame":
    """Return a file's rows, indexed by `key`, with numbers in the `numeric` columns."""
    import pandas as pd

    table = pd.read_csv(published_dir() / name, index_col=key, dtype=str, keep_default_na=False)
    return table.assign(**{column: pd.to_numeric(table[column]) for column in numeric})


def load_measurements() -> "pd.DataFrame":
    """Return every published number, one row each, indexed by `row_id`.

    `value` is in the unit that `quantity` names; `value_high` closes a printed range; `resolution` is one unit of the last
    printed digit; `value_text` is what the document prints; `also_in` lists the other places that print it.
    """
    return _read(
        "measurements.csv", "row_id", ("value", "value_high", "resolution", "gpus", "batch", "concurrency")
    )


def load_ratios() -> "pd.DataFrame":
    """Return every printed ratio with its expression over row ids, indexed by `ratio_id`."""
    return _read("ratios.csv", "ratio_id", ("printed_low", "printed_high", "printed_step", "approximate"))


def load_claims() -> "pd.DataFrame":
    """Return every claim of `claims.yaml`, indexed by `id`; what a claim does not state is None.

    Columns: `statement`, `document`, `section`, `quote`, `published` (arithmetic over row ids), `unit`, `tests` (a list of
    comparisons with the bounds that the claim expects), `needs` and `goal`.
    """
    import pandas as pd

    rows = yaml.safe_load((published_dir() / "claims.yaml").read_text(encoding="utf-8"))
    columns = ["statement", "document", "section", "quote", "published", "unit", "tests", "needs", "goal"]
    table = pd.DataFrame(rows, dtype=object).set_index("id").reindex(columns=columns)
    return table.where(table.notna(), None)


def value(row_id: str) -> float:
    """Return the published value of `row_id`, in the unit its quantity names."""
    return float(load_measurements().at[row_id, "value"])
