"""The FastAPI service: encoded images in, embeddings out. `python -m photodup.serving.service` starts it.

May import: embedding. Read `handler.py` first, then `batching.py`;
`app.py` has the routes and runs the server. To start a service from Python, use `start.py`.
"""
