"""Measure one side under one load, once: a round of it, or the short calibration before the rounds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from photodup.bench.load.plan import Stopping
from photodup.bench.record.record import CALIBRATION
from photodup.embedding.backends import DUMMY
from photodup.study.notebook.points import measure_point
from photodup.study.rounds.declared import Asked, Side
from photodup.study.rounds.sizes import PROBE, SLOW_PROBE, stopping_for

if TYPE_CHECKING:
    from photodup.study.notebook.run import Run


AGAIN = "again"  # of the second arm of an A/A check


@dataclass(frozen=True)
class Arm:
    """A side under a load."""

    side: Side
    asked: Asked


def calibrate(
    run: Run, arm: Arm, metrics: Iterable[str], *, shortest_s: float, check: bool
) -> Stopping | str:
    """Return how long a measurement of an arm has to be on this machine, or the sentence why it cannot be made.

    One second of the load is measured and recorded, so that a run that is resumed uses the same lengths.
    """
    point = _point(run, arm, PROBE, label=CALIBRATION, check=check)
    # A second may be too short for one answer, or the server was still waking up.
    if not point.get("n_requests"):
        point = _point(run, arm, SLOW_PROBE, label=f"{CALIBRATION}, longer", check=check)
    if point.get("status") in ("failed", "missing"):
        return str(point["invalid_because"])
    rate = point["throughput_images_per_s"] / arm.asked.load.batch
    return stopping_for(arm.asked.load, rate, metrics, shortest_s=shortest_s)


def measure_round(
    run: Run, arm: Arm, number: int, stopping: Stopping, *, again: bool = False
) -> dict[str, Any]:
    """Return one round of an arm (`again`: of an A/A check's second arm), measured now unless the run has it."""
    return _point(run, arm, stopping, label=AGAIN if again else "", round_number=number)


def read_round(reading: Run, arm: Arm, number: int, *, again: bool = False) -> dict[str, Any]:
    """Return what a run that is only read (`Run.reading`) has of a round; a gap where it has none."""
    return measure_round(reading, arm, number, Stopping(), again=again)


def _point(
    run: Run,
    arm: Arm,
    stopping: Stopping,
    *,
    label: str,
    round_number: int | None = None,
    check: bool = False,
) -> dict[str, Any]:
    side, asked = arm.side, arm.asked
    own = "" if not side.settings else " ".join(f"{key} {value}" for key, value in side.settings)
    with _settings(run, side) as before:
        return measure_point(
            run,
            side.backend,
            asked.load,
            stopping,
            label=" ".join(filter(None, [own, label])),
            as_deployed=not side.settings,
            repeat=(round_number or 1) - 1,  # the first round is the plain point that claims look for
            round=round_number,
            check=check and not side.backend.is_emulated and side.backend.engine != DUMMY,
            before=before,
            link=asked.link,
            sized=False,
            **dict(side.options),
        )


@contextlib.contextmanager
def _settings(run: Run, side: Side) -> Iterator[Any]:
    """Serve Triton's model with the side's settings while it is measured, and as before afterwards."""
    if not side.settings:
        yield None
        return
    from photodup.serving.triton.control import temporary_config
    from photodup.study.notebook.points import when_measuring

    def change(config: Any) -> None:
        configure(config, **dict(side.settings))

    with when_measuring(temporary_config(run.endpoints.triton_grpc, side.configured_model, change)) as before:
        yield before


def configure(
    config: Any,
    *,
    instances: int | None = None,
    threads: int | None = None,
    delay_us: int | None = None,
    preferred: int | None = None,
) -> None:
    """Change a Triton configuration in place: what is None stays as it is.

    Args:
        instances: executions at the same time.
        threads: of each instance, on a CPU; instances on a GPU share it as they are.
        delay_us: how long the batcher may wait for more requests, microseconds.
        preferred: images at which a batch goes out at once, however long it might still wait.
    """
    if instances is not None:
        config.instance_group[0].count = instances
    if threads is not None and config.instance_group[0].kind != config.instance_group[0].KIND_GPU:
        # Our Python model's name for it, or that of the stock ONNX Runtime backend of the CPU image.
        name = "intra_op_thread_count" if config.backend == "onnxruntime" else "threads"
        config.parameters[name].string_value = str(threads)
    if delay_us is not None:
        config.dynamic_batching.max_queue_delay_microseconds = delay_us
    if preferred is not None:
        config.dynamic_batching.preferred_batch_size[:] = [preferred]
