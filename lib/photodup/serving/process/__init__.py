"""Server processes of this machine: started, watched, stopped with their parent, on a port that is free.

May import: nothing of photodup but errors. Read `process.py` first.
"""
