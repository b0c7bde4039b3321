"""One load on one server: what is asked, how it is watched, and what is said of it afterwards."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from photodup.bench.anyurl import kserve
from photodup.bench.anyurl.arrivals import Pattern, pattern
from photodup.bench.anyurl.payloads import Payloads
from photodup.bench.anyurl.target import Target, unreachable
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.backends.adapter import AnswerError, decoded
from photodup.bench.backends.http_connection import HttpError
from photodup.bench.backends.server_adapters import OverGrpc, OverHttp
from photodup.bench.link.way import LOOPBACK, Way
from photodup.bench.load.load import measure
from photodup.bench.load.plan import Stopping
from photodup.bench.load.workers import ROW, describe_error
from photodup.bench.stats import facts
from photodup.bench.stats.facts import Load
from photodup.bench.stats.point import Point, Sample, judge_point
from photodup.embedding.wire.http import Base64Json, Multipart, OpenAi, Post
from photodup.embedding.wire.kserve import KserveGrpc, KserveHttp
from photodup.errors import PhotodupError, is_expected

BUSY_SHARE = 0.25  # of the cores of a machine that client and server share
FULL_CORE = 0.9


@dataclass(frozen=True)
class Asked:
    """What is asked of a server.

    Attributes:
        concurrency: requests in flight; in an open loop the most that may be.
        rate_per_s: open loop: requests a second on average; None for a closed loop.
        seconds: longest time.
        shortest_s: a closed loop may end here if its figures are precise enough by then.
        half_width, precise: relative half-width asked of the intervals of these figures.
    """

    concurrency: int = 1
    rate_per_s: float | None = None
    arrivals: Pattern = field(default_factory=lambda: pattern("poisson"))
    connection: str = "warm"
    batch: int = 1
    seconds: float = 20.0
    shortest_s: float = 5.0
    half_width: float = 0.05
    precise: tuple[str, ...] = Stopping.precise
    seed: int = 0

    @property
    def load(self) -> Load:
        closed = "single_stream" if self.concurrency == 1 else "closed_loop"
        scenario = closed if self.rate_per_s is None else "server"
        return Load(scenario, self.batch, self.concurrency, self.rate_per_s, self.connection, span="prepared")

    @property
    def words(self) -> str:
        """This load in one clause."""
        batch = f", {self.batch} items a request" if self.batch > 1 else ""
        how = f"{self.connection} connections{batch}"
        if self.rate_per_s is None:
            return f"{self.concurrency} in flight, {how}"
        return f"{self.rate_per_s:.4g} requests/s ({self.arrivals.words}), at most {self.concurrency} in flight, {how}"


@dataclass(frozen=True)
class Measured:
    """What came of a load.

    Attributes:
        point: what the judge says; its figures with their intervals.
        columns: everything known, as the columns of a record.
        rows: [answered, len(ROW)] single requests, times in seconds since the window opened.
        errors: failed requests: seconds, sentence.
        sample: what a search for a rate needs.
    """

    asked: Asked
    point: Point
    columns: dict[str, Any]
    rows: np.ndarray
    errors: list[tuple[float, str]]
    sample: Sample


def adapter_of(
    target: Target,
    payloads: Payloads,
    *,
    shapes: Sequence[str] = (),
    inputs: Sequence[str] = (),
    encoding: str = "float",
    batch: int = 1,
) -> Any:
    """Return the adapter of a target; it lives for one measurement.

    Raises:
        PhotodupError: the payload does not fit the server's model, or nothing answers.
    """
    columns = {**target.columns(), "payload": payloads.kind}
    http = partial(
        OverHttp,
        target.name,
        connection=target.connection,
        columns=columns,
        headers=target.security.headers,
        target=target,
    )
    if target.protocol.startswith("kserve"):
        model = kserve.describe_model(target)
        requests = kserve.Requests(model, payloads, inputs, shapes)
        requests.check_batch(batch)
        asked = model.name, model.outputs[0].name, model.batched
        if target.protocol == "kserve-http":
            return http(KserveHttp(*asked), payload=requests.tensors)
        return OverGrpc(
            target.name,
            KserveGrpc(*asked),
            target.channel,
            columns,
            requests.tensors,
            timeout_s=target.timeout_s,
            metadata=target.metadata,
            target=target,
        )
    if target.protocol == "post" and batch > 1:
        raise PhotodupError("A plain POST carries one file: leave --batch out.")
    if target.protocol == "openai":
        return http(OpenAi(target.path, target.model, payloads.media_type, encoding))
    kinds: dict[str, Any] = {"multipart": Multipart, "base64": Base64Json, "post": Post}
    return http(kinds[target.protocol](target.path, payloads.media_type))


def try_once(adapter: Any, payloads: Payloads, batch: int) -> np.ndarray:
    """Send one request and return what it answers, so that a mistake is said before anything is timed.

    Raises:
        PhotodupError: unreachable, refused, or an answer of another kind; one sentence.
    """
    connection = adapter.open()
    target = adapter.target
    try:
        request = adapter.prepare([payloads.items[i % len(payloads.items)] for i in range(batch)])
        rows = decoded(connection, connection.request(request))
    except HttpError as error:
        raise PhotodupError(
            f"POST {target.name} ({target.protocol}): {error} {_remedy(error.status)}"
        ) from None
    except AnswerError as error:
        raise PhotodupError(f"{target.name} ({target.protocol}): {error}") from None
    except PhotodupError:
        raise
    except Exception as error:
        if not is_expected(error):
            raise
        if hasattr(error, "details"):
            raise PhotodupError(f"{target.name} refuses a request: {describe_error(error)}.") from None
        raise unreachable(target.base, error) from None
    finally:
        connection.close()
    if len(rows) != batch:
        raise PhotodupError(
            f"{target.name} answered {len(rows)} items for {batch}: is the protocol {target.protocol} right?"
        )
    return rows


def _remedy(status: int) -> str:
    return {
        0: "Name what it speaks with --protocol, and mind http and https.",
        401: "Give its key with --api-key env:NAME.",
        403: "Give its key with --api-key env:NAME.",
        404: "Correct the path of the URL, or name the protocol with --protocol.",
        405: "Correct the path of the URL, or name the protocol with --protocol.",
        415: "Name what it speaks with --protocol.",
        429: "It is asked too much: try later.",
        503: "It has no room or is still starting: try later.",
    }.get(status, "Change what is sent (--file, --text, --payload, --shape) or the protocol (--protocol).")


def measure_load(
    make: Callable[[], Any], payloads: Payloads, asked: Asked, watcher: Watcher, *, label: str = ""
) -> Measured:
    """Measure one load. A server that fails is a result; its rows up to then are kept.

    Args:
        make: a new adapter.
        label: of this measurement, in progress and rows.
    """
    load, adapter = asked.load, make()
    stopping = Stopping(
        min_duration_s=min(asked.shortest_s, asked.seconds),
        max_duration_s=asked.seconds,
        half_width=asked.half_width,
        precise=asked.precise,
        seed=asked.seed,
    )
    watcher.begin(label or asked.words, asked.seconds)
    way = LOOPBACK if adapter.target.is_local else Way("network", None)
    columns = measure(
        adapter,
        payloads.items,
        load,
        stopping,
        way=way,
        arrivals=asked.arrivals.times_s,
        observer=watcher,
    )
    columns["n_connections_reopened"] = adapter.n_reopened()
    raw = columns.pop("raw", {"latency_ms": np.empty(0), "finished_s": np.empty(0)})
    rows, errors = watcher.kept()
    if not len(raw["latency_ms"]) and len(
        rows
    ):  # a failed point gives no arrays; its answers are in the rows
        done = rows[:, ROW.index("done")]
        raw = {"latency_ms": (done - rows[:, ROW.index("due")]) * 1000, "finished_s": done}
    failed = columns.get("error", "") if not len(raw["latency_ms"]) else ""
    sample = Sample(raw["latency_ms"], raw["finished_s"], len(errors), columns.get("arrived_per_s"), failed)
    point = judge_point(sample, load, looks=stopping.looks)
    if point.verdict == "valid" and not columns.get("valid"):
        point = replace(point, verdict="unsteady", because=str(columns["invalid_because"]).partition(": ")[2])
    if point.verdict == "failed" and columns.get("invalid_because"):
        point = replace(point, because=columns["invalid_because"])
    return Measured(asked, point, columns, rows, errors, sample)


def notes(measured: Measured, target: Target, watcher: Watcher) -> list[str]:
    """Say what is wrong with a measurement, and what its figures do not hold; nothing for a sound one."""
    point, columns, asked = measured.point, measured.columns, measured.asked
    said = []
    if point.verdict != "valid" and point.because:
        said.append(f"The measurement is {point.verdict}: {point.because}.".replace("..", "."))
    if not asked.arrivals.is_steady and asked.rate_per_s is not None:
        said.append(
            f"The load {asked.arrivals.words} is not the same all the time: the intervals below take it for "
            "one that is; the rows and the figure show it second by second."
        )
    if measured.errors:
        said.append(
            f"{len(measured.errors)} requests failed, most of them so: {columns_error(measured.errors)}."
        )
    if watcher.stop_asked:
        said.append("It was stopped by you; what was measured until then is kept.")
    cores, share = columns.get("client_cpu_cores", 0.0), columns.get("client_cpu_share", 0.0)
    if cores > FULL_CORE:
        said.append(
            f"The generator kept {cores:.1f} cores busy: it may be the limit, and not the server. "
            "Run it elsewhere, several at once."
        )
    elif target.is_local and share > BUSY_SHARE:
        said.append(
            f"The generator took {share:.0%} of the cores that the server on this machine needs, too: "
            "figures under load are lower bounds."
        )
    if columns.get("n_late_generator"):
        said.append(
            f"{columns['n_late_generator']} requests left the generator late; latency counts from when they were due."
        )
    if reopened := columns.get("n_connections_reopened") if asked.connection == "warm" else 0:
        said.append(
            f"The server had closed {reopened} idle connections, which were opened anew within the request: "
            "a smaller --concurrency keeps fewer idle."
        )
    missing = [name for name in ("latency_ms_p95", "latency_ms_p99") if name not in point.figures]
    if missing and point.steady is not None and point.verdict in ("valid", "imprecise"):
        metric = facts.metric_named(missing[0])
        say = "no 99th percentile" if len(missing) == 1 else "neither 95th nor 99th percentile"
        said.append(
            f"There is {say}: {point.steady.n_answers} answers, worth {point.steady.n_effective:.0f} "
            f"independent ones; {metric.min_answers} and {metric.min_effective:.0f} are needed. Measure longer."
        )
    return said


def columns_error(errors: Sequence[tuple[float, str]]) -> str:
    texts = [text for _, text in errors]
    return max(set(texts), key=texts.count).rstrip(".")


def plain_columns(measured: Measured) -> dict[str, Any]:
    """Return the columns of a measurement as JSON can hold them."""
    kept = {}
    for name, value in (measured.columns | measured.point.columns()).items():
        number = value.item() if isinstance(value, np.generic) else value
        if isinstance(number, Path):
            number = str(number)
        kept[name] = None if isinstance(number, float) and not math.isfinite(number) else number
    return kept
