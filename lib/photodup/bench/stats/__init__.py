"""Statistics: from raw latencies to figures, to the verdict of a comparison, and to its sentence.

May import: core.
Read `metrics` first (loads, and the one table of figures and margins), then `comparison` (observations to a verdict) and
`sentence`. `figures` makes a load's figures of its windows. How often these statistics are wrong is measured by
`benchmarks/statistics.py`.
"""
