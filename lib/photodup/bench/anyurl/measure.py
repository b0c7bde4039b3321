"""Loads on one server: the request, the windows, and the sentences about them."""

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from secrets import randbelow
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from photodup.bench import Columns
from photodup.bench.anyurl import kserve
from photodup.bench.anyurl.payloads import JSON, Payloads
from photodup.bench.anyurl.target import Target, unreachable
from photodup.bench.anyurl.watch import Watcher
from photodup.bench.backends.http_connection import HttpError
from photodup.bench.backends.server_adapters import GrpcAdapter, HttpAdapter
from photodup.bench.link.emulate import LOOPBACK, NetworkPath
from photodup.bench.load.counters import check_page, meter
from photodup.bench.load.plan import ARRIVALS, WindowPlan
from photodup.bench.load.usage import local_usage
from photodup.bench.load.window import Meter, measure
from photodup.bench.load.workers import check_rows, clock, common_error, describe_error
from photodup.bench.stats.figures import (
    FEWEST_VISITS,
    Figure,
    figures_of_windows,
    interval,
    percentile_figure,
)
from photodup.bench.stats.metrics import Load
from photodup.bench.stats.sentence import number
from photodup.core.errors import PhotodupError, is_expected
from photodup.core.names import count
from photodup.embedding.wire.http import AnswerError, Base64Json, Multipart, OpenAi, Post
from photodup.embedding.wire.kserve import KserveGrpc, KserveHttp

BUSY_SHARE = 0.25  # of the cores of a machine that client and server share
MOST_VISITS, VISIT_S, GRACE_S = 10, 2.5, 30.0
OURS = ("multipart", "base64")


@dataclass(frozen=True)
class LoadSpec:
    """The load on a server.

    Attributes:
        concurrency: requests in flight; in an open loop the most that may be.
        rate_per_s: open loop: requests a second on average; None for a closed loop.
        seconds: longest time of all visits, each with connecting, warming up, the window, and waiting for late answers.
        processes: of the generator; they share a closed loop's requests in flight.
    """

    concurrency: int = 1
    rate_per_s: float | None = None
    arrivals: str = "poisson"
    connection: str = "warm"
    batch: int = 1
    seconds: float = 20.0
    seed: int = field(default_factory=partial(randbelow, 10**6))
    processes: int = 1

    @property
    def load(self) -> Load:
        closed = "single_stream" if self.concurrency == 1 else "closed_loop"
        scenario = closed if self.rate_per_s is None else "server"
        return Load(scenario, self.batch, self.concurrency, self.rate_per_s, self.connection, span="prepared")

    @property
    def n_visits(self) -> int:
        """Windows into which the time is split."""
        most_visits = MOST_VISITS if self.processes == 1 else FEWEST_VISITS  # processes start anew for each
        return min(max(FEWEST_VISITS, round(self.seconds / VISIT_S)), most_visits)

    def window(self, visit: int = 0) -> WindowPlan:
        """Return the window of a visit; an open loop then waits for late answers, up to a quarter of its length."""
        visit_s = self.seconds / self.n_visits
        is_closed = self.rate_per_s is None
        ramp_s = min(0.5, visit_s / 4) if is_closed and self.concurrency > 1 else 0.0
        seconds = 0.95 * visit_s - ramp_s if is_closed else 0.8 * visit_s
        # A slow server may take longer for two waves, so that fewer visits fit.
        longest_s = max(seconds, self.seconds / (2 * FEWEST_VISITS))
        return WindowPlan(
            seconds, 1, warmup_requests=1, ramp_s=ramp_s, seed=self.seed + visit, longest_s=longest_s
        )

    @property
    def label(self) -> str:
        """What sets this load apart from others in the same turns."""
        closed = f"{self.concurrency} in flight"
        return closed if self.rate_per_s is None else f"{self.rate_per_s:.4g} requests/s"

    @property
    def description(self) -> str:
        """This load in one clause."""
        batch = f", {self.batch} items a request" if self.batch > 1 else ""
        connections = f"{self.connection} connections{batch}"
        if self.rate_per_s is None:
            return f"{self.label}, {connections}"
        return f"{self.label} ({self.arrivals}), at most {self.concurrency} in flight, {connections}"


@dataclass(frozen=True)
class LoadWindow:
    """One window of a load.

    Attributes:
        columns: as `window.measure` returns them.
        rows: [answered, len(COLUMNS)] single requests, times in seconds since the window opened.
        errors: failed requests: seconds, sentence.
        began_s: when it was begun, seconds since the first of all.
    """

    columns: Columns
    rows: np.ndarray
    errors: list[tuple[float, str]]
    began_s: float

    @property
    def latency_ms(self) -> np.ndarray:
        """Latencies of the answers that came before the window closed, ms."""
        return np.asarray(self.columns["raw"]["latency_ms"]) if "raw" in self.columns else np.empty(0)


