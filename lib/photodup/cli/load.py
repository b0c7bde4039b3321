"""`photodup load`, `gate` and `verify`: measure any server, and check one that answers embeddings."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from secrets import randbelow
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Exit, Option

from photodup.cli.options import with_groups
from photodup.core.errors import PhotodupError
from photodup.core.extras import require

if TYPE_CHECKING:
    from photodup.bench.anyurl.measure import LoadSpec
    from photodup.bench.anyurl.payloads import Payloads
    from photodup.bench.anyurl.target import Target

Seed = Annotated[
    int, Option(help="random seed", show_default="drawn", default_factory=partial(randbelow, 10**6))
]
AsJson = Annotated[bool, Option("--json", help="print the result as JSON, all else on stderr")]


@dataclass(frozen=True)
class ServerOptions:
    """Options of the requests to a server; a second `--protocol` or `--model` is for the second server."""

    protocol: Annotated[
        list[str] | None,
        Option(
            help="multipart, base64, openai, kserve-http, kserve-grpc, post; read from the URL by default"
        ),
    ] = None
    model: Annotated[list[str] | None, Option(help="KServe, OpenAI: name of the model")] = None
    header: Annotated[
        list[str] | None, Option("--header", "-H", help="'Name: value' or 'Name: env:NAME'; repeat")
    ] = None
    api_key: Annotated[str | None, Option(help="env:NAME, sent as Authorization: Bearer")] = None
    ca: Annotated[Path | None, Option(help="TLS: certificate of the authority")] = None
    cert: Annotated[Path | None, Option(help="TLS: certificate of this client")] = None
    key: Annotated[Path | None, Option(help="TLS: key of this client")] = None
    insecure: Annotated[bool, Option("--insecure", help="TLS: do not check the server's certificate")] = False

    def target(self, url: str, number: int = 0, **options: Any) -> "Target":
        """Return the server at `url`, the command's URL number `number` from 0; `options` go to `target_of`."""
        from photodup.bench.anyurl.target import Security, header_values, target_of

        headers = header_values(self.header or [], self.api_key)
        security = Security(headers, not self.insecure, self.ca, self.cert, self.key)
        for name, values in (("protocol", self.protocol), ("model", self.model)):
            if values:
                options[name] = values[min(number, len(values) - 1)]
        return target_of(url, security=security, **options)


@dataclass(frozen=True)
class PayloadOptions:
    """Options that say what is sent."""

    file: Annotated[list[Path] | None, Option(help="file or folder to send; repeat")] = None
    text: Annotated[list[str] | None, Option(help="text to send; repeat")] = None
    payload: Annotated[str | None, Option(help="kind to generate or send: images, texts or files")] = None

    def payloads(self, target: "Target") -> "Payloads":
        from photodup.bench.anyurl.payloads import payloads_for

        return payloads_for(target, kind=self.payload, paths=self.file or [], texts=self.text or [])


@dataclass(frozen=True)
class RequestOptions:
    """Options of a single request."""

    method: Annotated[str, Option(help="HTTP method of a plain request: POST, GET, PUT")] = "POST"
    shape: Annotated[list[str] | None, Option(help="KServe: NAME=3,224,224; repeat")] = None
    input: Annotated[list[str] | None, Option(help="KServe: NAME=FILE.npy; repeat")] = None
    encoding: Annotated[Literal["float", "base64"], Option(help="OpenAI: encoding of the answer")] = "float"
    batch: Annotated[int, Option(min=1, help="items in a request")] = 1
    timeout: Annotated[
        float | None, Option(min=0.1, help="seconds for one answer; default --seconds, 10 to 60")
    ] = None


@dataclass(frozen=True)
class LoadOptions:
    """Options of the load: how many requests, how fast, and for how long."""

    concurrency: Annotated[
        str | None, Option(help="requests in flight; default 1 (open loop: 64); 1,2,4,8 measures each")
    ] = None
    processes: Annotated[int, Option(min=1, help="generator processes that share the requests in flight")] = 1
    rate: Annotated[
        str | None,
        Option(help="open loop: requests/s, sent whatever the server does; 10,20,40 measures each"),
    ] = None
    arrivals: Annotated[
        Literal["poisson", "uniform"], Option(help="open loop: at random times, or evenly spaced")
    ] = "poisson"
    connection: Annotated[Literal["warm", "new"], Option(help="new: one for each request")] = "warm"
    seconds: Annotated[
        float | None, Option(min=1, help="longest duration of all loads; default 20, with --compare 60")
    ] = None
    seed: Seed = field(kw_only=True)

    def specs(self, batch: int, default_s: float) -> "list[LoadSpec]":
        """Return a load for each number in `--concurrency` or `--rate`; they share the time.

        Raises:
            PhotodupError: options that do not fit together.
        """
        from photodup.bench.anyurl.measure import LoadSpec

        in_flight = _numbers("--concurrency", self.concurrency, int)
        rates = _numbers("--rate", self.rate, float)
        if self.arrivals != "poisson" and not rates:
            raise PhotodupError(f"The arrivals {self.arrivals} belong to an open loop: say its --rate.")
        if rates and (len(in_flight) > 1 or self.processes > 1):
            raise PhotodupError(
                "Several numbers in --concurrency are measured in turns, --processes share one closed loop: leave "
                "--rate out."
            )
        loads = [(n, rate) for n in in_flight or [64 if rates else 1] for rate in rates or [None]]
        seconds = (self.seconds or default_s) / len(loads)
        fixed = self.arrivals, self.connection, batch, seconds, self.seed, self.processes
        return [LoadSpec(n, rate, *fixed) for n, rate in loads]


