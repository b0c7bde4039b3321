"""From a sample to what may be said of it.

May import: nothing of photodup but errors. Read `stats.py` first.
"""
