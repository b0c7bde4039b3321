"""Are two pictures one picture? Decided on the pixels, and remembered by content.

May import: embedding, photos.library, photos.state. Read `verify.py` first (one pair), then `pixels.py` (many).
"""
