"""The published study as data. No run is needed.

May import: errors and paths. Read `published.py` first.
"""
