"""What this processor computes, for the tests that need it."""

import pytest

from photodup.embedding.engines.model import can_compute


def _needs(precision: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not can_compute(precision), reason=f"this processor has no {precision.upper()}")


needs_bf16, needs_int8 = _needs("bf16"), _needs("int8")
