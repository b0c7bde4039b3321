"""What a reduced precision and a vendor's compiler do to one network (notebook 05).

May import: embedding. Read `rounding.py` first, graphs that round; `compiler.py` builds engines.
"""
