"""Where photodup itself writes: its own folder for a library, journals, SQLite files, this user's key.

May import: core. Read `own_folder.py` first.
"""
