"""How a number is kept: one self-sufficient JSON file a point, one file of latencies a run, and what it was measured on.

May import: core, and the names of backends. Read `record.py` first; `json_files.py` is one record on disk,
`latencies.py` the file of single requests.
"""
