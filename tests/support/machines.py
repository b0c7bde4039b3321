"""A state machine of Hypothesis, run as a test."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


class Killed(BaseException):
    """Stands for the end of a process: nothing that catches errors sees it."""


def run_machine(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Run it; nothing is kept between runs, and what it takes is no fault."""
    chosen = {"max_examples": examples, "stateful_step_count": steps, "deadline": None, "database": None}
    run_state_machine_as_test(machine, settings=settings(**chosen, suppress_health_check=list(HealthCheck)))


def report(counts: Counter[str], needed: Iterable[str]) -> None:
    """Print what was done how often; what has to be among it is."""
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    assert all(counts[what] for what in needed)
