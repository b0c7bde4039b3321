"""Notebooks run as a study through papermill, and rendered again from committed records.

May import: study. Read `execute.py` first.
"""
