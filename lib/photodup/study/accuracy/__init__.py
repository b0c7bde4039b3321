"""The accuracy check of a precision: which photo decisions it flips. `photodup export --precision` and notebook 05 run it.

May import: embedding, photos. Read `flips.py` first.
"""
