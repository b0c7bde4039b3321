"""What the published numbers say about the published claims: no run needed, only results/published/.

E1 to E21 name the checks; each is a function of the rows with its assumptions as keyword arguments
(`audit_speed`, `audit_method`) and returns a `Finding`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from photodup.study import audit_method, audit_speed
from photodup.study.finding import Finding
from photodup.study.published import load_measurements

if TYPE_CHECKING:
    import pandas as pd

CHECKS: dict[str, Callable[..., Finding]] = {
    "E1": audit_speed.bandwidth_or_round_trips,
    "E2": audit_speed.inherent_slowness,
    "E3": audit_speed.compute_advantage,
    "E4": audit_speed.architecture_decides,
    "E5": audit_speed.multi_gpu_scaling,
    "E6": audit_speed.littles_law,
    "E7": audit_speed.queue_delay,
    "E8": audit_speed.cuda_graphs,
    "E9": audit_speed.concurrency_tie,
    "E10": audit_speed.fastapi_scales,
    "E11": audit_speed.latency_follows_gpu,
    "E12": audit_method.pods_against_quota,
    "E13": audit_method.protective_probe,
    "E14": audit_method.repeat_spread,
    "E15": audit_method.json_factor,
    "E16": audit_method.laptop_against_gpu,
    "E17": audit_method.payload_is_a_crop,
    "E18": audit_method.connection_policy,
    "E19": audit_method.batch_scaling,
    "E20": audit_method.fastest_compute,
    "E21": audit_method.same_ordering,
}


def run_all(rows: "pd.DataFrame | None" = None) -> dict[str, Finding]:
    """Return every finding, with the default assumptions."""
    rows = load_measurements() if rows is None else rows
    return {name: check(rows) for name, check in CHECKS.items()}


def summary(findings: "dict[str, Finding] | None" = None) -> "pd.DataFrame":
    """Return one row per check: `claim`, `verdict` (stands, does not stand, not arithmetic), `because`."""
    import pandas as pd

    words = {True: "stands", False: "does not stand", None: "not arithmetic"}
    found = run_all() if findings is None else findings
    rows = [(f.check, f.claim, words[f.stands], f.sentence) for f in found.values()]
    return pd.DataFrame(rows, columns=["check", "claim", "verdict", "because"]).set_index("check")
