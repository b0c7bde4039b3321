"""Measurements: load generator, emulated links, records, comparisons and statistics.

May import: embedding. Read `load/plan.py` first, then `record/store.py`.
"""

from typing import Any

Columns = dict[str, Any]
"""A measurement, or a row of a table: name with unit → what JSON holds."""

Item = bytes | str | int
"""What a request carries: an encoded image or another file, a text, or the seed of an array."""
