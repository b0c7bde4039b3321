"""The published study as data. No run is needed.

May import: errors and paths.
"""
