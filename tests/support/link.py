"""Where the emulated link exists, for the tests that need it."""

import pytest

from photodup.bench.link.emulate import Link, LinkError, LinkSpec

# Why there is no link here; empty where it exists, for one that exists and fails must fail and not be skipped.
NO_LINK = ""
try:
    with Link(LinkSpec(rtt_ms=1, rate_mbit_s=10)):
        pass
except LinkError as error:
    NO_LINK = str(error) if " needs " in str(error) else ""
needs_link = pytest.mark.skipif(bool(NO_LINK), reason=NO_LINK or "available")
