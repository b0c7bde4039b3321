"""Vectors for the photographs of a catalogue: in this process, or from a server.

May import: embedding, photos.library. Read `batches.py` first, which also embeds while a library is scanned;
`choose.py` finds the server that answers.
"""