@dataclass(frozen=True)
class MeasuredLoad:
    """A load with its windows, one a visit: each figure is the mean over visits with its 95% interval between them."""

    spec: LoadSpec
    windows: list[LoadWindow] = field(repr=False)

    @cached_property
    def columns(self) -> Columns:
        """The figures of all windows, as `figures_of_windows` names them."""
        return figures_of_windows([window.columns for window in self.windows])

    @property
    def latencies_ms(self) -> list[np.ndarray]:
        """The latencies of each visit with an answer, ms."""
        return [window.latency_ms for window in self.windows if len(window.latency_ms)]

    @property
    def errors(self) -> list[tuple[float, str]]:
        return [error for window in self.windows for error in window.errors]

    @property
    def n_answered(self) -> int:
        return sum(map(len, self.latencies_ms))

    @property
    def n_failed(self) -> int:
        return len(self.errors)

    @property
    def error_share(self) -> float:
        return self.n_failed / max(1, self.n_answered + self.n_failed)

    @property
    def requests_per_s(self) -> Figure:
        windows = [window.columns for window in self.windows if len(window.latency_ms)]
        rates = [columns["throughput_images_per_s"] / self.spec.batch for columns in windows]
        return interval(rates) if rates else (0.0, None, None)

    @cached_property
    def percentiles_ms(self) -> dict[int, Figure]:
        """50, 95 and 99; empty without answers. Of 95 and 99 the answers of all visits are pooled."""
        latencies = self.latencies_ms
        return {p: percentile_figure(latencies, p) for p in (50, 95, 99)} if latencies else {}

    def figures(self) -> dict[str, float]:
        """Return the figures as `--fail-if` and JSON name them; latencies only where something was answered."""
        latencies = {f"p{p}": figure[0] for p, figure in self.percentiles_ms.items()}
        longest = {"max": float(max(map(np.max, self.latencies_ms)))} if latencies else {}
        return {"rate": self.requests_per_s[0], "errors": self.error_share, **latencies, **longest}

    def lines(self) -> list[str]:
        """Return the figures for a person; a percentile with fewer than ten answers beyond it is marked."""
        sent = count(self.n_answered + self.n_failed, "request")
        errors = (
            f"{self.n_failed:,} of {sent} failed ({self.error_share:.2%})" if self.n_failed else "no errors"
        )
        rate, answers = with_interval(self.requests_per_s), count(self.n_answered, "answer")
        first = f"{rate} requests/s, {answers}, {errors}"
        if not self.percentiles_ms:
            return [first]
        parts = [
            f"p{p} {number(figure[0])} ms (few answers)"
            if self.n_answered * (100 - p) < 1000
            else f"p{p} {with_interval(figure)} ms"
            for p, figure in self.percentiles_ms.items()
        ]
        subject = "latency of those answered" if self.n_failed else "latency"
        return [first, f"{subject}: {', '.join(parts)}, longest {number(self.figures()['max'])} ms"]


