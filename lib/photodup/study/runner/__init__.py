"""Notebooks run as a study through papermill, and rendered again from records.

May import: study, serving, bench. Read `execute.py` first.
"""
