"""Each backend under test behind the same few methods: how a request is made ready, sent and answered.

May import: embedding. Read `adapter.py` first, then `adapters.py`, which makes them; `embedding/wire` writes the requests.
"""
