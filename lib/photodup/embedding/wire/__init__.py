"""Each protocol written and read once: a request is made of images or tensors, and embeddings are read of its answer.

May import: embedding. Read `http.py` first, then `kserve.py`; `wires.py` makes tensors and JPEGs of photographs. The client
adds retries, the bench its own timed connection; neither knows how a body is laid out.
"""
