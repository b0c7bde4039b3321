"""Two laws a scaling measurement must obey: Little's, and the Universal Scalability Law."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def little_ratio(concurrency: float, requests_per_s: float, latency_ms_mean: float) -> float:
    """Return (throughput × mean latency) ÷ concurrency; 1 when `concurrency` really was in flight.

    Below about 0.95 the generator did not hold the load it names, or the numbers are from different windows.
    """
    return requests_per_s * latency_ms_mean / 1000 / concurrency


def fit_usl(concurrency: Sequence[float], throughput_per_s: Sequence[float]) -> dict[str, Any]:
    """Fit X(N) = λN / (1 + σ(N − 1) + κN(N − 1)) (Gunther's Universal Scalability Law).

    Args:
        concurrency: at least four different loads.
        throughput_per_s: measured at each.

    Returns:
        `rate_per_s` λ (one in flight), `contention` σ, `coherency` κ, each with `_se`; `peak_concurrency` and
        `peak_per_s` (where more load stops helping; for κ = 0 the asymptote λ/σ and no peak); `residual_max`,
        the worst relative misfit: above a few percent the law does not describe the data.

    Raises:
        ValueError: fewer than four loads.
    """
    from scipy.optimize import curve_fit

    load, rate = np.asarray(concurrency, float), np.asarray(throughput_per_s, float)
    if len(np.unique(load)) < 4:
        raise ValueError("the Universal Scalability Law has three parameters: give at least four loads")

    def law(n: np.ndarray, lam: float, sigma: float, kappa: float) -> np.ndarray:
        return lam * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))

    start = (float(rate[np.argmin(load)] / load.min()), 0.1, 1e-4)
    bounds = ([0, 0, 0], [np.inf, 1, 1])
    # Relative errors: the largest load must not decide the fit alone.
    best, covariance = curve_fit(law, load, rate, p0=start, sigma=rate, bounds=bounds, x_scale=start)
    lam, sigma, kappa = (float(x) for x in best)
    errors = np.sqrt(np.clip(np.diag(covariance), 0, None))
    has_peak = kappa > 1e-9 and sigma < 1
    peak = math.sqrt((1 - sigma) / kappa) if has_peak else None
    asymptote = lam / sigma if sigma > 1e-9 else None
    top = float(law(np.array(peak), *best)) if peak else asymptote
    return {
        "rate_per_s": lam,
        "contention": sigma,
        "coherency": kappa,
        "rate_per_s_se": float(errors[0]),
        "contention_se": float(errors[1]),
        "coherency_se": float(errors[2]),
        "peak_concurrency": peak,
        "peak_per_s": top,
        "residual_max": float(np.max(np.abs(law(load, *best) / rate - 1))),
    }
