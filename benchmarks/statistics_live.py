"""Comparisons and gates of a real server with a known delay: how often it is found, and how often one is made up.

    python -m benchmarks.statistics_live [--only 3] [--gates 4]          (make judge; about an hour without)

Two relays stand before one FastAPI service, and `photodup load --compare` compares them: one waits a share of the time that
the service took, so the difference is known. A null, a delay, and twice that delay beside a busy loop are a batch, a record
of `results/statistics`; the next start goes on with the batches that are missing. So are single runs of `photodup gate` on a
null and on a planted delay, beside `stress-ng` where the machine has it, else beside a busy loop.
"""

import contextlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import null_server
from benchmarks.rows import LATENCY
from benchmarks.statistics import GATE_LIMIT
from photodup.bench.anyurl.comparison import compare_servers
from photodup.bench.anyurl.gate import measure_gate
from photodup.bench.anyurl.measure import LoadSpec, LoadTarget
from photodup.bench.anyurl.payloads import payloads_for
from photodup.bench.anyurl.target import target_of
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.pairs import read
from photodup.bench.record.store import RunStore, load_records
from photodup.bench.stats.comparison import Comparison, Observed, Outcome, compare_all, has_failed
from photodup.core.errors import PhotodupError
from photodup.core.paths import project_root
from photodup.embedding.backends import parse_backend
from photodup.serving.service.start import ServiceProcess
from photodup.study.notebook.weights import prepare_model

KIND, RUN, NULL = "statistics", "statistics", "null"
N, SECONDS = 30, 40.0  # batches, and the length of each of their comparisons
GATE = "gate"
GATES = 40  # on a null, and half as many on a delay
GATE_DELAY, GATE_MS, GATE_S = 0.15, 20.0, 12.0
BUSY_LOOP: Sequence[str] = (sys.executable, "-c", "while True: pass")

Relayed = Callable[[float], LoadTarget]
"""Reaches a server through a relay of its own that waits so large a share of the server's time."""


def fastest(weights: str) -> str:
    """Return the backend of the fastest precision with a file and instructions here."""
    from photodup.embedding.engines.encoder import export_of
    from photodup.embedding.engines.model import can_compute
    from photodup.embedding.engines.reduced import reduced_path, source_of

    if not find_spec("openvino"):
        return "local-onnx-fp32"
    if can_compute("int8") and reduced_path(source_of(export_of(weights)), "openvino", "int8").is_file():
        return "local-openvino-int8"
    return f"local-openvino-{'bf16' if can_compute('bf16') else 'fp32'}"


def measure(n: int, delay: float, run_dir: Path) -> None:
    """Measure the batches that the run has no record of, and print a line for each comparison.

    Args:
        delay: planted without a busy loop, as a share of the service's time; twice as much beside one.
        run_dir: keeps the records.
    """
    backend = parse_backend(fastest(prepare_model()))
    settings = {"ENGINE": backend.engine, "PRECISION": backend.precision}
    with ExitStack() as stack, RunStore(run_dir) as store:
        service = stack.enter_context(ServiceProcess(settings=settings))
        relayed = partial(relay, stack, service.url)
        for number in range(1, n + 1):
            config = {"batch": number, "delay": delay, "backend": backend.name, "seconds": SECONDS}
            batch = partial(measure_batch, relayed, number, delay)
            record = store.measure_or_load(f"statistics-batch-{number:02}", batch, config=config, kind=KIND)
            if "comparisons" not in record:
                print(f"batch {number} was not measured: {record['error']}", flush=True)
            for row in record.get("comparisons", ()):
                outcome = outcome_of(row)
                interval = f"{outcome.effect:+z.1%} [{outcome.low:+z.1%}, {outcome.high:+z.1%}]"
                print(f"{number:2} {row['planted']:32} {interval:26} {outcome.verdict}", flush=True)


def relay(stack: ExitStack, upstream: str, share: float) -> LoadTarget:
    """Start a relay of a server that waits a share of its time, and return how it is asked."""
    url = stack.enter_context(null_server.running(upstream=upstream, slower=share))
    target = target_of(f"{url}/embed")
    return LoadTarget(target, payloads_for(target, kind=None, paths=(), texts=()))


def measure_batch(relayed: Relayed, number: int, delay: float) -> dict[str, Any]:
    """Measure a null and two delays in random order."""
    kinds = {
        NULL: (0.0, False),
        f"delay of {delay:.0%}": (delay, False),
        f"delay of {2 * delay:.0%}, busy loop": (2 * delay, True),
    }
    rows = []
    for name in random.Random(number).sample(list(kinds), len(kinds)):
        share, is_busy = kinds[name]
        spec = LoadSpec(seconds=SECONDS, seed=100 * number)
        with busy_loop() if is_busy else contextlib.nullcontext():
            versus = compare_servers(relayed(0.0), relayed(share), spec, Watcher(None))
        observed = read.observed([visit.against(2) for visit in versus.visits], spec.load, LATENCY)
        if isinstance(observed, str):
            raise PhotodupError(f"{name}: {observed}")
        values = {"value_a": observed.value_a, "value_b": observed.value_b, "seconds": versus.seconds}
        rows.append({"planted": name, "log_ratios": [v.tolist() for v in observed.log_ratios], **values})
    return {"comparisons": sorted(rows, key=lambda row: list(kinds).index(row["planted"]))}


