"""Which pairs of a library are worth comparing: neighbours by vector and by perceptual hash.

May import: photos.library, photos.state. Read `candidates.py` first.
"""
