"""The project's own speed and soundness, measured as ratios in one run: `photodup bench`.

May import: everything. Read `service.py` first; each module measures one thing and has a `main`.
"""
