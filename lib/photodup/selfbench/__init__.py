"""Benchmarks of photodup's own parts: how fast, and how often wrong, what the laboratory itself rests on.

`judge` is first: it measures how often the judge of measurements claims a difference that is not there, misses one
that is, or gives an interval that does not hold the truth.
"""
