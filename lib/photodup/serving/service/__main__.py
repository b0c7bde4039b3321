"""Start the service: `python -m photodup.serving.service`."""

import sys

from photodup.extras import missing_extra

if __name__ == "__main__":
    try:
        from photodup.serving.service.run import main
    except ImportError as error:
        if not (said := missing_extra(error, "serve")):
            raise
        print(f"photodup: {said}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
