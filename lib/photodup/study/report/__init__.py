"""What people read: a run's page, runs side by side, the generated parts of the README.

May import: study. Read `page.py` first.
"""
