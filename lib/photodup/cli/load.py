"""`photodup load`: a load on any server that answers embeddings, or on any model."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from photodup.errors import PhotodupError
from photodup.extras import require


def load(
    urls: Annotated[list[str], typer.Argument(help="URL of the server; two with --compare")],
    compare: Annotated[bool, typer.Option("--compare", help="compare two URLs, which take turns")] = False,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="requests in flight; default 1 (open loop: 64)")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="open loop: requests/s, sent whatever the server does")
    ] = None,
    slo: Annotated[str | None, typer.Option(help="find the highest rate under a bound: p95=100ms")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="longest time; default 20, with --compare 60, with --slo 300")
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help="poisson, uniform, bursts:N, ramp:FROM-TO, trace:FILE")
    ] = "poisson",
    connection: Annotated[str, typer.Option(help="warm, or new for each request")] = "warm",
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="multipart, base64, openai, kserve-http, kserve-grpc, post; read from the URL by default"
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="KServe: the model; OpenAI: what is asked for")
    ] = None,
    file: Annotated[list[Path] | None, typer.Option(help="file or folder to send; repeat")] = None,
    text: Annotated[list[str] | None, typer.Option(help="text to send; repeat")] = None,
    payload: Annotated[
        str | None, typer.Option(help="images, texts or files: what to make up or how to send")
    ] = None,
    shape: Annotated[list[str] | None, typer.Option(help="KServe: NAME=3,224,224; repeat")] = None,
    input: Annotated[list[str] | None, typer.Option(help="KServe: NAME=FILE.npy; repeat")] = None,
    encoding: Annotated[str, typer.Option(help="OpenAI: float or base64")] = "float",
    batch: Annotated[int, typer.Option(min=1, help="items in a request")] = 1,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="'Name: value' or 'Name: env:NAME'; repeat")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="env:NAME, sent as Authorization: Bearer")] = None,
    ca: Annotated[Path | None, typer.Option(help="TLS: certificate of the authority")] = None,
    cert: Annotated[Path | None, typer.Option(help="TLS: certificate of this client")] = None,
    key: Annotated[Path | None, typer.Option(help="TLS: key of this client")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="TLS: do not check the server's certificate")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds for one answer")] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="folder for the results; default photodup-load/TIME")
    ] = None,
    seed: Annotated[int, typer.Option(help="of the order of payloads and of the arrivals")] = 0,
) -> None:
    """Put a load on any server and say what may be said of it; writes JSON, Parquet and one HTML page.

    The URL says what is spoken: http://HOST:PORT/v1/embeddings, http://HOST:PORT/v2/models/MODEL, grpc://HOST:PORT/MODEL,
    http://HOST:PORT/embed; a server without a path is asked. Ends with status 1 where nothing could be decided.
    """
    require("load")  # before anything is measured, for the page and the Parquet file come last
    from photodup.bench.anyurl.arrivals import pattern
    from photodup.bench.anyurl.measure import Asked
    from photodup.bench.anyurl.payloads import payloads_for
    from photodup.bench.anyurl.rate import MOST_S
    from photodup.bench.anyurl.run import Request, run_load, run_rate, run_versus
    from photodup.bench.anyurl.target import Security, header_values, target_of
    from photodup.bench.anyurl.watch import Watcher
    from photodup.bench.stats.slo import bound_of

    if compare != (len(urls) == 2) or len(urls) > 2:
        raise PhotodupError("Give one URL, or two URLs and --compare.")
    if slo and (compare or rate is not None):
        raise PhotodupError("--slo looks for a rate of one server: leave --rate and --compare out.")
    if connection not in ("warm", "new"):
        raise PhotodupError(f"--connection is warm or new, not {connection!r}.")
    if encoding not in ("float", "base64"):
        raise PhotodupError(f"--encoding is float or base64, not {encoding!r}.")
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
    bound = bound_of(slo) if slo else None
    security = Security(header_values(header or [], api_key), not insecure, ca, cert, key)
    requests = []
    for number, url in enumerate(urls):
        spoken, asked_model = (_of(values, number) for values in (protocol, model))
        target = target_of(
            url, protocol=spoken, model=asked_model or "", security=security, timeout_s=timeout
        )
        paths, texts = file or [], text or []
        given = payloads_for(target.protocol, kind=payload, paths=paths, given_texts=texts)
        requests.append(Request(target, given, tuple(shape or ()), tuple(input or ()), encoding))
    is_open = offered is not None or bound is not None
    asked = Asked(
        concurrency=concurrency or (64 if is_open else 1),
        rate_per_s=offered,
        arrivals=when,
        connection=connection,
        batch=batch,
        seconds=seconds or when.horizon_s or (60.0 if compare else 20.0),
        shortest_s=min(5.0, seconds or 5.0),
        seed=seed,
    )
    folder = out or Path("photodup-load") / datetime.now().strftime("%Y%m%d-%H%M%S")
    watcher, show = Watcher(sys.stderr), lambda line: print(line, flush=True)
    if bound:
        decided = run_rate(
            requests[0], bound, asked, folder, watcher, show, budget_s=min(seconds or MOST_S, MOST_S)
        )
    elif compare:
        decided = run_versus(requests, asked, folder, watcher, show)
    else:
        decided = run_load(requests[0], asked, folder, watcher, show)
    if not decided:
        raise typer.Exit(1)


def _of(values: list[str] | None, number: int) -> str | None:
    """One value holds for both URLs, two for one each."""
    return values[min(number, len(values) - 1)] if values else None
