"""The published study as data, and what its own numbers say about its claims. No run is needed.

May import: nothing but errors and paths. Read `published.py` first.
"""
