"""Archives in slices that may be carried one load at a time: cut, joined, and what was measured bundled.

    python slices.py join SLICES WORK          slices that arrived are kept in WORK/incoming until a group is whole
    python slices.py bundle WORK OUT MIB       everything measured so far, into OUT

Standard library only: this runs before anything else is there.
"""

import gzip
import hashlib
import json
import re
import shutil
import stat
import sys
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path

# What travels there; `records` comes back.
GROUPS = {
    "core": "the project, demonstration photographs, and the wheels that everything needs",
    "triton": "a real tritonserver with its Python backend",
    "onnx": "ONNX Runtime with CUDA",
    "notebooks": "Jupyter's kernel, papermill and what draws a run's page",
}
MAX_FILES = 8  # of one bundle, with its manifest
_RECORDS = re.compile(r"results/\w[\w.-]*/[^\n]+|logs/\w[\w.-]*\.log")
RAW = (".npz", ".parquet")  # single latencies: left out of a bundle that would be too large


def main() -> None:
    """Join, and exit 1 unless the group `core` is whole; or bundle."""
    if sys.argv[1] == "bundle":
        print(bundle(Path(sys.argv[2]), Path(sys.argv[3]), int(float(sys.argv[4]) * 2**20)))
        return
    state = join(Path(sys.argv[2]), Path(sys.argv[3]), GROUPS)
    for group, missing in state.items():
        print(f"{group}: whole" if not missing else f"{group}: not here yet: {', '.join(missing)}")
    if state.get("core"):
        sys.exit("slices.py: the group core is not whole: bring the slices named above.")


def cut(archive: Path, folder: Path, slice_bytes: int) -> dict:
    """Write the slices of an archive into a folder and return its entry in the manifest."""
    whole, slices = hashlib.sha256(), list[dict]()
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


def join(slices: Path, work: Path, groups: Collection[str]) -> dict[str, list[str]]:
    """Return for each group of the manifest the slices that have not arrived; unpack the groups that are whole.

    Whoever made the slices may have written anything into them, so that every name is checked before it is used.

    Args:
        slices: folder of the manifest and of the slices of this load.
        work: folder that keeps what arrived; each whole group is unpacked to `work/GROUP`.
        groups: those that may come; any other is refused.

    Raises:
        SystemExit: a slice is damaged, the manifest is missing, or something has another form than `cut` writes.
    """
    incoming = work / "incoming"
    incoming.mkdir(parents=True, exist_ok=True)
    manifest_file = slices / "manifest.json"
    if _is_file(manifest_file):
        shutil.copyfile(manifest_file, incoming / "manifest.json")
    elif not (incoming / "manifest.json").is_file():
        sys.exit(f"slices.py: {slices} has no manifest.json: it travels with the slices.")
    state: dict[str, list[str]] = {}
    for group, facts in _groups(incoming / "manifest.json", groups).items():
        digest_file = work / group / ".sha256"
        if digest_file.is_file() and digest_file.read_text() == facts["sha256"]:
            state[group] = []
            continue
        missing = [part["name"] for part in facts["slices"] if not _arrived(part, slices, incoming)]
        if not missing:
            _unpack(group, facts, incoming, work)
        state[group] = missing
    return state


def _groups(manifest: Path, names: Collection[str]) -> dict[str, dict]:
    """Return what a manifest says of each group; refuse one that `cut` would not write."""
    try:
        groups = json.loads(manifest.read_text(encoding="utf-8"))["groups"]
        for group, facts in groups.items():
            if group not in names:
                sys.exit(
                    f"slices.py: the manifest names the group {group[:60]!r}: only {', '.join(names)} is taken."
                )
            names = [part["name"] for part in facts["slices"]]
            digests = [facts["sha256"], *(part["sha256"] for part in facts["slices"])]
            if names != [f"{group}-{number:03d}.part" for number in range(len(names))]:
                sys.exit(
                    f"slices.py: the slices of {group} have other names than {group}-000.part and so on."
                )
            if not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests):
                raise ValueError("a digest")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sys.exit("slices.py: manifest.json is damaged: bring it again.")
    return groups


def _is_file(path: Path) -> bool:
    """Whether a regular file is there; a link, a pipe or a folder in its place is refused."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(kind):
        sys.exit(f"slices.py: {path.name} is a link or no regular file: bring the file itself.")
    return True


def _arrived(part: dict, slices: Path, incoming: Path) -> bool:
    carried_part = incoming / part["name"]
    if carried_part.is_file() and _sha256(carried_part) == part["sha256"]:
        return True
    new = slices / part["name"]
    if not _is_file(new):
        return False
    if _sha256(new) != part["sha256"]:
        sys.exit(f"slices.py: {new.name} is damaged (its checksum is another): bring it again.")
    shutil.copyfile(new, carried_part)
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
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                _refuse_odd(group, member)
            # Python before 3.11.4 has no filters; what they refuse was just refused.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # type: ignore[assignment]
            tar.extractall(work / group)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile):
        sys.exit(f"slices.py: the archive of {group} is damaged: pack and bring it again.")
    (work / group / ".sha256").write_text(facts["sha256"])
    archive.unlink()
    for part in facts["slices"]:
        (incoming / part["name"]).unlink()


def _refuse_odd(group: str, member: tarfile.TarInfo) -> None:
    """Refuse an entry that is no file or folder below the group's own, and in `records` what `bundle` does not pack."""
    parts = member.name.split("/")
    leads_out = any(part in ("", ".", "..") for part in parts) or "\0" in member.name
    is_known = group != "records" or _RECORDS.fullmatch(member.name)
    if leads_out or not is_known or not (member.isreg() or member.isdir()):
        sys.exit(
            f"slices.py: {group} holds {member.name[:80]!r}, which is not taken: pack and bring it again."
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
