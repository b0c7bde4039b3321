"""The review page: a local web application that shows groups and moves what is accepted to the trash.

May import: photos. Read `session.py` first (what a reviewer decides), then `serve.py`, which puts together who may
ask (`site.py`), and what is shown and done (`pages.py`).
"""
