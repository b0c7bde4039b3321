"""One load on one server: the request, the measurement, and the sentences about it."""

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from photodup.bench.anyurl import kserve
from photodup.bench.anyurl.arrivals import Pattern, pattern
from photodup.bench.anyurl.payloads import JSON, Payloads
from photodup.bench.anyurl.target import Target, unreachable
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.backends.http_connection import HttpError
from photodup.bench.backends.server_adapters import OverGrpc, OverHttp
from photodup.bench.link.way import LOOPBACK, Way
from photodup.bench.load.counters import known_account, probe
from photodup.bench.load.load import Probe, measure
from photodup.bench.load.plan import Stopping
from photodup.bench.load.usage import local_server
from photodup.bench.load.workers import ROW, check_rows, common_error, describe_error
from photodup.bench.stats.facts import Load
from photodup.bench.stats.point import Sample
from photodup.bench.stats.sentence import number
from photodup.core.errors import PhotodupError, is_expected
from photodup.embedding.wire.http import AnswerError, Base64Json, Multipart, OpenAi, Post
from photodup.embedding.wire.kserve import KserveGrpc, KserveHttp

BUSY_SHARE = 0.25  # of the cores of a machine that client and server share
FULL_CORE = 0.9
OURS = ("multipart", "base64")


@dataclass(frozen=True)
class Asked:
    """The load on a server.

    Attributes:
        concurrency: requests in flight; in an open loop the most that may be.
        rate_per_s: open loop: requests a second on average; None for a closed loop.
        seconds: longest time of all of it: connecting, warming up, the window, and waiting for what was sent in it.
        shortest_s: a closed loop's window may end here if its figures are precise enough by then.
        processes: of the generator; they share a closed loop's requests in flight.
    """

    concurrency: int = 1
    rate_per_s: float | None = None
    arrivals: Pattern = field(default_factory=lambda: pattern("poisson"))
    connection: str = "warm"
    batch: int = 1
    seconds: float = 20.0
    shortest_s: float = 5.0
    seed: int = 0
    processes: int = 1

    @property
    def load(self) -> Load:
        closed = "single_stream" if self.concurrency == 1 else "closed_loop"
        scenario = closed if self.rate_per_s is None else "server"
        return Load(scenario, self.batch, self.concurrency, self.rate_per_s, self.connection, span="prepared")

    @property
    def is_steady(self) -> bool:
        """The load is the same all the time."""
        return self.rate_per_s is None or self.arrivals.is_steady

    @property
    def window_s(self) -> float:
        """The longest window: an open loop waits for up to a quarter of it for what was sent in it."""
        rest_s = max(self.seconds - (0.5 if self.concurrency > 1 else 0.0), 0.5 * self.seconds)
        return rest_s if self.rate_per_s is None else 0.8 * rest_s

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
    """A load with its measurement.

    Attributes:
        columns: everything known, as the columns of a record: the verdict, the figures with their intervals.
        rows: [answered, len(ROW)] single requests, times in seconds since the window opened.
        errors: failed requests: seconds, sentence.
        sample: what a search for a rate needs.
    """

    asked: Asked
    columns: dict[str, Any]
    rows: np.ndarray
    errors: list[tuple[float, str]]
    sample: Sample


