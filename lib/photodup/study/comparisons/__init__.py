"""The comparisons of a run: measured together before the notebooks read them, and read from its records.

May import: bench, serving, embedding, study.notebook and study.peers.
Read `photodup.bench.pairs.declared` first (what `notebooks/comparisons.yaml` says), then `measure`, then `outcomes`.
"""
