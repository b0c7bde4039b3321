"""`photodup tune`: the server, engine, precision and settings with the highest rate under a latency bound here.

May import: bench, serving, embedding and study. Read `candidates` first (what is tried), then `trial` (how one setting
is served and measured) and `search` (who stays in the race, and what is written).
"""
