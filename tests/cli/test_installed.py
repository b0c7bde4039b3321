"""Installed and not checked out: each command works, or says in one sentence which extra is missing."""

import json
import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest
from PIL import Image
from support.command import run_python
from support.paths import ROOT

from photodup.core import extras
from photodup.core.errors import PhotodupError
from photodup.core.extras import EXTRAS, USES, import_extra, missing_extra, require
from photodup.photos.library.scan import scan

# A Python in which the modules of extras cannot be imported, as where they are not installed.
_WITHOUT = """
import sys
absent = set(sys.argv[1].split(","))
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv[:2] = ["photodup"]
from photodup.cli import main
main()
"""
# Runs each of several commands, and prints its arguments, status and what it said as a line of JSON.
_EACH = """
import contextlib, io, json
for arguments in map(json.loads, sys.argv[1:]):
    status, out, err = 0, io.StringIO(), io.StringIO()
    sys.argv[1:] = arguments
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    print(json.dumps([arguments, status, out.getvalue(), err.getvalue()]))
"""
_COMMANDS = """
demo demo; scan photos; load http://127.0.0.1:9/ --file photos; embed photos; group photos;
embed photos --backend triton --url http://127.0.0.1:9; embed photos --backend triton_grpc --url 127.0.0.1:9;
 review photos --port 0; serve --port 0; report; export; render cpu-embedded; study run;
 kube check; endpoints check endpoints.yaml; trash list photos
"""
COMMANDS = [tuple(command.split()) for command in _COMMANDS.split(";")]
WORK_WITHOUT_EXTRAS = {"scan", "trash"}
# These start processes of their own, which see this environment's modules: the fresh environment below tries them.
IN_ONE_PROCESS = [arguments for arguments in COMMANDS if arguments[0] not in ("serve", "render")]


def away_from_a_checkout(folder: Path) -> Path:
    """Put photographs and endpoints into a folder."""
    (folder / "photos").mkdir()
    for number in range(2):
        Image.effect_noise((200, 150), 60 + number).convert("RGB").save(folder / f"photos/{number}.jpg")
    backend = "triton-onnx-fp32-grpc-fp32: 127.0.0.1:9"
    (folder / "endpoints.yaml").write_text(f"name: x\nbackends:\n  {backend}\n")
    return folder


@pytest.fixture
def away(tmp_path) -> Path:
    return away_from_a_checkout(tmp_path)


def environment(folder: Path) -> dict[str, str]:
    ours = {"HOME": folder, "XDG_CACHE_HOME": folder / "cache", "XDG_CONFIG_HOME": folder / "c"}
    inherited = {k: v for k, v in os.environ.items() if k not in ("PHOTODUP_ROOT", "MODEL_PRETRAINED")}
    return inherited | {name: str(path) for name, path in ours.items()} | {"PYTHONPATH": str(ROOT / "lib")}


def run_away(folder: Path, program: str, *arguments: object) -> subprocess.CompletedProcess:
    return run_python(program, *arguments, cwd=folder, env=environment(folder), timeout=240)


def is_one_sentence(done: subprocess.CompletedProcess) -> bool:
    said = done.stderr.strip().splitlines()
    return bool(said) and said[-1].startswith("photodup: ") and "Traceback" not in done.stderr + done.stdout


@pytest.fixture(scope="module")
def done_without_extras(tmp_path_factory) -> dict[str, subprocess.CompletedProcess]:
    """What each command does where no extra is installed: one process runs them all, one after the other."""
    folder = away_from_a_checkout(tmp_path_factory.mktemp("away"))
    absent = ",".join({module for modules in EXTRAS.values() for module in modules})
    scan(folder / "photos", progress=False)
    program = _WITHOUT.replace("main()", _EACH)
    done = run_away(folder, program, absent, *map(json.dumps, IN_ONE_PROCESS))
    done.check_returncode()
    outcomes = [subprocess.CompletedProcess(*json.loads(line)) for line in done.stdout.splitlines()]
    return {" ".join(outcome.args): outcome for outcome in outcomes}


