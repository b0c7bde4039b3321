"""How long a measurement has to be: from the rate that a short calibration finds on this machine."""

from collections.abc import Iterable

from photodup.bench.judge.point import EARLY_WAVES
from photodup.bench.load.plan import Load, Stopping

WAVES = 30  # of the last look: 20 blocks are needed, some are lost to the warm-up
SHORTEST_S, LONGEST_S = 2.0, 30.0
PROBE = Stopping(min_duration_s=1.0, min_requests=1, max_duration_s=1.0, warmup_requests=2, ramp_s=0.3)
# Wider than of a point that stands alone: what a short measurement misses shows in the spread between the rounds, from
# which the comparison's interval comes. One that is wider still says nothing of its round.
HALF_WIDTH = 0.15
OVERHEAD_S = 1.2  # connecting, warming up and reading counters


def stopping_for(
    load: Load, requests_per_s: float, metrics: Iterable[str], *, shortest_s: float = SHORTEST_S
) -> Stopping:
    """Return when a measurement of a load may end.

    The last look comes when `WAVES` whole waves should have been answered; an early one, where the server is so fast
    that the judge may stop there.

    Args:
        requests_per_s: that this side answered in a calibration under this load, above 0.
        metrics: the figures that are compared: only these have to be precise. A stray slow answer spoils the mean of
            a short measurement and leaves its median as it is.
    """
    wave = 1 if load.scenario == "server" else load.concurrency
    # A slow spell lasts longer than thirty fast waves: a short window would stand in one or beside it.
    needed_s = max(WAVES * wave / max(requests_per_s, 1e-3), shortest_s)
    last_s = min(needed_s, LONGEST_S)
    early = EARLY_WAVES * wave / max(requests_per_s, 1e-3) < 0.6 * last_s
    return Stopping(
        min_duration_s=0.6 * last_s if early else last_s,
        min_requests=WAVES,
        max_duration_s=last_s,
        warmup_requests=2,
        ramp_s=0.3,
        half_width=HALF_WIDTH,
        precise=tuple(sorted(metrics)),
    )
