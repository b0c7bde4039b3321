"""`photodup load`: a load on any server that answers embeddings, or on any model."""

import sys
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Exit, Option

from photodup.core.errors import PhotodupError
from photodup.core.extras import require

Protocol = Annotated[
    list[str] | None,
    Option(help="multipart, base64, openai, kserve-http, kserve-grpc, post; read from the URL by default"),
]
Model = Annotated[list[str] | None, Option(help="KServe: the model; OpenAI: what is asked for")]
File = Annotated[list[Path] | None, Option(help="file or folder to send; repeat")]
Text = Annotated[list[str] | None, Option(help="text to send; repeat")]
PayloadKind = Annotated[str | None, Option(help="images, texts or files: what to make up or how to send")]
Headers = Annotated[
    list[str] | None, Option("--header", "-H", help="'Name: value' or 'Name: env:NAME'; repeat")
]
ApiKey = Annotated[str | None, Option(help="env:NAME, sent as Authorization: Bearer")]
Seed = Annotated[int, Option(help="of the order of payloads, arrivals and turns")]
AsJson = Annotated[bool, Option("--json", help="print the result as JSON, all else on stderr")]


def load(
    urls: Annotated[list[str], Argument(help="URL of the server; two with --compare")],
    compare: Annotated[bool, Option("--compare", help="compare two URLs, which take turns")] = False,
    concurrency: Annotated[
        str | None, Option(help="requests in flight; default 1 (open loop: 64); 1,2,4,8 measures each")
    ] = None,
    processes: Annotated[
        int, Option(min=1, help="of this generator, which share the requests in flight")
    ] = 1,
    rate: Annotated[float | None, Option(help="open loop: requests/s, sent whatever the server does")] = None,
    slo: Annotated[str | None, Option(help="find the highest rate under a bound: p95=100ms")] = None,
    min_rate: Annotated[float | None, Option(help="with --slo: lowest rate to offer, requests/s")] = None,
    max_rate: Annotated[float | None, Option(help="with --slo: highest rate to offer, requests/s")] = None,
    fail_if: Annotated[
        list[str] | None, Option(help="end with status 1: 'p95>100ms', 'errors>1%', 'rate<50'; repeat")
    ] = None,
    seconds: Annotated[
        float | None,
        Option(min=1, help="longest time of the whole; default 20, with --compare 60, with --slo 300"),
    ] = None,
    arrivals: Annotated[str, Option(help="poisson, uniform, bursts:N, ramp:FROM-TO, trace:FILE")] = "poisson",
    connection: Annotated[Literal["warm", "new"], Option(help="new: one for each request")] = "warm",
    protocol: Protocol = None,
    method: Annotated[str, Option(help="of a plain request: POST, GET, PUT")] = "POST",
    model: Model = None,
    file: File = None,
    text: Text = None,
    payload: PayloadKind = None,
    shape: Annotated[list[str] | None, Option(help="KServe: NAME=3,224,224; repeat")] = None,
    input: Annotated[list[str] | None, Option(help="KServe: NAME=FILE.npy; repeat")] = None,
    encoding: Annotated[Literal["float", "base64"], Option(help="OpenAI: of the answer")] = "float",
    batch: Annotated[int, Option(min=1, help="items in a request")] = 1,
    header: Headers = None,
    api_key: ApiKey = None,
    ca: Annotated[Path | None, Option(help="TLS: certificate of the authority")] = None,
    cert: Annotated[Path | None, Option(help="TLS: certificate of this client")] = None,
    key: Annotated[Path | None, Option(help="TLS: key of this client")] = None,
    insecure: Annotated[
        bool, Option("--insecure", help="TLS: do not check the server's certificate")
    ] = False,
    timeout: Annotated[
        float | None, Option(min=0.1, help="seconds for one answer; default --seconds, 10 to 60")
    ] = None,
    metrics: Annotated[
        str | None, Option(help="page of the server's counters, if not at its usual port")
    ] = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, Option(help="folder for the results; default photodup-load/TIME")] = None,
    seed: Seed = 0,
) -> None:
    """Measure any server: rate, latency and errors under a load, the highest rate under a bound, or two servers compared.

    The path of the URL names the protocol: http://HOST:PORT/v1/embeddings, http://HOST:PORT/v2/models/MODEL,
    grpc://HOST:PORT/MODEL, http://HOST:PORT/embed; a server without a path is asked. Writes JSON, Parquet and one HTML
    page. Ends with status 0 where the question was answered, 1 where a --fail-if was met, 2 where nothing could be
    measured.
    """
    require("load")  # before anything is measured, for the page and the Parquet file come last
    from photodup.bench.anyurl.arrivals import pattern
    from photodup.bench.anyurl.measure import LoadSpec, Request
    from photodup.bench.anyurl.payloads import payloads_for
    from photodup.bench.anyurl.run import Job, limit_of, run_load, run_rate, run_versus
    from photodup.bench.anyurl.target import Security, header_values, target_of
    from photodup.bench.anyurl.watch import Watcher
    from photodup.bench.stats.slo import bound_of

    if compare != (len(urls) == 2) or len(urls) > 2:
        raise PhotodupError("Give one URL, or two URLs and --compare.")
    if slo and (compare or rate is not None):
        raise PhotodupError("--slo looks for a rate of one server: leave --rate and --compare out.")
    when = pattern(arrivals)
    offered = when.rate_per_s if when.rate_per_s is not None else rate
    if arrivals != "poisson" and offered is None and not slo:
        raise PhotodupError(f"The arrivals {arrivals} belong to an open loop: say its --rate.")
    if slo and not when.is_steady:
        raise PhotodupError("--slo offers a steady rate: use poisson or uniform arrivals.")
    if offered is not None and not offered > 0:
        raise PhotodupError("--rate is requests a second, above 0.")
    if compare and offered is not None:
        raise PhotodupError(
            "--compare takes turns, which needs a closed loop: leave --rate and --arrivals out, or search each server's "
            "highest rate with --slo."
        )
    in_flight = _numbers(concurrency)
    if (len(in_flight) > 1 or processes > 1) and (slo or compare or offered is not None):
        raise PhotodupError(
            "Several numbers in --concurrency are measured in turns, --processes share one closed loop: leave "
            "--slo, --compare and --rate out."
        )
    limits = [limit_of(words) for words in fail_if or ()]
    if limits and compare:
        raise PhotodupError(
            "--fail-if is about one server; `photodup gate` fails where one is slower than another."
        )
    if slo and any(limit.figure != "rate" for limit in limits):
        raise PhotodupError("With --slo a --fail-if is about the rate that was found: rate<50.")
    if (min_rate or max_rate) and not slo:
        raise PhotodupError("--min-rate and --max-rate bound the search of --slo: add it, or leave them out.")
    bound = bound_of(slo) if slo else None
    length_s = seconds or when.horizon_s or (300.0 if slo else 60.0 if compare else 20.0)
    security = Security(header_values(header or [], api_key), not insecure, ca, cert, key)
    waits_s = timeout or min(60.0, max(10.0, length_s))
    requests = []
    for number, url in enumerate(urls):
        spoken = _spoken(protocol, model, number)
        target = target_of(url, **spoken, security=security, timeout_s=waits_s, method=method.upper())
        target = replace(target, metrics=metrics or "")
        payloads = payloads_for(target, kind=payload, paths=file or [], given_texts=text or [])
        requests.append(Request(target, payloads, tuple(shape or ()), tuple(input or ()), encoding))
    is_open = offered is not None or bound is not None
    spec = LoadSpec(
        concurrency=(in_flight or [64 if is_open else 1])[0],
        rate_per_s=offered,
        arrivals=when,
        connection=connection,
        batch=batch,
        seconds=length_s,
        seed=seed,
        processes=processes,
    )
    name = f"photodup-load/{datetime.now():%Y%m%d-%H%M%S}"  # clocks are set back: never into a folder that is there
    folder = out or next(path for n in count() if not (path := Path(f"{name}{-n or ''}")).exists())
    show = partial(print, flush=True, file=sys.stderr if as_json else None)
    job = Job(requests, spec, folder, Watcher(sys.stderr), show, print if as_json else None, limits)
    if bound:
        status = run_rate(job, bound, least_per_s=min_rate, most_per_s=max_rate)
    elif compare:
        status = run_versus(job)
    else:
        status = run_load(job, in_flight if len(in_flight) > 1 else ())
    if status:
        raise Exit(status)


