"""Start the service: `python -m photodup.serving.service`."""

import sys

from photodup.serving.service.service import main

if __name__ == "__main__":
    sys.exit(main())
