"""What a notebook opens first: its run, the points it asks for, its figures, its weights.

May import: everything below study. Read `run.py` first, then `points.py`.
"""
