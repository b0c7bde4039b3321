"""How a number is kept: one self-sufficient JSON file a point, and what it was measured on.

May import: nothing of photodup but errors and paths. Read `record.py` first.
"""
