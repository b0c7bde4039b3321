"""How well copies are found: known edits of known photographs, and what the owner's labels say.

May import: photos. Read `evaluate.py` first (the command), then `curves.py` (the measurement).
"""
