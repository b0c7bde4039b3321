"""What the rooms share: real servers that are started once where they are asked for, and stopped.

Helper functions are in tests/support; they hold no state.
"""

import functools
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

# One thread a library, here and in every child: several processes of tests share two cores. NumPy reads it when imported.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import httpx
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from support import report_runs, triton
from support.paths import CHROMIUM, ROOT
from support.service import Running, start

# A shell starts background jobs with Ctrl-C ignored, and every child inherits that: tests that interrupt a
# process would then wait for ever, on a CI that runs in the background alone.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine takes longer, and that is no fault: what a property takes is never asserted.
_NO_FAULTS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("photodup", deadline=None, suppress_health_check=_NO_FAULTS)
settings.load_profile("photodup")

# By itself httpx gives up after five seconds.
vars(httpx._config.DEFAULT_TIMEOUT_CONFIG).update(connect=120, read=120, write=120, pool=120)

os.environ.setdefault("MODEL_PRETRAINED", "random:0")  # tests must not depend on a 600 MB download
os.environ["PHOTODUP_ROOT"] = str(ROOT)


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "only what measures a time, a rate or memory, and assert that"
    parser.addoption("--figures", action="store_true", help=words)


# What starts a server or a browser: for the folders `servers` alone.
_SERVERS = {"browser", "launch", "random_service", "real_service", "small_service", "tiny_triton"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what asks for Triton where there can be none; leave out figures or, with --figures, all that measures none."""
    figures = config.getoption("--figures")
    for item in items:
        if "tiny_triton" in getattr(item, "fixturenames", ()):
            item.add_marker(triton.needs_triton())
        asked = _SERVERS & set(item.fixturenames) if item.path.parent.name != "servers" else ()
        if asked:
            raise pytest.UsageError(f"{item.nodeid} asks for {', '.join(sorted(asked))}: move it to servers.")
    config.hook.pytest_deselected(items=[item for item in items if not _is_asked_for(item, figures)])
    # The longest files begin first, so that no process is left alone with one at the end.
    items[:] = sorted((item for item in items if _is_asked_for(item, figures)), key=_place)


def _place(item: pytest.Item) -> tuple[bool, bool]:
    return item.path.name != "test_host_by_papermill.py", item.path.parent.name != "servers"


def _is_asked_for(item: pytest.Item, figures: bool) -> bool:
    is_figure = item.get_closest_marker("figures") is not None
    return is_figure or "figure" in getattr(item, "fixturenames", ()) if figures else not is_figure


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two runs, for the tests of the pages made from records."""
    return report_runs.two_runs(tmp_path, monkeypatch)


@pytest.fixture
def deck(project: Path) -> Path:
    """The same with two executed notebooks."""
    return report_runs.add_notebooks(project)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of the user, with a file that nobody else may touch."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("mine")
    return tmp_path / "mine"


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a thousand kills sync some ten thousand times."""
    shared = Path("/dev/shm")
    folder = shared / f"photodup-{os.getpid()}" if os.access(shared, os.W_OK) else tmp_path / "memory"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[bool, object], None]:
    """Assert what was measured, where measuring is what is asked for: a busy machine is no fault of the code."""
    is_asserted = request.config.getoption("--figures")

    def figure(is_so: bool, measured: object) -> None:
        assert is_so or not is_asserted, measured

    return figure


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--figures") and config.getoption("numprocesses", None):
        raise pytest.UsageError("Figures are measured with nothing beside them: leave out -n.")
    # Tests sign with a key of their own, never with the key of whoever runs them; child processes inherit it.
    if "PHOTODUP_CONFIG" not in os.environ:
        os.environ["PHOTODUP_CONFIG"] = tempfile.mkdtemp(prefix="photodup-config-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop("PHOTODUP_CONFIG"), ignore_errors=True))


# ---- what tests cost, printed: CPU seconds, for seconds say how busy the machine was --------------------

COSTLY_CPU_S = 5.0
_CPU_BEFORE = pytest.StashKey[float]()


def _cpu_s() -> float:
    """Processor time of this process and of its children that have ended: a server that tests share is in none."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_CPU_BEFORE] = _cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if call.when == "call" and not item.get_closest_marker("long"):
        report.user_properties = [("cpu_s", _cpu_s() - item.stash[_CPU_BEFORE])]
    return report


def pytest_terminal_summary(terminalreporter) -> None:
    reports = [report for each in terminalreporter.stats.values() for report in each]
    told = [(dict(getattr(r, "user_properties", ())).get("cpu_s", 0), r.nodeid) for r in reports]
    for cpu_s, name in sorted(((cpu, name) for cpu, name in told if cpu > COSTLY_CPU_S), reverse=True):
        words = f"warning: {cpu_s:.0f} s of CPU, make it cheaper or mark it long: {name}"
        terminalreporter.write_line(words, yellow=True)


# ---- several processes -----------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Give all files that share the Triton to one process, and all that load OpenCLIP: each is started once a run.

    One server for several processes would not do: tests count its executions and change its models.
    """
    from xdist.scheduler import LoadFileScheduling

    class ByServer(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _shared_by(nodeid.partition("::")[0])

    return ByServer(config, log) if config.getoption("dist") == "loadfile" else None


@functools.cache
def _shared_by(file: str) -> str:
    text = (ROOT / file).read_text(encoding="utf-8")
    shared = {"Triton": r"\btiny_triton\b", "OpenCLIP": r"\breal_(?:model|service)\b"}
    return next((name for name, fixture in shared.items() if re.search(fixture, text)), file)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def demo_dir() -> Path:
    """The demonstration library, built once; tests that change photos must copy them first."""
    from photodup.study.notebook.weights import demo_library

    with _one_process_makes("demo"):
        return demo_library()


@pytest.fixture(scope="session")
def real_model():
    """OpenCLIP with random weights, in this process."""
    from photodup.embedding.engines.encoder import load_model

    return load_model(pretrained="random:0", device="cpu")


@pytest.fixture(scope="session")
def real_exports(tmp_path_factory) -> dict[str, Path]:
    """The files of the real ViT in build/models, which the study uses too: asked for once by all processes."""
    from photodup.embedding.engines.export import VARIANTS, export_apart

    folder = tmp_path_factory.getbasetemp()  # of this process; xdist's processes have theirs in one folder
    answer = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "exports.json"
    with _one_process_makes("models"):
        if not answer.is_file():
            directory, env = ROOT / "build" / "models", {"MODEL_PRETRAINED": "random:0"}
            answer.write_text(json.dumps(export_apart(VARIANTS, directory=directory, env=env), default=str))
        return {variant: Path(path) for variant, path in json.loads(answer.read_text()).items()}


def _one_process_makes(what: str) -> FileLock:
    (ROOT / "build").mkdir(exist_ok=True)
    return FileLock(ROOT / "build" / f".{what}.lock", timeout=600)  # its error names the file


@pytest.fixture(scope="session")
def tiny_exports(tmp_path_factory) -> dict[str, Path]:
    """Precision → a graph of 300 KB."""
    return triton.tiny_exports(tmp_path_factory.mktemp("exports"))


@pytest.fixture(scope="session")
def tiny_onnx(tiny_exports) -> str:
    """`MODEL_PRETRAINED` of an encoder that loads in milliseconds."""
    return f"onnx:{tiny_exports['uint8']}"


@pytest.fixture(scope="session")
def service_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("services")


@pytest.fixture
def launch(service_folder, tiny_onnx) -> Iterator[Callable[..., Running]]:
    """Start services of a test's own without waiting for them; the tiny encoder unless told otherwise."""
    started: list[Running] = []

    def launch(**settings: object) -> Running:
        started.append(start(service_folder, **({"MODEL_PRETRAINED": tiny_onnx} | settings)))
        return started[-1]

    yield launch
    stop_all(started)


@pytest.fixture(scope="session")
def small_service(service_folder, tiny_onnx) -> Iterator[Callable[..., Running]]:
    """The tiny encoder behind tight limits; one service for each set of settings, shared by all tests."""
    running: dict[tuple, Running] = {}
    tight = {"MAX_BODY_MB": 4, "MAX_IMAGES": 8, "MAX_PIXELS": 2_000_000, "MAX_IN_FLIGHT": 16}

    def small_service(**settings: object) -> Running:
        key = tuple(sorted(settings.items()))
        if key not in running:
            running[key] = start(service_folder, **({"MODEL_PRETRAINED": tiny_onnx} | tight | settings))
            running[key].wait()
        return running[key]

    yield small_service
    stop_all(list(running.values()))


def _by_default(folder: Path, pretrained: str) -> Iterator[Running]:
    # Eight requests wait for longer than the default bound when the machine is busy with other tests.
    running = start(folder, MODEL_PRETRAINED=pretrained, MAX_WAIT_S=60)
    try:
        running.wait()
        yield running
    finally:
        stop_all([running])


@pytest.fixture(scope="session")
def real_service(service_folder) -> Iterator[Running]:
    """The service as it is by default, with OpenCLIP at random weights."""
    yield from _by_default(service_folder, "random:0")


@pytest.fixture(scope="session")
def random_service(service_folder, random_onnx) -> Iterator[Running]:
    """The service as it is by default, with a tiny encoder of random weights."""
    yield from _by_default(service_folder, random_onnx)


@pytest.fixture(scope="session")
def random_onnx(tmp_path_factory) -> str:
    """`MODEL_PRETRAINED` of a tiny encoder that calls itself an OpenCLIP with random weights."""
    path = tmp_path_factory.mktemp("random") / "random.onnx"
    triton.tiny_graph(path, "uint8", model_name="ViT-B-32", model_pretrained="random:0")
    return f"onnx:{path}"


@pytest.fixture(scope="session")
def random_model(random_onnx):
    """The model of `random_service`, in this process."""
    from photodup.embedding.engines.encoder import load_model

    return load_model(pretrained=random_onnx, device="cpu")


@pytest.fixture(scope="session")
def tiny_repository(tmp_path_factory, tiny_exports) -> Path:
    """The repository of the shared Triton: tiny graphs and emulated models."""
    return triton.render_shared(tmp_path_factory.mktemp("triton") / "repository", tiny_exports)


@pytest.fixture(scope="session")
def tiny_triton(tiny_repository) -> Iterator:
    """The shared Triton; also stopped by its supervisor if the test run is killed."""
    from photodup.serving.triton.server import EmbeddedTriton

    with EmbeddedTriton(tiny_repository, triton.TINY_MODELS) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """A headless Chromium that calls nobody by itself, and to which rebound.example is this machine."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        flags.append("--host-resolver-rules=MAP rebound.example 127.0.0.1")
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield running
        running.close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small library of photographs with copies, scanned."""
    from support.review_library import make_library

    return make_library(tmp_path / "library")


def stop_all(services: list[Running]) -> None:
    for service in services:
        if service.process.poll() is None:
            service.stop()
