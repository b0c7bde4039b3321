"""Comparisons of two real FastAPI services with a known delay: how often it is found, and how often one is made up.

    python -m benchmarks.statistics_live [--only 3] [--gates 4]          (make judge; about an hour without)

Two processes of one configuration take turns as in every comparison. As they are they are a null. Two relays before the
first of them plant a difference that is known: one waits a share of the time that the service took. Batches of a null, a
delay, and twice that delay beside a busy loop are measured; each is a record of `results/statistics`, and the next start
goes on with the batches that are missing. So are single runs of `photodup gate` on a null and on a planted delay, beside
`stress-ng` where the machine has it, else beside a busy loop.
"""

import contextlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import null_server
from benchmarks.statistics import GATE_LIMIT
from photodup.bench.anyurl.gate import gate
from photodup.bench.anyurl.measure import LoadSpec, Request
from photodup.bench.anyurl.payloads import payloads_for
from photodup.bench.anyurl.target import target_of
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.pairs import read
from photodup.bench.pairs.alternate import VisitPlan
from photodup.bench.record.record import RunStore, load_records
from photodup.bench.stats.comparison import Observed, Outcome, Question, has_failed, judge
from photodup.bench.stats.facts import Load
from photodup.core.errors import PhotodupError
from photodup.core.paths import project_root
from photodup.embedding.backends import Backend, parse_backend
from photodup.serving.service.start import ServiceProcess
from photodup.study.comparisons.measure import Reach, Sizes, Task
from photodup.study.notebook.weights import prepare_model

KIND = "statistics"
RUN = "statistics"
N = 30  # batches
FAMILY = 4  # comparisons corrected together: as many as the largest family of comparisons.yaml has
SIZES = Sizes(visits=4, plan=VisitPlan(palindromes=3, alone_s=0))
LOAD = Load("single_stream", span="prepared")  # what is planted is a share of what is measured
GATE = "gate"
GATES = 40  # on a null, and half as many on a delay
GATE_DELAY, GATE_MS, GATE_S = 0.15, 20.0, 12.0


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
    weights = prepare_model()
    local = parse_backend(fastest(weights))
    backend = parse_backend(f"fastapi-{local.engine}-{local.precision}-http-jpeg")
    with ExitStack() as stack, RunStore(run_dir) as store:
        sides = _sides(stack, backend)
        for number in range(1, n + 1):
            config = {"batch": number, "delay": delay, "backend": backend.name, "sizes": asdict(SIZES)}
            batch = partial(_batch, sides, number, delay, SIZES)
            done = store.measure_or_load(f"statistics-batch-{number:02}", batch, config=config, kind=KIND)
            if "comparisons" not in done:
                print(f"batch {number} was not measured: {done['error']}", flush=True)
            for outcome in (one for of in outcomes_of(run_dir).values() for one in of):
                if outcome.question.name.startswith(f"{number:2} "):
                    interval = f"{outcome.effect:+z.1%} [{outcome.low:+z.1%}, {outcome.high:+z.1%}]"
                    print(f"{outcome.question.name:36} {interval:26} {outcome.verdict}", flush=True)


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
    asked = {"beside": beside, "ms": GATE_MS, "seconds": GATE_S}
    with ExitStack() as stack, RunStore(run_dir) as store:
        base, head = (stack.enter_context(null_server.running(delay_ms=GATE_MS)) for _ in range(2))
        relayed = [
            _images(stack.enter_context(null_server.running(upstream=url, slower=share)))
            for url, share in ((base, 0.0), (head, 0.0), (head, GATE_DELAY))
        ]

        def decided(share: float, seed: int) -> dict[str, Any]:
            sides = contextlib.nullcontext((relayed[0], relayed[2 if share else 1]))
            with busy_loop(noise):
                gated = gate(
                    lambda: sides, LoadSpec(seconds=GATE_S, seed=seed), Watcher(None), limit=GATE_LIMIT
                )
            return {**gated.as_record(), "rates": {f"{p:.0%}": rate for p, rate in gated.rates.items()}}

        for number in range(1, n + 1):
            for share in (0.0, GATE_DELAY)[: 1 + (number % 2 == 0)]:
                name = f"delay of {share:.0%}" if share else NULL
                key, config = f"{RUN}-gate-{name}-{number:02}", asked | {"gate": number, "delay": share}
                done = store.measure_or_load(key, partial(decided, share, number), config=config, kind=GATE)
                said = done["sentences"][0] if "sentences" in done else done["error"]
                print(f"{number:2} {name}: {said}", flush=True)
                failed.setdefault(f"{name}, beside {beside}", []).append(done.get("failed"))
    return [
        f"gate, {name}: {of.count(True)} of {len(of)} failed, {of.count(None)} were not measured."
        for name, of in failed.items()
    ]