@dataclass(frozen=True)
class Request:
    """One server with what it is sent.

    Attributes:
        shapes, inputs: of `kserve.Requests`.
        encoding: OpenAI: `float` or `base64`.
        is_embedded: a plain POST is answered with `embeddings`, which are read.
    """

    target: Target
    payloads: Payloads
    shapes: Sequence[str] = ()
    inputs: Sequence[str] = ()
    encoding: str = "float"
    is_embedded: bool = False

    def __post_init__(self) -> None:
        if self.payloads.media_type == JSON and not self.target.protocol.startswith("kserve"):
            object.__setattr__(self, "target", replace(self.target, protocol="post"))  # a body, as it is

    def adapter(self, batch: int = 1) -> Any:
        """Return a new adapter; it lives for one measurement.

        Raises:
            PhotodupError: the payload does not fit the server's model, or nothing answers.
        """
        target, payloads = self.target, self.payloads
        columns = {**target.columns(), "payload": payloads.kind}
        http = partial(
            OverHttp,
            target.name,
            connection=target.connection,
            columns=columns,
            headers=target.security.headers,
            method=target.method,
        )
        if target.protocol.startswith("kserve"):
            model = kserve.describe_model(target)
            requests = kserve.Requests(model, payloads, self.inputs, self.shapes)
            requests.check_batch(batch)
            asked = model.name, model.outputs[0].name, model.batched
            if target.protocol == "kserve-http":
                is_json = kserve.takes_json_alone(target)
                return http(KserveHttp(*asked, is_json, target.version), payload=requests.tensors)
            return OverGrpc(
                target.name,
                KserveGrpc(*asked, target.version),
                target.channel,
                columns,
                requests.tensors,
                timeout_s=target.timeout_s,
                metadata=target.metadata,
            )
        if target.protocol == "post" and batch > 1:
            raise PhotodupError("A plain POST carries one file: leave --batch out.")
        if target.protocol == "openai":
            return http(OpenAi(target.path, target.model, payloads.media_type, self.encoding))
        post = partial(Post, is_embedded=self.is_embedded)
        kinds: dict[str, Any] = {"multipart": Multipart, "base64": Base64Json, "post": post}
        return http(kinds[target.protocol](target.path, payloads.media_type))

    def try_once(self, batch: int = 1) -> np.ndarray:
        """Send one request and return what it answers, so that a mistake is said before anything is timed.

        Raises:
            PhotodupError: unreachable, refused, or an answer of another kind; one sentence.
        """
        adapter, target, items = self.adapter(batch), self.target, self.payloads.items
        try:
            with contextlib.closing(adapter.open()) as connection:
                request = adapter.prepare([items[i % len(items)] for i in range(batch)])
                rows = connection.decode(connection.request(request))
            check_rows(rows, batch)
        except HttpError as error:
            raise PhotodupError(
                f"{target.method} {target.name} ({target.protocol}): {error} {_remedy(error.status)}"
            ) from None
        except AnswerError as error:
            raise PhotodupError(f"{target.name} ({target.protocol}): {error}") from None
        except PhotodupError:
            raise
        except Exception as error:
            if not is_expected(error):
                raise
            if hasattr(error, "details") and "DEADLINE" not in str(error):
                raise PhotodupError(f"{target.name} refuses a request: {describe_error(error)}.") from None
            raise unreachable(target.base, error) from None
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


def measure_load(request: Request, asked: Asked, watcher: Watcher, *, label: str = "") -> Measured:
    """Measure one load. A server that fails is a result; its rows up to then are kept.

    Args:
        label: of this measurement, in progress and rows.
    """
    load, adapter, target = asked.load, request.adapter(asked.batch), request.target
    stopping = Stopping(
        min_duration_s=min(asked.shortest_s, asked.window_s), max_duration_s=asked.window_s, seed=asked.seed
    )
    watcher.begin(label or asked.words, asked.window_s)
    counted = counters_of(target)
    server, began = None if counted else local_server(target.url), time.monotonic()
    way = LOOPBACK if target.is_local else Way("network", None)
    columns = measure(
        adapter,
        request.payloads.items,
        load,
        stopping,
        way=way,
        arrivals=asked.arrivals.times_s,
        observer=watcher,
        probe=counted,
        processes=asked.processes,
    )
    if server is not None:
        columns |= server.columns(time.monotonic() - began)
    columns["n_idle_closes"] = adapter.n_idle_closes()
    why = columns["invalid_because"]
    columns["because"] = columns["because"] or why.partition(": ")[2] or why
    raw, rows, errors = columns.pop("raw", None), watcher.rows, watcher.errors
    if raw is None:  # a failed point has no arrays; its answers are in the rows
        raw = {"latency_ms": watcher.latency_ms, "finished_s": rows[:, ROW.index("done")]}
    failed = columns.get("error", "") if not len(raw["latency_ms"]) else ""
    sample = Sample(raw["latency_ms"], raw["finished_s"], len(errors), columns.get("arrived_per_s"), failed)
    return Measured(asked, columns, rows, errors, sample)


def counters_of(target: Target) -> Probe | None:
    """Return what reads the counters of the server around a window; None where it is not known to have any.

    Triton's metrics are looked for at its usual distance: the HTTP port + 2, the gRPC port + 1.

    Raises:
        PhotodupError: there are none at the page that was named.
    """
    is_triton, parts = target.protocol.startswith("kserve"), urlsplit(target.url)
    further = (1 if target.protocol == "kserve-grpc" else 2) if is_triton else 0
    port, is_known = (parts.port or 0) + further, is_triton or target.takes or target.protocol in OURS
    if not target.metrics and (target.is_tls or not parts.port or port > 65535 or not is_known):
        return None
    url = target.metrics or f"http://{parts.netloc.rpartition(':')[0]}:{port}"
    try:
        return probe(url, known_account(url, kserve.counted_models(target) if is_triton else ()))
    except PhotodupError:
        if target.metrics:
            raise
        return None


