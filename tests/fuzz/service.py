"""Schemathesis against a real service: what its OpenAPI document allows, and what it does not."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.service import start
from support.triton import tiny_graph

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def fuzz(seconds: float) -> bool:
    """Send requests for about `seconds`; True if every answer was what the document says."""
    with tempfile.TemporaryDirectory(prefix="photodup-fuzz-") as folder:
        graph = tiny_graph(Path(folder) / "tiny.onnx", "uint8")
        server = start(Path(folder), MODEL_PRETRAINED=f"onnx:{graph}", HOST="127.0.0.1", MAX_WAIT_S=60)
        try:
            server.wait()
            return _run(server, folder, seconds)
        finally:
            if server.process.poll() is None:
                server.stop()


def _run(server, folder: str, seconds: float) -> bool:
    program = Path(sys.executable).with_name("schemathesis")
    command = [program, "run", f"{server.url}/openapi.json", "--checks", CHECKS, "--no-color"]
    command += ["--max-time", str(max(1, int(seconds))), "--max-examples", "10000"]
    command += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure"]
    started = time.monotonic()
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    print(done.stdout[-6000:], done.stderr[-2000:], sep="\n")
    answered = {k: int(n) for k, n in server.metrics().items() if k.startswith("photodup_requests_total")}
    print(f"{sum(answered.values())} requests answered in {time.monotonic() - started:.0f} s: {answered}")
    if server.process.poll() is not None:
        print(server.log.read_text()[-4000:])
        return False
    tracebacks = server.log.read_text().count("Traceback")
    print(f"{tracebacks} tracebacks in the service's log")
    return done.returncode == 0 and not tracebacks
