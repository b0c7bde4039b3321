"""One photograph to one vector, in process or from a server: the package that all others may import.

May import: nothing of photodup but errors, paths and files. Read `imaging.py` first (bytes to pixels), then
`engines/encoder.py` (pixels to a vector) and `client/client.py` (the same from a server).
"""
