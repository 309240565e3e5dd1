"""Findings of the campaign that are open, one a root cause: the test tells of them and does not fail.

What is mended is taken out. A line: verdict, a pattern of `operator`, one of what the verdict says, the cause.
"""
import re

_OPEN: list[tuple[str, str, str, str]] = []


def cause(operator: str, verdict: str, detail: str) -> str | None:
    """Of an open finding, or None."""
    for known, names, details, reason in _OPEN:
        if verdict == known and re.search(names, operator) and re.search(details, detail):
            return reason
    return None
