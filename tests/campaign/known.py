"""Findings of the campaign that are open, one a root cause: the test tells of them and does not fail.

What is mended is taken out. A line: verdict, a pattern of `operator`, one of what the verdict says, the cause.
"""
import re

_OPEN = [
    ("error", r"^_batch_norm_with_update$", r"gave B?F16 where F32", "torch declares another dtype than the operator gives"),
    ("error", r"embedding_bag", r"gave sizes", "torch declares other sizes than the operator gives"),
    ("wrong", r"max_unpool", r"stride", "torch traces other strides than eager has"),
]


def cause(operator, verdict, detail):
    """Of an open finding, or None."""
    for known, names, details, reason in _OPEN:
        if verdict == known and re.search(names, operator) and re.search(details, detail):
            return reason
    return None
