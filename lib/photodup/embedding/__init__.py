"""From a photograph to its vector, in this process or on a server.

May import: core. Read `imaging.py` first (bytes to pixels), then
`engines/encoder.py` (pixels to a vector) and `client/embedder.py` (the same from a server).
"""