@dataclass(frozen=True)
class LoadTarget:
    """One server with what it is sent.

    Attributes:
        shapes, inputs: of `kserve.TensorMaker`.
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

    def adapter(self, batch: int = 1) -> HttpAdapter | GrpcAdapter:
        """Return a new adapter; it lives for one measurement.

        Raises:
            PhotodupError: the payload does not fit the server's model, or nothing answers.
        """
        target, payloads = self.target, self.payloads
        columns = {**target.columns(), "payload": payloads.kind}
        http = partial(
            HttpAdapter,
            target.name,
            connection=target.connection,
            columns=columns,
            headers=target.security.headers,
            method=target.method,
        )
        if target.protocol.startswith("kserve"):
            model = kserve.describe_model(target)
            maker = kserve.TensorMaker(model, payloads, self.inputs, self.shapes)
            maker.check_batch(batch)
            signature = model.name, model.outputs[0].name, model.batched
            if target.protocol == "kserve-http":
                is_json = kserve.takes_json_alone(target)
                return http(KserveHttp(*signature, is_json, target.version), to_input=maker.tensors)
            return GrpcAdapter(
                target.name,
                KserveGrpc(*signature, target.version),
                target.channel,
                columns,
                maker.tensors,
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


def measure_loads(server: LoadTarget, specs: Sequence[LoadSpec], watcher: Watcher) -> list[MeasuredLoad]:
    """Measure loads of one server in turns: each visit has a window of every one, in an order drawn anew.

    A server that fails is a result. Measuring ends when the server is dead, or when the time is over and each load has
    `FEWEST_VISITS` windows, which may take up to `GRACE_S` longer.

    Args:
        specs: each with its share of the time.

    Raises:
        PhotodupError: it was stopped before the first window.
    """
    began, seconds, draw = clock(), sum(spec.seconds for spec in specs), random.Random(specs[0].seed)
    windows: list[list[LoadWindow]] = [[] for _ in specs]
    longest_s, counters = 0.0, counters_of(server.target)
    for visit in range(specs[0].n_visits):
        visit_began = clock()
        if visit_began - began + longest_s > seconds + (0 if visit >= FEWEST_VISITS else GRACE_S):
            break
        for index in draw.sample(range(len(specs)), len(specs)):
            has_failed = bool(windows[index]) and "raw" not in windows[index][-1].columns
            if not (has_failed or watcher.is_stopped or watcher.is_dead):
                window = _measure_window(server, specs[index], visit, watcher, counters, began)
                windows[index].append(window)
        longest_s = max(longest_s, clock() - visit_began)
    if not any(windows):
        raise PhotodupError("It was stopped before anything was measured.")
    return [MeasuredLoad(spec, of_spec) for spec, of_spec in zip(specs, windows, strict=True) if of_spec]


def _measure_window(
    server: LoadTarget, spec: LoadSpec, visit: int, watcher: Watcher, counters: Meter | None, began: float
) -> LoadWindow:
    adapter, target, plan = server.adapter(spec.batch), server.target, spec.window(visit)
    watcher.begin(f"{spec.description}, visit {visit + 1} of {spec.n_visits}", plan.seconds)
    columns = measure(
        adapter,
        server.payloads.items,
        spec.load,
        plan,
        network=LOOPBACK if target.is_local else NetworkPath("network", None),
        arrivals=ARRIVALS[spec.arrivals],
        observer=watcher,
        meter=counters or partial(local_usage, target.url),
        processes=spec.processes,
    )
    columns["n_idle_closes"] = adapter.n_idle_closes()
    return LoadWindow(columns, watcher.rows, watcher.errors, max(watcher.opened_s - began, 0.0))


def counters_of(target: Target) -> Meter | None:
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
    headers = target.security.headers if urlsplit(url).netloc == parts.netloc else {}
    try:
        models = kserve.counted_models(target) if is_triton else ()
        check_page(url, models, headers)
        return meter(url, models, headers)
    except PhotodupError:
        if target.metrics:
            raise
        return None


def with_interval(figure: Figure) -> str:
    """Return a figure in words: three digits, and its interval where it has one."""
    value, low, high = figure
    return (
        number(value) if low is None or high is None else f"{number(value)} [{number(low)}, {number(high)}]"
    )


def notes(measured: MeasuredLoad, target: Target, watcher: Watcher) -> list[str]:
    """Return sentences about the faults of a measurement; none for a sound one."""
    columns, spec, errors = measured.columns, measured.spec, measured.errors
    sentences = [f"{note[0].upper()}{note[1:]}." for note in columns.get("notes", "").split("; ") if note]
    failed = [window.columns["error"] for window in measured.windows if "raw" not in window.columns]
    if errors:
        common = common_error(errors).rstrip(".")
        sentences.append(f"{count(len(errors), 'request')} failed, most of them so: {common}.")
    elif failed:
        which = f"{len(failed)} of {count(len(measured.windows), 'window')} could not be measured"
        sentences.append(f"{which}: {failed[-1].rstrip('.')}.")
    if watcher.is_stopped:
        sentences.append("It was stopped by you; what was measured until then is kept.")
    cores, share = columns.get("client_cpu_cores", 0.0), columns.get("client_cpu_share", 0.0)
    if columns.get("client_bound"):
        processes = "one process" if spec.processes == 1 else f"{spec.processes} processes"
        sentences.append(
            f"The generator kept {cores:.1f} cores busy, more than a third of what {processes} can: its own cost is in the "
            "figures. Share it among several with --processes, or run it elsewhere."
        )
    else:
        sentences += notes_on_cores(share, target)
    if closes := columns.get("n_idle_closes") if spec.connection == "warm" else 0:
        sentences.append(
            f"The server had closed {count(closes, 'idle connection')}, opened anew within the request: a smaller "
            "--concurrency keeps fewer idle."
        )
    return sentences


def notes_on_cores(share: float, *targets: Target) -> list[str]:
    """Return a note where the generator took much of the cores of this machine and one of the servers needs them, too."""
    if share <= BUSY_SHARE or not any(target.is_local for target in targets):
        return []
    sentence = f"The generator took {share:.0%} of the cores that a server on this machine needs, too"
    return [f"{sentence}: figures under load are lower bounds."]
