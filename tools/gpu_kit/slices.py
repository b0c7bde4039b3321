"""Archives in slices that may be carried one load at a time: cut, joined, and what was measured bundled.

    python slices.py join SLICES WORK          slices that arrived are kept in WORK/incoming until a group is whole
    python slices.py bundle WORK OUT MIB       everything measured so far, into OUT

Standard library only: this runs before anything else is there.
"""

import hashlib
import json
import shutil
import sys
import tarfile
from pathlib import Path

MAX_FILES = 8  # of one bundle, with its manifest
RAW = (".npz", ".parquet")  # single latencies: left out of a bundle that would be too large


def main() -> None:
    """Join, and exit 1 unless the group `core` is whole; or bundle."""
    if sys.argv[1] == "bundle":
        print(bundle(Path(sys.argv[2]), Path(sys.argv[3]), int(float(sys.argv[4]) * 2**20)))
        return
    state = join(Path(sys.argv[2]), Path(sys.argv[3]))
    for group, missing in state.items():
        print(f"{group}: whole" if not missing else f"{group}: not here yet: {', '.join(missing)}")
    if state.get("core"):
        sys.exit("slices.py: the group core is not whole: bring the slices named above.")


def cut(archive: Path, folder: Path, slice_bytes: int) -> dict:
    """Write the slices of an archive into a folder and return its entry in the manifest."""
    whole, slices = hashlib.sha256(), []
    with archive.open("rb") as file:
        while data := file.read(slice_bytes):
            whole.update(data)
            name = f"{archive.stem}-{len(slices):03d}.part"
            (folder / name).write_bytes(data)
            slices.append({"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return {"bytes": archive.stat().st_size, "sha256": whole.hexdigest(), "slices": slices}


def bundle(work: Path, out: Path, slice_bytes: int) -> str:
    """Cut the records and logs of `work` into at most seven slices in `out`, with their manifest.

    Where that is not enough, the single latencies stay behind.

    Returns:
        A sentence that says what there is.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("records-[0-9][0-9][0-9].part"), out / "manifest.json"]:
        old.unlink(missing_ok=True)
    results = work / "core" / "tree" / "results"
    runs = [p for p in sorted(results.glob("*")) if p.is_dir() and p.name != "published"]
    archive, entry = work / "records.tar", {}
    for with_raw in (True, False):
        with tarfile.open(archive, "w:gz") as tar:
            for run in runs:
                for path in sorted(p for p in run.rglob("*") if p.is_file() and not p.name.startswith(".")):
                    if with_raw or path.suffix not in RAW:
                        tar.add(path, f"results/{run.name}/{path.relative_to(run)}")
            for log in sorted((work / "logs").glob("*.log")):
                tar.add(log, f"logs/{log.name}")
        if archive.stat().st_size <= slice_bytes * (MAX_FILES - 1):
            break
    entry = cut(archive, out, slice_bytes)
    (out / "manifest.json").write_text(json.dumps({"groups": {"records": entry}}, indent=1) + "\n")
    archive.unlink()
    names = ", ".join(run.name for run in runs) or "no run yet"
    left = "" if with_raw else "; single latencies stayed behind, they would not fit"
    return f"bundle: {names}, {entry['bytes'] / 1e6:.1f} MB in {len(entry['slices'])} slices{left}"


def join(slices: Path, work: Path) -> dict[str, list[str]]:
    """Return for each group of the manifest the slices that have not arrived; unpack the groups that are whole.

    Args:
        slices: folder of the manifest and of the slices of this load.
        work: folder that keeps what arrived; each whole group is unpacked to `work/GROUP`.

    Raises:
        SystemExit: a slice is damaged, or the manifest is missing; says which one.
    """
    incoming = work / "incoming"
    incoming.mkdir(parents=True, exist_ok=True)
    manifest_file = slices / "manifest.json"
    if manifest_file.is_file():
        shutil.copyfile(manifest_file, incoming / "manifest.json")
    elif not (incoming / "manifest.json").is_file():
        sys.exit(f"slices.py: {slices} has no manifest.json: it travels with the slices.")
    manifest = json.loads((incoming / "manifest.json").read_text())
    state = {}
    for group, facts in manifest["groups"].items():
        done = work / group / ".sha256"
        if done.is_file() and done.read_text() == facts["sha256"]:
            state[group] = []
            continue
        missing = [part["name"] for part in facts["slices"] if not _arrived(part, slices, incoming)]
        if not missing:
            _unpack(group, facts, incoming, work)
        state[group] = missing
    return state


def _arrived(part: dict, slices: Path, incoming: Path) -> bool:
    kept = incoming / part["name"]
    if kept.is_file() and _sha256(kept) == part["sha256"]:
        return True
    new = slices / part["name"]
    if not new.is_file():
        return False
    if _sha256(new) != part["sha256"]:
        sys.exit(f"slices.py: {new.name} is damaged (its checksum is another): bring it again.")
    shutil.copyfile(new, kept)
    return True


def _unpack(group: str, facts: dict, incoming: Path, work: Path) -> None:
    archive, whole = work / f"{group}.tar", hashlib.sha256()
    with archive.open("wb") as out:
        for part in facts["slices"]:
            data = (incoming / part["name"]).read_bytes()
            whole.update(data)
            out.write(data)
    if whole.hexdigest() != facts["sha256"]:
        sys.exit(f"slices.py: the slices of {group} do not belong together: pack and bring them again.")
    with tarfile.open(archive) as tar:
        # Python before 3.11.4 has no filters; the archive is our own, and its digest was just compared.
        tar.extractall(work / group, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (work / group / ".sha256").write_text(facts["sha256"])
    archive.unlink()
    for part in facts["slices"]:
        (incoming / part["name"]).unlink()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
