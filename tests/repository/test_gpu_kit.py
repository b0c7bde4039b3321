"""The kit for a machine with a GPU and no network: what travels, what arrives, what comes back."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from support.command import one_sentence, run_python
from support.plants import PLANTS
from support.service import has_ended, until
from support.triton import needs_triton

from photodup.bench.record.store import RunStore, load_records
from photodup.core.errors import PhotodupError
from photodup.serving.triton.server import triton_venv

KIT = Path(__file__).resolve().parents[2] / "tools" / "gpu_kit"
sys.path.insert(0, str(KIT))

import collect  # noqa: E402
import pack  # noqa: E402


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    """A list of wheels that names none: this environment has what they would bring, and pip needs no network."""
    folder = tmp_path_factory.mktemp("wheels")
    for group in pack.GROUPS:
        (folder / f"{group}.txt").write_text("# nothing\n")
    return folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory, wheels) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    pack.pack(folder, ["core"], requirements=wheels)
    return folder


def test_what_arrives_is_the_tree_and_enough_photographs(packed, tmp_path, root):
    assert {path.name for path in packed.iterdir()} == {"core.tar.gz", "far_side.sh"}
    environment_made(tmp_path)
    done = far_side(packed, tmp_path, "environment")
    assert done.returncode == 0, done.stdout + done.stderr
    tree = tmp_path / "gpu-kit-work" / "core" / "tree"
    for name in (
        "lib/photodup/cli/__init__.py",
        "model_repository/openclip_vit_b32_preprocess/1/model.py",
        "pyproject.toml",
    ):
        assert (tree / name).read_bytes() == (root / name).read_bytes()
    assert not list(tree.rglob("__pycache__")) and not (tree / "results" / "reference-cpu").exists()
    names = "from photodup.study.notebook.weights import payload_photos; print(len(payload_photos(32)))"
    env = dict(os.environ) | {"PHOTODUP_ROOT": str(tree), "PYTHONPATH": str(tree / "lib")}
    done = run_python(names, env=env)
    assert done.stdout.strip() == "32", done.stderr


def test_without_the_archive_that_everything_needs_or_with_a_damaged_one_nothing_is_measured(
    packed, tmp_path
):
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(packed / "far_side.sh", alone)
    assert "core.tar.gz is not here: bring it first." in far_side(alone, tmp_path, "environment").stdout
    (alone / "core.tar.gz").write_bytes((packed / "core.tar.gz").read_bytes()[:-5000])
    done = far_side(alone, tmp_path, "environment", "parity")
    assert done.returncode == 1 and "environment: failed" in done.stdout and "parity:" not in done.stdout
    shutil.copy(packed / "core.tar.gz", alone)
    environment_made(tmp_path)
    assert far_side(alone, tmp_path, "environment").returncode == 0


def test_packing_says_which_wheel_cannot_be_had(tmp_path, wheels):
    listed = Path(shutil.copytree(wheels, tmp_path / "lists"))
    (listed / "triton.txt").write_text("no-such-wheel==1.0\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PhotodupError, match=r"wheels of triton .*no-such-wheel"):
        pack.pack(tmp_path / "out", ["triton"], wheels=tmp_path / "empty", requirements=listed)
    assert not list((tmp_path / "out").iterdir())


def test_wheels_are_the_versions_that_are_tested_here(root):
    constraints = {}
    for name in ("constraints.txt", "constraints-triton.txt"):
        for line in (root / name).read_text().splitlines():
            if match := re.match(r"([\w.-]+)==(\S+)", line):
                constraints.setdefault(match[1].lower().replace("_", "-"), set()).add(match[2])
    for group in pack.GROUPS:
        for line in (KIT / "wheels" / f"{group}.txt").read_text().splitlines():
            if line and not line.startswith("#"):
                name, version = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?==(\S+)", line).groups()
                assert version in constraints[name.lower().replace("_", "-")], name


def test_what_a_wheel_needs_travels_too_or_is_there():
    """`--no-deps` fetches what is named and nothing else: FastAPI without opentelemetry-api does not start."""
    from importlib import metadata

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    def listed(group: str) -> list[Requirement]:
        lines = (KIT / "wheels" / f"{group}.txt").read_text().splitlines()
        return [Requirement(line) for line in lines if line and not line.startswith("#")]

    known = {canonicalize_name(wheel.name) for wheel in listed("core") + listed("there")}
    extras = tomllib.loads((KIT.parents[1] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {canonicalize_name(Requirement(line).name) for line in extras["load"]} <= known, (
        "`servers` needs them"
    )
    for wheel in listed("core"):
        for needed in map(Requirement, metadata.requires(wheel.name) or ()):
            wanted = [{"extra": extra, "python_version": "3.12"} for extra in ("", *wheel.extras)]
            if needed.marker is None or any(map(needed.marker.evaluate, wanted)):
                assert canonicalize_name(needed.name) in known, f"{wheel.name} needs {needed}"


def far_side(packed: Path, cwd: Path, *steps: str, **settings: str) -> subprocess.CompletedProcess:
    with started(packed, cwd, *steps, **settings) as process:
        output, errors = process.communicate(timeout=1200)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def started(packed: Path, cwd: Path, *steps: str, **settings: str) -> subprocess.Popen:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PHOTODUP", "KIT"))}
    env |= {"KIT_PYTHON": sys.executable, "KIT_DEVICE": "cpu", "KIT_RUN": "rehearsal", **settings}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([str(packed / "far_side.sh"), *steps], env=env, cwd=cwd, text=True, **pipes)


def environment_made(folder: Path) -> None:
    """Without wheels there is nothing to install: this Python has all of it."""
    (folder / "gpu-kit-work" / "site").mkdir(parents=True)
    (folder / "gpu-kit-work" / "site" / ".made").touch()


def test_each_step_says_its_time_and_what_is_not_done(packed, tmp_path):
    """A call without time measures nothing and takes in what arrived; a step that is done is not done again."""
    environment_made(tmp_path)
    none = far_side(packed, tmp_path, "environment", "parity", KIT_MINUTES="0.1")
    assert none.returncode == 1 and (tmp_path / "gpu-kit-work" / "core" / "tree" / "pyproject.toml").is_file()
    assert re.search(r"^environment: (\d) of the \1 s that this call has left$", none.stdout, re.MULTILINE)
    assert "not done: parity" in none.stdout
    (tmp_path / "gpu-kit-work" / "done" / "parity").touch()
    assert "parity: done before" in far_side(packed, tmp_path, "parity").stdout
    late = tmp_path / "late"
    late.mkdir()
    shutil.copy(packed / "far_side.sh", late)
    shutil.copy(packed / "core.tar.gz", late / "onnx.tar.gz")
    far_side(late, tmp_path, "environment")
    assert not list((tmp_path / "gpu-kit-work" / "done").iterdir()), "a step may have lacked it"


def test_a_call_that_is_ended_ends_its_step_and_no_other_measures_beside_it(packed, tmp_path):
    environment_made(tmp_path)
    python, step = tmp_path / "python", tmp_path / "step"
    python.write_text(f"#!/bin/sh\necho $$ > {step}\nexec sleep 60")
    python.chmod(0o755)
    with started(
        packed, tmp_path, "environment", "parity", KIT_PYTHON=str(python), KIT_MINUTES="1"
    ) as process:
        until(lambda: step.is_file() and step.read_text().endswith("\n"), 60)
        other = far_side(packed, tmp_path, "fp32", KIT_MINUTES="0.1")
        assert other.returncode == 2 and "Another call measures in" in other.stderr
        assert far_side(packed, tmp_path, "bundle").returncode == 0, "a look at what there is"
        process.terminate()
        assert process.wait(30) == 1
    assert has_ended(int(step.read_text()))
    assert (tmp_path / "gpu-kit-out" / "records.tar.gz").is_file()


def test_time_that_a_step_leaves_goes_to_the_others(packed, tmp_path):
    """The schedule alone: steps that end at once, but for one that goes on, one that fails and one that is stopped."""
    environment_made(tmp_path)
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/bash
        case "$*" in
          *" tensorrt") mkdir {tmp_path}/again 2>/dev/null && exit 3 ;;
          *" compile") exit 1 ;;
          *" full") exit 124 ;;
        esac
        exit 0""")
    python.chmod(0o755)
    done = far_side(packed, tmp_path, "all", KIT_PYTHON=str(python), KIT_MINUTES="28")
    given = re.findall(r"^(\w+): (\d+) of the", done.stdout, re.MULTILINE)
    assert [name for name, _ in given] == [
        "environment", "parity", "fp32", "fp16", "tensorrt", "graphs", "compile", "servers", "notebooks",
        "tensorrt", "compile", "full",
    ]  # fmt: skip
    seconds = [int(limit) for _, limit in given]
    assert seconds[0] == 120 and seconds[1] >= 150 and seconds == sorted(seconds[:9]) + seconds[9:]
    assert min(seconds[8:]) > 1600, "the whole of what is left"
    assert done.returncode == 1 and done.stdout.endswith("not done: compile\n")


