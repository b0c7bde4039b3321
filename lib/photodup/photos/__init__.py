"""Photographs in, decisions out: scan, embed, search, compare, group, review, remove.

May import: embedding. Read `library/scan.py` first, then `groups/tiers.py` and `trash/quarantine.py`.
"""
