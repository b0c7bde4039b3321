"""What the owner is shown, measured: groups, keepers and suggestions on libraries of planted edits.

Photographs and their edits are written as files with names that tell nothing, scanned and grouped as any library; hash and
pixels alone find.
"""

import hashlib
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.photo_quality.edits import (
    EQUAL,
    HARMLESS,
    LOOK_ALIKE,
    MORE,
    ORIGINAL,
    WORK,
    Transform,
    is_right,
)
from benchmarks.photo_quality.pairs import Original, shrunk
from photodup.core.progress import bar, unseen
from photodup.embedding.imaging import encode
from photodup.photos.groups.results import Tiers
from photodup.photos.groups.tiers import find_tiers
from photodup.photos.library.scan import Catalogue, scan

CONFIDENCE = 0.95
_GIST = re.compile("looks different|[^,:;]+")  # a reason begins with what differs; places and numbers follow
_VISIBLE = 8  # greys by which an edit changes something

Truth = dict[str, tuple[str, str]]
"""The original's name and the edit's (`ORIGINAL` for none), by file name."""


def at_least(hits: int, n: int) -> float:
    """Return the exact one-sided lower bound (Clopper and Pearson) of a share that was `hits` of `n`; 0 for none."""
    from scipy.stats import binomtest

    return float(binomtest(hits, n, alternative="greater").proportion_ci(CONFIDENCE).low) if n else 0.0


@dataclass(frozen=True)
class OfKind:
    """What grouping showed of one kind of edit, or of pairs that only look alike.

    Attributes:
        kind, result: the name, and what it makes of a picture (`edits`).
        n: pairs of an original and its edit, or of two look-alikes.
        n_found: pairs whose files are shown together as copies.
        n_suggested: files suggested for removal.
        wrong: of those that hold what no file that stays does, or are the original itself, the photograph.
        kept: how often the original and the edit was the one to keep.
        reasons: why copies were held back, and how many by each reason; a copy may have several.
    """

    kind: str
    result: str
    n: int
    n_found: int
    n_suggested: int
    wrong: tuple[str, ...]
    kept: dict[str, int]
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def n_held(self) -> int:
        """Return the pairs that are shown together and of which nothing is suggested."""
        return max(0, self.n_found - self.n_suggested)


def measure_families(
    originals: Sequence[Original], edits: Sequence[Transform], folder: Path
) -> dict[str, Any]:
    """Write a library of photographs with all their edits into an empty folder; count what grouping shows."""
    truth = plant(originals, edits, folder)
    return judge_families(grouped(folder), truth)


def measure_kinds(
    originals: Sequence[Original], kinds: Sequence[Transform], n: int, folder: Path
) -> list[OfKind]:
    """Measure each kind by itself, in libraries of `n` photographs and one edit of each, or of pairs that look alike.

    An owner mostly has two files, and two are harder to tell apart than a family of ten. Each kind takes the
    next photographs, so that not all ask the same.
    """
    measured = []
    for place, kind in enumerate(bar(kinds, total=len(kinds), desc="measure", unit="kind")):
        turn = place * n % len(originals)
        in_turn = (*originals[turn:], *originals[:turn])
        chosen = list(islice((each for each in in_turn if kind.result != WORK or changes(kind, each)), n))
        truth = plant(chosen, [kind], folder / str(place))
        measured.append(judge_kind(kind, grouped(folder / str(place)), truth, len(chosen)))
    return measured


def changes(kind: Transform, original: Original) -> bool:
    """Return whether an edit is one of this photograph: of a grey one, black and white is an equal and nobody's work."""
    image = shrunk(original.image)
    return bool(np.abs(np.asarray(kind(image), int) - image).max() > _VISIBLE)


def plant(originals: Sequence[Original], edits: Sequence[Transform], folder: Path) -> Truth:
    """Write the files, and return what each is."""
    truth: Truth = {}

    def write(image: Image.Image, source: str, edit: str, image_format: str = "JPEG") -> bytes:
        data = encode(image, image_format, quality=92)  # which PNG and TIFF ignore
        suffix = {"JPEG": "jpg", "HEIF": "heic"}.get(image_format, image_format.lower())
        name = f"{hashlib.sha256(f'{source} {edit}'.encode()).hexdigest()[:12]}.{suffix}"
        (folder / name).write_bytes(data)
        truth[name] = source, edit
        return data

    folder.mkdir(parents=True, exist_ok=True)
    for original in originals:
        image, ground = shrunk(original.image), edits[0].ground
        data = write(ground(image) if ground else image, original.name, ORIGINAL)
        written = Image.open(io.BytesIO(data)).convert(
            "RGB"
        )  # edits are made from the file, as people make them
        for edit in edits:
            write(edit(written), original.name, edit.name, edit.format)
    return truth


def grouped(folder: Path) -> Tiers:
    """Scan and group a folder."""
    scan(folder, progress=False)
    with Catalogue(folder) as catalogue, unseen():
        return find_tiers(catalogue)


