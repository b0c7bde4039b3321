"""How fast and how right photodup itself is: plain scripts in the checkout, which no installation has.

`python -m benchmarks` (make bench) prints the speed figures of `service`, `starts`, `one_pass`, `load_generator`, `crops`
and `waits`, a row a figure. `scale` is what notebook 01 asks of large libraries. `photo_quality` counts which copies are
suggested and which wrongly; `statistics` and `statistics_live` (make judge) how often comparisons claim a difference that
is not there.

Read `rows.py` first. lib/ imports nothing from here.
"""
