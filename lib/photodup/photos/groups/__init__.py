"""From pairs to groups: copies and similar pictures, and which photo of a group stays.

May import: photos.search, photos.compare, photos.library. Read `tiers.py` first; `choose.py` chooses what stays.
"""
