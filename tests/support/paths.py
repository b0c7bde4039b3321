"""Where things are: the repository, a checkout whose results are its own, and the browser."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def link_checkout(folder: Path, demo_dir: Path) -> None:
    """Make `folder` a checkout of which only results and build are its own: what a study writes stays out of this one."""
    code = [
        "notebooks", "model_repository", "lib", "benchmarks", "docker", "k8s", "tools", "results/published",
        "results/reference-cpu",
    ]  # fmt: skip
    # A run behind a link is not read.
    for run in ("peers", "drawn", "drawn-again", "control-plane", "statistics"):
        shutil.copytree(ROOT / "results" / run, folder / "results" / run)
    for name in (*code, ".venv-triton", "pyproject.toml", "matplotlibrc"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "build").mkdir()
    (folder / "build" / "demo").symlink_to(demo_dir)
    (ROOT / "build" / "models").mkdir(parents=True, exist_ok=True)
    for name in ("models", "tools"):  # exports are named by their content
        (folder / "build" / name).symlink_to(ROOT / "build" / name)
