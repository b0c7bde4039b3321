"""The one exception that a user is meant to read."""


class PhotodupError(Exception):
    """Something the user can act on: one sentence that names the thing and the remedy.

    The command line prints the message without a traceback and exits with status 2.
    """
