"""The FastAPI service: encoded images in, embeddings out. `python -m photodup.serving.service` starts it.

May import: embedding. Read `service.py` first, then `batching.py`;
`app.py` holds the routes and the program, `start.py` is for whoever needs a service.
"""
