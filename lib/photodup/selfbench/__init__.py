"""Benchmarks of photodup's own parts: how fast, and how often wrong, what the laboratory itself rests on.

`judge` is first: it measures how often the judge of measurements claims a difference that is not there, misses one
that is, or gives an interval that does not hold the truth.
The rest is what `photodup bench` prints, as ratios measured in one run.

May import: everything. Read `service.py` first; each module measures one thing and has a `main`.
"""
