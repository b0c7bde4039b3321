"""docs/gpu.md, followed as a new user: its lines lead to the servers of a machine elsewhere.

Vast.ai's program needs an account: a script in its place prints what it prints of a machine with these ports.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.link import needs_link
from support.paths import ROOT
from support.rented import PORTS, Rented, rented_machine
from support.service import free_port, until
from support.triton import needs_triton, render_tiny

from photodup.serving.check import check_all, render_check
from photodup.serving.endpoints import from_ports, load_endpoints
from photodup.serving.triton.control_key import VARIABLE

GUIDE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
MODELS = ["openclip_vit_b32", "openclip_vit_b32_uint8"]
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")


def blocks(step: str) -> list[str]:
    """The commands of a step of the guide, a text for each block."""
    section = GUIDE.split(f"\n## {step}\n")[1].split("\n## ")[0]
    return re.findall(r"^```bash\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def address_line(commands: str, folder: Path) -> str:
    """Run a block with the programs of a folder before others; return the address line that it sets."""
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    script = f'set -e\n{commands}\nprintf "\\nENDPOINTS %s" "$ENDPOINTS"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("ENDPOINTS ")[2]


def assert_reached(line: str) -> None:
    host, ports = re.fullmatch(r"([\d.]+):(\d+,\d+,\d+,\d+)", line).groups()
    checks = check_all(from_ports(host, *map(int, ports.split(",")), models=MODELS))
    assert len(checks) > len(MODELS) and all(check.is_ready for check in checks), render_check(checks)


@pytest.fixture(scope="module")
def machine(tmp_path_factory, tiny_exports, tiny_onnx) -> Iterator[Rented]:
    repository = render_tiny(tmp_path_factory.mktemp("rented"), tiny_exports, MODELS)
    with rented_machine(repository=repository, service_env={"MODEL_PRETRAINED": tiny_onnx}) as rented:
        yield rented


@needs_triton()
@needs_link
@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed: apt-get install jq")
def test_the_line_of_mapped_ports_is_that_of_the_machine(machine, tmp_path):
    mapped = {f"{port}/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(port)}] for port in PORTS.values()}
    instance = {"public_ipaddr": machine.address, "ports": mapped, "num_gpus": 1, "dph_total": 0.85}
    answer = f"[ \"$*\" = 'show instance INSTANCE --raw' ] && echo '{json.dumps(instance)}'"
    program(tmp_path, "vastai", answer)
    assert_reached(address_line(blocks("3. Reach it")[0], tmp_path))


@needs_triton()
@needs_link
@pytest.mark.skipif(not SSHD or os.geteuid() != 0, reason="needs root and apt-get install openssh-server")
def test_the_tunnel_leads_to_the_machine(machine, tmp_path):
    """OpenSSH's own server in the machine's namespace, and the guide's line with a key made for it."""
    for name in ("host", "client"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name]
        subprocess.run(key, check=True)
    settings = f"""
        Port 2222\nListenAddress {machine.address}\nHostKey {tmp_path}/host\nPidFile none\nUsePAM no
        AuthorizedKeysFile {tmp_path}/client.pub\nStrictModes no\nPermitRootLogin prohibit-password"""
    (tmp_path / "sshd_config").write_text(settings.replace("        ", ""))
    Path("/run/sshd").mkdir(exist_ok=True)
    options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    control = tmp_path / "control"  # the socket by which the tunnel is ended
    program(tmp_path, "ssh", f'exec /usr/bin/ssh -F none -i {tmp_path}/client {options} -M -S {control} "$@"')
    commands = blocks("3. Reach it")[1].replace("-p PORT USER@HOST", f"-p 2222 root@{machine.address}")
    for port in PORTS.values():  # another server of this machine may have ours
        commands = re.sub(rf"\b{port}(?=:127)", str(free_port()), commands)
    commands = ports_agree(commands)
    with machine.way.client_namespace():
        command = [SSHD, "-D", "-e", "-f", tmp_path / "sshd_config"]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until(lambda: is_open(machine.address, 2222))
        line = address_line(commands, tmp_path)
        assert line.startswith("127.0.0.7:")
        assert_reached(line)
    finally:
        subprocess.run(["ssh", "-S", control, "-O", "exit", "x"], capture_output=True)
        server.terminate()
        server.wait(10)


@needs_triton()
@needs_link
@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed: apt-get install jq")
def test_memory_is_read_of_one_model_at_a_time(machine, tmp_path):
    """The machine's memory stands for the GPU's, and ONNX Runtime's model for TensorRT's."""
    commands = next(block for block in blocks("4. Measure") if "memory()" in block)
    for port, part in ((47088, "http"), (47012, "metrics"), (47037, "grpc")):
        commands = commands.replace(f"203.0.113.7:{port}", f"{machine.address}:{PORTS[part]}")
    commands = commands.replace("nv_gpu_", "nv_cpu_").replace("openclip_vit_b32_trt", MODELS[0])
    assert "203.0.113.7" not in commands
    program(tmp_path, "photodup", f'exec {sys.executable} -m photodup "$@" --out {tmp_path}/load')
    *measured, restored = commands.splitlines()

    def ready() -> list[bool]:
        address = f"http://{machine.address}:{PORTS['http']}/v2/models"
        return [httpx.get(f"{address}/{name}/ready").status_code == 200 for name in MODELS]

    environment = os.environ | {VARIABLE: machine.key, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = "\n".join([*measured, "read", restored])  # waits until its standard input has a line
    shell = ["bash", "-euo", "pipefail", "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(shell, text=True, env=environment, **pipes) as process:
        until(lambda: (tmp_path / "load" / "result.json").is_file(), 60)
        assert ready() == [True, False], "one model at a time"
        output, errors = process.communicate("\n", timeout=60)
    assert process.returncode == 0, errors
    figures = re.findall(r"^nv_cpu_memory_used_bytes ([\d.e+]+)$", output, re.MULTILINE)
    assert len(figures) == 3 and min(map(float, figures)) > 0
    assert ready() == [True, True]


def is_open(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


def ports_agree(commands: str) -> str:
    """The address line names the ends of the tunnel."""
    ends = re.findall(r"-L 127\.0\.0\.7:(\d+):", commands)
    return re.sub(r"ENDPOINTS=127\.0\.0\.7:\S+", f"ENDPOINTS=127.0.0.7:{','.join(ends)}", commands)


def test_the_tunnel_s_ends_are_the_ports_of_its_address_line():
    commands = blocks("3. Reach it")[1]
    assert ports_agree(commands) == commands
    ends = re.findall(r"-L 127\.0\.0\.7:(\d+):127\.0\.0\.1:(\d+)", commands)
    assert ends == [(str(port), str(port)) for port in PORTS.values()]


def test_what_is_measured_is_what_was_reached():
    """Line and file of the guide name one machine, and the file is one."""
    host, ports = re.search(r"# such as ([\d.]+):([\d,]+)", GUIDE).groups()
    assert '-p ENDPOINTS "$ENDPOINTS" ' in blocks("4. Measure")[0]
    file = re.search(r"^```yaml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)[1]
    assert set(re.findall(rf"{host}:(\d+)", file)) == set(ports.split(","))


def test_the_example_of_an_endpoints_file_is_one(tmp_path):
    file = tmp_path / "rtx4080.yaml"
    file.write_text(re.search(r"^```yaml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)[1])
    assert load_endpoints(file).price_per_hour_usd == 0.85
