"""Which precision may serve, decided by what it does to photo decisions.

May import: embedding, demo, photos, serving, bench. Read `gate.py` first.
"""
