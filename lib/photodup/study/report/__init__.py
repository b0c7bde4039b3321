"""The pages of a run, and of several runs side by side.

May import: study. Read `page.py` first.
"""
