"""What the images, compose and Kubernetes start Triton with: the script is run, on the embedded build."""

import contextlib
import os
import re
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest
import yaml
from support.paths import ROOT
from support.service import answers
from support.shipped import start_shipped
from support.triton import needs_triton, render_tiny

from photodup.core.errors import PhotodupError
from photodup.serving.process.ports import claim_ports
from photodup.serving.triton import control, control_key

SCRIPT = ROOT / "docker" / "start-triton.sh"
MODEL = "openclip_vit_b32"


@contextlib.contextmanager
def started(repository: Path, key: str = ""):
    """Run the script as an image does; yields (HTTP address, gRPC address, process id)."""
    ports = claim_ports("127.0.0.1", {"http": 0, "grpc": 0, "metrics": 0})
    arguments = [f"--{name}-port={port}" for name, port in ports.items()]
    arguments += [f"--{name}-address=127.0.0.1" for name in ports]
    url = f"http://127.0.0.1:{ports['http']}"
    with start_shipped(repository, key=key, arguments=arguments) as watched:
        watched.wait_ready(lambda: answers(f"{url}/v2/health/ready"), 120)
        (process,) = psutil.Process(watched.pid).children()
        yield url, f"127.0.0.1:{ports['grpc']}", process.pid


@needs_triton()
def test_without_a_key_nothing_can_be_changed_and_all_models_are_served(tmp_path: Path, tiny_exports) -> None:
    repository = render_tiny(tmp_path, tiny_exports, [MODEL, "openclip_vit_b32_uint8"])
    with started(repository) as (url, grpc, pid):
        assert Path(f"/proc/{pid}/exe").resolve().name == "tritonserver"  # which signals reach
        for model in (MODEL, "openclip_vit_b32_uint8"):
            assert httpx.get(f"{url}/v2/models/{model}/ready").status_code == 200
        for path in ("/v2/repository/index", f"/v2/repository/models/{MODEL}/unload", "/v2/logging"):
            assert httpx.post(url + path).status_code == 403
        with pytest.raises(PhotodupError, match="its control needs a key, and no key is given for it"):
            control.load_triton_model(grpc, MODEL)


@needs_triton()
def test_with_a_key_from_the_environment_our_control_works(tmp_path: Path, monkeypatch, tiny_exports) -> None:
    key = control_key.new_key()
    repository = render_tiny(tmp_path, tiny_exports, [MODEL, "openclip_vit_b32_uint8"])
    with started(repository, key) as (url, grpc, pid):
        assert httpx.get(f"{url}/v2/models/openclip_vit_b32_uint8/ready").status_code == 200
        assert httpx.post(f"{url}/v2/repository/models/{MODEL}/unload").status_code == 403
        with pytest.raises(PhotodupError, match="no key is given"):
            control.load_triton_model(grpc, MODEL)
        monkeypatch.setenv(control_key.VARIABLE, key)
        control.unload_triton_model(grpc, MODEL)
        assert httpx.get(f"{url}/v2/models/{MODEL}/ready").status_code != 200
        control.load_triton_model(grpc, MODEL)
        assert httpx.get(f"{url}/v2/models/{MODEL}/ready").status_code == 200
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert key.encode() not in environment, "every model would inherit it"


@pytest.mark.parametrize("key", ["short", "with space " + "x" * 20, "x" * 20 + "=y", "x" * 300])
def test_a_key_that_cannot_be_one_stops_the_start_without_being_shown(key: str) -> None:
    environment = os.environ | {control_key.VARIABLE: key}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 64
    assert "PHOTODUP_TRITON_CONTROL_KEY should be 16 to 256" in done.stderr
    assert key not in done.stderr
    with pytest.raises(PhotodupError, match="should be 16 to 256"):
        control_key.check_key(key)


def test_the_script_restricts_what_the_embedded_server_restricts() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    assert f"parts={','.join(control_key.RESTRICTED)}\n" in text
    assert f"header={control_key.HEADER}\n" in text
    assert control_key.VARIABLE in text
    assert os.access(SCRIPT, os.X_OK)


def test_nothing_starts_tritonserver_past_the_script() -> None:
    """In an image, a manifest or a chart; the evidence in k8s/published is somebody else's and is not deployed."""
    files = [*ROOT.glob("docker/*"), *ROOT.glob("k8s/base/*"), *ROOT.glob("k8s/overlays/*/*")]
    files += ROOT.glob("k8s/chart/**/*.yaml")
    callers = []
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            code = line.split("#")[0]
            if path.suffix != ".md" and re.search(r"(^|[\s\"'\[-])tritonserver\b(?!:)", code):
                callers.append(path.name)
    assert callers == ["start-triton.sh"]


@pytest.mark.parametrize("place", ["overlays/gpu", "chart/values-gpu.yaml"])
def test_kubernetes_starts_it_through_the_script(place: str) -> None:
    path = ROOT / "k8s" / place
    if path.is_dir():
        found = yaml.safe_load((path / "deployment.yaml").read_text())["spec"]["template"]["spec"]
        args = found["containers"][1]["args"]
        assert found["securityContext"]["runAsUser"] != 0
    else:
        args = yaml.safe_load(path.read_text())["args"]
    assert args[0] == "start-triton"
    assert not any("control-mode" in argument or "restricted" in argument for argument in args[1:])


def test_every_container_of_compose_gives_up_what_it_does_not_need() -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        keyed = control_key.VARIABLE in service.get("environment", {})
        assert keyed == (name in ("triton", "triton-cpu", "all-in-one")), f"{name} has no use for the key"