@pytest.mark.parametrize("arguments", IN_ONE_PROCESS, ids=" ".join)
def test_without_any_extra_a_command_works_or_names_the_extra(done_without_extras, arguments):
    done = done_without_extras[" ".join(arguments)]
    if arguments[0] in WORK_WITHOUT_EXTRAS:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 2 and is_one_sentence(done), done.stderr
    assert "pip install 'photodup[" in done.stderr or "No photodup checkout" in done.stderr
    if arguments[0] in ("group", "load"):  # all that is missing at once, and the use's own extra
        use = {"group": "photos"}.get(arguments[0], arguments[0])
        lacking = sorted(module for part in USES[use] for module in EXTRAS[part])
        wanted = f"photodup: {', '.join(lacking)} are not installed: pip install 'photodup[{use}]'."
        assert done.stderr.splitlines()[-1] == wanted


def test_without_tritons_client_there_is_no_triton_and_this_machine_embeds(away, tiny_onnx):
    """`auto` passes Triton over, and embeds with a model that needs no download."""
    done = run_away(away, _WITHOUT, "tritonclient,grpc", "embed", "photos", "--weights", tiny_onnx)
    assert "Traceback" not in done.stderr, done.stderr
    program = (
        "from photodup.photos.embed.choose import KNOWN, probe_servers\n"
        "print([s.problem for s in probe_servers([('triton_grpc', '127.0.0.1:9'), ('triton', 'http://127.0.0.1:9')])])"
    )
    asked = run_away(away, _WITHOUT.replace("from photodup.cli import main\nmain()", program), "tritonclient")
    assert asked.stdout.count("photodup[triton]") == 2, asked.stderr


def test_a_module_of_no_extra_and_a_broken_one_are_no_matter_of_installing():
    assert missing_extra(ModuleNotFoundError("No module named 'nonesuch'", name="nonesuch")) is None
    assert missing_extra(ImportError("cannot import name 'x' from 'torch'", name="torch")) is None
    with pytest.raises(ModuleNotFoundError):
        import_extra("photodup.nonesuch")


def test_where_only_a_part_is_missing_that_part_is_named(monkeypatch):
    """`photodup[photos]` would install onnxruntime over onnxruntime-gpu."""
    monkeypatch.setattr(extras, "is_installed", lambda module: module not in EXTRAS["demo"])
    error = ModuleNotFoundError("No module named 'skimage'", name="skimage")
    lacking = ", ".join(sorted(EXTRAS["demo"]))
    assert missing_extra(error, "photos") == f"{lacking} are not installed: pip install 'photodup[demo]'."
    require("load")
    with pytest.raises(PhotodupError, match=r"photodup\[demo\]"):
        require("app", "demo")
    monkeypatch.setattr(extras, "is_installed", lambda module: module in EXTRAS["app"])
    lacking = missing_extra(ModuleNotFoundError("No module named 'torch'", name="torch"), "photos", "serve")
    assert lacking and lacking.endswith("pip install 'photodup[serve,demo]'."), (
        "each use that is missing whole, and parts"
    )


@pytest.mark.long
@pytest.mark.timeout(900)
def test_in_a_fresh_environment(away):
    """pip installs the package without extras; nothing of this environment is seen."""
    tree = away / "tree"
    shutil.copytree(ROOT / "lib", tree / "lib", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    venv.create(away / "fresh", with_pip=True)
    pip = [away / "fresh/bin/pip", "install", "-q", "-c", ROOT / "constraints.txt", tree]
    installed = subprocess.run(pip, capture_output=True, text=True)
    if installed.returncode and "No matching distribution" in installed.stderr:
        pytest.skip("no package index can be reached")
    assert installed.returncode == 0, installed.stderr
    shutil.rmtree(tree)
    known = {k: v for k, v in environment(away).items() if k != "PYTHONPATH"}
    for arguments in (("--version",), *COMMANDS):
        command = [away / "fresh/bin/photodup", *arguments]
        done = subprocess.run(command, cwd=away, env=known, capture_output=True, text=True)
        works = arguments[0] in {"--version", *WORK_WITHOUT_EXTRAS}
        assert (done.returncode == 0) if works else is_one_sentence(done), (arguments, done.stderr)
