"""Removal that loses nothing: a move into the quarantine, a journal, an undo.

May import: photos.library. Read `trash.py` first, its docstring says in which order files and journal are written.
"""
