"""How far one point differs from another, and from itself; rounds and their judgement are in `compare`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def noise_floor(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the largest relative difference seen between a backend and itself (A/A), as |ln ratio|."""
    if not pairs:
        raise ValueError("a noise floor needs at least one A/A pair")
    return max(abs(math.log(a / b)) for a, b in pairs)


def difference(
    a: Mapping[str, Any], b: Mapping[str, Any], noise_floor: float, metric: str = "latency_ms_p50"
) -> dict[str, Any]:
    """Say whether point `b` differs from point `a` in `metric`.

    Returns:
        `ratio` b ÷ a with `ratio_ci_low`/`_high` (intervals combined as logarithms), `verdict` one of
        `higher`, `lower`, `no difference`, `unknown`, and `because`. Never a difference below the noise
        floor, nor when the interval holds 1, nor from a point that is not valid.
    """
    names = (metric, f"{metric}_ci_low", f"{metric}_ci_high")
    values = [point.get(name) or 0.0 for point in (a, b) for name in names]
    if not (a.get("valid") and b.get("valid")):
        why = a.get("invalid_because") or b.get("invalid_because") or "a point is missing"
        return {"ratio": None, "verdict": "unknown", "because": why}
    if not all(v > 0 for v in values):
        return {"ratio": None, "verdict": "unknown", "because": f"the sample does not carry {metric}"}
    a_mid, a_low, a_high, b_mid, b_low, b_high = (math.log(v) for v in values)
    ratio = b_mid - a_mid
    low = ratio - math.hypot(b_mid - b_low, a_high - a_mid)
    high = ratio + math.hypot(b_high - b_mid, a_mid - a_low)
    if abs(ratio) <= noise_floor:
        verdict, because = "no difference", f"within the noise floor of {math.expm1(noise_floor):.1%}"
    elif low <= 0 <= high:
        verdict, because = "no difference", "the confidence interval of the ratio holds 1"
    else:
        verdict, because = ("higher" if ratio > 0 else "lower"), "beyond the noise floor and the interval"
    bounds = {"ratio_ci_low": math.exp(low), "ratio_ci_high": math.exp(high)}
    return {"ratio": math.exp(ratio), **bounds, "verdict": verdict, "because": because}
