"""Real services for the tests: their own process, real TCP. The fixtures of conftest stop what they start."""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil


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

    def wait(self, path: str = "/readyz", seconds: float = 300) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return answers(self.url + path)

        until(is_ready, seconds)

    def stop(self) -> int:
        """End the service; return its exit status. One that does not end within two minutes is a failure."""
        self.process.terminate()
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5).status_code == 200
    return False


def free_port() -> int:
    """Return a free port below those of bind(0) and of outgoing connections, so that no other process gets it meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def start(
    folder: Path, *, program: tuple[str, ...] = ("-m", "photodup.serving.service"), **settings: object
) -> Running:
    """Start a service without waiting for it. Who calls it stops it; its log lies in `folder`."""
    port = settings.setdefault("PORT", free_port())
    log = folder / f"{port}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, *program],
            env=dict(os.environ) | {key: str(value) for key, value in settings.items()},
            stdout=out,
            stderr=out,
        )
    return Running(f"http://127.0.0.1:{port}", process, log)


def check_against_openapi(response: httpx.Response, url: str) -> None:
    """Fail if the status is not documented for this path, or the body has another schema."""
    import jsonschema

    document = httpx.get(f"{url}/openapi.json").json()
    path, method = response.request.url.path, response.request.method.lower()
    described = document["paths"][path][method]["responses"]
    assert str(response.status_code) in described, f"{path} answers an undocumented {response.status_code}"
    schema = described[str(response.status_code)]["content"]["application/json"]["schema"]
    jsonschema.validate(response.json(), {**schema, "components": document["components"]})


def as_files(photos: list[bytes], field: str = "files") -> list:
    return [(field, (f"{i}.jpg", data, "image/jpeg")) for i, data in enumerate(photos)]


def stuck_upload(url: str, sent: int = 0, announced: int = 1_000_000) -> socket.socket:
    """Open a request and never finish it."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST /embed/base64 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {announced}\r\n\r\n"
    connection.sendall(head.encode() + b" " * sent)
    return connection


def until(condition, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only its exit status is left for its parent."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True
