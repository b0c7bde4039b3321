"""Make one virtual environment for each server that is compared: `python3.11 tools/peers/make.py [NAME …]`.

The versions are pinned, one file a server. An environment lies in build/peers/NAME; what cannot be installed is
named with its error, there in NAME.error, and the rest goes on. Where PyTorch should come from another index,
TORCH_INDEX names it; here the CPU build is meant.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE.parents[1] / "build" / "peers"
# What has to be importable for an environment to be whole.
MODULES = {
    "infinity": "infinity_emb",
    "litserve": "litserve",
    "bentoml": "bentoml",
    "mosec": "mosec",
    "ray": "ray.serve",
}


def make(name: str) -> str:
    """Make an environment unless it is there already; return an empty string, or what went wrong."""
    lock = HERE / f"{name}.txt"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    folder = PEERS / name
    stamp = folder / "made"
    if stamp.is_file() and stamp.read_text() == digest:
        return ""
    if sys.version_info[:2] != (3, 11):
        return f"the versions are pinned for Python 3.11, this is {sys.version.split()[0]}"
    venv.create(folder, with_pip=True, clear=True)
    index = ["--extra-index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "--no-deps", *index, "-r", str(lock)]
    for command in (install, [python, "-c", f"import {MODULES[name]}"]):
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode:
            lines = [line.strip() for line in (process.stdout + process.stderr).splitlines() if line.strip()]
            errors = [line for line in lines if "error" in line.lower()]
            return (errors or lines or [f"exit status {process.returncode}"])[-1][:300]
    stamp.write_text(digest)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[], metavar="NAME", help=", ".join(MODULES))
    names = parser.parse_args().names or list(MODULES)
    if unknown := sorted(set(names) - set(MODULES)):
        print(f"There is no peer {unknown[0]!r}: choose of {', '.join(MODULES)}.", file=sys.stderr)
        return 2
    PEERS.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in names:
        print(f"{name}: …", end="", flush=True)
        error = make(name)
        (PEERS / f"{name}.error").write_text(error)
        failed |= bool(error)
        print(f"\r{name}: {error or f'installed in {PEERS / name}'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