def judge_families(tiers: Tiers, truth: Truth) -> dict[str, Any]:
    """Compare the groups of a library of families with what is known of each file.

    Returns:
        `n_photos`, `n_files`, `n_groups`; `n_complete` families in one group with all their edits; `n_pure` groups with
        files of one original; `n_redundant` edits, and `n_found` of them suggested; `n_false` files suggested beside one
        made from another; `n_right` keepers that are the original or its equal, and `n_original` the original
        itself; `found_by_edit`, the share of each edit's files that was suggested; `keepers`, how often each was kept.
    """
    groups = [
        [group.keeper.path.name, *(photo.path.name for photo in group.others)] for group in tiers.copies
    ]
    group_of = {name: number for number, names in enumerate(groups) for name in names}
    going = {
        photo.path.name: names[0]
        for names, group in zip(groups, tiers.copies, strict=True)
        for photo in group.may_go
    }
    sources: dict[str, list[str]] = {}
    by_edit: dict[str, list[bool]] = {}
    for name, (source, edit) in truth.items():
        sources.setdefault(source, []).append(name)
        if edit != ORIGINAL:
            by_edit.setdefault(edit, []).append(name in going)
    keepers = Counter(truth[names[0]][1] for names in groups)
    return {
        "n_photos": len(sources),
        "n_files": len(truth),
        "n_groups": len(groups),
        "n_complete": sum(
            len({group_of.get(name, name) for name in names}) == 1 for names in sources.values()
        ),
        "n_pure": sum(len({truth[name][0] for name in names}) == 1 for names in groups),
        "n_redundant": sum(map(len, by_edit.values())),
        "n_found": sum(map(sum, by_edit.values())),
        "n_false": sum(truth[keeper][0] != truth[name][0] for name, keeper in going.items()),
        "n_right": sum(n for edit, n in keepers.items() if is_right(edit)),
        "n_original": keepers[ORIGINAL],
        "found_by_edit": {edit: float(np.mean(suggested)) for edit, suggested in by_edit.items()},
        "keepers": dict(keepers),
    }


def judge_kind(kind: Transform, tiers: Tiers, truth: Truth, n: int) -> OfKind:
    """Compare the groups of one kind's library with what is known of each file."""
    is_pair, wrong, n_suggested = [], [], 0
    kept, reasons = Counter[str](), Counter[str]()
    for group in tiers.copies:
        source, keeper = truth[group.keeper.path.name]
        together = {truth[photo.path.name] for photo in (group.keeper, *group.others)}
        is_pair.append({(source, ORIGINAL), (source, kind.name)} <= together)
        if is_pair[-1]:
            kept[keeper] += 1
            parts = "; ".join(group.difference(photo) for photo in group.others).split("; ")
            reasons.update({match[0] for part in parts if (match := _GIST.match(part))})
        for photo in group.may_go:
            photograph, edit = truth[photo.path.name]
            n_suggested += 1
            may_go = kind.result == EQUAL or (edit != ORIGINAL and kind.result not in (MORE, LOOK_ALIKE))
            if photograph != source or not may_go:
                wrong.append(photograph)
    counts = dict(kept), dict(reasons)
    return OfKind(kind.name, kind.result, n, sum(is_pair), n_suggested, tuple(wrong), *counts)


def summary(kinds: Sequence[OfKind]) -> dict[str, Any]:
    """Add up what was measured by kind: wrong suggestions, with exact one-sided bounds, and harmless copies.

    Returns:
        `n_pairs`, `n_suggested`, `n_wrong`, and the largest shares that these prove, `wrong_at_most` of the suggestions and
        `wrong_pairs_at_most`; `n_photographs_wrong` with a wrong suggestion; `n_harmless` copies, and those of them
        `n_harmless_suggested` and `n_harmless_held`; `n_copies`, `n_found`, and `n_right` of the found whose keeper is the
        original or its equal.
    """
    copies = [kind for kind in kinds if kind.result != LOOK_ALIKE]
    harmless = [kind for kind in copies if kind.result in HARMLESS]
    n_pairs, n_suggested = sum(kind.n for kind in kinds), sum(kind.n_suggested for kind in kinds)
    n_wrong = sum(len(kind.wrong) for kind in kinds)
    return {
        "n_pairs": n_pairs,
        "n_suggested": n_suggested,
        "n_wrong": n_wrong,
        "wrong_at_most": 1 - at_least(n_suggested - n_wrong, n_suggested),
        "wrong_pairs_at_most": 1 - at_least(n_pairs - n_wrong, n_pairs),
        "n_photographs_wrong": len({name for kind in kinds for name in kind.wrong}),
        "n_harmless": sum(kind.n for kind in harmless),
        "n_harmless_suggested": sum(kind.n_suggested for kind in harmless),
        "n_harmless_held": sum(kind.n_held for kind in harmless),
        "n_copies": sum(kind.n for kind in copies),
        "n_found": sum(kind.n_found for kind in copies),
        "n_right": sum(times for kind in copies for name, times in kind.kept.items() if is_right(name)),
    }
