"""One photograph to one vector, in process or from a server: the package that all others may import.

May import: core. Read `imaging.py` first (bytes to pixels), then
`engines/encoder.py` (pixels to a vector) and `client/client.py` (the same from a server).
"""
