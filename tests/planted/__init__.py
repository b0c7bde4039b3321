"""Faults of one line that the tests have to catch, and what plants them: `python -m planted`."""
