"""The review page: a local web application that shows groups and moves what is accepted to the trash.

May import: photos. Read `session.py` first (what a reviewer decides), then `serve.py`, which joins the access
checks (`site.py`) and the routes (`pages.py`).
"""
