"""Two folders: which photos of an old drive, phone or export are in a library, and copying those that are not.

May import: photos.groups, photos.trash. Read `contained.py` first (what is there), then `copy_new.py` (copying).
"""