@dataclass(frozen=True)
class Headline:
    """The plain figures of all requests that were answered in the window, without any statistics.

    Attributes:
        percentiles_ms: 50, 95 and 99 and their latencies; empty without answers.
    """

    requests_per_s: float
    answered: int
    failed: int
    percentiles_ms: dict[int, float]
    max_ms: float

    @property
    def error_share(self) -> float:
        return self.failed / max(1, self.answered + self.failed)

    def is_rare(self, percentile: int) -> bool:
        """Return True where fewer than ten answers lie beyond a percentile."""
        return self.answered * (100 - percentile) < 1000

    def lines(self) -> list[str]:
        """Return the headline for a person."""
        failed = f"{self.failed:,} of {count(self.answered + self.failed, 'request')} failed ({self.error_share:.2%})"
        errors = failed if self.failed else "no errors"
        first = f"{number(self.requests_per_s)} requests/s, {count(self.answered, 'answer')}, {errors}"
        if not self.percentiles_ms:
            return [first]
        parts = [
            f"p{p} {number(value)} ms{' (few answers)' if self.is_rare(p) else ''}"
            for p, value in self.percentiles_ms.items()
        ]
        whose = "latency of those answered" if self.failed else "latency"
        return [first, f"{whose}: {', '.join(parts)}, longest {number(self.max_ms)} ms"]

    def columns(self) -> dict[str, float]:
        """Return it as `--fail-if` and JSON name its figures."""
        latencies = {f"p{p}": value for p, value in self.percentiles_ms.items()}
        return {"rate": self.requests_per_s, "errors": self.error_share, **latencies, "max": self.max_ms}


def headline(measured: Measured) -> Headline:
    """Return the headline of a measurement."""
    seen, duration_s = measured.sample.latency_ms, measured.columns.get("duration_s") or math.nan
    if len(seen) and not duration_s > 0:
        duration_s = float(np.max(measured.sample.finished_s))
    percentiles = {p: float(np.percentile(seen, p)) for p in (50, 95, 99)} if len(seen) else {}
    rate = len(seen) / duration_s if len(seen) else 0.0
    return Headline(
        rate, len(seen), len(measured.errors), percentiles, float(seen.max()) if len(seen) else math.nan
    )


def count(n: int, word: str) -> str:
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def notes(measured: Measured, target: Target, watcher: Watcher) -> list[str]:
    """Return sentences about the faults of a measurement; none for a sound one."""
    columns, asked = measured.columns, measured.asked
    said = []
    if not asked.is_steady:
        said.append(
            f"The load {asked.arrivals.words} is not the same all the time, so there are no intervals and no verdict of "
            "steadiness: the rows and the figure show it second by second."
        )
    elif columns["verdict"] != "valid" and columns["because"] and not measured.errors:
        said.append(f"The measurement is {columns['verdict']}: {columns['because']}.".replace("..", "."))
    if measured.errors:
        most = common_error(measured.errors).rstrip(".")
        said.append(f"{count(len(measured.errors), 'request')} failed, most of them so: {most}.")
    if watcher.stop_asked:
        said.append("It was stopped by you; what was measured until then is kept.")
    cores, share = columns.get("client_cpu_cores", 0.0), columns.get("client_cpu_share", 0.0)
    if cores > FULL_CORE:
        said.append(
            f"The generator kept {cores:.1f} cores busy: it may be the limit, and not the server. "
            "Share it among several with --processes, or run it elsewhere."
        )
    else:
        said += shared_cores(share, target)
    if late := columns.get("n_late_generator"):
        said.append(f"{count(late, 'request')} left the generator late; latency counts from when it was due.")
    if closes := columns.get("n_idle_closes") if asked.connection == "warm" else 0:
        said.append(
            f"The server had closed {count(closes, 'idle connection')}, opened anew within the request: a smaller "
            "--concurrency keeps fewer idle."
        )
    return said


def shared_cores(share: float, *targets: Target) -> list[str]:
    """Return a note where the generator took much of the cores of this machine and one of the servers needs them, too."""
    if share <= BUSY_SHARE or not any(target.is_local for target in targets):
        return []
    taken = f"The generator took {share:.0%} of the cores that a server on this machine needs, too"
    return [f"{taken}: figures under load are lower bounds."]
