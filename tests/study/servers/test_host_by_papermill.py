"""The README's papermill line, executed against real servers at another address, on other ports than ours.

For all notebooks it is executed as it stands: its machine is a network namespace that has the README's address, and passes
the README's ports on to its servers. The GPU is a stand-in: no GPU is here, so lines of two GPUs are added to the metrics
page of the real Triton. Servers, TCP, notebooks and papermill are real.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import nbformat
import pytest
import yaml
from support.flaky import in_front_of
from support.http_server import Handler, serving
from support.link import needs_link
from support.paths import ROOT, link_checkout
from support.rented import PORTS, rented_machine
from support.shell import executed
from support.triton import needs_triton

from photodup.bench.record.store import figures_of_run
from photodup.core.errors import PhotodupError
from photodup.serving.check import gpu_of
from photodup.serving.embedded import MODELS
from photodup.serving.endpoints import UNNAMED_GPU, Endpoints, read_address_line
from photodup.serving.process.ports import claim_ports
from photodup.serving.triton import control_key
from photodup.serving.triton.repository import render_repository
from photodup.study.notebook.files import notebooks

HOST = "127.0.0.7"  # no other loopback address than 127.0.0.1 counts as this machine
PUBLISHED = "203.0.113.7"  # in the README
EVERY = notebooks()[1:]
SMOKE = yaml.safe_load((ROOT / "notebooks" / "smoke.yaml").read_text())
ASK_NO_SERVER = ("01", "02", "09", "12", "13", "14")  # what computes on this machine, or reads records
STAND_IN = """# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
nv_gpu_utilization{gpu_uuid="GPU-stand-in-0"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-stand-in-1"} 0.5
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory, demo_dir) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("checkout")
    link_checkout(folder, demo_dir)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHOTODUP_ROOT", str(folder))
        yield folder


class Page(Handler):
    def do_GET(self) -> None:
        self.reply(self.server.body().encode())


def stand_in(body: Callable[[], str], at: tuple[str, int] = (HOST, 0)):
    """Serve one page for the length of a block."""
    return serving(Page, at, body=body)


def documented(notebook: str = "06_compare_three_backends", servers: str = "") -> list[str]:
    """Return the README's line for a notebook, or with other servers for its ENDPOINTS."""
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^papermill .*$", text, re.MULTILINE)
    words = shlex.split(line.replace("06_compare_three_backends", notebook))
    at = words.index("ENDPOINTS") + 1
    assert words[at].startswith(f"{PUBLISHED}:")
    words[at] = servers or words[at]
    return words


@pytest.fixture(scope="module")
def published(checkout, real_exports) -> Iterator[str]:
    """The README's machine at its address and on its ports, with the study's encoder at random weights; yields its run."""
    from pyroute2 import IPRoute

    line = documented()
    address = read_address_line(line[line.index("ENDPOINTS") + 1])
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("MODEL_PRETRAINED", "random:0")
        folder = checkout / "build" / "rented"
        repository = render_repository("cpu-embedded", folder, real_exports, models=list(MODELS))
        machine = stack.enter_context(rented_machine(link="metro", repository=repository))
        patch.setenv(control_key.VARIABLE, machine.key)
        with IPRoute() as here:  # gone with the link
            (way,) = here.route("get", dst=machine.address)
            here.route("add", dst=f"{PUBLISHED}/32", oif=way.get_attr("RTA_OIF"))
        with machine.way.client_namespace():  # what listens is born there
            with IPRoute() as there:
                there.addr("add", index=there.link_lookup(ifname="lo")[0], address=PUBLISHED, prefixlen=32)
            ports = {"fastapi": address.fastapi, "http": address.triton_http, "grpc": address.triton_grpc}
            for server, port in ports.items():
                stack.enter_context(in_front_of(f"{machine.address}:{PORTS[server]}", at=(PUBLISHED, port)))
            metrics = machine.endpoints.metrics["triton"]
            at = PUBLISHED, address.triton_metrics
            stack.enter_context(stand_in(lambda: httpx.get(metrics, timeout=60).text + STAND_IN, at))
        yield f"{PUBLISHED}-{address.triton_http}"


def execute(checkout: Path, line: list[str], sizes: dict | None = None, seconds: float = 600):
    """Execute a papermill line; return its exit status, what it printed and the notebook that it wrote.

    Papermill waits for ever for a kernel that no longer answers, and so do we for a pipe that the kernel keeps open when
    papermill is killed. So each cell has a limit, whose error quotes the cell, and the output goes to a file.
    """
    output = checkout / "build" / f"{Path(line[1]).stem}.ipynb"
    limits = ["--start-timeout", "120", "--execution-timeout", str(round(0.75 * seconds))]
    command = [sys.executable, "-m", *line, "--no-progress-bar", *limits, "-y", json.dumps(sizes or {})]
    command[command.index("out.ipynb")] = str(output)
    with output.with_suffix(".log").open("w+") as log:
        try:
            status = subprocess.run(command, cwd=checkout, stdout=log, stderr=log, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            log.seek(0)
            pytest.fail(f"{output.stem} did not end within {seconds:.0f} s; papermill printed: {log.read()}")
        log.seek(0)
        return status, log.read(), nbformat.read(output, as_version=4)


def printed(notebook) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.get("data", {}) for output in outputs]
    texts = [data.get("text/markdown") or data.get("text/plain") or "" for data in shown]
    return "\n".join([*(output.get("text", "") for output in outputs), *texts])


