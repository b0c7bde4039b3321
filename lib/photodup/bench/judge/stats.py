"""What LoadGen's early stopping allows to claim, and two comparisons of single points.

Sources: MLPerf Inference LoadGen (early stopping, minimum counts). The comparisons are the first edition's; rounds and
their judgement are in `compare`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def queries_needed(over: int, percentile: float, confidence: float = 0.99) -> int:
    """Return how many requests must be seen, `over` of them beyond the bound, to claim the percentile.

    MLPerf early stopping with tolerance 0: the smallest n whose chance of at most `over` misses, were the
    true miss rate as bad as 1 − percentile/100, is at most 1 − confidence.
    """
    from scipy.special import betainc

    p = percentile / 100

    def enough(n: int) -> bool:  # the binomial distribution function, written as incomplete beta
        return n > over and betainc(n - over, over + 1, p) <= 1 - confidence

    high = over + 1
    while not enough(high):
        high *= 2
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def early_stopping_latency_ms(
    latency_ms: Sequence[float], percentile: float, confidence: float = 0.99
) -> float | None:
    """Return a latency that the true percentile does not exceed at `confidence`; None if n is too small.

    LoadGen's single-stream estimate: with t misses affordable, drop the t − 1 worst, report the worst left.
    """
    ordered = np.sort(np.asarray(latency_ms, float))
    misses = 0
    while len(ordered) >= queries_needed(misses + 1, percentile, confidence):
        misses += 1
    return float(ordered[len(ordered) - misses]) if misses else None


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
    values = [point.get(name) for point in (a, b) for name in names]
    if not (a.get("valid") and b.get("valid")):
        why = a.get("invalid_because") or b.get("invalid_because") or "a point is missing"
        return {"ratio": None, "verdict": "unknown", "because": why}
    if any(v is None or not v > 0 for v in values):
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


def paired_difference(a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95) -> dict[str, Any]:
    """Say whether `b` differs from `a`, from repeats: `a[i]` and `b[i]` were measured side by side.

    What slows both members of a pair cancels in their ratio. The interval is Student's t over the logarithms of
    the ratios, so it holds all that differs from one repeat to the next, and needs no noise floor beside it.

    Returns:
        `ratio` b ÷ a (geometric mean) with `ratio_ci_low`/`_high`, `n_repeats`, `verdict` and `because` as
        `difference` has them. One repeat has no spread: its verdict is `unknown`.
    """
    from scipy import stats as distributions

    ratios = np.log(np.asarray(b, float) / np.asarray(a, float))
    n = len(ratios)
    if n < 2:
        ratio = math.exp(ratios[0]) if n else None
        because = f"{n} repeats of both, 2 are needed to see a spread"
        return {"ratio": ratio, "n_repeats": n, "verdict": "unknown", "because": because}
    middle = float(ratios.mean())
    reach = float(distributions.t.ppf(0.5 + confidence / 2, n - 1) * ratios.std(ddof=1) / math.sqrt(n))
    bounds = {"ratio_ci_low": math.exp(middle - reach), "ratio_ci_high": math.exp(middle + reach)}
    if abs(middle) <= reach:
        verdict, because = "no difference", f"the interval over {n} repeats holds 1"
    else:
        verdict, because = ("higher" if middle > 0 else "lower"), f"beyond the spread of {n} repeats"
    return {
        "ratio": math.exp(middle),
        **bounds,
        "n_repeats": n,
        "verdict": verdict,
        "because": because,
    }
