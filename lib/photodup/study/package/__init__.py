"""A run as a package for others: one Parquet table of its points with a schema, and an RO-Crate that says what is what.

May import: bench.record, study.notebook. Read `write.py` first; `columns.yaml` says what each column means.
"""
