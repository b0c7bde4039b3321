"""The published study as data, and what its own numbers say about its claims. No run is needed.

May import: bench.link, embedding.backends, errors and paths. Read `published.py` first, then `checks.py`.
"""
