"""Several devices behind one address, emulated, and what each way of scaling costs (notebook 07).

May import: bench, serving, study.notebook. Read `topology.py` first.
"""
