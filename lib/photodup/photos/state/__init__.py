"""Where photodup itself writes: its own folder for a library, journals, the catalogue's file, this user's key.

May import: beneath, errors, files, names. Read `own_folder.py` first.
"""
