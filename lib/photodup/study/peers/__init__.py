"""Other embedding servers: started, checked, and measured beside ours with the same load generator.

May import: bench, serving, embedding and study.notebook. Read `notebooks/peers.yaml` first (what each is and how it is
asked), then `servers.py` (starts them, two for a visit), `alone.py` (measures one by itself) and `tables.py`.
`study.comparisons` lets two of them take turns.
"""
