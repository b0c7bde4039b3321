"""The measuring stage: all comparisons of a run, measured in interleaved rounds before the notebooks read them.

May import: bench, serving, embedding and study.notebook. Nothing of study but runner and report imports it.
Read `declared` first (what `notebooks/comparisons.yaml` says), then `stage` (measures it) and `outcomes` (what the
judge says of the records). `arms` measures one arm once; `sizes` finds how long a measurement of it has to be.
"""
