"""Notebooks run as a study through papermill, rendered again from records, and rehearsed against a "rented" machine.

May import: study, serving, bench. Read `execute.py` first; `rented.py` is the machine of a rehearsal.
"""
