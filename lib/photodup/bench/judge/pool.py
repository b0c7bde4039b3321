"""One figure for one load that was measured in several rounds."""

import math
from collections.abc import Iterable

import numpy as np

from photodup.errors import PhotodupError


def pooled(values: Iterable[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Return one figure for one load measured in several rounds: geometric mean, low, high (t over rounds).

    Raises:
        PhotodupError: fewer than two values, or one that is not positive.
    """
    from scipy.special import stdtrit

    logs = np.array(list(values), float)
    if len(logs) < 2 or not (logs > 0).all():
        raise PhotodupError("Pooling needs two or more figures above 0, one from each round.")
    logs = np.log(logs)
    reach = float(stdtrit(len(logs) - 1, 0.5 + confidence / 2) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return math.exp(logs.mean()), math.exp(logs.mean() - reach), math.exp(logs.mean() + reach)
