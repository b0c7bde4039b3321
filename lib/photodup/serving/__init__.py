"""What answers embedding requests: how it is started, configured, found and rented.

May import: embedding. Read `embedded.py` first (both servers on this machine), then `endpoints.py` (servers elsewhere).
"""
