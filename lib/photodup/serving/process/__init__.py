"""Server processes of this machine: started, watched, stopped with their parent, on a port that is free.

May import: core. Read `server_process.py` first.
"""
