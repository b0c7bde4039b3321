"""Where photodup itself writes: its own folder for a library, journals, SQLite files, this user's key.

May import: safe_open, errors, files, names, settings. Read `own_folder.py` first.
"""
