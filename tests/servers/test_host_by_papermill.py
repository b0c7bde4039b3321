"""The README's papermill line, executed against real servers at another address, on other ports than ours.

The GPU is a stand-in: no GPU is here, so lines of two GPUs are added to the metrics page of the real Triton. Servers,
TCP, notebooks and papermill are real.
"""

import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import nbformat
import pytest
import yaml
from support.paths import ROOT, link_checkout
from support.triton import TINY_MODELS, needs_triton

from photodup.bench.pairs.declared import declarations
from photodup.bench.record.record import load_points
from photodup.serving.check import gpu_of
from photodup.serving.embedded import MODELS, embedded_servers
from photodup.serving.endpoints import UNNAMED_GPU, Endpoints
from photodup.serving.process.ports import claim_ports
from photodup.study.comparisons.measure import measure_comparisons, sizes_of
from photodup.study.notebook.files import notebooks
from photodup.study.notebook.run import open_run

HOST = "127.0.0.7"  # no other loopback address than 127.0.0.1 counts as this machine
PUBLISHED = "203.0.113.7"  # in the README
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


def stand_in(body: Callable[[], str]) -> ThreadingHTTPServer:
    """Serve one page; whoever asks for it closes it."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body().encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer((HOST, 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def port_of(url: str) -> int:
    return int(re.findall(r":(\d+)", url)[-1])


def rented(endpoints: Endpoints) -> Iterator[dict[str, int]]:
    """Yield the ports of a machine as the README's parameters name them, with the stand-in before its metrics."""
    named = endpoints.backends
    http, grpc = (
        next(url for name, url in named.items() if name.startswith("triton") and protocol in name)
        for protocol in ("-http-", "-grpc-")
    )
    # The metrics page of a real Triton with the lines of two GPUs added.
    page = stand_in(lambda: httpx.get(endpoints.metrics["triton"], timeout=60).text + STAND_IN)
    with closing(page.socket):
        service = next(url for name, url in named.items() if name.startswith("fastapi"))
        yield {
            "PYTORCH_PORT": port_of(service),
            "TRITON_HTTP_PORT": port_of(http),
            "TRITON_GRPC_PORT": port_of(grpc),
            "TRITON_METRICS_PORT": page.server_port,
        }
        page.shutdown()


