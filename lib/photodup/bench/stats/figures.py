"""One figure from several visits: the mean over them, with its interval between them."""

import math
from collections.abc import Sequence

import numpy as np


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the geometric mean over visits with its 95 % t interval: value, low, high; no bounds of a single visit."""
    from scipy.special import stdtrit

    logs = np.log(np.array(values, float))
    middle = float(logs.mean())
    if len(logs) < 2:
        return math.exp(middle), None, None
    reach = float(stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)
