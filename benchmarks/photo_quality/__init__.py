"""How well copies are found: known edits of known photographs, and what the owner is shown of them.

    python -m benchmarks.photo_quality              the demonstration's photographs
    python -m benchmarks.photo_quality FOLDER       photographs of your own, all of different things
    python -m benchmarks.photo_quality --drawn      kinds and photographs that set no limit: results/drawn
    python -m benchmarks.photo_quality --held-out   records of results/held-out and results/kinds, which notebook 01 shows

`edits` has the edits and look-alikes, `shown` writes them as libraries and counts what grouping suggests, wrongly or not,
`drawn_kinds` are of the rule in words alone, `drawn` carries out what is suggested of them and looks for what is gone, and
`beside` asks other programs. `pairs` compares every edit with every original and gives each detector its curve.
"""
