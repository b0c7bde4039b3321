"""The study in notebooks: runs, published data, reports, Kubernetes. It may use every package below.

May import: everything. Read `notebook/run.py` first, it is what each notebook opens.
"""
