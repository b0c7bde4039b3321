"""Start the service: `python -m photodup.serving.service`."""

import sys

from photodup.extras import missing_extra

if __name__ == "__main__":
    try:
        from photodup.serving.service.run import main
    except ImportError as error:
        if not (said := missing_extra(error)):
            raise
        sys.exit(f"photodup: {said}")
    sys.exit(main())
