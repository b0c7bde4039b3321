"""Files, names, paths, settings, progress and errors: what every package needs.

May import: nothing of photodup. Read `errors.py` first, then `safe_open.py` and `files.py` (how photodup writes).
"""
