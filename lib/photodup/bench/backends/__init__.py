"""Each backend under test behind the same few methods: how a request is made ready, sent and answered.

May import: embedding. Read `adapters.py` first; `embedding/wire` writes the requests.
"""
