"""Python-backend models for the embedded Triton. Rendering copies them into a repository as `1/model.py`.

They run in Triton's own environment (NumPy 1.x, no photodup), so they import only files that are copied beside them.
May import: nothing of photodup. Read `onnx_session.py` first (the encoder); `emulated_model.py` only waits.
"""
