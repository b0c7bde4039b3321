"""What others hand over, damaged at random: each is used, or refused in one sentence, and changes nothing elsewhere.

One entry for each row of SECURITY.md's table that no other part has: images are `images`, a library with its trash and
catalogue is `machines`, requests are `service`.
"""

import hashlib
import json
import os
import random
import shutil
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from unittest import mock

import nbformat
import numpy as np
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from support.paths import ROOT
from support.triton import tiny_graph

from fuzz.images import keep, mutate
from photodup.bench.record import latencies
from photodup.bench.record.json_files import read_json
from photodup.bench.record.store import RunStore, figures_of_run
from photodup.core.errors import PhotodupError
from photodup.embedding.engines.encoder import load_model
from photodup.embedding.wire.http import AnswerError, Base64Json, Multipart, OpenAi
from photodup.embedding.wire.kserve import KserveHttp
from photodup.photos.library.settings import LibrarySettings, load_settings, save_settings
from photodup.photos.search.candidates import PairStore, stored_pairs
from photodup.photos.search.neighbours import Bounds, similar_pairs
from photodup.photos.state.own_folder import OwnFolder
from photodup.serving.endpoints import load_endpoints
from photodup.study.notebook.files import read_notebook, read_study
from photodup.study.notebook.machine import read_machine
from photodup.study.notebook.run import open_run
from photodup.study.report.cells import render_cells

# Makes what is handed over in an empty folder, and returns what uses it.
Row = Callable[[Path], Callable[[], object]]


def settings(folder: Path) -> Callable[[], object]:
    OwnFolder(folder).prepare()
    save_settings(folder, LibrarySettings(folders=("2020",), protected=("Archive",)))
    return lambda: load_settings(folder)


