"""Write what makes a run readable without photodup: `points.parquet`, its schema, and `ro-crate-metadata.json`.

The table holds every point, failed ones included, with the description of each column in the file itself (Arrow field
metadata) and beside it as a Table Schema. The crate names each file of the run, its format and where it comes from.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from photodup.bench.record.record import load_points
from photodup.errors import PhotodupError
from photodup.files import write_atomically
from photodup.study.notebook.run import describe_machine, describe_weights, read_environment

if TYPE_CHECKING:
    import pandas as pd

POINTS, SCHEMA, CRATE = "points.parquet", "points.schema.json", "ro-crate-metadata.json"
SHAPES = {"i": "integer", "f": "number", "b": "boolean"}  # kind of a NumPy column -> Table Schema
PARTS = {  # file or folder of a run -> what it is, and its media type
    POINTS: ("Every point of the run, one row each", "application/vnd.apache.parquet"),
    SCHEMA: ("Name, type and meaning of each column of points.parquet (Table Schema)", "application/json"),
    "latencies.parquet": ("Every single request, one row each", "application/vnd.apache.parquet"),
    "records/": ("One self-sufficient JSON file per measurement, as it was written when it ended", ""),
    "environment.json": ("The machine, the versions and the weights", "application/json"),
    "study.json": ("State and duration of each notebook", "application/json"),
    "verdicts.json": ("Verdicts on the published claims, with the records behind each", "application/json"),
    "index.html": ("Questions, answers, verdicts and figures on one page", "text/html"),
}


def column_meanings() -> dict[str, str]:
    """Return what each column of the table means: name -> words."""
    return yaml.safe_load(Path(__file__).with_name("columns.yaml").read_text(encoding="utf-8"))


def meaning(column: str, known: dict[str, str]) -> str:
    """Return the words for a column; ends of intervals are told from the column they belong to."""
    for ending, end in (("_ci_low", "lower"), ("_ci_high", "upper")):
        if column.endswith(ending) and (base := known.get(column.removesuffix(ending))):
            return f"{end} end of the 95 % interval of: {base}"
    return known.get(column, "")


def schema_of(points: pd.DataFrame) -> dict[str, Any]:
    """Return the Table Schema of the points: `fields` with name, type and description."""
    known = column_meanings()
    fields = [
        {
            "name": name,
            "type": SHAPES.get(points[name].dtype.kind, "string"),
            "description": meaning(name, known),
        }
        for name in points.columns
    ]
    return {"fields": fields, "primaryKey": ["key", "started_at"], "missingValues": [""]}


def write_package(directory: Path) -> Path:
    """Write table, schema and crate into a run's folder; return the path of the crate's description.

    Raises:
        PhotodupError: the run has no points.
    """
    from rocrate.rocrate import ROCrate

    points = _plain(load_points(directory))
    if points.empty:
        raise PhotodupError(f"The run in {directory} has no points yet: photodup study run makes them.")
    schema = schema_of(points)
    write_atomically(directory / POINTS, _parquet(points, schema), within=directory.parent)
    text = json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
    write_atomically(directory / SCHEMA, text, within=directory.parent)

    environment = read_environment(directory)
    crate = ROCrate()
    crate.name = f"photodup run {directory.name}"
    crate.description = (
        "OpenCLIP ViT-B/32 image embeddings served in several ways, each measured under stated loads on "
        f"{describe_machine(environment) or 'a machine that left no record'}; weights {describe_weights(environment)}."
    )
    crate.license = "https://spdx.org/licenses/MIT"
    crate.creator = "the photodup authors"
    crate.datePublished = str(
        points["started_at"].max()
    )  # of the last measurement: the same records, the same file
    for name, (words, media_type) in PARTS.items():
        if not (directory / name).exists():
            continue
        facts = {"name": name, "description": words}
        if name.endswith("/"):
            crate.add_dataset(directory / name, name, properties=facts)
        else:
            facts |= {"encodingFormat": media_type}
            crate.add_file(directory / name, name, properties=facts)
    text = json.dumps(crate.metadata.generate(), indent=1, ensure_ascii=False, default=str) + "\n"
    write_atomically(directory / CRATE, text, within=directory.parent)
    return directory / CRATE


def _plain(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points with one type a column; columns that hold several kinds of values become text."""
    points = points.copy()
    for name in points.columns:
        if points[name].dtype.kind not in SHAPES:
            kinds = {type(value) for value in points[name].dropna()}
            if kinds == {bool}:
                points[name] = points[name].astype("boolean")
            elif kinds and kinds != {str}:
                points[name] = points[name].map(lambda value: value if value is None else str(value))
    return points


def _parquet(points: pd.DataFrame, schema: dict[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(points, preserve_index=False)
    described = [
        field.with_metadata({"description": told["description"]})
        for field, told in zip(table.schema, schema["fields"], strict=True)
    ]
    buffer = io.BytesIO()
    pq.write_table(table.cast(pa.schema(described)), buffer, compression="zstd")
    return buffer.getvalue()
