"""How nbval reads these notebooks: from committed records only, and standard error is no result."""

import os

os.environ["PHOTODUP_MEASURE"] = "0"  # kernels inherit it: a missing record is a gap, never a measurement


def pytest_collectstart(collector):
    """Progress bars and warnings go to stderr; comparing them fails cells whose results are right."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)
