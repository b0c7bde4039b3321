"""One image to one vector, in process or from a server."""