def _images(url: str) -> Request:
    target = target_of(f"{url}/embed")
    return Request(target, payloads_for(target, kind=None, paths=(), given_texts=()))


def outcomes_of(run_dir: Path | str) -> dict[str, list[Outcome]]:
    """Return the outcomes of a run's batches by what was planted, in families of four; nothing where there is none."""
    asked: dict[str, list[Question]] = {}
    for record in load_records(run_dir):
        if record["kind"] != KIND or record["status"] != "ok":
            continue
        for row in record["result"]["comparisons"]:
            of = asked.setdefault(row["planted"], [])
            ratios = tuple(np.array(visit, float) for visit in row["log_ratios"])
            observed = Observed(ratios, row["value_a"], row["value_b"])
            name, family = f"{record['config']['batch']:2} {row['planted']}", str(len(of) // FAMILY)
            sides = ("one process", "the other process")
            metric = read.usual_metric(LOAD)
            of.append(Question(name, family, metric, "one", *sides, observed, is_primary=True))
    return {planted: judge(questions) for planted, questions in asked.items()}


def summary(outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Return one sentence for each kind of comparison: how many were called different, and how many by more than 2 %."""
    found = []
    for planted, of in outcomes.items():
        different = sum(outcome.is_different for outcome in of)
        failed = sum(map(has_failed, of))
        sides = "equal processes" if planted == NULL else f"a {planted}"
        found.append(
            f"{different} of {len(of)} pairs with {sides} were called different, {failed} by more than 2 %."
        )
    return found


NULL = "null"
BUSY_LOOP: Sequence[str] = (sys.executable, "-c", "while True: pass")


def _batch(
    sides: Callable[[float | None], tuple[Reach, Reach]], number: int, delay: float, sizes: Sizes
) -> dict[str, Any]:
    """Measure a null and two delays, visit by visit in random order, between the sides that each share has."""
    kinds = {
        NULL: (None, False),
        f"delay of {delay:.0%}": (delay, False),
        f"delay of {2 * delay:.0%}, busy loop": (2 * delay, True),
    }
    visits: dict[str, list[Any]] = {name: [] for name in kinds}
    for visit in range(1, sizes.visits + 1):
        for name in random.Random(100 * number + visit).sample(list(kinds), len(kinds)):
            share, is_busy = kinds[name]
            with busy_loop() if is_busy else contextlib.nullcontext():
                task = Task(sides(share), LOAD, "", sizes.plan, seed=100 * number + visit)
                visits[name].append(task.measure())
    rows = []
    for name, seen in visits.items():
        observed = read.observed(seen, LOAD, read.usual_metric(LOAD))
        if isinstance(observed, str):
            raise PhotodupError(f"{name}: {observed}")
        values = {"value_a": observed.value_a, "value_b": observed.value_b}
        ratios = [visit.tolist() for visit in observed.log_ratios]
        rows.append(
            {"planted": name, "log_ratios": ratios, **values, "seconds": sum(v.seconds for v in seen)}
        )
    return {"comparisons": rows}


def _sides(stack: ExitStack, backend: Backend) -> Callable[[float | None], tuple[Reach, Reach]]:
    """Return what gives both sides of a planted share, None for a null; servers start when they are first asked for."""

    @cache
    def service(number: int) -> Reach:
        settings = {"ENGINE": backend.engine, "PRECISION": backend.precision}
        return Reach(backend, stack.enter_context(ServiceProcess(settings=settings)).url)

    @cache
    def relayed(share: float) -> Reach:
        upstream = str(service(0).url)
        return Reach(backend, stack.enter_context(null_server.running(upstream=upstream, slower=share)))

    return lambda share: (service(0), service(1)) if share is None else (relayed(0.0), relayed(share))


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
