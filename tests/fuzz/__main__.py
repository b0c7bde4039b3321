"""Random inputs for a bounded time, on this machine alone; prints how much was tried.

    python -m fuzz                  from tests/, two minutes; `make fuzz` (FUZZ_MINUTES=2)
    python -m fuzz images           one part: service, machines, images or received

Ends with 1 if anything was found. What was found is printed, and images are kept in build/fuzz/.
"""

import os
import sys
import time
from collections.abc import Callable

from fuzz import images, machines, received, service

PARTS: dict[str, Callable[[float], bool]] = {
    "service": service.fuzz,
    "machines": machines.fuzz,
    "images": images.fuzz,
    "received": received.fuzz,
}


def main() -> int:
    wanted = sys.argv[1:] or list(PARTS)
    if unknown := [name for name in wanted if name not in PARTS]:
        print(f"No part {unknown[0]!r}: choose from {', '.join(PARTS)}.", file=sys.stderr)
        return 2
    try:
        minutes = float(os.environ.get("FUZZ_MINUTES", 2))
    except ValueError:
        print(f"FUZZ_MINUTES={os.environ['FUZZ_MINUTES']} is no number of minutes.", file=sys.stderr)
        return 2
    sound = True
    for name in wanted:
        started = time.monotonic()
        print(f"== {name}", flush=True)
        sound &= PARTS[name](60 * minutes / len(wanted))
        print(f"== {name}: {time.monotonic() - started:.0f} s", flush=True)
    print("Nothing was found." if sound else "Something was found: see above.")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
