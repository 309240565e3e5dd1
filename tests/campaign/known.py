"""Findings of the campaign that are open, one a root cause: the test tells of them and does not fail.

What is mended is taken out. A line: verdict, a pattern of `operator`, one of what the verdict says, the cause.
"""
import re

_OPEN = [
    ("fallback", r"", r"higher-order operator with_effects", "operators that check for errors on the host"),
    ("fallback", r"", r"strides put two elements in one place", "overlapping windows as an argument or result"),
    ("fallback", r"", r"as_strided reaches past its argument", "memory of an input outside of what it shows"),
    ("fallback", r"", r"needs integer indices", "an index without elements may have any dtype"),
    ("fallback", r"", r"argument .* of type complex", "Python's complex numbers"),
    ("fallback", r"", r"unsupported: dtype torch\.(complex32|uint64|uint16|uint32)", "dtypes that kiln has not"),
    ("fallback", r"", r"complex numbers written to an input", "normal_ and uniform_ of complex numbers"),
    ("fallback", r"", r"a dtype that kernels do not know", "a product of no complex matrices, one of them conjugate"),
    ("fallback", r"", r"squeeze of a dimension of size", "complex squeeze of dimensions that stay"),
    ("fallback", r"", r"symbol u\d+ is bound by no input|depends on sizes through Symbol",
     "sizes that only the run knows"),
    ("fallback", r"", r"symbolic argument|has to be a constant", "Python's integers that dynamic sizes make symbols"),
    ("fallback", r"", r"rounding .*: of floats only", "sizes that are a float's multiple, rounded"),
    ("error", r"^uniform$", r"from=", "a range that ends before it begins"),
    ("wrong", r"norm", r"gradient .*value", "powers are within 4 units, eager's within 1"),
    ("wrong", r"(^|\.)(std|var)(_mean)?(\.|$)", r"value", "std and var accumulate in float32"),
    ("wrong", r"^unsafe_(chunk|split)$", r"alias", "parts that share memory"),
    ("wrong", r"max_unpool", r"stride", "torch traces other strides than eager has"),
]


def cause(operator, verdict, detail):
    """Of an open finding, or None."""
    for known, names, details, reason in _OPEN:
        if verdict == known and re.search(names, operator) and re.search(details, detail):
            return reason
    return None
