"""The servers of embeddings, FastAPI and Triton: start, configure, check and find them.

May import: embedding. Read `embedded.py` first (both servers on this machine), then `endpoints.py` (servers elsewhere).
"""
