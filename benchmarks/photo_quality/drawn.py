"""The honest measurement: what photodup suggests of `drawn_kinds`, on photographs that set no limit.

`tools/photographs/get.py drawn` fetches the photographs, `drawn-again` those of the second draw. Each kind becomes a library
of a dozen or two of them; photodup groups it, every suggestion is carried out, and what is gone is looked for on the disk.
`beside` asks other programs about the same files.
"""

import csv
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.photo_quality.drawn_kinds import KINDS, Kind, NoChange, Photograph
from photodup.core.progress import bar, unseen
from photodup.photos.library.hashing import md5
from photodup.photos.library.scan import scan
from photodup.photos.review.session import ReviewSession

CONFIDENCE = 0.95  # of the bounds, one-sided
PHOTOGRAPHS = {".jpg", ".jpeg", ".png", ".heic", ".avif", ".webp", ".tif"}


def at_least(hits: int, n: int) -> float:
    """Return the exact one-sided lower bound (Clopper and Pearson) of a share that was `hits` of `n`; 0 for none."""
    from scipy.stats import binomtest

    return float(binomtest(hits, n, alternative="greater").proportion_ci(CONFIDENCE).low) if n else 0.0


def photographs_of(folder: Path, listed: Path | None = None) -> list[Photograph]:
    """Return the photographs of a folder, by the list that says what each is; without a list all are photographs."""
    if listed is None:
        return [
            Photograph(path.stem, path)
            for path in sorted(folder.iterdir())
            if path.suffix.lower() in PHOTOGRAPHS
        ]
    with listed.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    files = {
        (row["package"], row["path"]): f"{row['sha256'][:16]}{Path(row['path']).suffix.lower()}"
        for row in rows
    }
    by_name = {(package, Path(path).name): file for (package, path), file in files.items()}
    return [
        Photograph(
            row["sha256"][:16],
            folder / files[row["package"], row["path"]],
            row["use"],
            by_name[row["package"], row["of"]] if row["of"] else "",
        )
        for row in rows
    ]


def plant(kind: Kind, photographs: Sequence[Photograph], n: int, seed: int, folder: Path) -> dict[str, Any]:
    """Write the cases of a kind, each into a folder of its own, and what is known of them; return that."""
    uses = "photograph" if kind.takes == "large" else kind.takes
    fitting = [each for each in photographs if each.use == uses]
    if kind.takes == "large":
        fitting = [each for each in fitting if each.is_large]
    Random(f"{seed} {kind.name}").shuffle(fitting)
    cases: dict[str, Any] = {}
    for photo in fitting:
        if len(cases) == n:
            break
        try:
            files = kind.make(photo, Random(f"{seed} {kind.name} {photo.name}"))
        except NoChange:
            continue
        for name, data in files.items():
            path = folder / photo.name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        shown = [name for name in files if Path(name).suffix.lower() in PHOTOGRAPHS]
        cases[photo.name] = {
            "photograph": Path(photo.of).stem or photo.name,
            "files": shown,
            "remain": [[shown[place] for place in places] for places in kind.remain],
        }
    known = {
        "kind": kind.name,
        "rule": kind.rule,
        "is_situation": kind.is_situation,
        "words": kind.words,
        "cases": cases,
    }
    (folder.parent / f"{folder.name}.json").write_text(json.dumps(known))
    return known


def judge(known: dict[str, Any], library: Path) -> dict[str, Any]:
    """Group a library, carry every suggestion out, and look for what is gone.

    Returns:
        `n` cases; `n_possible`, photographs that need not remain; `n_suggested`; `n_harmless`, the suggested of those;
        `suggested`, photographs with a suggestion; `wrong`, a sentence for each loss, by photograph; `held`, why harmless
        ones are held back; `core_s`.
    """
    started = time.process_time()
    with unseen():
        scan(library, progress=False)
        session = ReviewSession(library)
    core_s = time.process_time() - started
    held: dict[str, str] = {}
    wrong: dict[str, list[str]] = defaultdict(list)
    suggested: dict[str, list[str]] = defaultdict(list)
    for group in session.tiers.copies:
        for photo in group.may_go:
            case = photo.path.parts[0]
            suggested[case].append("/".join(photo.path.parts[1:]))
            if not _has_equal(library / case, library / group.keeper.path):
                wrong[case].append(f"{photo.path} goes for {group.keeper.path}, another photograph")
        if known["rule"] == "may go":
            others = [photo for photo in group.others if photo not in group.may_go]
            held |= {str(photo.path): group.difference(photo) for photo in others}
    planted = {
        (case, name): md5((library / case / name).read_bytes())
        for case, facts in known["cases"].items()
        for name in facts["files"]
    }
    with unseen():
        if session.accept_all():
            session.apply()
    remaining = {
        md5((library / case / name).read_bytes())
        for case, name in planted
        if (library / case / name).is_file()
    }
    n_harmless = 0
    for case, facts in known["cases"].items():
        folder, going = library / case, suggested.get(case, [])
        lost = [
            " or ".join(names)
            for names in facts["remain"]
            if remaining.isdisjoint(planted[case, name] for name in names)
        ]
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        if known["words"] and not any(known["words"].encode() in data for data in files):
            lost.append("the words")
        losses = [f"{case}: {name} is gone; suggested: {', '.join(going)}" for name in lost]
        if losses or case in wrong:
            wrong[case] += losses
        else:
            n_harmless += min(len(going), len(facts["files"]) - len(facts["remain"]))
    n_possible = sum(len(facts["files"]) - len(facts["remain"]) for facts in known["cases"].values())
    return {
        "kind": known["kind"], "rule": known["rule"], "is_situation": known["is_situation"], "n": len(known["cases"]),
        "n_possible": n_possible, "n_suggested": sum(map(len, suggested.values())), "n_harmless": n_harmless,
        "suggested": sorted({known["cases"][case]["photograph"] for case in suggested}),
        "wrong": wrong, "held": held, "core_s": round(core_s, 2),
    }  # fmt: skip