@pytest.mark.long
@needs_triton()
@needs_link
def test_parity_needs_no_fastapi_and_an_unnamed_gpu_is_no_cpu(checkout, published):
    line = documented("03_set_up_triton", "203.0.113.7:9,47088,47037,47012")
    line = [*line[: line.index("GPU") - 1], "-p", "RUN", "without-fastapi"]
    sizes = {"N_PHOTOS": 4, "SECONDS": 0.2, "IN_FLIGHT": [1, 4]}
    code, said, notebook = execute(checkout, line, sizes)
    assert code == 0, said
    assert f"FastAPI ({PUBLISHED}:9) cannot be used" in printed(notebook)
    folder = checkout / "results" / "without-fastapi"
    (parity,) = [json.loads(path.read_text()) for path in folder.glob("records/triton-parity-*.json")]
    assert {row["backend"].split("-")[0] for row in parity["result"]["rows"]} == {"triton"}
    figures = figures_of_run(folder)
    assert len(figures) and set(figures.device) == {UNNAMED_GPU}, "what the metrics count, nobody named"
    assert json.loads((folder / "environment.json").read_text())["servers"]["gpus"] == 2


STEMS = [pytest.param(p.stem, marks=[] if p.stem[:2] == "03" else pytest.mark.long) for p in EVERY]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("stem", STEMS)
def test_a_notebook_ends_at_once_where_nothing_answers(checkout, stem, strict):
    dead = claim_ports(HOST, dict.fromkeys(("fastapi", "http", "grpc", "metrics"), 0))
    servers = f"{HOST}:{','.join(map(str, dead.values()))}"
    code, said, notebook = execute(checkout, documented(stem, servers), {"STRICT": strict})
    assert (code != 0) is strict
    if strict:
        assert "Nothing answers: FastAPI" in said
    else:
        answer = next(c for c in notebook.cells if "answer" in c.metadata.get("tags", []))
        assert "Not measured: Nothing answers" in answer.outputs[0].text
        assert f"Not measured: Nothing answers: FastAPI ({HOST}:" in printed(notebook)
        assert "<Figure" not in printed(notebook), "none is half drawn"
    assert not (checkout / "results" / f"{HOST}-{dead['http']}").exists()


def test_a_mistyped_parameter_fails(monkeypatch):
    """Papermill injects it with a warning; the notebook refuses it."""
    with pytest.raises(PhotodupError, match="This notebook has no parameter HSOT: it declares RUN,"):
        executed(EVERY[2], ROOT, monkeypatch, HSOT=HOST)


def test_what_servers_state_decides_what_is_recorded():
    def stated(info: dict) -> tuple[str, int]:
        with stand_in(lambda: json.dumps(info)) as page:
            return gpu_of(Endpoints(name="x", backends={"fastapi-pytorch-fp32-http-jpeg": page.url}))

    assert stated({"device": "cuda", "gpus": ["NVIDIA L4", "NVIDIA L4"]}) == ("NVIDIA L4", 2)
    assert stated({"device": "cuda"}) == (UNNAMED_GPU, 1)
    assert stated({"device": "cpu", "gpus": []}) == ("none", 1)
    assert stated({}) == ("unknown", 1)


@needs_triton()
@needs_link
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize(("path", "more"), [
    pytest.param(EVERY[5], {"EXPLORE": False}, id="06, what its answer rests on"),  # which is what the line names
    *(pytest.param(path, {}, marks=pytest.mark.long, id=path.stem) for path in EVERY),
])  # fmt: skip
def test_the_readme_line_measures_and_answers_with_every_notebook(checkout, published, path, more):
    """Nothing is measured before: a line alone has to give an answer. Only the sizes are CI's, or also the notebook's."""
    as_it_stands = "PHOTODUP_AS_IT_STANDS" in os.environ  # `make remote-test`
    sizes, limit_s = ({}, 5 * 3600) if as_it_stands else (SMOKE.get(path.stem, {}) | more, 1200)
    code, said, notebook = execute(checkout, documented(path.stem), sizes, limit_s)
    text = printed(notebook)
    assert code == 0, said
    answer = next(cell for cell in notebook.cells if "answer" in cell.metadata.get("tags", []))
    words = "".join(output.get("text", "") for output in answer.outputs)
    assert words and not re.search(r"[Nn]ot measured|nan", words), words
    asks_none = path.stem[:2] in ASK_NO_SERVER
    assert asks_none or re.search(r"\d+ .*are missing: about \d+ (minutes|seconds) and [\d.]+ USD", text)
    known = "random:0 (random weights" in text or (asks_none and "not known: no server has said" in text)
    assert known and "4 × RTX 4080, 0.85 USD an hour" in text
    assert "FastAPI's metrics" in text and "cannot be used" not in text, "every address answers"
    assert ("This notebook measures nothing there" in text) is asks_none
    if path.stem.startswith("06"):
        cost = dict(re.findall(r"^(\w.*?) +([\d.]+) USD per 1,000 images$", text, re.MULTILINE))
        assert {"PyTorch FP32 in FastAPI", "ONNX Runtime FP32 in Triton"} <= {*cost}
        assert all(float(usd) > 0 for usd in cost.values())
    if path.stem.startswith("07"):
        assert float(re.search(r"^\| 4 \|.*\| ([\d.]+) \|$", text, re.M)[1]) > 0
    if path.stem[:2] not in ASK_NO_SERVER[2:]:  # these record nothing
        servers = json.loads((checkout / "results" / published / "environment.json").read_text())["servers"]
        assert (servers["gpu"], servers["gpus"], servers["price_per_hour_usd"]) == ("RTX 4080", 4, 0.85)
