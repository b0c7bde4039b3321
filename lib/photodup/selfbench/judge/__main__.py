"""Measure the judge: `python -m photodup.selfbench.stats [RUN_DIR] [--seed N] [--json FILE]`."""

import argparse
import json
import sys
from pathlib import Path

from photodup.errors import PhotodupError
from photodup.files import real_path, write_atomically
from photodup.selfbench.stats.report import lines, measure_judge


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m photodup.selfbench.stats", description=__doc__)
    parser.add_argument(
        "run_dir", nargs="?", default="results/reference-cpu", help="a run with raw latencies"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=400, help="comparisons for each planted effect")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args(arguments)
    try:
        result = measure_judge(options.run_dir, seed=options.seed, n=options.n)
    except PhotodupError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(lines(result)))
    if options.json:
        write_atomically(real_path(options.json), json.dumps(result, indent=1) + "\n")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
