"""One library of photographs: its files, the facts about each, and the owner's labels.

May import: embedding, photos.state. Read `scan.py` first (files into the catalogue), then `catalogue.py` (the database).
"""