def _numbers(text: str | None) -> list[int]:
    """Read `8` or `1,2,4,8`."""
    try:
        numbers = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        numbers = [0]
    if any(number < 1 for number in numbers):
        raise PhotodupError(f"--concurrency is a number above 0, or several as 1,2,4,8, not {text!r}.")
    return numbers


def _spoken(protocol: list[str] | None, model: list[str] | None, number: int = 0) -> dict[str, str]:
    """Return the protocol and the model of URL `number`, where they are given. A single value applies to both URLs."""
    options = {"protocol": protocol, "model": model}
    return {name: values[min(number, len(values) - 1)] for name, values in options.items() if values}


def gate(
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
    start_seconds: Annotated[float, Option(min=1, help="longest time that a command may start")] = 120.0,
    protocol: Protocol = None,
    model: Model = None,
    file: File = None,
    text: Text = None,
    payload: PayloadKind = None,
    header: Headers = None,
    api_key: ApiKey = None,
    junit: Annotated[Path | None, Option(help="write a JUnit report here")] = None,
    summary: Annotated[Path | None, Option(help="append a summary in Markdown to this file")] = None,
    as_json: AsJson = False,
    seed: Seed = 0,
) -> None:
    """Fail where the head is slower than the base by more than a limit, on the noisy machines that CI has.

    Both are up at once and take turns; commands are started anew for each of up to eight visits. It fails where the
    one-sided lower bound of the slowdown exceeds the limit; two planned looks share an error of 5 %. How often it would
    be wrong at the spread just measured is printed. Ends with status 0 where it passes, 1 where it fails, 2 where
    nothing could be measured.
    """
    require("load")
    import json

    from photodup.bench.anyurl import gate as gates
    from photodup.bench.anyurl.measure import LoadSpec, Request
    from photodup.bench.anyurl.payloads import payloads_for
    from photodup.bench.anyurl.target import Security, header_values, target_of
    from photodup.bench.anyurl.watch import Watcher, stoppable
    from photodup.core.addresses import masked
    from photodup.serving.process.server_process import Command

    by_url, by_command = bool(base_url and head_url), bool(base and head and url)
    if by_url == by_command or (by_url and (base or head or url)) or (by_command and (base_url or head_url)):
        raise PhotodupError(
            "Name two servers with --base-url and --head-url, or two commands with --base, --head and --url."
        )
    commands = [Command(words, start_seconds) for words in (base, head) if words and by_command]
    if commands and "{port}" not in str(url):
        raise PhotodupError(
            "Both commands run at once: write {port} in --url, and in the commands or use $PORT there."
        )
    security = Security(header_values(header or [], api_key))

    def request_of(address: str) -> Request:
        target = target_of(address, **_spoken(protocol, model), security=security, timeout_s=30.0)
        return Request(target, payloads_for(target, kind=payload, paths=file or [], given_texts=text or []))

    urls = [str(base_url), str(head_url)]
    if by_command:
        urls = [str(url).replace("{port}", str(command.port)) for command in commands]
    show = partial(print, flush=True, file=sys.stderr if as_json else None)
    labels = [command or masked(str(address)) for command, address in ((base, base_url), (head, head_url))]
    show(f"Base: {labels[0]}; head: {labels[1]}; {concurrency} in flight.")
    watcher = Watcher(sys.stderr)
    sides = gates.sides_of(request_of, urls, [command.running for command in commands], watcher)
    spec = LoadSpec(concurrency=concurrency, seconds=seconds, seed=seed)
    try:
        with stoppable(watcher):
            gated = gates.gate(sides, spec, watcher, limit=limit / 100)
    except KeyboardInterrupt:
        raise PhotodupError("The gate was stopped by you, so nothing is decided.") from None
    for line in (*gated.sentences(), *(f"Note: {note}" for note in gated.notes)):
        show(line)
    gates.write(gated, junit=junit, summary=summary)
    if as_json:
        print(json.dumps(gated.as_record(), default=str))
    if gated.has_failed:
        raise Exit(1)


