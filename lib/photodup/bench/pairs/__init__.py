"""The one engine that compares: declare, alternate, read. The verdict is `photodup.bench.stats.comparison`'s.

May import: embedding, bench.backends, bench.load, bench.stats. Read `declared` first (sides, loads and pairs), then
`alternate` (both sides measured at the same time), then `read` (from visits to observations and figures).
"""
