"""`photodup tune`: the server, engine, precision and settings with the highest rate under a latency bound here.

May import: bench, serving, embedding and study. Read `candidates` first (what is tried), then `halving` (who stays in the
race), `trial` (how one setting is served and measured) and `search` (all of it, and what is written).
"""