def _numbers(option: str, text: str | None, kind: Callable[[str], Any]) -> list[Any]:
    """Return the numbers of an option, `8` or `1,2,4,8`; none without it."""
    try:
        numbers = [kind(part) for part in text.split(",")] if text else []
    except ValueError:
        numbers = [0]
    if not all(0 < number < float("inf") for number in numbers):
        raise PhotodupError(f"{option} is a number above 0, or several as 1,2,4,8, not {text!r}.")
    return numbers


@dataclass(frozen=True)
class QuestionOptions:
    """Options that ask for more than the figures of a load."""

    compare: Annotated[bool, Option("--compare", help="compare two URLs, which take turns")] = False
    fail_if: Annotated[
        list[str] | None, Option(help="end with status 1: 'p95>100ms', 'errors>1%', 'rate<50'; repeat")
    ] = None


@with_groups
def load(
    urls: Annotated[list[str], Argument(help="URL of the server; two with --compare")],
    load_options: LoadOptions,
    question: QuestionOptions,
    server: ServerOptions,
    payload: PayloadOptions,
    request: RequestOptions,
    metrics: Annotated[
        str | None, Option(help="page of the server's counters, if not at its usual port")
    ] = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, Option(help="folder for the results; default photodup-load/TIME")] = None,
) -> None:
    """Measure any server: rate, latency and errors under one load or several in turns, or two servers compared.

    The path of the URL names the protocol: http://HOST:PORT/v1/embeddings, http://HOST:PORT/v2/models/MODEL,
    grpc://HOST:PORT/MODEL, http://HOST:PORT/embed; without a path the server is asked. Writes JSON, Parquet and one HTML
    page. Ends with status 0 where the question was answered, 1 where a --fail-if was met, 2 where nothing could be
    measured.
    """
    require("load")  # before anything is measured, for the page and the Parquet file come last
    from photodup.bench.anyurl.measure import LoadTarget
    from photodup.bench.anyurl.run import Job, limit_of, run_comparison, run_load
    from photodup.bench.anyurl.watch import Watcher

    if question.compare != (len(urls) == 2) or len(urls) > 2:
        raise PhotodupError("Give one URL, or two URLs and --compare.")
    limits = [limit_of(text) for text in question.fail_if or ()]
    specs = load_options.specs(request.batch, 60.0 if question.compare else 20.0)
    if question.compare and limits:
        raise PhotodupError(
            "--fail-if is about one server; `photodup gate` fails where one is slower than another."
        )
    if question.compare and (len(specs) > 1 or specs[0].rate_per_s or load_options.processes > 1):
        raise PhotodupError(
            "--compare takes turns under one closed loop: leave --rate, --processes and further numbers out."
        )
    timeout_s = request.timeout or min(60.0, max(10.0, sum(spec.seconds for spec in specs)))
    servers = []
    for number, url in enumerate(urls):
        target = server.target(url, number, timeout_s=timeout_s, method=request.method.upper())
        target = replace(target, metrics=metrics or "")
        shapes, inputs = tuple(request.shape or ()), tuple(request.input or ())
        servers.append(LoadTarget(target, payload.payloads(target), shapes, inputs, request.encoding))
    name = f"photodup-load/{datetime.now():%Y%m%d-%H%M%S}"  # may exist: clocks are set back
    folder = out or next(path for n in count() if not (path := Path(f"{name}{-n or ''}")).exists())
    show = partial(print, flush=True, file=sys.stderr if as_json else None)
    job = Job(servers, specs, folder, Watcher(sys.stderr), show, print if as_json else None, limits)
    if status := (run_comparison if question.compare else run_load)(job):
        raise Exit(status)


