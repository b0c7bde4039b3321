"""What one check of the published numbers found."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from photodup.study.published.published import value

if TYPE_CHECKING:
    import pandas as pd

FP32_BYTES = 3 * 224 * 224 * 4  # one image as a tensor


@dataclass(frozen=True)
class Finding:
    """One check: `stands` is True when the published claim survives it, None when numbers cannot say.

    `quote` holds the study's own words; empty where the check examines the method, and no claim of the study.
    """

    check: str
    claim: str
    stands: bool | None
    sentence: str
    table: "pd.DataFrame"
    quote: str = ""

    @property
    def verdict(self) -> str:
        """What became of the claim, or of the method where the study claimed nothing."""
        if self.quote:
            return {True: "stands", False: "does not stand", None: "numbers cannot say"}[self.stands]
        return {True: "method holds", False: "method is in doubt", None: "numbers cannot say"}[self.stands]

    def _repr_markdown_(self) -> str:
        said = f"\n\n> {self.quote}" if self.quote else ""
        head = "| " + " | ".join(map(str, self.table.columns)) + " |\n|" + "---|" * len(self.table.columns)
        body = "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in self.table.to_numpy())
        return (
            f"**{self.check}. {self.claim}** — {self.verdict}.{said}\n\n{self.sentence}\n\n{head}\n{body}\n"
        )


def _cell(entry: object) -> str:
    return f"{entry:.4g}" if isinstance(entry, float) else str(entry)


def frame_of(columns: str, rows: list[tuple]) -> "pd.DataFrame":
    """Return a table from its column names, comma-separated, and its rows."""
    import pandas as pd

    return pd.DataFrame(rows, columns=columns.split(", "))


def value_of(rows: "pd.DataFrame") -> Callable[[str], float]:
    """Return a function from row id to value, in the unit of the row's quantity; a missing row is an error."""
    return lambda row_id: value(row_id, rows)
