"""One library of photographs: which files it has, what is known about each, and what its owner said.

May import: embedding, photos.state. Read `scan.py` first (files into the catalogue), then `catalogue.py` (what is kept).
"""
