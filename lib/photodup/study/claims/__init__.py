"""The published claims, held against what a run measured.

The claims are `results/published/claims.yaml`. May import: study.published, study.comparisons, bench, embedding.backends.
Read `claims.py` first (how a verdict is reached), then `predicates.py` (what a claim may ask) and `evidence.py` (of what).
"""
