"""Servers that people would pick instead: started, checked, and measured beside ours with the same load generator.

May import: bench, serving, embedding and study.notebook. Read `peers.py` first (what each peer is and how it is asked),
then `alone.py` (measures one by itself), `stage.py` (all of them in turns) and `outcomes.py` (what came of it, read from
records). `weights.py` writes the weights in the forms that they read.
"""
