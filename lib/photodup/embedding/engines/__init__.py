"""Engines: from weights to an encoder, and from an encoder to files for servers.

May import: embedding. Read `encoder.py` first: it chooses among `pytorch.py`, `onnx_runtime.py` and
`openvino.py`. `export.py` writes the float32 ONNX files, `quantise.py` the INT8 ones. `reduced.py` finds
these and the accuracy check's verdicts.
"""
