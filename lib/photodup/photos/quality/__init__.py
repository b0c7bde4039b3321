"""How well copies are found: known edits of known photographs, and what the owner's labels say.

May import: photos. Read `pairs.py` first (the measurement and its curves). The command is `photodup.study.evaluate`.
"""
