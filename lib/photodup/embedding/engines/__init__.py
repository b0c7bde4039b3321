"""What runs the graph: from weights to an encoder, and from an encoder to files that a server runs.

May import: embedding. Read `encoder.py` first; `export.py` writes the ONNX files, `precision.py` their reduced forms.
"""
