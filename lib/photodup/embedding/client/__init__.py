"""Asking for embeddings, wherever they are computed: in this process, or by a server.

May import: embedding. Read `embedder.py` first (what a caller uses); `servers.py` carries.
"""
