"""The published claims, judged against the points of a run.

The claims are `results/published/claims.yaml`. May import: study.published, bench.link, embedding.backends. Read
`claims.py` first (how a verdict is reached), then `predicates.py` (what a claim may ask).
"""
