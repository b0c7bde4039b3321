"""Recorded points as material: read from a run, resampled with their bursts, disturbed by drift and slow spells."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from photodup.bench.record import latencies
from photodup.bench.record.json_files import RecordError
from photodup.bench.record.record import read_record
from photodup.bench.stats.facts import Load
from photodup.bench.stats.point import Looks, Point, Sample, judge_point
from photodup.errors import PhotodupError

RECORDED_LOOKS = Looks(lengths_s=(60.0,))  # a recorded point is looked at once, when it is over


@dataclass(frozen=True)
class Trace:
    """The raw answers of one recorded point, in order of completion.

    Attributes:
        key: of its record.
        load: what was asked.
        latency_ms, finished_s: [n_answers].
        was_valid: what it was called when it was measured.
    """

    key: str
    load: Load
    latency_ms: np.ndarray
    finished_s: np.ndarray
    was_valid: bool
    n_errors: int
    scheduled_per_s: float | None

    @property
    def sample(self) -> Sample:
        return Sample(self.latency_ms, self.finished_s, self.n_errors, self.scheduled_per_s)

    def judge(self) -> Point:
        return judge_point(self.sample, self.load, looks=RECORDED_LOOKS)


def read_traces(run_dir: Path | str) -> Iterator[Trace]:
    """Yield every point of a run that kept its raw latencies.

    Raises:
        PhotodupError: the run has none.
        RecordError: a record or its raw file is damaged.
    """
    found = 0
    records = [(path.stem, read_record(path)) for path in (Path(run_dir) / "records").glob("*.json")]
    for stem, record in sorted(records, key=lambda named: (named[1]["started_at"], named[1]["key"])):
        result = record["result"]
        if not record["has_raw"] or "scenario" not in result:
            continue
        arrays = latencies.read(Path(run_dir), stem)
        if not {"latency_ms", "finished_s"} <= arrays.keys():
            raise RecordError(f"{run_dir} has no single requests of {record['key']}: restore them from git.")
        latency, finished = arrays["latency_ms"].astype(float), arrays["finished_s"].astype(float)
        order = np.argsort(finished, kind="stable")
        found += 1
        yield Trace(
            record["key"],
            _load(result),
            latency[order],
            finished[order],
            bool(result.get("valid")),
            int(result.get("n_errors") or 0),
            None,  # not every record has the rate that was drawn; overload was judged then
        )
    if not found:
        raise PhotodupError(f"{run_dir} has no point with raw latencies: name a run that was measured here.")


def _load(result: dict) -> Load:
    names = ("scenario", "batch", "concurrency", "offered_per_s", "connection", "link", "span")
    return Load(**{name: result[name] for name in names if result.get(name) is not None})


@dataclass(frozen=True)
class Source:
    """A steady trace as a source of simulated points: its own mean and percentiles are the truth.

    Attributes:
        wave: answers in a wave.
        latency_ms, gap_s: [n] of each answer: its latency, and the time since the answer before it.
    """

    key: str
    wave: int
    latency_ms: np.ndarray
    gap_s: np.ndarray

    @property
    def throughput_per_s(self) -> float:
        return 1 / float(self.gap_s.mean())

    def truth(self, metric: str) -> float:
        """The value that an endless resampling has, in the metric's unit, at one image a request."""
        if metric == "throughput_images_per_s":
            return self.throughput_per_s
        if metric == "latency_ms_mean":
            return float(self.latency_ms.mean())
        return float(np.percentile(self.latency_ms, float(metric.removeprefix("latency_ms_p"))))

    def draw(self, n_answers: int, generator: np.random.Generator, stretch_waves: int = 8) -> Sample:
        """Return a resampled point: stretches of the trace of random length, in whole waves, laid end to end.

        This is the stationary bootstrap (Politis and Romano 1994) on waves: bursts and spells of up to some
        `stretch_waves` waves stay as they were, and the trace's own distribution is the truth.
        """
        n, wave = len(self.latency_ms), self.wave
        waves = -(-n_answers // wave)
        starts_new = generator.random(waves) < 1 / stretch_waves
        starts_new[0] = True
        begin = generator.integers(0, n // wave, waves)
        since = np.arange(waves) - np.maximum.accumulate(np.where(starts_new, np.arange(waves), 0))
        origin = begin[np.maximum.accumulate(np.where(starts_new, np.arange(waves), 0))]
        picked = ((origin + since) % (n // wave))[:, None] * wave + np.arange(wave)
        picked = picked.ravel()[:n_answers]
        return Sample(self.latency_ms[picked], np.cumsum(self.gap_s[picked]))


def sources(traces: Iterator[Trace], min_answers: int = 400) -> list[Source]:
    """Return the traces that can stand for a truth: closed loops, valid by the judge, with enough answers."""
    found = []
    for trace in traces:
        if trace.load.scenario == "server" or len(trace.latency_ms) < min_answers:
            continue
        point = trace.judge()
        if point.steady is None or point.verdict != "valid":
            continue
        first, wave = point.steady.first, trace.load.wave
        last = first + (point.steady.n_answers // wave) * wave
        gaps = np.diff(trace.finished_s[first - 1 : last])
        if gaps.sum() > 0:
            found.append(Source(trace.key, wave, trace.latency_ms[first:last], gaps))
    if not found:
        raise PhotodupError("No recorded point is long and steady enough to simulate from: name another run.")
    return found


def disturbed(
    sample: Sample, generator: np.random.Generator, *, drift: float, spells: int, slowdown: float
) -> Sample:
    """Return the sample as a machine with other work on it would have given it.

    Args:
        drift: the sample ends slower by this share than it began; 0 is none.
        spells: slow spells, each of 1 to 5 % of the answers, at random places.
        slowdown: answers within a spell take this many times as long.
    """
    n = len(sample.latency_ms)
    factor = 1 + drift * np.linspace(-0.5, 0.5, n)
    for _ in range(spells):
        length = max(1, int(n * generator.uniform(0.01, 0.05)))
        begin = int(generator.integers(0, max(1, n - length)))
        factor[begin : begin + length] *= slowdown
    return scaled(sample, factor)


def scaled(sample: Sample, factor: float | np.ndarray) -> Sample:
    """Return the sample with every latency, and every gap between answers, times `factor`."""
    gaps = np.diff(sample.finished_s, prepend=0.0) * factor
    return Sample(sample.latency_ms * factor, np.cumsum(gaps))
