"""Try photodup on a drawn library and print what is lost; ends with 1 if anything was lost that is not known to be.

    PYTHONPATH=tests python -m oracle FOLDER [draw] [accept] [check] [-n 1] [--seed 0] [-k KIND]...

FOLDER is a new folder. Without a step all three are done. `check` needs the options that `draw` had.
"""

import sys
from argparse import ArgumentParser
from pathlib import Path

from oracle.kinds import KINDS, KNOWN_FAILURES, draw
from oracle.owner import accept_every_suggestion
from oracle.remains import losses

STEPS = ("draw", "accept", "check")


def main() -> int:
    """Do the steps; return the exit status."""
    parser = ArgumentParser(prog="python -m oracle", description=__doc__.partition(";")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], default=[])
    parser.add_argument("-n", type=int, default=1, help="families a kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-k", action="append", choices=list(KINDS), metavar="KIND", help="; ".join(KINDS))
    options = parser.parse_args()
    steps, kinds = options.steps or STEPS, options.k or list(KINDS)
    if "draw" in steps:
        if options.folder.exists():
            parser.error(f"{options.folder} is there: name a new folder")
        n_files = 0
        for family in draw(kinds, options.n, options.seed):
            family.write(options.folder)
            n_files += len(family.files)
        print(f"{n_files} files of {len(kinds)} kinds")
    if "accept" in steps:
        print(f"{accept_every_suggestion(options.folder)} photos were suggested and removed", flush=True)
    is_new = False
    for family in draw(kinds, options.n, options.seed) if "check" in steps else ():
        for name, description in losses(options.folder, family).items():
            is_known = f"{family.kind}: {name}" in KNOWN_FAILURES
            is_new |= not is_known
            print(f"{'known' if is_known else 'LOST '}  {family.name}  {description}")
    return int(is_new)


if __name__ == "__main__":
    sys.exit(main())
