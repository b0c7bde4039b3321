"""Where the time of one request goes (notebook 04).

May import: embedding. Read `serialization.py` first, the forms of a body; `profile.py` has the operators of a graph.
"""
