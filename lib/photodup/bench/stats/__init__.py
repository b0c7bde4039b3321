"""From raw latencies to a sentence: what a point is worth, whether two sides differ, and how that is said.

May import: nothing of photodup but errors.
Read `facts` first (the words and the one table of metrics and margins), then `point` (a point's verdict), then
`compare` (the verdict of rounds). `steady` and `interval` are below `point`; `schedule` puts the rounds of all
notebooks in one order; `sentence` writes what is said; `slo` searches the highest rate under a latency bound.
How often this judge is wrong is measured by `photodup.selfbench.stats`.
"""
