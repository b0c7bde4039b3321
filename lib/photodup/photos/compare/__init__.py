"""Are two pictures one picture, and can one reproduce the other? Decided on the pixels, and remembered by content.

May import: embedding, photos.library, photos.state. Read `compare.py` first (can one file go for another),
then `verify.py` (is it one picture) and `pixels.py` (many pairs).
"""