@pytest.mark.long
@needs_triton()
@pytest.mark.timeout(1500)
def test_the_rehearsal_on_a_cpu_comes_back_as_records(packed, tmp_path):
    """Every step in its order, as far as the device that is missing; collected into results/."""
    environment_made(tmp_path)
    venv = tmp_path / "gpu-kit-work" / "venv-triton"
    venv.symlink_to(triton_venv())
    engines = {"KIT_BATCHES": "1", "KIT_REPEATS": "1"}
    served = {"KIT_CONCURRENCY": "1 2", "KIT_SECONDS": "1", "KIT_NOTEBOOKS": "03", "KIT_SIZES": "smoke"}
    *order, last = re.search(r"order=\(([^)]*)\)", (KIT / "far_side.sh").read_text())[1].split()
    assert last == "full", "what fills the time that is left"
    load = tmp_path / "gpu-kit-work" / "core" / "tree" / "results" / "rehearsal" / "load"
    unanswered = load / "fastapi-onnx-fp32-http-jpeg" / "result.json"
    unanswered.parent.mkdir(parents=True)
    unanswered.write_text('{"status": 2}')
    done = far_side(packed, tmp_path, *order, **engines, **served)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(unanswered.read_text())["status"] == 0, "what nobody answered is measured again"
    assert re.findall(r"^(\w+): done in", done.stdout, re.MULTILINE) == order
    results = tmp_path / "results"
    lines = collect.collect(tmp_path / "gpu-kit-out" / "records.tar.gz", results)
    assert [line.split(":")[0] for line in lines] == ["rehearsal", "rehearsal-notebooks", "logs"]
    records = {record["key"]: record for record in load_records(results / "rehearsal")}
    assert {"device fidelity fp32", "device ceilings copy", "device onnx-cpu fp32 b1"} <= set(records)
    assert records["device pytorch-eager fp32 b1"]["status"] == "ok"
    for engine in ("onnx-tensorrt", "pytorch-cuda-graph", "onnx-tensorrt-graph"):
        assert records[f"device {engine} fp32 b1"]["error"], "the device is missing, and the step went on"
    loads = {path.parent.name for path in (results / "rehearsal" / "load").glob("*/result.json")}
    assert loads == set(runpy.run_path(str(KIT / "steps.py"))["BACKENDS"])
    logged = (tmp_path / "build" / "gpu-kit-logs" / "parity.log").read_text()
    assert (results / "rehearsal" / "environment.json").is_file() and "ceilings copy" in logged
    assert collect.collect(tmp_path / "gpu-kit-out" / "records.tar.gz", results)[0].startswith(
        "rehearsal: 0 new records"
    )


