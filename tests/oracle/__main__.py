"""Try photodup on a drawn library and print what is lost. Ends with 1 if anything is that is not known to be."""

import sys
from argparse import ArgumentParser
from pathlib import Path

from oracle.kinds import KINDS, KNOWN_FAILURES, draw
from oracle.owner import accept_every_suggestion
from oracle.remains import losses

STEPS = ("draw", "accept", "check")


def main() -> int:
    """Draw, accept and check; return the exit status."""
    parser = ArgumentParser(prog="python -m oracle", description=__doc__)
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--only", choices=STEPS, help="one step; `check` needs the options that `draw` had")
    parser.add_argument("-n", type=int, default=1, help="families a kind")
    parser.add_argument("--seed", type=int, default=0, help="other pictures")
    parser.add_argument("-k", action="append", choices=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    options = parser.parse_args()
    steps, kinds = [options.only] if options.only else STEPS, options.k or list(KINDS)
    if "draw" in steps:
        if options.folder.exists():
            parser.error(f"{options.folder} is there: name a new folder")
        for family in draw(kinds, options.n, options.seed):
            family.write(options.folder)
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
