"""Every engine on one device with no server between: what each makes of the same weights, and what the device can do.

May import: embedding, bench.record, study. Read `bench.py` first (the lines), then `plan.py` (their order and the time they
may take), `engines.py` (how each is opened and timed), `measures.py` (what the device reaches at best, and what a precision
changes) and `table.py` (what is printed). Lines are records of a run, so the same command goes on where it ended.
"""
