"""What the photo commands of `photodup` do and print, one module a command.

May import: everything in photos. Read `group_command.py` first.
"""
