"""Start the service: `python -m photodup.serving.service`."""

import sys

from photodup.core.extras import missing_extra
from photodup.core.settings import set_variables, variable

if __name__ == "__main__":
    # OpenMP reads this when PyTorch loads it: waiting threads sleep, like those of the other engines (engines/cpu.py).
    set_variables(OMP_WAIT_POLICY=variable("OMP_WAIT_POLICY") or "PASSIVE")
    try:
        from photodup.serving.service.app import main
    except ImportError as error:
        if not (message := missing_extra(error, "serve")):
            raise
        print(f"photodup: {message}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(main())
