"""What the FastAPI service costs on top of the model: both in one run, taking turns.

The same work is done in process: decode, resize, normalise and infer. Of photographs of 12 megapixels it is done in two
ways there: at a reduced scale (the limit: every core decodes, then every core computes) and whole, as Pillow decodes.
Client, service and in-process model share the machine; on few cores the client's own work (about 1 ms a request) is in
the numbers, against the service. The service is started anew for each visit. Beside it: how long its first answer takes,
with what earlier starts left in build/models (which export holds which weights), and without.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import LATENCY, Row, compared, excess, guarded, in_turns, ratio, row
from photodup.bench.anyurl.payloads import made_up_images
from photodup.bench.backends.adapters import LocalAdapter, adapter, answers_to, check_embeddings
from photodup.bench.load.usage import memory_mib, server_pids
from photodup.bench.pairs.alternate import LiveSide, VisitPlan, measure_visit
from photodup.bench.pairs.read import with_observations
from photodup.bench.stats.comparison import Comparison, compare_all
from photodup.bench.stats.figures import interval
from photodup.bench.stats.metrics import Load
from photodup.core.files import available_cores
from photodup.core.paths import build_dir
from photodup.core.settings import set_variables, variable
from photodup.embedding.backends import parse_backend
from photodup.embedding.engines.export import MADE_FROM
from photodup.embedding.imaging import DRAFT_SIZE, decode, to_uint8
from photodup.embedding.wire.wires import pixels
from photodup.serving.service.start import ServiceProcess
from photodup.study.comparisons.measure import SideAddress

CHOICES = {("pytorch", "fp32"): 1.02, ("openvino", "bf16"): 1.07, ("openvino", "int8"): None}
INT8_OVER_MS = 1.5  # a hundredth of so little is less than a request can cost
SHARE_GOAL, LIMIT_GOAL, WHOLE_GOAL = 0.95, 0.8, 1.5
IN_FLIGHT, VISITS = 8, 3
PLAN, SINGLE = VisitPlan(palindromes=3, warmup_s=1.0, alone_s=0), Load("single_stream")
QUADS = 3  # of each visit
LEAST_COSINE = 0.99  # a service may decode at a reduced scale
BATCHES, LARGE_BATCHES = 8, 2  # of eight images in a turn
BACKEND = parse_backend("fastapi-pytorch-fp32-http-jpeg")  # whatever computes in it
WEIGHTS = "random:0"  # no timing depends on the values
STARTS, START_GOALS_S = 6, {"with": 2.0, "without": 5.0}  # until the first answer; even, they take turns


def rows() -> Iterator[Row]:
    """Yield what the service costs with three engines, and how near it comes to its limit with large photographs."""
    # Idle threads of the model in process would spin on the cores that the service needs for its answer.
    if not variable("OMP_WAIT_POLICY"):
        set_variables(OMP_WAIT_POLICY="PASSIVE")
    for (engine, precision), goal in CHOICES.items():
        yield from guarded(f"service, {engine} {precision}", partial(overhead, engine, precision, goal))
    yield from guarded("12 MP JPEG to vector through the service", large)
    yield from guarded("first answer of the service", first_answers)


def overhead(engine: str, precision: str, goal: float | None, *, weights: str = WEIGHTS) -> Iterator[Row]:
    """Compare the service with the engine in process: one JPEG of 224 pixels, and eight in flight with a batch of eight.

    Args:
        goal: of the ratio for one JPEG; None: `INT8_OVER_MS` is the goal.
    """
    photos = made_up_images(IN_FLIGHT).items
    single_visits, rounds, memory = [], [], []
    for visit, model, live, in_memory in _visits(engine, precision, weights, photos):
        single_visits.append(measure_visit(live, photos, SINGLE, PLAN, seed=visit))
        model_rate = partial(_model_rate, model, pixels, photos, BATCHES)
        service_rate = partial(_service_rate, live[1], photos, BATCHES)
        rounds.append(in_turns([model_rate, service_rate], QUADS, random.Random(visit)))
        memory.append(in_memory())
    # Its load is the default, one request in flight, as in the visits.
    comparison = Comparison("one JPEG", "", LATENCY, "", "in process", "service", "nothing was measured.")
    (single,) = compare_all([with_observations(comparison, single_visits)])
    over = f"{single.value_b:.1f} against {single.value_a:.1f} ms" if single.is_measured else ""
    name = f"service, {engine} {precision}:"
    if goal is not None:
        yield row(
            f"{name} one JPEG ÷ in process", ratio(single), most=goal, because=over, memory_mib=max(memory)
        )
    else:
        more = excess(single)
        name_ms = f"{name} one JPEG − in process"
        yield row(name_ms, more, "ms", most=INT8_OVER_MS, because=over, memory_mib=max(memory))
    share = ratio(compared(rounds))
    yield row(f"{name} eight in flight ÷ in process", share, least=SHARE_GOAL, memory_mib=max(memory))


def large(
    engine: str = "openvino", precision: str = "int8", *, weights: str = WEIGHTS, n: int = IN_FLIGHT
) -> Iterator[Row]:
    """Compare the service, eight JPEGs of 12 megapixels in flight, with decoding and computing in process on all cores."""
    from benchmarks.large_photographs import make_12mp

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(available_cores()) as pool:
        photos = [path.read_bytes() for path in make_12mp(folder, n)]

        def on_all_cores(draft_size: int | None, photos: Sequence[bytes]) -> np.ndarray:
            return np.stack(
                list(pool.map(lambda photo: to_uint8(decode(photo, draft_size=draft_size)), photos))
            )

        turns, memory = [], []
        for visit, model, live, in_memory in _visits(
            engine, precision, weights, photos, JPEG_SCALE="reduced"
        ):
            ways = [partial(on_all_cores, draft_size) for draft_size in (DRAFT_SIZE, None)]
            sides = [partial(_model_rate, model, way, photos, LARGE_BATCHES) for way in ways]
            sides.append(partial(_service_rate, live[1], photos, LARGE_BATCHES))
            turns.append(in_turns(sides, QUADS, random.Random(visit)))
            memory.append(in_memory())
    name = f"12 MP JPEG to vector through the service, {engine} {precision}, eight in flight"
    rates = interval([rate for figures in turns for rate in figures[2]])
    yield row(name, rates, "photos/s", memory_mib=max(memory))
    for side, decoding, goal in ((0, "at a reduced scale", LIMIT_GOAL), (1, "whole by Pillow", WHOLE_GOAL)):
        outcome = compared(turns, side, 2)
        note = f"there {outcome.value_a:.1f} photos/s"
        yield row(f"{name} ÷ decoded {decoding} in process", ratio(outcome), least=goal, because=note)


def first_answers(
    engine: str = "openvino", precision: str = "int8", *, weights: str = WEIGHTS, n: int = STARTS
) -> Iterator[Row]:
    """Time starts of the service until it has answered a photograph, with and without what earlier ones left."""
    photos, memory = made_up_images(1).items, []

    def seconds(**more: str) -> float:
        settings = {"MODEL_PRETRAINED": weights, "ENGINE": engine, "PRECISION": precision, **more}
        began = time.perf_counter()
        with ServiceProcess(settings=settings) as service:
            answers_to(adapter(BACKEND, service.url, jpeg_quality=None), photos)
            waited = time.perf_counter() - began
            memory.append(memory_mib(service.pid))
            return waited

    def from_nothing() -> float:
        """Start in a folder with links to the models that there are, and no note of which weights they hold."""
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root, "build", "models")
            folder.mkdir(parents=True)
            for path in filter(Path.is_file, (build_dir() / "models").glob("*")):
                if path.suffix == ".json":
                    facts = json.loads(path.read_text(encoding="utf-8"))
                    facts.pop(MADE_FROM, None)
                    (folder / path.name).write_text(json.dumps(facts), encoding="utf-8")
                else:
                    (folder / path.name).symlink_to(path)
            return seconds(PHOTODUP_ROOT=root)

    seconds()  # leaves it
    turns = in_turns([seconds, from_nothing], n // 2, random.Random(0))
    for (cached, goal), waits in zip(START_GOALS_S.items(), turns, strict=True):
        name = f"first answer of the service, {engine} {precision}, {cached} a cache"
        yield row(name, interval(waits), "s", most=goal, memory_mib=max(memory))


def _visits(
    engine: str, precision: str, weights: str, photos: Sequence[bytes], **further: str
) -> Iterator[tuple[int, Any, list[LiveSide], Callable[[], float]]]:
    """Yield for each visit its number, the model in process, the sides of it and of a service started for it, and what
    asks how much memory the service holds, in MiB.

    Args:
        further: settings of the service.
    """
    from photodup.embedding.engines.encoder import load_model

    model = load_model(weights, engine=engine, precision=precision)
    reference = model.embed_pixels(pixels(photos))
    for visit in range(VISITS):
        settings = {"MODEL_PRETRAINED": weights, "ENGINE": engine, "PRECISION": precision} | further
        with ServiceProcess(settings=settings) as service:
            options = {"jpeg_quality": None}
            side = SideAddress(BACKEND, service.url, options, server_pids(service.url)).live()
            check_embeddings(side.adapter, photos, reference, LEAST_COSINE, name="The service")
            yield (
                visit,
                model,
                [LiveSide(LocalAdapter(BACKEND, model)), side],
                partial(memory_mib, service.pid),
            )


def _service_rate(side: LiveSide, photos: Sequence[bytes], waves: int) -> float:
    """Return images per second of clients that each send one image after the other."""
    load = Load("closed_loop", concurrency=len(photos))
    plan = VisitPlan(palindromes=1, block_s=0, min_answers=1, min_waves=waves, alone_s=0, warmup_s=0)
    (rate,) = measure_visit([side], photos, load, plan, seed=0).values()
    assert rate is not None
    return rate


def _model_rate(
    model: Any, read: Callable[[Sequence[bytes]], np.ndarray], photos: Sequence[bytes], batches: int
) -> float:
    started = time.perf_counter()
    for _ in range(batches):
        model.embed_pixels(read(photos))
    return len(photos) * batches / (time.perf_counter() - started)
