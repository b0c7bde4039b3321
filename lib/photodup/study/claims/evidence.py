"""Everything a run's records say that a claim may rest on, as one table: comparisons, points, and what else was measured.

Each comparison that `notebooks/comparisons.yaml` declares is a row with its outcome. A served point is a row of its own.
Cold starts, message bodies, exported files, reduced precision, link ladders and replays of an autoscaler are recorded by
their notebooks in forms of their own; each becomes rows here, under a backend's name where there is one and otherwise under
a plain name (`network-only`, `body-json`). Their scenario says what they are, so that no claim about requests takes them
for one.
"""

import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photodup.bench.record.json_files import reading
from photodup.bench.stats.sentence import sentence
from photodup.study.comparisons.measure import visit_key

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]


def load_evidence(directory: Path) -> "pd.DataFrame":
    """Return the points of a run, the outcomes of its comparisons, and what else a claim can be judged by.

    A comparison's row has `pair` (its name), `ratio` (b ÷ a), `inverse` (a ÷ b) and `difference` (b − a, in the unit of
    its figure), each with `_ci_low` and `_ci_high`, and the outcome's `sentence`. One that was not measured has `valid`
    False and the reason in `invalid_because`.

    Raises:
        RecordError: a record that cannot be read; names the file and the field.
    """
    import pandas as pd

    from photodup.bench.link.way import LOOPBACK
    from photodup.bench.record.record import PLAIN_POINT, load_points, load_records
    from photodup.study.notebook.run import device_of, read_environment

    machine = read_environment(directory)
    served_by = {"device": device_of(machine)} if machine else {}
    here = {"device": device_of({**machine, "servers": None})} if machine else {}
    plain: Row = {"run": directory.name, **PLAIN_POINT, **LOOPBACK.columns()}
    plain |= {"batch": 1, "concurrency": 1, "valid": True}
    rows = [
        plain
        | {"key": record["key"]}
        | (columns := _backend_columns(row["backend"]))
        | (served_by if columns.get("server") in ("fastapi", "triton") else here)
        | row
        for record in load_records(directory)
        for row in _rows(directory, record)
    ]
    points = load_points(directory)
    if not len(points) and not rows and not (directory / "records").is_dir():
        return points
    rows += [served_by | row for row in _comparisons(directory, points)]
    tables = [table for table in (points, pd.DataFrame(rows)) if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else points


def _comparisons(directory: Path, points: "pd.DataFrame") -> Iterator[Row]:
    """Return one row for each declared comparison, over the link that it was measured on."""
    from photodup.bench.link.way import LOOPBACK, emulated
    from photodup.bench.pairs.declared import declarations
    from photodup.study.comparisons.outcomes import read_all
    from photodup.study.notebook.run import read_run

    pairs = {pair.name: pair for pair in declarations().pairs}
    far = points[points["link"].eq("network")] if len(points) else points
    real = {name: far.iloc[0].get(name) for name in LOOPBACK.columns()} if len(far) else LOOPBACK.columns()
    for outcome in read_all(read_run(directory)):
        if (pair := pairs.get(outcome.question.name)) is None:
            continue  # a null answers no claim
        engine = next(
            (s.backend.engine for s in (pair.a, pair.b) if s.backend.engine.startswith("emulated")), ""
        )
        row: Row = {"run": directory.name, "scenario": "comparison"}
        row |= {"pair": pair.name, "key": visit_key(pair)}
        row |= emulated(pair.link).columns() if pair.link else real
        row |= {"engine": engine, "valid": outcome.is_measured, "invalid_because": outcome.because}
        if outcome.is_measured:
            ends = [1 + end for end in (outcome.effect, outcome.low, outcome.high)]
            low_to_high = {
                "ratio": ends,
                "inverse": [1 / ends[0], 1 / ends[2], 1 / ends[1]],
                "difference": [(end - 1) * outcome.value_a for end in ends],
            }
            for name, (value, low, high) in low_to_high.items():
                row |= {name: value, f"{name}_ci_low": low, f"{name}_ci_high": high}
            row["sentence"] = sentence(outcome)
        yield row


def _backend_columns(name: str) -> Row:
    """Return what a backend's name says as columns; a plain name (`network-only`) stays what it is."""
    from photodup.embedding.backends import parse_backend
    from photodup.errors import PhotodupError

    try:
        return parse_backend(name).columns()
    except PhotodupError:
        return {"backend": name}


def model_environment(directory: Path) -> dict[str, Any]:
    """Return a run's environment with its model's digest, from the reference embeddings where it is only there."""
    from photodup.bench.record.record import load_records
    from photodup.study.notebook.run import read_environment

    facts = read_environment(directory)
    computed: dict[str, Any] = next(
        (r["result"] for r in load_records(directory) if r["key"] == "reference-embeddings"), {}
    )
    known = {name: computed[name] for name in ("pretrained", "digest") if computed.get(name)}
    return facts | {"model": known | facts.get("model", {})} if facts or known else {}


def _rows(directory: Path, record: Row) -> list[Row]:
    if record["status"] != "ok" or record["kind"] not in READERS:
        return []
    with reading(f"{directory / 'records'}: {record['key']}"):
        return [row for row in READERS[record["kind"]](record["config"], record["result"]) if row["backend"]]


def _ladder(config: Row, result: Row) -> Iterator[Row]:
    """Latencies over a link with no server behind them."""
    for row in result.get("rows", []):
        plain = {name: value for name, value in row.items() if not isinstance(value, (dict, list))}
        yield {"backend": "network-only", "scenario": "single_stream"} | plain


def _cold_start(config: Row, result: Row) -> Iterator[Row]:
    """From nothing to the first answer of one server."""
    if result.get("first_answer_s") is not None:
        here = {"backend": config["backend"], "scenario": "start"}
        yield here | _numbers(result, "first_answer_s", "ready_s")


def _bodies(config: Row, result: Row) -> Iterator[Row]:
    """CPU time to write one request's body, with the tensor in hand."""
    for row in result.get("rows", []):
        here = {"backend": f"body-{row['form']}", "scenario": "encode", "batch": row["batch"]}
        yield here | {"payload_bytes": row["bytes"], "encode_ms": row["encode_ms"]}


def _export_parity(config: Row, result: Row) -> Iterator[Row]:
    """How far the exported file's vectors are from PyTorch's; vectors have length 1."""
    for row in result.get("rows", []):
        if row.get("variant") == "fp32":
            here = {"backend": "local-onnx-fp32", "scenario": "parity", "batch": row["batch"]}
            yield here | {"difference_max": row["difference"]}


def _server_parity(config: Row, result: Row) -> Iterator[Row]:
    """How far a server's vectors are from PyTorch's, over each wire."""
    for row in result.get("rows", []):
        yield {"backend": row["backend"], "scenario": "parity", "difference_max": row["worst"]}


def _precision(config: Row, result: Row) -> Iterator[Row]:
    """A network computed in reduced precision against its float32 answers; no server and no clock."""
    for row in result.get("rows", []):
        if "cosine_min" in row:
            kind = row["precision"].replace(" ", "-").lower()
            here = {"backend": f"rounded-{kind}", "scenario": "fidelity", "subject": row["network"]}
            yield here | _numbers(row, "cosine_min", "flipped", "pairs", "neighbour_kept")


def _session(config: Row, result: Row) -> Iterator[Row]:
    """ONNX Runtime in this process: no server, no wire. The interval is that of the median, by order statistics."""
    for batch, times in result.get("batch_ms", {}).items():
        if len(times) < 3:
            continue
        ordered, n = sorted(times), int(batch)
        reach = max(1, math.ceil(0.98 * math.sqrt(len(ordered))))
        middle = len(ordered) // 2
        low, high = ordered[max(0, middle - reach)], ordered[min(len(ordered) - 1, middle + reach)]
        yield {
            "backend": "local-onnx-fp32",
            "engine": "onnx",
            "scenario": "session",
            "batch": n,
            "span": "prepared",
            "latency_ms_p50": statistics.median(ordered),
            "throughput_images_per_s": 1000 * n / statistics.median(ordered),
            "throughput_images_per_s_ci_low": 1000 * n / high,
            "throughput_images_per_s_ci_high": 1000 * n / low,
        }


def _numbers(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names if row.get(name) is not None}


READERS: dict[str, Callable[[Row, Row], Iterator[Row]]] = {  # kind of record → (config, result) → rows
    "ladder": _ladder,
    "cold_start": _cold_start,
    "bodies": _bodies,
    "export_parity": _export_parity,
    "server_parity": _server_parity,
    "precision": _precision,
    "session": _session,
}