@pytest.fixture(scope="module")
def machine(checkout, tiny_repository, tiny_exports) -> Iterator[dict[str, int]]:
    """A machine with the tiny encoder behind both servers: the graph of the tensor wire, so that its answers are right."""
    weights = {"MODEL_PRETRAINED": f"onnx:{tiny_exports['fp32']}"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODEL_PRETRAINED", weights["MODEL_PRETRAINED"])
        options = {"models": TINY_MODELS, "repository": tiny_repository, "env": weights}
        with embedded_servers(host=HOST, **options) as endpoints:
            yield from rented(endpoints)


def documented(ports: dict[str, int], notebook: str = "06_compare_three_backends") -> list[str]:
    """Return the README's line for a notebook; address and ports are those of a machine that is here."""
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^papermill .*$", text, re.MULTILINE)
    for name, port in ports.items():
        line, n = re.subn(rf"-p {name} \d+", f"-p {name} {port}", line)
        assert n == 1, f"the README's line names {name}"
    line = line.replace(PUBLISHED, HOST).replace("06_compare_three_backends", notebook)
    return shlex.split(line)


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


def servers_recorded(checkout: Path, ports: dict[str, int]) -> dict:
    folder = checkout / "results" / f"{HOST}-{ports['TRITON_HTTP_PORT']}"
    return json.loads((folder / "environment.json").read_text())["servers"]


@pytest.mark.long
@needs_triton()
def test_the_readme_line_records_gpu_price_and_cost(checkout, machine):
    stated = {"gpu": "RTX 4080", "gpus": 4, "price_per_hour": 0.85}
    run = open_run(host=HOST, **{name.lower(): port for name, port in machine.items()}, **stated)
    engines = [
        p
        for p in declarations().of(["06_compare_three_backends"])
        if p.name.startswith("OpenVINO against ONNX")
    ]
    tiny = sizes_of({"visits": 2, "blocks": 3, "block_s": 0.3, "quads": 2, "slice_s": 0.2, "alone_s": 0})
    with run.store:  # as `photodup study run` does, before any notebook
        measure_comparisons(run, engines, tiny, say=lambda _: None)
    code, said, notebook = execute(checkout, documented(machine), {"EXPLORE": False})
    assert code == 0, said
    text = printed(notebook)
    assert "FastAPI's metrics" in text and "cannot be used" not in text, "every address answers"
    assert "4 × RTX 4080, 0.85 USD an hour" in text
    cost = dict(re.findall(r"^(\w.*, tensor) +([\d.]+) USD per 1,000 images$", text, re.MULTILINE))
    assert set(cost) == {"ONNX Runtime in Triton, tensor", "OpenVINO in Triton, tensor"}
    assert all(float(usd) > 0 for usd in cost.values())
    recorded = servers_recorded(checkout, machine)
    assert (recorded["gpu"], recorded["gpus"], recorded["price_per_hour_usd"]) == ("RTX 4080", 4, 0.85)


@pytest.mark.long
@needs_triton()
def test_parity_needs_no_fastapi_and_an_unnamed_gpu_is_no_cpu(checkout, machine):
    line = documented(machine | {"PYTORCH_PORT": 9}, "03_set_up_triton")
    line = [*line[: line.index("GPU") - 1], "-p", "RUN", "without-fastapi"]
    sizes = {"N_PHOTOS": 4, "N_LONE": 4, "SECONDS": 0.2, "IN_FLIGHT": [1, 4]}
    code, said, notebook = execute(checkout, line, sizes)
    assert code == 0, said
    assert f"FastAPI ({HOST}:9) cannot be used" in printed(notebook)
    folder = checkout / "results" / "without-fastapi"
    (parity,) = [json.loads(path.read_text()) for path in folder.glob("records/triton-parity-*.json")]
    assert {row["backend"].split("-")[0] for row in parity["result"]["rows"]} == {"triton"}
    points = load_points(folder)
    assert len(points) and set(points.device) == {UNNAMED_GPU}, "what the metrics count, nobody named"
    assert json.loads((folder / "environment.json").read_text())["servers"]["gpus"] == 2


@pytest.mark.parametrize("strict", [False, True])
def test_a_notebook_ends_at_once_where_nothing_answers(checkout, strict):
    dead = claim_ports(
        HOST,
        dict.fromkeys(("PYTORCH_PORT", "TRITON_HTTP_PORT", "TRITON_GRPC_PORT", "TRITON_METRICS_PORT"), 0),
    )
    code, said, notebook = execute(checkout, documented(dead, "03_set_up_triton"), {"STRICT": strict})
    assert (code != 0) is strict
    if strict:
        assert "Nothing answers: FastAPI" in said
    else:
        answer = next(c for c in notebook.cells if "answer" in c.metadata.get("tags", []))
        assert "This run: not measured" in answer.outputs[0].text
        assert f"This run: not measured. Nothing answers: FastAPI ({HOST}:" in printed(notebook)
    assert not (checkout / "results" / f"{HOST}-{dead['TRITON_HTTP_PORT']}").exists()


def test_a_mistyped_parameter_fails(checkout):
    line = ["papermill", "notebooks/03_set_up_triton.ipynb", "out.ipynb", "-p", "HSOT", HOST]
    code, said, _ = execute(checkout, line)
    assert code != 0 and "This notebook has no parameter HSOT: it declares RUN," in said


def test_what_servers_state_decides_what_is_recorded():
    def stated(info: dict) -> tuple[str, int]:
        with stand_in(lambda: json.dumps(info)) as page:
            url = f"http://{HOST}:{page.server_port}"
            found = gpu_of(Endpoints(name="x", backends={"fastapi-pytorch-fp32-http-jpeg": url}))
            page.shutdown()
        return found

    assert stated({"device": "cuda", "gpus": ["NVIDIA L4", "NVIDIA L4"]}) == ("NVIDIA L4", 2)
    assert stated({"device": "cuda"}) == (UNNAMED_GPU, 1)
    assert stated({"device": "cpu", "gpus": []}) == ("none", 1)
    assert stated({}) == ("unknown", 1)


@pytest.fixture(scope="module")
def real_machine(checkout) -> Iterator[dict[str, int]]:
    """A machine with the encoder of the study, at random weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODEL_PRETRAINED", "random:0")
        with embedded_servers(host=HOST, models=MODELS, env={"MAX_WAIT_S": "60"}) as endpoints:
            yield from rented(endpoints)


@needs_triton()
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", notebooks()[1:], ids=lambda p: p.stem)
def test_the_readme_line_runs_every_notebook(checkout, real_machine, path):
    size = yaml.safe_load((ROOT / "notebooks" / "smoke.yaml").read_text()).get(path.stem, {})
    code, said, notebook = execute(
        checkout, documented(real_machine, path.stem), size.get("parameters"), size.get("budget_s", 1200)
    )
    assert code == 0, said
    assert "4 × RTX 4080, 0.85 USD an hour" in printed(notebook)
    if path.stem.startswith("06"):
        assert "USD per 1,000 images" in printed(notebook)
