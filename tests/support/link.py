"""Where the emulated link exists, for the tests that need it."""

import pytest

from photodup.bench.link.link import available

# Why there is no link here; empty where it exists, for one that exists and fails must fail and not be skipped.
NO_LINK = reason if " needs " in (reason := available()) else ""
needs_link = pytest.mark.skipif(bool(NO_LINK), reason=NO_LINK or "available")
