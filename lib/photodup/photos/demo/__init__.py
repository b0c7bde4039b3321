"""Photographs and an encoder to try things on, where there is no library and no download.

May import: embedding. Read `photographs.py` first (the demonstration library); `encoder.py` is the stand-in for CLIP.
"""
