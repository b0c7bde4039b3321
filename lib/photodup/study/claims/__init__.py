"""The published claims, judged against the points of a run.

May import: study.published, bench.link. Read `claims.py` first (how a verdict is reached).
"""
