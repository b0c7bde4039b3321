"""Long work that a page waits for: one task at a time, with its progress and a clean stop.

May import: nothing of photos. Read `work.py` first; it is all there is.
"""
