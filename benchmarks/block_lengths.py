"""How long a server should be asked before the other one has its turn: the ratio of two sides, by the length of a block.

    python -m benchmarks.block_lengths --run reference-cpu      (a record of that run, printed as a table; 12 minutes)

In turns of single requests two servers disturb each other's caches; in long blocks the machine's own drift is in the ratio.
Five pairs, each different in one thing, are measured with several lengths in a random order, and each side alone.
"""

import random
from contextlib import ExitStack
from typing import Annotated, Any

import numpy as np
import typer

from photodup.bench.pairs.alternate import Visit, VisitPlan
from photodup.bench.pairs.declared import Pair, declarations
from photodup.core.errors import PhotodupError
from photodup.study.comparisons.measure import Amount, ReadySides
from photodup.study.notebook.run import Run, open_run
from photodup.study.notebook.weights import prepare_model
from photodup.study.runner.servers import start_servers

PAIRS = {
    "precision": "INT8 against FP32 in Triton, one",
    "engine": "OpenVINO against ONNX Runtime in Triton, one",
    "server": "server with INT8, one",
    "protocol": "gRPC against HTTP with a JPEG, one",
    "batch of 32": "gRPC against HTTP with a tensor and no compute, one-b32",
}
PLANS = {
    "one request": VisitPlan(25, block_s=0, min_answers=1, skipped_answers=0, alone_s=0),
    "0.25 s": VisitPlan(4, block_s=0.25, alone_s=0),
    "0.5 s": VisitPlan(2, block_s=0.5),
    "2 s": VisitPlan(1, block_s=2.0, alone_s=0),
}


def rows(run: Run, pairs: dict[str, Pair], n_segments: int) -> list[dict[str, Any]]:
    """Measure each pair with each length; return the ratio of b to a, its standard deviation between segments, and the
    ratio of the sides alone, as shares."""
    measured = []
    with ExitStack() as servers:
        sides = ReadySides(run, servers)
        for difference, pair in pairs.items():
            ratios: dict[str, list[float]] = {length: [] for length in PLANS}
            alone = []
            segments = [*PLANS] * n_segments
            random.Random(difference).shuffle(segments)
            for number, length in enumerate(segments, start=1):
                columns = sides.measure(pair, number, Amount(plan=PLANS[length]))
                visit = Visit.of_record(columns, columns["raw"])
                ratios[length].append(float(np.mean(visit.log_ratios(1))))
                if visit.alone and visit.alone[0] and visit.alone[1]:
                    alone.append(float(np.log(visit.alone[1] / visit.alone[0])))
            for length, logs in {**ratios, "alone": alone}.items():
                spread = float(np.std(logs, ddof=1)) if len(logs) > 1 else None
                ratio = float(np.expm1(np.mean(logs))) if logs else None
                measured.append({"differs in": difference, "block": length, "ratio": ratio, "sd": spread})
    return measured


def main(
    run: Annotated[str, typer.Option(help="results/RUN keeps the record")],
    segments: Annotated[int, typer.Option(min=1, help="of each pair and length, 4 to 8 s")] = 3,
) -> None:
    """Measure the table, or read it if the run has it, and print it."""
    declared = {pair.name: pair for pair in declarations().pairs}
    pairs = {difference: declared[name] for difference, name in PAIRS.items()}
    prepare_model(None)
    with ExitStack() as servers:
        opened = open_run(run, start_servers(servers, run, pairs.values()), strict=True)
        record = opened.measure_or_load(
            "block-lengths", lambda: {"rows": rows(opened, pairs, segments)}, config={"segments": segments}
        )
    for row in record["rows"]:
        spread = "" if row["sd"] is None else f", sd of a segment {row['sd']:.1%}"
        print(f"{row['differs in']:12} {row['block']:12} {row['ratio']:+.1%}{spread}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except PhotodupError as error:
        raise SystemExit(str(error)) from None
