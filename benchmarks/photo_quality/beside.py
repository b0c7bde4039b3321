"""Other programs on the libraries of `drawn`: which files they call alike.

    PYTHON benchmarks/photo_quality/beside.py FOLDER    of a Python that has imagehash, czkawka and difPy

Needs nothing of photodup. What is not installed is left out. A harmless copy is *found* if it is called alike with its
original; a pair is *wrong* if both of its files have to remain.
"""

import contextlib
import filecmp
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

Groups = Iterable[list[str]]
BITS = 6  # of 64 in which the hashes of copies may differ


def phash(library: Path) -> Iterator[list[str]]:
    import imagehash
    import pillow_heif
    from PIL import Image

    pillow_heif.register_heif_opener()
    hashes = []
    for path in sorted(path for path in library.rglob("*") if path.is_file()):
        with contextlib.suppress(OSError), Image.open(path) as image:
            hashes.append((str(path), imagehash.phash(image)))
    for (first, one), (second, two) in combinations(hashes, 2):
        if one - two <= BITS:
            yield [first, second]


def czkawka(library: Path) -> Groups:
    from czkawka import ImageSimilarity

    finder = ImageSimilarity()
    finder.set_directories([library])
    return [[str(path) for path in group] for group in finder.find_similar()]


def difpy(library: Path) -> Groups:
    import difPy

    with contextlib.redirect_stdout(io.StringIO()):
        found = difPy.search(
            difPy.build(str(library), show_progress=False), similarity="similar", show_progress=False
        )
    return [[first, *(match[0] for match in matches)] for first, matches in found.result.items()]


def findimagedupes(library: Path) -> Groups:
    script = 'VIEW () { for file in "$@"; do echo "$file"; done; echo; }'
    done = subprocess.run(
        ["findimagedupes", "-q", "-R", "-i", script, library], capture_output=True, text=True, check=False
    )
    return [block.splitlines() for block in done.stdout.split("\n\n") if block.strip()]


def rmlint(library: Path) -> Groups:
    done = subprocess.run(
        ["rmlint", "-T", "df", "-o", "json:stdout", library], capture_output=True, text=True, check=True
    )
    groups: dict[str, list[str]] = {}
    for line in json.loads(done.stdout):
        if line.get("type") == "duplicate_file":
            groups.setdefault(line["checksum"], []).append(line["path"])
    return groups.values()


PROGRAMS = {
    "pHash, 6 bits": phash,
    "czkawka": czkawka,
    "difPy": difpy,
    "findimagedupes": findimagedupes,
    "rmlint": rmlint,
}


def count(groups: Groups, known: dict, library: Path) -> tuple[int, int]:
    """Return how many harmless copies stand in a group with their original, and how many pairs of two that stay."""
    place = {
        str(library / case / name): (case, name)
        for case, facts in known["cases"].items()
        for name in facts["files"]
    }
    pairs = {
        frozenset(pair)
        for group in groups
        for pair in combinations({place[path] for path in group if path in place}, 2)
    }
    n_wrong = 0
    alike: dict[str, list[set[str]]] = {}
    for (case, first), (other, second) in map(tuple, pairs):
        if case != other and filecmp.cmp(library / case / first, library / other / second, shallow=False):
            continue  # neighbours of a series share a picture
        needed = [set(names) for names in known["cases"][case]["remain"] if {first, second} & set(names)]
        n_wrong += int(case != other or len(needed) > 1)
        if case == other and known["rule"] == "may go":
            alike.setdefault(case, []).append({first, second})
    return sum(
        _n_copies(linked, set(known["cases"][case]["remain"][0])) for case, linked in alike.items()
    ), n_wrong


def _n_copies(linked: list[set[str]], original: set[str]) -> int:
    """Return how many files are linked with the original, directly or by others, beside one that remains."""
    reached = set(original) if len(original) == 1 else set(linked[0])
    for _ in linked:
        reached |= set().union(*(pair for pair in linked if pair & reached))
    return len(reached) - 1


def main(folder: Path) -> None:
    table = {}
    for name, program in PROGRAMS.items():
        n_found, n_wrong, before = 0, 0, sum(os.times()[:4])
        try:
            for written in sorted(folder.glob("*.json")):
                known, library = json.loads(written.read_text()), written.with_suffix("")
                if known["cases"]:
                    found, wrong = count(program(library.resolve()), known, library.resolve())
                    n_found, n_wrong = n_found + found, n_wrong + wrong
        except (ImportError, FileNotFoundError) as error:
            print(f"{name}: not installed ({error})", file=sys.stderr)
            continue
        table[name] = {
            "n_harmless": n_found,
            "n_wrong": n_wrong,
            "core_s": round(sum(os.times()[:4]) - before, 1),
        }
        print(name, table[name], flush=True)
    (folder / "beside.table").write_text(json.dumps(table))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
