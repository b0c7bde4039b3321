"""Records: one self-contained JSON file a measurement, one file of latencies a run, and a description of the machine.

May import: core, and the names of backends. Read `store.py` first; `json_files.py` is one record on disk,
`latencies.py` the file of single requests.
"""