@with_groups
def gate(
    server: ServerOptions,
    payload: PayloadOptions,
    seed: Seed,
    base_url: Annotated[str | None, Option(help="server to compare with")] = None,
    head_url: Annotated[str | None, Option(help="server that may not be slower")] = None,
    base: Annotated[
        str | None, Option(help="instead: a command that starts the base; {port} in it is a free port")
    ] = None,
    head: Annotated[str | None, Option(help="the same for the head")] = None,
    url: Annotated[
        str | None, Option(help="with commands: what each serves, as http://127.0.0.1:{port}/embed")
    ] = None,
    limit: Annotated[float, Option(min=0, help="per cent by which the head may be slower")] = 5.0,
    concurrency: Annotated[int, Option(min=1, help="requests in flight")] = 1,
    seconds: Annotated[float, Option(min=1, help="longest time of both looks, without starts")] = 80.0,
    start_seconds: Annotated[float, Option(min=1, help="longest time a command may take to start")] = 120.0,
    junit: Annotated[Path | None, Option(help="write a JUnit report here")] = None,
    as_json: AsJson = False,
) -> None:
    """Fail where the head is slower than the base by more than a limit, on the noisy machines that CI has.

    Both are up at once and take turns; commands are started anew for each of up to eight visits. It fails where the
    one-sided lower bound of the slowdown exceeds the limit; two planned looks share an error of 5%. It prints how often
    it would be wrong at the spread just measured. Ends with status 0 where it passes, 1 where it fails, 2 where nothing
    could be measured.
    """
    require("load")
    from photodup.bench.anyurl import gate as gates
    from photodup.bench.anyurl import measure
    from photodup.bench.anyurl.watch import Watcher, stoppable
    from photodup.core.addresses import masked
    from photodup.serving.process.server_process import Command

    by_url, by_command = bool(base_url and head_url), bool(base and head and url)
    if by_url == by_command or (by_url and (base or head or url)) or (by_command and (base_url or head_url)):
        raise PhotodupError(
            "Name two servers with --base-url and --head-url, or two commands with --base, --head and --url."
        )
    commands = [Command(line, start_seconds) for line in (base, head) if line and by_command]
    if commands and "{port}" not in str(url):
        raise PhotodupError(
            "Both commands run at once: write {port} in --url, and in the commands or use $PORT there."
        )

    def server_of(address: str) -> measure.LoadTarget:
        target = server.target(address, timeout_s=30.0)
        return measure.LoadTarget(target, payload.payloads(target))

    urls = [str(url).replace("{port}", str(c.port)) for c in commands] or [str(base_url), str(head_url)]
    show = partial(print, flush=True, file=sys.stderr if as_json else None)
    labels = [command or masked(str(address)) for command, address in ((base, base_url), (head, head_url))]
    show(f"Base: {labels[0]}; head: {labels[1]}; {concurrency} in flight, seed {seed}.")
    watcher = Watcher(sys.stderr)
    sides = gates.sides_of(server_of, urls, [command.started for command in commands], watcher)
    spec = measure.LoadSpec(concurrency=concurrency, seconds=seconds, seed=seed)
    try:
        with stoppable(watcher):
            gate_result = gates.measure_gate(sides, spec, watcher, limit=limit / 100)
    except KeyboardInterrupt:
        raise PhotodupError("The gate was stopped by you, so nothing is decided.") from None
    for line in (*gate_result.sentences(), *(f"Note: {note}" for note in gate_result.notes)):
        show(line)
    if junit:
        gates.write_junit(gate_result, junit)
    if as_json:
        print(json.dumps(gate_result.as_record() | {"seed": seed}, default=str))
    if gate_result.has_failed:
        raise Exit(1)


@with_groups
def verify(
    url: Annotated[str, Argument(help="URL of an embedding server of yours")],
    server: ServerOptions,
    weights: Annotated[
        str | None, Option(help="reference weights, as MODEL_PRETRAINED; default those the server names")
    ] = None,
    precision: Annotated[
        str | None, Option(help="expected precision of the server; default what it states")
    ] = None,
    hostile: Annotated[bool, Option(help="also send files that are made to hurt it")] = True,
    strict: Annotated[bool, Option("--strict", help="count what is tolerated as wrong")] = False,
    timeout: Annotated[float, Option(min=0.1, help="seconds for one answer")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Check that an embedding server computes the model that it names, and that it survives broken images.

    Its answers are compared with embeddings computed here: preprocessing, kinds of images, batches, precision, and which
    answer belongs to which request. Hostile files are sent to it, so check only your own server. Ends with status 0 where
    all is right or tolerated, 1 where something is wrong or the server is dead, 2 where it could not be checked.
    """
    require("load")
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from photodup.bench.verify.checks import verify_server
    from photodup.core.names import printable

    target = server.target(url, timeout_s=timeout)
    with Console(stderr=True).status("") as status:
        report = verify_server(target, weights, precision=precision, is_hostile=hostile, show=status.update)
    if as_json:
        print(json.dumps({**report.as_record(), "status": int(report.has_failed(strict=strict))}))
    else:
        table = Table("check", "verdict", "cosine", "finding", box=None, pad_edge=False)
        colours = {"right": "green", "tolerated": "yellow", "wrong": "red", "dead": "bold red"}
        for row in report.rows:
            cosine = "" if row.cosine is None else f"{row.cosine:.6f}"
            finding = Text(printable(row.words))
            table.add_row(row.name, Text(row.verdict, colours.get(row.verdict, "dim")), cosine, finding)
        screen = Console()
        screen.print(f"Reference: {report.reference}.", markup=False, highlight=False)
        screen.print(table)
        screen.print(report.sentence(), markup=False, highlight=False)
    if report.has_failed(strict=strict):
        raise Exit(1)
