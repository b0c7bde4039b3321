"""The published study as data. No run is needed.

May import: core. Read `published.py` first.
"""
