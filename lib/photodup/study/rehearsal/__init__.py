"""A machine elsewhere that is always at hand: the shipped servers in a network namespace, behind a link.

May import: study, serving, bench, embedding. Read `rented.py` first.
"""
