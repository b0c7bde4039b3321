"""The load on a server, and the one table of figures: their units, and the margins of equality."""

from dataclasses import dataclass

from photodup.bench import Columns
from photodup.core.errors import PhotodupError

SCENARIOS = ("single_stream", "closed_loop", "server", "offline")
SPANS = ("photo", "prepared")
CONNECTIONS = ("warm", "new")
# A relative difference below this interests nobody.
SMALLEST_EFFECT = 0.02


@dataclass(frozen=True)
class Metric:
    """One figure of a load.

    Attributes:
        name: the column of a record, unit included.
        label: what a sentence calls it.
        unit: as printed.
        quantity: `latency` or `throughput`.
        margin: relative; two sides are equal if the interval lies within it.
        percentile: 0 to 100, or None for a mean or a rate.
        min_answers: below this many answers the figure is not given.
    """

    name: str
    label: str
    unit: str
    quantity: str
    margin: float
    percentile: float | None = None
    min_answers: int = 1


# The tail varies more from visit to visit than the middle, so its margin is wider. No margin is chosen after the numbers
# are known. `min_answers` follows LoadGen's early stopping.
METRICS = {
    metric.name: metric
    for metric in (
        Metric("latency_ms_mean", "mean latency", "ms", "latency", 0.05),
        Metric("latency_ms_p50", "median latency", "ms", "latency", 0.05, 50),
        Metric("latency_ms_p90", "90th percentile of latency", "ms", "latency", 0.10, 90, 64),
        Metric("latency_ms_p95", "95th percentile of latency", "ms", "latency", 0.10, 95, 200),
        Metric("latency_ms_p99", "99th percentile of latency", "ms", "latency", 0.15, 99, 662),
        Metric("throughput_images_per_s", "throughput", "images/s", "throughput", 0.05),
    )
}


def metric_named(name: str) -> Metric:
    """Return the metric of that name.

    Raises:
        PhotodupError: there is none; the message lists those that exist.
    """
    try:
        return METRICS[name]
    except KeyError:
        raise PhotodupError(f"There is no metric {name!r}: use one of {', '.join(METRICS)}.") from None


@dataclass(frozen=True)
class Load:
    """The load on a server.

    Attributes:
        scenario: one of `SCENARIOS`.
        batch: images per request.
        concurrency: requests in flight, 1 unless given. In the open loop the most that may be, 64 unless
            given; beyond it requests wait in the client, and that wait counts.
        offered_per_s: open loop only: mean arrivals per second, in requests.
        connection: `new` (connecting is inside the span) or `warm`.
        span: `photo` times encoded photograph in hand → embedding in hand. `prepared` leaves the client's
            preparation out, for loads this client could not prepare fast enough; never compare the two.

    Raises:
        PhotodupError: the attributes contradict each other.
    """

    scenario: str
    batch: int = 1
    concurrency: int = None  # type: ignore[assignment]  # an int from `__post_init__` on
    offered_per_s: float | None = None
    connection: str = "warm"
    span: str = "photo"

    def __post_init__(self) -> None:
        if self.concurrency is None:
            object.__setattr__(self, "concurrency", 64 if self.scenario == "server" else 1)
        problem = None
        if self.scenario not in SCENARIOS:
            problem = f"scenario {self.scenario!r} is not one of {', '.join(SCENARIOS)}"
        elif self.batch < 1 or self.concurrency < 1:
            problem = "batch and concurrency start at 1"
        elif self.scenario == "single_stream" and self.concurrency != 1:
            problem = "single_stream has one request in flight; use closed_loop"
        elif (self.scenario == "server") != (self.offered_per_s is not None and self.offered_per_s > 0):
            problem = "offered_per_s belongs to the server scenario, and it needs one above 0"
        elif self.span not in SPANS:
            problem = f"span {self.span!r} is not one of {', '.join(SPANS)}"
        elif self.connection not in CONNECTIONS:
            problem = f"connection {self.connection!r} is not one of {', '.join(CONNECTIONS)}"
        if problem:
            raise PhotodupError(f"This load makes no sense: {problem}.")

    @property
    def wave(self) -> int:
        """Answers in a wave: as many as requests are in flight. An open loop has no waves."""
        return 1 if self.scenario == "server" else self.concurrency

    @property
    def usual_metric(self) -> str:
        """The metric by which sides are compared: median latency with one in flight, throughput with several."""
        return "latency_ms_p50" if self.concurrency == 1 else "throughput_images_per_s"

    def columns(self) -> Columns:
        """Return this load as columns of a point."""
        names = ("connection", "scenario", "batch", "concurrency", "offered_per_s", "span")
        return {name: getattr(self, name) for name in names}
