"""NVIDIA Triton: its configuration, its model repository, and a real server on this machine without Docker.

May import: embedding, serving.process. Read `repository.py` first (what is served), then `server.py` (how it is started).
"""
