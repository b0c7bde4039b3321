"""Vectors for the photographs of a catalogue: in this process, from a server, or over Ray Data.

May import: embedding, photos.library. Read `embed.py` first; `choose.py` finds the server that answers,
`one_pass.py` embeds while a library is scanned, `command.py` is what `photodup embed` does.
"""
