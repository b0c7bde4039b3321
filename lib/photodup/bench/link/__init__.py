"""A wide-area link on one machine, and what TCP makes of it: emulation, calibration, models of a request's time.

May import: bench. Read `emulate.py` first (the emulated link); `latency_model.py` holds the rival explanations.
"""
