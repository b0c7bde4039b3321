"""A bound for one library: at most so many false pairs among its photos.

A rate says nothing to someone with a million photos. What a library can say is how its best non-matches score: each
photo's nearest stranger, compared on the pixels. The upper tail of those scores is fitted (a generalised Pareto
distribution above a high quantile: Pickands 1975), and carried on to the score from which a pair counts as a copy.
"""

from dataclasses import dataclass

import numpy as np

from photodup.errors import PhotodupError

# Of the scores so many of the highest make the tail, and at least this number is needed.
TAIL, LEAST = 0.1, 20


@dataclass(frozen=True)
class Bound:
    """At most `most` false pairs among `n_photos`, with this confidence; `expected` is the point estimate."""

    n_photos: int
    expected: float
    most: int
    confidence: float

    def __str__(self) -> str:
        pairs = "false pair" if self.most == 1 else "false pairs"
        return f"at most {self.most} {pairs} among these {self.n_photos:,} photos, {self.confidence:.0%} confidence"


def bound(
    scores: np.ndarray, threshold: float, n_photos: int, *, confidence: float = 0.99, seed: int = 0
) -> Bound:
    """Bound the false pairs of a library of `n_photos`, each of which has one nearest stranger.

    Args:
        scores: float[n], of pairs that are known to be strangers, each photo's best; independent of each other.
        threshold: from this score on a pair counts as a copy.
        n_photos: whose best strangers are compared.
        confidence: share of libraries of which the bound is to hold, 0..1.
        seed: of the resampling.

    Raises:
        PhotodupError: too few scores.
    """
    from scipy.stats import beta, genpareto, poisson

    scores = np.sort(np.asarray(scores, float))
    n, n_tail = len(scores), max(LEAST, round(TAIL * len(scores)))
    if n < 2 * LEAST:
        raise PhotodupError(f"A bound needs the scores of {2 * LEAST} pairs of different pictures, not {n}.")
    start = scores[-n_tail - 1]

    def beyond(values: np.ndarray) -> float:
        excess = values[values > start] - start
        if not len(excess):
            return 0.0
        if threshold <= start:
            return float((values > threshold).mean())
        shape, _, scale = genpareto.fit(excess, floc=0)
        # A tail that ends before the threshold may be an accident of the sample: none is lighter than exponential.
        return float(
            len(excess) / len(values) * genpareto.sf(threshold - start, max(shape, 0.0), scale=scale)
        )

    rng = np.random.default_rng(seed)
    estimate = beyond(scores)
    resampled = [beyond(rng.choice(scores, n)) for _ in range(100)]
    share = (1 + confidence) / 2  # half of what may go wrong to the fit, half to chance
    over = int((scores >= threshold).sum())
    # Where nothing rises above the rest there is no tail to carry on, and only what was counted can be said.
    has_tail = bool((scores > start).any())
    counted = float(beta.ppf(share, over + 1, n - over)) if over or not has_tail else 0.0
    rate = min(1.0, max(estimate, float(np.quantile(resampled, share)), counted))
    return Bound(n_photos, estimate * n_photos, int(poisson.ppf(share, rate * n_photos)), confidence)
