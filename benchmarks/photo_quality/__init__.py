"""How right photodup is: what it suggests of known kinds of copies and look-alikes, and what each fingerprint finds.

    python -m benchmarks.photo_quality FOLDER           photographs of your own, all of different things
    python -m benchmarks.photo_quality --drawn drawn    kinds and photographs that set no limit: results/drawn
    python -m benchmarks.photo_quality --pairs          the demonstration's, edited and compared with every original, as JSON

`--drawn drawn-again` is the second draw: more kinds, other photographs; results/drawn-again.

`drawn_kinds` are of the rule in words alone, `drawn` carries out what is suggested of them and looks for what is gone, and
`beside` asks other programs. `edits` has edits, and `pairs` gives each detector its curve.
"""
