"""Server processes of this machine: started, watched, stopped with their parent, on a port that is free.

May import: of photodup only what all may use, such as errors and paths. Read `process.py` first.
"""
