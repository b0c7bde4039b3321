"""Removal with an undo: a move into the quarantine, recorded in a journal.

May import: photos.library, photos.state. Read `quarantine.py` first: it says in which order files and journal are
written.
"""
