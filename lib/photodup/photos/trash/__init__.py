"""Removal that loses nothing: a move into the quarantine, a journal, an undo.

May import: photos.library, photos.state. Read `quarantine.py` first: it says in which order files and journal are
written.
"""
