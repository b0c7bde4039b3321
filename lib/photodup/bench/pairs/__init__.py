"""Comparisons of sides that take turns: declare, alternate, read. `bench.stats.comparison` gives the verdict.

May import: embedding, bench.backends, bench.load, bench.stats. Read `declared` first (sides, loads and pairs), then
`alternate` (both sides measured at the same time), then `read` (from visits to observations and figures).
"""
