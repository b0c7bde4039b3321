"""The client: embeddings from this process or from a server.

May import: embedding. Read `embedder.py` first (what a caller uses); `servers.py` speaks to each kind of server.
"""
