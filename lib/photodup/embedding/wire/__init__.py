"""Wire formats: requests from images or tensors, and embeddings from answers.

May import: embedding. Read `http.py` first, then `kserve.py`; `wires.py` makes tensors and JPEGs of photographs. The client
adds retries, the bench a timed connection.
"""
