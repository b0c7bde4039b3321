"""Comparison of two photos on the pixels: whether they show one picture, and whether one file can reproduce the other.

May import: embedding, photos.search, photos.library, photos.state. Read `compare.py` first (can one file reproduce another),
then `verify.py` (do both show one picture) and `pixels.py` (many pairs).
"""