def verify(
    url: Annotated[str, Argument(help="URL of an embedding server of yours")],
    protocol: Protocol = None,
    model: Model = None,
    weights: Annotated[
        str | None, Option(help="of the reference, as MODEL_PRETRAINED; default what the server names")
    ] = None,
    precision: Annotated[
        str | None, Option(help="that the server should compute in; default what it states")
    ] = None,
    hostile: Annotated[bool, Option(help="also send files that are made to hurt it")] = True,
    strict: Annotated[bool, Option("--strict", help="count what is tolerated as wrong")] = False,
    timeout: Annotated[float, Option(min=0.1, help="seconds for one answer")] = 60.0,
    header: Headers = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Check that an embedding server computes the model that it names, and that it survives broken images.

    Its answers are compared with embeddings computed here: preprocessing, kinds of images, batches, precision, and which
    answer belongs to which request. Hostile files are sent to it, so ask a server of yours only. Ends with status 0 where
    all is right or tolerated, 1 where something is wrong or the server is dead, 2 where it could not be checked.
    """
    require("load")
    import json

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from photodup.bench.anyurl.target import Security, header_values, target_of
    from photodup.bench.verify.verify import verify as checked
    from photodup.core.names import printable

    security = Security(header_values(header or [], api_key))
    target = target_of(url, **_spoken(protocol, model), security=security, timeout_s=timeout)
    console = Console(stderr=True)
    with console.status("") as status:
        report = checked(target, weights, precision=precision, is_hostile=hostile, say=status.update)
    if as_json:
        print(json.dumps({**report.as_record(), "status": int(report.has_failed(strict=strict))}))
    else:
        table = Table("check", "verdict", "cosine", "finding", box=None, pad_edge=False)
        colours = {"right": "green", "tolerated": "yellow", "wrong": "red", "dead": "bold red"}
        for row in report.rows:
            cosine = "" if row.cosine is None else f"{row.cosine:.6f}"
            words = printable(row.words)
            table.add_row(row.name, Text(row.verdict, colours.get(row.verdict, "dim")), cosine, Text(words))
        screen = Console()
        screen.print(f"Reference: {report.reference}.", markup=False, highlight=False)
        screen.print(table)
        screen.print(report.sentence(), markup=False, highlight=False)
    if report.has_failed(strict=strict):
        raise Exit(1)
