"""`photodup load URL`: the load generator for servers that are not ours, and what it says of them.

May import: embedding, bench. Read `target.py` first (what a URL speaks), then `measure.py` (loads in turns);
`comparison.py` compares two servers that take turns, `report.py` writes files.
"""
