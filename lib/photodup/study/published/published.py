"""The published study as data: its tables row by row, the ratios it prints, and whether they follow.

Three files under `results/published/`: `measurements.csv` (one row per distinct number, with every place that
prints it), `ratios.csv` (each printed quotient with the expression over row ids it should equal) and
`tables.csv` (the size of every table, so that a lost row is noticed).
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.errors import PhotodupError
from photodup.paths import project_root

if TYPE_CHECKING:
    import pandas as pd

DOCUMENTS = {  # name in the data -> how the document's first line begins
    "executive-summary": "ML Inference Infrastructure: Executive Summary",
    "technical-deep-dive": "ML Inference Infrastructure: Technical Deep-Dive",
    "plan": "Step 1 (Most important)",
    "triton-setup": "Step 4: NVIDIA Triton Inference Server Setup",
    "step-5a-report": "Step 5A: ONNX Runtime / Triton Optimization",
}
CONDITION = [  # two rows that agree in all of these would be the same number typed twice
    "run", "step", "hardware", "gpus", "location", "backend",
    "scenario", "batch", "concurrency", "item", "quantity",
]  # fmt: skip
FP32_BYTES = 3 * 224 * 224 * 4  # one image as a tensor
APPROXIMATE = 0.10  # what a printed "~" is taken to allow, relative
_NAME = re.compile(r"[A-Za-z_]\w*")


class PublishedError(PhotodupError):
    """The published data is damaged, or asked for a row it does not hold."""


def published_dir() -> Path:
    """Return the folder that holds the published study's tables."""
    return project_root() / "results" / "published"


def _read(
    name: str, directory: Path | None, key: str, required: Iterable[str], numeric: Iterable[str]
) -> "pd.DataFrame":
    """Return a file's rows, which `key` names in what is said of them, with numbers in the `numeric` columns."""
    import pandas as pd

    path = (directory or published_dir()) / name
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise PublishedError(f"{path} cannot be read ({error}): restore it from the repository.") from None
    if missing := set(required) - set(table.columns):
        raise PublishedError(f"{path} lacks the column {min(missing)!r}: restore it from the repository.")
    for column in numeric:
        parsed = pd.to_numeric(table[column].replace("", None), errors="coerce")
        wrong = table[(table[column] != "") & parsed.isna()]
        if len(wrong):
            row = wrong.iloc[0]
            raise PublishedError(f"{name}: {row[key]} has {column} = {row[column]!r}, which is no number.")
        table[column] = parsed
    return table


def load_measurements(directory: Path | None = None) -> "pd.DataFrame":
    """Return every published number, one row each, indexed by `row_id`.

    `value` is in the unit that `quantity` names; `value_high` closes a printed range; `resolution` is
    one unit of the last printed digit; `value_text` is what the
    document prints; `also_in` lists the other places that print it, with their wording where it differs.

    Raises:
        PublishedError: a damaged file, a repeated id, a value that is no number.
    """
    name, key = "measurements.csv", "row_id"
    needed = [key, "also_in", "value", "value_high", "resolution", "value_text", *CONDITION]
    numeric = ("value", "value_high", "resolution", "gpus", "batch", "concurrency")
    table = _read(name, directory, key, needed, numeric)
    if (repeated := table["row_id"][table["row_id"].duplicated()]).size:
        raise PublishedError(f"{name}: the row id {repeated.iloc[0]!r} appears twice.")
    return table.set_index(key)


def load_ratios() -> "pd.DataFrame":
    """Return every printed ratio with its expression over row ids, indexed by `ratio_id`."""
    needed = ["ratio_id", "expression", "printed_low", "printed_step", "follows"]
    numeric = ("printed_low", "printed_high", "printed_step", "approximate")
    return _read("ratios.csv", None, "ratio_id", needed, numeric).set_index("ratio_id")


def load_tables() -> "pd.DataFrame":
    """Return the size of every table in the documents: rows, columns, cells with values, values."""
    numeric = ("n_rows", "n_cols", "n_value_cells", "n_values")
    return _read("tables.csv", None, "table", ["document", "table", *numeric], numeric)


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


def value_of(rows: "pd.DataFrame") -> Callable[[str], float]:
    """Return a function from row id to value, in the unit of the row's quantity; a missing row is an error."""
    return lambda row_id: value(row_id, rows)


def _interval(row: "pd.Series", column: str) -> tuple[float, float]:
    """Return the range that the printed digits allow: half a unit of the last one either way, or ±10 % after "~"."""
    number = float(row[column])
    half = APPROXIMATE * number if "~" in row["value_text"] else 0.5 * float(row["resolution"])
    return number - half, number + half


def evaluate(expression: str, rows: "pd.DataFrame") -> tuple[float, float, float]:
    """Return `expression` over row ids and the interval that the rounding of its inputs allows.

    A name is a row id, or a row id with `_high` for the upper end of a printed range.

    Returns:
        (value, low, high)

    Raises:
        PublishedError: an unknown row, or anything that is not arithmetic.
    """
    names = sorted(set(_NAME.findall(re.sub(r"\d+(\.\d+)?[eE]\d+", "", expression))))
    if re.search(r"[^\w\s.+\-*/()]", expression):
        raise PublishedError(f"{expression!r} is more than arithmetic over row ids.")
    exact, ranges = {}, {}
    for name in names:
        row_id, column = (name, "value") if name in rows.index else (name.removesuffix("_high"), "value_high")
        if row_id not in rows.index:
            raise PublishedError(f"{expression!r} needs the row {name!r}, which is not in measurements.csv.")
        exact[name] = float(rows.at[row_id, column])
        ranges[name] = _interval(rows.loc[row_id], column)
    code = compile(expression, "<ratio>", "eval")
    corners = [
        eval(code, {"__builtins__": {}}, dict(zip(names, corner, strict=True)))
        for corner in itertools.product(*(ranges[name] for name in names))
    ]
    return float(eval(code, {"__builtins__": {}}, exact)), float(min(corners)), float(max(corners))


