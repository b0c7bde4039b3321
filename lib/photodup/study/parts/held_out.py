"""What copy search finds and shows on photographs that set none of its thresholds (notebook 01)."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from photodup.errors import PhotodupError
from photodup.photos.quality.report import as_record
from photodup.selfbench.copy_quality import measure, shown


def on_held_out(folder: Path, *, edits: Sequence[str] = ()) -> dict[str, Any]:
    """Measure both on photographs that set no threshold; return it as JSON: `quality` (see `as_record`) and `shown`.

    Args:
        folder: photographs, all of different things; `tools/photographs/get.py` fetches some.
        edits: as in `measure`.

    Raises:
        PhotodupError: the folder has none.
    """
    if not any(folder.glob("*.jpg")):
        raise PhotodupError(
            "There are no held-out photographs here: `python3.11 tools/photographs/get.py` fetches some."
        )
    quality = as_record(measure(folder, edits=edits), most_points=2)
    return {"quality": quality, "shown": asdict(shown(folder, edits=edits))}
