"""How long a measurement has to be: from the rate that a short calibration finds on this machine."""

from collections.abc import Iterable
from dataclasses import replace

from photodup.bench.stats.point import EARLY_WAVES
from photodup.bench.load.plan import Load, Stopping

WAVES = 30  # of the last look: 20 blocks are needed, some are lost to the warm-up
# Single requests are cheap: enough of them to stop at the first look, and time for a machine that has become slower.
WAVES_OF_ONE, SLACK = EARLY_WAVES + 2, 1.6
SHORTEST_S, LONGEST_S = 2.0, 30.0
PROBE = Stopping(min_duration_s=1.0, min_requests=1, max_duration_s=1.0, warmup_requests=2, ramp_s=0.3)
SLOW_PROBE = replace(PROBE, min_duration_s=5.0, max_duration_s=5.0)
# Wider than of a point that stands alone: what a short measurement misses shows in the spread between the rounds, from
# which the comparison's interval comes. One that is wider still says nothing of its round.
HALF_WIDTH = 0.5
OVERHEAD_S = 1.2  # connecting, warming up and reading counters


def stopping_for(
    load: Load, requests_per_s: float, metrics: Iterable[str], *, shortest_s: float = SHORTEST_S
) -> Stopping:
    """Return when a measurement of a load may end.

    The first look comes when enough whole waves should have been answered. With one request in flight there is a later
    one; with several the first is the last.

    Args:
        requests_per_s: that this side answered in a calibration under this load, above 0.
        metrics: the figures that are compared: only these have to be precise. A stray slow answer spoils the mean of
            a short measurement and leaves its median as it is.
    """
    wave = 1 if load.scenario == "server" else load.concurrency
    needed_s = (WAVES_OF_ONE if wave == 1 else WAVES) * wave / max(requests_per_s, 1e-3)
    # A slow spell lasts longer than thirty fast waves: a short window would stand in one or beside it.
    first_s = min(max(needed_s, shortest_s), LONGEST_S)
    return Stopping(
        min_duration_s=first_s,
        min_requests=WAVES,
        max_duration_s=first_s * (SLACK if wave == 1 else 1),
        warmup_requests=2,
        ramp_s=0.3,
        half_width=HALF_WIDTH,
        precise=tuple(sorted(metrics)),
    )
