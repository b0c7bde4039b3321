"""The judge is judged: simulated from recorded points whose truth is known because it was planted.

Run `python -m photodup.selfbench.judge`. Read `simulate` first (what is planted and counted), then `traces` (how
recorded points are read, resampled and disturbed); `live` does the same with real servers through callbacks.
"""
