"""Benchmarks of photodup's own parts: how fast, and how often wrong, what the laboratory itself rests on.

`statistics` measures how often comparisons claim a difference that is not there, miss one that is, or give an interval
that does not hold the truth; `statistics_live` does so on real servers.
The rest is what `photodup bench` prints, a row a figure.

May import: everything. Read `rows.py` first, then `service.py`; each module measures one thing and has `rows`.
"""
