"""The comparisons of a run: measured together before the notebooks read them, and read from its records.

May import: bench, serving, embedding and study.notebook. Of study only runner, report and peers import it.
Read `photodup.bench.pairs.declared` first (what `notebooks/comparisons.yaml` says), then `measure`, then `outcomes`.
"""