def test_a_step_that_does_not_exist_is_said(packed, tmp_path):
    done = far_side(packed, tmp_path, "environmnt")
    assert done.returncode == 2 and "There is no step environmnt: choose of environment parity" in done.stderr


def bundled(folder: Path) -> Path:
    """Bundle what was measured in `folder/work`; return the archive."""
    done = far_side(KIT, folder, "bundle", KIT_WORK=str(folder / "work"), KIT_OUT=str(folder / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out" / "records.tar.gz"


@pytest.fixture
def came_back(tmp_path) -> Path:
    """An archive with one finished and one failed record."""
    run = tmp_path / "work" / "core" / "tree" / "results" / "gpu"
    with RunStore(run) as store:
        store.measure_or_load("good", lambda: {"value": 1.5, "raw": {"latency_ms": [1.0, 2.0]}}, config={})
        store.measure_or_load("bad", lambda: {"status": "failed", "error": "no memory"}, config={})
    (run / "study.json").write_text("[]")
    (tmp_path / "work" / "logs").mkdir()
    (tmp_path / "work" / "logs" / "probe.log").write_text("ceilings\n")
    return bundled(tmp_path)


def test_a_failed_record_gives_way_and_a_finished_one_does_not(came_back, tmp_path):
    results = tmp_path / "results"
    assert collect.collect(came_back, results) == [
        "gpu: 2 new records, 2 in all, 1 of them failed", f"logs: {tmp_path / 'build' / 'gpu-kit-logs'}"
    ]  # fmt: skip
    assert (results / "gpu" / "study.json").read_text() == "[]", "which notebooks ran"
    with RunStore(results / "gpu") as store:
        assert list(store.raw("good", config={})["latency_ms"]) == [1.0, 2.0]
    run = tmp_path / "work" / "core" / "tree" / "results" / "gpu"
    with RunStore(run) as store:
        store.measure_or_load("bad", lambda: {"value": 2.0}, config={})
    bundled(tmp_path)
    assert collect.collect(came_back, results)[0] == "gpu: 1 new records, 2 in all, 0 of them failed"
    assert {r["key"]: r["status"] for r in load_records(results / "gpu")} == {"good": "ok", "bad": "ok"}
    (file,) = (run / "records").glob("good-*.json")
    file.write_text(file.read_text().replace("1.5", "1.6"))
    bundled(tmp_path)
    with pytest.raises(PhotodupError, match=r"another good-.*--run"):
        collect.collect(came_back, results)
    assert collect.collect(came_back, results, "gpu-2")[0].startswith("gpu-2: 2 new")


def test_an_archive_that_cannot_be_read_is_one_sentence(came_back, tmp_path):
    whole = came_back.read_bytes()
    for content in (b"", b"no archive", whole[: len(whole) // 2]):
        came_back.write_bytes(content)
        with one_sentence(r"records\.tar\.gz cannot be read: bring it again"):
            collect.collect(came_back, tmp_path / "results")
    came_back.unlink()
    with one_sentence(r"records\.tar\.gz cannot be read"):
        collect.collect(came_back, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def odd(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


ODD = {
    "an absolute name": odd("/outside"),
    "a name that leads out": odd("results/gpu/../../../outside"),
    "a file beside the runs": odd("results/README.md"),
    "another folder": odd("lib/photodup/core/files.py"),
    "a log in a folder": odd("logs/deep/er.log"),
    "a symbolic link": odd("results/gpu/records/x.json", tarfile.SYMTYPE, "/etc/hostname"),
    "a linked folder": odd("results/gpu", tarfile.SYMTYPE, "../.."),
    "a hard link": odd("results/gpu/x", tarfile.LNKTYPE, "results/gpu/y"),
    "a pipe": odd("results/gpu/x", tarfile.FIFOTYPE),
    "a device": odd("results/gpu/x", tarfile.CHRTYPE),
}


@pytest.mark.parametrize("what", ODD)
def test_an_entry_that_no_bundle_has_is_refused(tmp_path, what):
    archive = tmp_path / "records.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(ODD[what])
    with one_sentence("holds .* which is not taken"):
        collect.collect(archive, tmp_path / "results")
    assert os.listdir(tmp_path) == ["records.tar.gz"]


@pytest.mark.parametrize("planted", PLANTS)
def test_nothing_is_collected_through_links_in_a_run(came_back, tmp_path, planted):
    (tmp_path / "mine").write_text("mine")
    log = tmp_path / "build" / "gpu-kit-logs" / "probe.log"
    log.parent.mkdir(parents=True)
    PLANTS[planted](log, tmp_path / "mine")
    with pytest.raises(PhotodupError, match=r"probe\.log is not written"):
        collect.collect(came_back, tmp_path / "results")
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "new").exists()


def test_the_page_names_steps_and_settings_that_exist():
    page, script, steps = ((KIT / name).read_text() for name in ("README.md", "far_side.sh", "steps.py"))
    order = re.search(r"order=\(([^)]*)\)", script)[1].split()
    budgets = dict(re.findall(r"\[(\w+)\]=(\d+)", script)) | {"full": "the rest"}
    rows = re.findall(r"^\| `(\w+)` \| (\d+|the rest) \|", page, re.MULTILINE)
    assert rows == [(step, budgets[step]) for step in order]
    known = {*order, "bundle", "all", "detach"}
    for line in re.findall(r"far_side\.sh ([a-z0-9 ]+)", page):
        assert set(line.split()) <= known, line
    for setting in set(re.findall(r"KIT_[A-Z_]+", page)):
        assert setting in script + steps, setting
    for word in re.findall(r"`(\w+\.(?:py|sh))`", page):
        assert (KIT / word).is_file(), word
