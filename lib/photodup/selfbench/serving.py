"""What INT8 gives behind Triton and FastAPI, as ratios against FP32 and against each other, with the goals.

    python -m photodup.selfbench.serving

Both sides of each pair are measured at the same time on servers of this machine. It takes about five minutes.
`photodup.selfbench.service` compares with the engine in process.
"""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from photodup.study.comparisons.outcomes import Compared

WEIGHTS = "random:0"  # no timing depends on the values
NOTEBOOK = "06_compare_three_backends"
FAST, SERVERS = "INT8 with OpenVINO against FP32 with ONNX Runtime in Triton", "server with INT8"
# Comparison → the goal of b ÷ a in words, and whether a ratio meets it; of the two servers an interval inside ±5 %.
GOALS: dict[str, tuple[str, Callable[[float], bool] | None]] = {
    f"{FAST}, one": ("<= 0.45", lambda ratio: ratio <= 0.45),
    f"{FAST}, eight": (">= 2.8", lambda ratio: ratio >= 2.8),
    f"{SERVERS}, one": ("equal within 5 %", None),
    f"{SERVERS}, eight": ("equal within 5 %", None),
}


def run(*, visits: int = 4, say: Callable[[str], None] = print) -> "Compared":
    """Measure the pairs on this machine and return their outcomes."""
    from photodup.bench.pairs.declared import declarations
    from photodup.bench.record.record import RunStore
    from photodup.serving.endpoints import load_endpoints
    from photodup.study.comparisons.measure import Sizes, measure_comparisons
    from photodup.study.comparisons.outcomes import read_comparisons
    from photodup.study.notebook.run import Run
    from photodup.study.notebook.weights import prepare_model
    from photodup.study.runner.servers import start_servers

    every = declarations()
    chosen = replace(every, pairs=tuple(pair for pair in every.pairs if pair.name in GOALS))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="photodup-bench-")))
        prepare_model(WEIGHTS)
        endpoints = load_endpoints(start_servers(stack, "bench", chosen.pairs))
        endpoints.use_control_key()
        measured = Run("bench", folder, endpoints, RunStore(folder))
        with measured.store:
            measure_comparisons(measured, chosen.pairs, Sizes(visits), say=say)
            return read_comparisons(measured, NOTEBOOK, declared=chosen)


def lines(compared: "Compared") -> list[str]:
    """Return each ratio with its goal, and under it the outcome's sentence."""
    said = []
    for name, (goal, is_met) in GOALS.items():
        outcome = compared[name]
        if not outcome.is_measured:
            said.append(f"{name}: not measured, goal {goal}")
        else:
            ratio = outcome.value_b / outcome.value_a
            met = outcome.excludes_beyond <= 0.05 if is_met is None else is_met(ratio)
            said.append(f"{name}: ratio {ratio:.3f}, goal {goal}: {'met' if met else 'missed'}")
        said.append(f"  {compared.sentence(name)}")
    return said


def main() -> None:
    """Measure and print the ratios."""
    print("\n".join(lines(run())))


if __name__ == "__main__":
    main()
