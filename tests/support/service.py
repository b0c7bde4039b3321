"""Real services for the tests: their own process, real TCP, stopped when the test run ends."""

import atexit
import functools
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
from triton_fixture import tiny_graph


@dataclass
class Running:
    url: str
    process: subprocess.Popen
    log: Path

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    def metrics(self) -> dict[str, float]:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return {name: float(value) for name, value in (ln.rsplit(" ", 1) for ln in lines if ln[0] != "#")}

    def wait(self, path: str = "/readyz", seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if httpx.get(self.url + path, timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"not ready: {self.log.read_text()}")

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@functools.cache
def folder() -> Path:
    made = tempfile.TemporaryDirectory(prefix="photodup-service-")
    atexit.register(made.cleanup)
    return Path(made.name)


@functools.cache
def tiny_onnx() -> str:
    """`MODEL_PRETRAINED` of an encoder that loads in milliseconds."""
    return f"onnx:{tiny_graph(folder() / 'tiny.onnx', 'uint8')}"


def launch(*, program: tuple[str, ...] = ("-m", "photodup.serving.service"), **settings: object) -> Running:
    """Start a service without waiting for it; the tiny encoder unless `MODEL_PRETRAINED` is given."""
    port = settings.setdefault("PORT", free_port())
    settings.setdefault("MODEL_PRETRAINED", tiny_onnx())
    log = folder() / f"{port}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, *program],
            env=dict(os.environ) | {key: str(value) for key, value in settings.items()},
            stdout=out,
            stderr=out,
        )
    running = Running(f"http://127.0.0.1:{port}", process, log)
    atexit.register(lambda: process.poll() is None and running.stop())
    return running


@functools.cache
def real_service() -> Running:
    """The service as it is by default, with OpenCLIP at random weights."""
    # Eight requests wait for longer than the default bound when the machine is busy with other tests.
    running = launch(MODEL_PRETRAINED="random:0", MAX_WAIT_S=60)
    running.wait()
    return running


@functools.cache
def small_service(**settings: object) -> Running:
    """The tiny encoder behind tight limits."""
    tight = {"MAX_BODY_MB": 4, "MAX_IMAGES": 8, "MAX_PIXELS": 2_000_000, "MAX_IN_FLIGHT": 16}
    running = launch(**(tight | settings))
    running.wait()
    return running


@functools.cache
def real_model():
    from photodup.embedding.engines.encoder import load_model

    return load_model(pretrained="random:0", device="cpu")
