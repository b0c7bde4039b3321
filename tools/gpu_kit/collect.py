"""Take what came back from the machine with the GPU into results/.

    python tools/gpu_kit/collect.py gpu-kit-out/records.tar.gz [--run NAME]

A record that is here already stays, unless it had failed.
"""

import argparse
import re
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lib"))

from photodup.bench.record import latencies  # noqa: E402
from photodup.bench.record.store import load_records, read_record  # noqa: E402
from photodup.core.errors import PhotodupError  # noqa: E402
from photodup.core.files import write_atomically  # noqa: E402
from photodup.study.comparisons.outcomes import write_outcomes  # noqa: E402
from photodup.study.notebook.run import read_run  # noqa: E402

_COLLECTED = re.compile(r"results/\w[\w.-]*/[^\n]+|logs/\w[\w.-]*\.log")


def main() -> None:
    """Parse the command line and collect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path, help="records.tar.gz, as far_side.sh left it")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="default: results/")
    parser.add_argument("--run", help="name for the run here; default the name it has")
    options = parser.parse_args()
    try:
        for line in collect(options.archive, options.results, options.run):
            print(line)
    except PhotodupError as error:
        sys.exit(f"collect.py: {error}")


def collect(archive: Path, results: Path, run: str | None = None) -> list[str]:
    """Copy the runs of an archive into `results` and its logs to `build/gpu-kit-logs`; say what came.

    Raises:
        PhotodupError: the archive is damaged or holds something else, no run, several for one name, a damaged record, or
            a finished record that differs from the one that is here.
    """
    with tempfile.TemporaryDirectory() as scratch:
        unpacked = Path(scratch)
        unpack(archive, unpacked)
        runs = sorted(p for p in unpacked.glob("results/*") if p.is_dir())
        if not runs:
            raise PhotodupError("The archive holds no run yet: no step has measured anything.")
        if run and len(runs) > 1:
            raise PhotodupError(f"The archive holds {len(runs)} runs: leave --run out.")
        lines = []
        for source in runs:
            target = results / (run or source.name)
            copied = _copy_run(source, target)
            write_outcomes(read_run(target))
            failed = sum(record["status"] == "failed" for record in load_records(target))
            n = len(list((target / "records").glob("*.json")))
            lines.append(f"{target.name}: {copied} new records, {n} in all, {failed} of them failed")
        logs = results.parent / "build" / "gpu-kit-logs"
        if (unpacked / "logs").is_dir():
            for log in sorted((unpacked / "logs").iterdir()):
                write_atomically(logs / log.name, log.read_bytes(), within=results.parent)
            lines.append(f"logs: {logs}")
        return lines


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of an archive below a folder. Whoever made it may have put anything in, so each name is checked.

    Raises:
        PhotodupError: it is damaged, or holds what is no file of a run or log.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.isdir():
                    continue
                is_known = member.isreg() and _COLLECTED.fullmatch(member.name)
                if not is_known or ".." in member.name.split("/"):
                    raise PhotodupError(
                        f"{archive.name} holds {member.name[:80]!r}, which is not taken: bundle again."
                    )
                content = tar.extractfile(member)
                assert content is not None  # a regular file has one
                (folder / member.name).parent.mkdir(parents=True, exist_ok=True)
                (folder / member.name).write_bytes(content.read())
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error):
        raise PhotodupError(f"{archive} cannot be read: bring it again.") from None


def _copy_run(source: Path, target: Path) -> int:
    """Copy what is new; the run as it is here counts."""
    new = []
    for path in sorted((source / "records").glob("*.json")):
        record, here = read_record(path), target / "records" / path.name
        collected = read_record(here) if here.is_file() else None
        if collected == record:
            continue
        if collected is not None and collected["status"] == "ok":
            raise PhotodupError(f"{target.name} has another {path.name}: collect under another --run.")
        new.append(path)
    for path in new:
        if raw := latencies.read_arrays(source, path.stem):
            latencies.write_part(target / "records" / path.name, raw)
        write_atomically(target / "records" / path.name, path.read_bytes(), within=target)
    latencies.compact(target)
    for path in source.glob("environment*.json"):
        if not (target / path.name).exists():
            write_atomically(target / path.name, path.read_bytes(), within=target)
    # `photodup load` wrote the last kind.
    patterns = ("study.json", "notebooks/*.ipynb", "figures/*", "load/*/*.json")
    for path in (path for pattern in patterns for path in source.glob(pattern)):
        write_atomically(target / path.relative_to(source), path.read_bytes(), within=target)
    return len(new)


if __name__ == "__main__":
    main()
