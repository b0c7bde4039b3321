"""The words of a comparison as objects, and the one table of what is measured and what counts as equal."""

from dataclasses import dataclass, fields

from photodup.errors import PhotodupError

# A relative difference below this interests nobody: the hypothesis that is tested is |effect| <= SMALLEST_EFFECT.
SMALLEST_EFFECT = 0.02


@dataclass(frozen=True)
class Metric:
    """One figure of a point.

    Attributes:
        name: the column of a record, unit included.
        words: what a sentence calls it.
        unit: as printed.
        quantity: `latency` or `throughput`; A/A arms check each quantity.
        margin: relative; two sides this near to each other are called equal when tested so.
        percentile: 0 to 100, or None for a mean or a rate.
        min_answers: below this many answers in the steady part the figure is not given.
        min_effective: nor below this many effectively independent ones.
    """

    name: str
    words: str
    unit: str
    quantity: str
    margin: float
    percentile: float | None = None
    min_answers: int = 1
    min_effective: float = 0


# The tail varies more from round to round than the middle, so its margin is wider. Margins stand here alone and are
# never chosen after the numbers are known. `min_answers` are LoadGen's, of its early stopping; they count
# independent answers, so `min_effective` stands beside it: of simulated points of 1,000 answers with an autocorrelation
# of .95, worth 25 independent ones, 74 % of the p99's intervals held the truth; at .8 (111 independent ones) 95 %. Of
# points resampled from recorded ones, with 100 to 150 independent answers 90 %, above that 93 %.
METRICS = {
    metric.name: metric
    for metric in (
        Metric("latency_ms_mean", "mean latency", "ms", "latency", 0.05),
        Metric("latency_ms_p50", "median latency", "ms", "latency", 0.05, 50),
        Metric("latency_ms_p90", "90th percentile of latency", "ms", "latency", 0.10, 90, 64),
        Metric("latency_ms_p95", "95th percentile of latency", "ms", "latency", 0.10, 95, 200, 75),
        Metric("latency_ms_p99", "99th percentile of latency", "ms", "latency", 0.15, 99, 662, 150),
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
        raise PhotodupError(f"The judge knows no metric {name!r}: use one of {', '.join(METRICS)}.") from None


@dataclass(frozen=True)
class Side:
    """What is measured: one arm of a comparison.

    Attributes:
        label: what a sentence calls it.
        server, engine, precision, protocol, wire: the parts of a backend (DESIGN §3).
        variant: anything else that was set (`2 instances`, `shared channel`); empty when nothing was.
        machine: the machine or endpoint it ran on (an environment digest, or an endpoint's name).
    """

    label: str
    server: str
    engine: str
    precision: str
    protocol: str
    wire: str
    variant: str = ""
    machine: str = ""


@dataclass(frozen=True)
class Load:
    """What is asked of a side. Two sides are compared only under equal loads.

    Attributes:
        scenario: `single_stream`, `closed_loop`, `server` or `offline`.
        batch: images per request.
        concurrency: requests in flight.
        offered_per_s: open loop only, requests/s.
        connection: `warm`, `new` or `idle:SECONDS`.
        link: name of the link.
        span: `photo` or `prepared`: what a latency holds.
    """

    scenario: str = "closed_loop"
    batch: int = 1
    concurrency: int = 1
    offered_per_s: float | None = None
    connection: str = "warm"
    link: str = "loopback"
    span: str = "photo"

    @property
    def wave(self) -> int:
        """Answers in a wave: as many as requests are in flight. An open loop has no waves."""
        return 1 if self.scenario == "server" else self.concurrency

    def differences(self, other: "Load") -> list[str]:
        """Name each part in which two loads are unlike, with both values."""
        return [
            f"{field.name} {getattr(self, field.name)} and {getattr(other, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]


@dataclass(frozen=True)
class Kind:
    """What an A/A arm vouches for: one quantity over one protocol and one engine."""

    quantity: str
    protocol: str
    engine: str

    @classmethod
    def of(cls, metric: str, side: Side) -> "Kind":
        return cls(metric_named(metric).quantity, side.protocol, side.engine)


@dataclass(frozen=True)
class Figure:
    """A number with its interval, both of the steady part.

    Attributes:
        metric: name in `METRICS`, unit included.
        value, low, high: in the metric's unit; `low <= value <= high`.
        n_answers: answers it rests on.
        n_effective: independent answers that would say as much about the mean.
        confidence: of the interval, 0 to 1.
    """

    metric: str
    value: float
    low: float
    high: float
    n_answers: int
    n_effective: float
    confidence: float = 0.95

    @property
    def half_width(self) -> float:
        """The longer half of the interval, relative to the value."""
        return max(self.high - self.value, self.value - self.low) / self.value


@dataclass(frozen=True)
class Arm:
    """A side under a load: what is measured once in each round."""

    side: Side
    load: Load
