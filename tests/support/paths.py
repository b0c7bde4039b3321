"""Where things are: the repository and the browser."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(
    (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None
)
