"""From raw latencies to a sentence: what a point is worth, how far two sides differ, and how that is said.

May import: core.
Read `facts` first (loads, and the one table of figures and margins), then `comparison` (observations to a verdict) and
`sentence`. `point` gives the verdict of one measurement that stands alone; `steady` and `interval` are below it; `slo`
searches the highest rate under a latency bound. How often these statistics are wrong is measured by
`benchmarks/statistics.py`.
"""
