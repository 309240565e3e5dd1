"""The exceptions of the client."""


class Unsupported(Exception):
    """kiln cannot compile this graph; `str()` is the reason that is counted and shown. Means "run it without kiln"."""


class GangDiverges(RuntimeError):
    """KILN_GANG=strict: this rank of a gang would run a graph otherwise than the others may."""