def cache(folder: Path) -> Callable[[], object]:
    """Pairs kept between runs: whatever the files hold, each true pair is found."""
    OwnFolder(folder).prepare()
    vectors = np.random.default_rng(0).normal(size=(1100, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    md5s = [hashlib.md5(bytes([i % 256, i // 256])).hexdigest() for i in range(len(vectors))]

    def use() -> int:
        with PairStore(OwnFolder(folder).neighbours) as store:
            bounds = Bounds(0.9, 0.9)
            search_new = partial(similar_pairs, vectors, bounds)
            return len(stored_pairs(store, "a" * 64, str(bounds), md5s, search_new, bounds.counting))

    n = use()

    def check() -> None:
        assert use() == n, "pairs were lost"

    return check


def run(folder: Path) -> Callable[[], object]:
    with RunStore(folder / "run") as store:
        raw = {"latency_ms": [1.0, 2.0]}
        store.measure_or_load(
            "a",
            lambda: {"scenario": "single_stream", "n_requests": 2, "n_errors": 0, "raw": raw},
            config={"batch": 1, "visit": 1},
            kind="figure",
        )
    latencies.compact(folder / "run")
    (folder / "run" / "study.json").write_text(
        '[{"notebook": "01_x", "status": "passed", "seconds": 1.0, "parameters": {}}]'
    )

    def use() -> None:
        figures_of_run(folder / "run")
        latencies.check_readable(folder / "run")
        read_machine(folder / "run")
        read_study(folder / "run")

    return use


def parameters(folder: Path) -> Callable[[], object]:
    """What papermill or the command line sets: they are opened in a project of their own."""
    (folder / "given.json").write_text('{"run": "mine", "gpu": "L4", "gpus": 1}')
    servers = sorted((ROOT / "notebooks" / "endpoints").glob("*.yaml"))[0]

    def use() -> None:
        given = {"endpoints": servers} | read_json(folder / "given.json")
        asked = {name: given[name] for name in signature(open_run).parameters if name in given}
        with mock.patch.dict(os.environ, PHOTODUP_ROOT=str(folder), PHOTODUP_MEASURE="0"):
            assert open_run(**asked).directory.parent == folder / "results"

    return use


def notebook(folder: Path) -> Callable[[], object]:
    cells = [new_markdown_cell("# A\n\n![x](images/x.png)"), new_code_cell("1", execution_count=1)]
    nbformat.write(new_notebook(cells=cells), folder / "a.ipynb")
    return lambda: render_cells(read_notebook(folder / "a.ipynb").cells)


def endpoints(folder: Path) -> Callable[[], object]:
    shutil.copy(sorted((ROOT / "notebooks" / "endpoints").glob("*.yaml"))[0], folder / "a.yaml")
    return lambda: load_endpoints(folder / "a.yaml")


def bundle(folder: Path) -> Callable[[], object]:
    """As it comes back from a machine with a GPU."""
    run(folder.parent / "work" / "results")
    with tarfile.open(folder / "records.tar.gz", "w:gz") as tar:
        tar.add(folder.parent / "work" / "results", "results")
    sys.path.insert(0, str(ROOT / "tools" / "gpu_kit"))
    import collect

    def use() -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent) as into:
            collect.unpack(folder / "records.tar.gz", Path(into))

    return use


def weights(folder: Path) -> Callable[[], object]:
    tiny_graph(folder / "a.onnx")
    return lambda: load_model(pretrained=f"onnx:{folder / 'a.onnx'}", device="cpu")


def answer(folder: Path) -> Callable[[], object]:
    (folder / "answer").write_text('{"data":[{"index":0, "embedding":[0.5, 1]}], "embeddings":["AAAAAA=="]}')

    def use() -> None:
        body = (folder / "answer").read_bytes()
        for protocol in (Multipart(), Base64Json(), OpenAi("/", "m"), KserveHttp("m")):
            for headers in ({}, {"inference-header-content-length": str(len(body) // 2)}):
                try:
                    protocol.decode((headers, body))
                    return
                except AnswerError as error:
                    refused = error
        raise refused

    return use


ROWS: dict[str, Row] = {
    "settings": settings, "cache": cache, "run": run, "parameters": parameters,
    "notebook": notebook, "endpoints file": endpoints, "bundle": bundle, "weights": weights,
    "server's answer": answer,
}  # fmt: skip


ODD = (None, True, -1, 1e400, 10**30, "", "\x1b[2J", "../../x", [], {}, [[[]]], {"": None})


def damage(data: bytes, chance: random.Random) -> bytes:
    """Change bytes, or one value somewhere in a JSON file."""
    try:
        content = json.loads(data)
    except ValueError:
        return mutate(data, chance)
    if chance.random() < 0.3:
        return mutate(data, chance)
    at = content
    while isinstance(at, dict | list) and at:
        key = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if not at[key] or not isinstance(at[key], dict | list) or chance.random() < 0.3:
            at[key] = chance.choice(ODD)
            break
        at = at[key]
    return json.dumps(content).encode()


def fuzz(seconds: float) -> bool:
    """Damage each row in turns for about `seconds`; True if nothing but one sentence was raised."""
    seed = time.time_ns() % 2**32
    chance, found, counts = random.Random(seed), [], {name: Counter() for name in ROWS}
    with tempfile.TemporaryDirectory(prefix="photodup-fuzz-") as scratch:
        uses = {}
        for name, make in ROWS.items():
            folder = Path(scratch) / name / "given"
            folder.mkdir(parents=True)
            uses[name] = folder, make(folder)
            uses[name][1]()  # undamaged
        deadline, turns = time.monotonic() + seconds, 0
        while turns < 3 or time.monotonic() < deadline:
            turns += 1
            for name, (folder, use) in uses.items():
                path = chance.choice(
                    sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".txt")
                )
                whole, damaged = path.read_bytes(), damage(path.read_bytes() or b"\0", chance)
                path.write_bytes(damaged)
                try:
                    use()
                    counts[name]["used"] += 1
                except PhotodupError as error:
                    counts[name]["refused"] += 1
                    if "\n" in str(error) or not str(error):
                        found.append(keep(damaged, f"{name}: said {error!r}"))
                except Exception as error:
                    counts[name][type(error).__name__] += 1
                    found.append(keep(damaged, f"{name}, {os.path.relpath(path, folder)}: {error!r}"))
                path.write_bytes(whole)
    for name, counted in counts.items():
        print(f"{name}: {sum(counted.values())} damaged: {dict(counted.most_common())}")
    print(f"seed {seed}", *found[:20], sep="\n")
    return not found
