"""The load generator: one window at a time, from a plan to the columns of a record.

May import: embedding, bench.backends, bench.stats. Read `plan.py` first (what is asked), then
`window.py` (how it is measured).
"""