def derive(ratio: Mapping[str, Any], rows: "pd.DataFrame") -> dict[str, object]:
    """Recompute one printed ratio.

    It follows when the interval of the expression (input rounding) meets the interval of the printed number
    (half a unit of its last digit, widened by `approximate` where it is printed as a rough figure). A range
    needs both ends; one number derived from several expressions must lie between them.

    Returns:
        `computed_low`, `computed_high` (from the unrounded inputs) and `follows`.
    """
    parts = [evaluate(part.strip(), rows) for part in str(ratio["expression"]).split(";")]
    low, high = float(ratio["printed_low"]), float(ratio["printed_high"])
    slack = float(ratio["approximate"]) if ratio["approximate"] == ratio["approximate"] else 0.0  # NaN: none
    margin = 0.5 * float(ratio["printed_step"])

    def meets(printed: float, least: float, most: float) -> bool:
        width = margin + slack * abs(printed) + 1e-9 * max(1.0, abs(printed))
        return least <= printed + width and most >= printed - width

    if low == high:
        follows = meets(low, min(p[1] for p in parts), max(p[2] for p in parts))
    else:
        ends = sorted(parts)
        follows = meets(low, *ends[0][1:]) and meets(high, *ends[-1][1:])
    return {
        "computed_low": min(p[0] for p in parts),
        "computed_high": max(p[0] for p in parts),
        "follows": follows,
    }


def check_ratios(rows: "pd.DataFrame | None" = None, ratios: "pd.DataFrame | None" = None) -> "pd.DataFrame":
    """Recompute every printed ratio from the rows.

    Returns:
        One row per ratio: `document`, `printed_text`, `computed_low`, `computed_high`, `follows` (now),
        `expected` (what results/published says about it), `found_from` (another expression that does give the
        printed number), `note`.
    """
    import pandas as pd

    rows = load_measurements() if rows is None else rows
    ratios = load_ratios() if ratios is None else ratios
    derived = pd.DataFrame([derive(ratio, rows) for _, ratio in ratios.iterrows()], index=ratios.index)
    printed = ratios[["document", "printed_text", "found_expression", "note"]]
    expected = ratios["follows"].eq("yes")
    return printed.rename(columns={"found_expression": "found_from"}).join(derived).assign(expected=expected)


def compare_with_documents(folder: Path) -> list[str]:
    """Hold the data against the documents themselves, for whoever has them; they are not in the repository.

    Args:
        folder: any files with the five documents as text; each is recognised by its first line.

    Returns:
        One sentence per difference: a missing document, a table of another size, a cell without its number.
    """
    documents = read_documents(folder)
    differences = [f"{name}: not found in {folder}." for name in DOCUMENTS if name not in documents]
    rows, tables = load_measurements(), load_tables()
    grids = {name: _markdown_tables(text) for name, text in documents.items()}
    for _, table in tables.iterrows():
        grid = grids.get(table["document"], [])
        position = int(table["position"]) - 1
        if table["document"] not in grids:
            continue
        size = (len(grid[position]), len(grid[position][0])) if position < len(grid) else (0, 0)
        if size != (table["n_rows"], table["n_cols"]):
            differences.append(
                f"{table['document']}/{table['table']}: {size} in the document, not as recorded."
            )
    order = {(t["document"], t["table"]): int(t["position"]) - 1 for _, t in tables.iterrows()}
    for row_id, row in rows[rows["cell"] != ""].iterrows():
        if row["document"] in grids:
            line, column = (int(n) for n in re.findall(r"\d+", row["cell"]))
            cell = grids[row["document"]][order[row["document"], row["table"]]][line - 1][column - 1]
            if row["value_text"].strip("~$").replace("*", "") not in cell.replace("*", ""):
                differences.append(f"{row_id}: {row['value_text']!r} is not in {cell!r}.")
    return differences


def read_documents(folder: Path) -> dict[str, str]:
    """Return the text of each source document among the files of a folder, recognised by its first line."""
    return {name: text for path in sorted(folder.iterdir()) for name, text in _recognise(path)}


def _recognise(path: Path) -> Iterable[tuple[str, str]]:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    first = next((line.strip("# ") for line in text.splitlines() if line.strip()), "")
    return [(name, text) for name, start in DOCUMENTS.items() if first.startswith(start)]


def _markdown_tables(text: str) -> list[list[list[str]]]:
    """Return the cells of each table's body, skipping fenced code."""
    found: list[list[list[str]]] = []
    fenced = inside = False
    for line in text.splitlines():
        fenced ^= line.strip().startswith("```")
        if fenced or not line.strip().startswith("|"):
            inside = False
            continue
        if not inside:
            found.append([])
        inside = True
        found[-1].append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return [table[2:] for table in found]
