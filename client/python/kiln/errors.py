"""The one exception of the client that means "run this graph without kiln"."""


class Unsupported(Exception):
    """kiln cannot compile this graph; `str()` is the reason that is counted and shown."""
