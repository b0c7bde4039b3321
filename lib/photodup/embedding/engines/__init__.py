"""What runs the graph: from weights to an encoder, and from an encoder to files that a server runs.

May import: embedding. Read `encoder.py` first: it chooses among `pytorch.py`, `onnx_runtime.py` and
`openvino.py`. `export.py` writes the float32 ONNX files and `quantise.py` the INT8 ones; `reduced.py` finds them again and
knows what the gate said of them.
"""
