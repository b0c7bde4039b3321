"""Take what came back from the machine with the GPU into results/.

    python tools/gpu_kit/collect.py BUNDLE [--run NAME]

BUNDLE is the folder with `manifest.json` and the slices. A record that is here already stays, unless it had failed.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "lib"), str(Path(__file__).parent)]

from slices import join  # noqa: E402

from photodup.bench.record import latencies  # noqa: E402
from photodup.bench.record.record import load_records, read_record  # noqa: E402
from photodup.core.errors import PhotodupError  # noqa: E402
from photodup.core.files import write_atomically  # noqa: E402
from photodup.study.comparisons.outcomes import write_outcomes  # noqa: E402
from photodup.study.notebook.run import read_run  # noqa: E402


def main() -> None:
    """Parse the command line and collect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, help="folder with manifest.json and the slices")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="default: results/")
    parser.add_argument("--run", help="name for the run here; default the name it has")
    options = parser.parse_args()
    try:
        for line in collect(options.bundle, options.results, options.run):
            print(line)
    except PhotodupError as error:
        sys.exit(f"collect.py: {error}")


def collect(bundle: Path, results: Path, run: str | None = None) -> list[str]:
    """Check the bundle, copy its runs into `results` and its logs to `build/gpu-kit-logs`; say what came.

    Raises:
        PhotodupError: no run in the bundle, several for one name, a damaged record, or a finished record that differs
            from the one that is here.
        SystemExit: a slice is damaged or the manifest is missing.
    """
    with tempfile.TemporaryDirectory() as scratch:
        if missing := join(bundle, Path(scratch), ["records"]).get("records"):
            raise PhotodupError(f"The bundle is not whole: {', '.join(missing)} did not come back.")
        unpacked = Path(scratch) / "records"
        runs = sorted(p for p in unpacked.glob("results/*") if p.is_dir())
        if not runs:
            raise PhotodupError("The bundle holds no run yet: no step has measured anything.")
        if run and len(runs) > 1:
            raise PhotodupError(f"The bundle holds {len(runs)} runs: leave --run out.")
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
        # Single requests that were too many to send stayed behind: the record then stands without them.
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