def measure_gates(n: int, run_dir: Path) -> list[str]:
    """Let the gate decide n times on a null and n // 2 times on a planted delay; return one sentence for each of the two.

    Each is asked through a relay of a server that waits `GATE_MS`, so that what is planted is known.

    Args:
        run_dir: keeps the records.
    """
    failed: dict[str, list[bool | None]] = {}
    beside, noise = "a busy loop", BUSY_LOOP
    if shutil.which("stress-ng"):
        beside, noise = "stress-ng", ("stress-ng", "--quiet", "--cpu", "1")
    circumstances = {"beside": beside, "ms": GATE_MS, "seconds": GATE_S}
    with ExitStack() as stack, RunStore(run_dir) as store:
        base, head = (stack.enter_context(null_server.running(delay_ms=GATE_MS)) for _ in range(2))
        before, *heads = (
            relay(stack, url, share) for url, share in ((base, 0.0), (head, 0.0), (head, GATE_DELAY))
        )

        def decide(share: float, seed: int) -> dict[str, Any]:
            sides, spec = (before, heads[share > 0]), LoadSpec(seconds=GATE_S, seed=seed)
            with busy_loop(noise):
                gated = measure_gate(
                    lambda: contextlib.nullcontext(sides), spec, Watcher(None), limit=GATE_LIMIT
                )
            return {**gated.as_record(), "rates": {f"{p:.0%}": rate for p, rate in gated.rates.items()}}

        for number in range(1, n + 1):
            for share in (0.0, GATE_DELAY)[: 1 + (number % 2 == 0)]:
                name = f"delay of {share:.0%}" if share else NULL
                config = circumstances | {"gate": number, "delay": share}
                key, decision = f"{RUN}-gate-{name}-{number:02}", partial(decide, share, number)
                record = store.measure_or_load(key, decision, config=config, kind=GATE)
                words = record["sentences"][0] if "sentences" in record else record["error"]
                print(f"{number:2} {name}: {words}", flush=True)
                failed.setdefault(f"{name}, beside {beside}", []).append(record.get("failed"))
    return [
        f"gate, {name}: {decisions.count(True)} of {len(decisions)} failed, {decisions.count(None)} were not measured."
        for name, decisions in failed.items()
    ]


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """Return the outcome of one comparison of a batch, which stands alone."""
    ratios = tuple(np.array(visit, float) for visit in row["log_ratios"])
    observed = Observed(ratios, row["value_a"], row["value_b"])
    sides = ("one relay", "the other relay")
    return compare_all([Comparison(row["planted"], "", LATENCY, "one", *sides, observed, is_primary=True)])[0]


def outcomes_of(run_dir: Path | str) -> dict[str, list[Outcome]]:
    """Return the outcomes of a run's batches by the planted delay; an empty dictionary without batches."""
    outcomes: dict[str, list[Outcome]] = {}
    for record in load_records(run_dir):
        for row in (
            record["result"]["comparisons"] if record["kind"] == KIND and record["status"] == "ok" else ()
        ):
            outcomes.setdefault(row["planted"], []).append(outcome_of(row))
    return outcomes


def summary(outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Return one sentence for each kind of comparison: how many were called different, and how many by more than 2%."""
    sentences = []
    for planted, planted_outcomes in outcomes.items():
        different, failed = (
            sum(outcome.is_different for outcome in planted_outcomes),
            sum(map(has_failed, planted_outcomes)),
        )
        sides = "equal servers" if planted == NULL else f"a {planted}"
        sentences.append(
            f"{different} of {len(planted_outcomes)} pairs with {sides} were called different, {failed} by more than 2%."
        )
    return sentences


@contextlib.contextmanager
def busy_loop(command: Sequence[str] = BUSY_LOOP) -> Iterator[None]:
    """Keep one core busy for the length of a `with` block."""
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.terminate()


def main(
    only: Annotated[int, typer.Option(help="batches of a null and two delays")] = N,
    gates: Annotated[int, typer.Option(help="gates on a null, and half as many on a delay")] = GATES,
    delay: Annotated[float, typer.Option(help="planted; twice as much beside a busy loop")] = 0.05,
    run: Annotated[str, typer.Option(help="results/RUN keeps the records")] = RUN,
) -> None:
    """Measure and print a line for each comparison; at the end the nulls that failed and the delays that were found."""
    run_dir = project_root() / "results" / run
    measure(only, delay, run_dir)
    print("\n".join([*summary(outcomes_of(run_dir)), *measure_gates(gates, run_dir)]))


if __name__ == "__main__":
    try:
        typer.run(main)
    except PhotodupError as error:
        sys.exit(str(error))
