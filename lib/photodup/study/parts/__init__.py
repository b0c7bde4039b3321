"""What single notebooks need and no other: topologies, serialization costs, the table of a device, advice.

May import: everything below study, study.published, study.notebook.gaps. Read `topology.py` first; each module
names its notebook.
"""