def _has_equal(folder: Path, keeper: Path) -> bool:
    """Return whether the folder of a case has the keeper or its bytes: neighbours of a series share a picture."""
    return any(path.is_file() and path.read_bytes() == keeper.read_bytes() for path in folder.rglob("*"))


def plant_all(
    photographs: Sequence[Photograph],
    folder: Path,
    seed: int,
    per_kind: int = 60,
    kinds: Sequence[Kind] = KINDS,
) -> None:
    """Write the libraries of all kinds that are not in the folder yet."""
    for place, kind in enumerate(bar(kinds, total=len(kinds), desc="write", unit="kind")):
        library = folder / f"{place:03d}"
        if not library.with_suffix(".json").is_file():
            shutil.rmtree(library, ignore_errors=True)
            plant(kind, photographs, min(kind.n, per_kind), seed, library)


def judge_all(folder: Path, *, backwards: bool = False) -> None:
    """Judge each library that nobody judges or has judged; print its figures. Two processes share it, one backwards.

    Kinds come in any order, so that those of a measurement that was broken off are a fair part.
    """
    libraries = sorted(folder.glob("*.json"))
    Random(0).shuffle(libraries)
    for written in reversed(libraries) if backwards else libraries:
        copied, known = written.with_suffix(".judged"), json.loads(written.read_text())
        if copied.exists() or not known["cases"]:
            continue
        shutil.copytree(written.with_suffix(""), copied)  # as it is, others are asked about it
        row = judge(known, copied)
        written.with_suffix(".measured").write_text(json.dumps(row))
        counts = f"{row['n']:3} cases, {row['n_suggested']:3} of {row['n_possible']:3} suggested"
        n_wrong = sum(map(len, row["wrong"].values()))
        print(
            f"{row['kind']:42} {row['rule']:14} {counts}, {n_wrong} wrong, {row['core_s']:.1f} core-s",
            flush=True,
        )


def measured(folder: Path) -> dict[str, Any]:
    """Return what was measured of the libraries in a folder, its sums, and what other programs said of the same files."""
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.measured"))]
    table = folder / "beside.table"
    return {
        "kinds": rows,
        **summary(rows),
        "beside": json.loads(table.read_text()) if table.is_file() else {},
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add up: suggestions, the wrong of them, and the largest shares that these prove, of suggestions and of photographs."""
    n_suggested, n_wrong = (
        sum(row["n_suggested"] for row in rows),
        sum(len(losses) for row in rows for losses in row["wrong"].values()),
    )
    wrong_photographs = {case for row in rows for case in row["wrong"]}
    harmless = [row for row in rows if row["rule"] == "may go"]
    photographs = {case for row in rows for case in row["suggested"]} | wrong_photographs
    return {
        "n_pairs": sum(row["n"] for row in rows), "n_suggested": n_suggested, "n_wrong": n_wrong,
        "wrong_at_most": 1 - at_least(n_suggested - n_wrong, n_suggested),
        "n_photographs": len(photographs), "n_photographs_wrong": len(wrong_photographs),
        "wrong_photographs_at_most": 1 - at_least(len(photographs) - len(wrong_photographs), len(photographs)),
        "n_harmless": sum(row["n_possible"] for row in harmless),
            "n_harmless_suggested": sum(row["n_harmless"] for row in harmless),
        "core_s": round(sum(row["core_s"] for row in rows), 1),
    }  # fmt: skip
