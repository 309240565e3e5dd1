"""Numbers that a graph gives back beside its tensors: floats and truth values that depend on sizes.

The program has none of them (its outputs are tensors and integers); they are evaluated from the inputs of a call.
"""
import dataclasses
import functools
import math

import torch
from torch.utils._sympy.printers import PythonPrinter

from .errors import Unsupported
from .symbols import INPUT_SIZE, INPUT_STRIDE, INPUT_VALUE

_READ = {
    INPUT_VALUE: lambda value, dim: value,
    INPUT_SIZE: lambda value, dim: value.shape[dim],
    INPUT_STRIDE: lambda value, dim: value.stride(dim),
}


def read_size(inputs, source, position, dim):
    return _READ[source](inputs[position], dim)


@dataclasses.dataclass(frozen=True)
class SizeNumber:
    """An expression over sizes; kept in torch's cache as its text."""

    text: str
    symbols: tuple  # (name, source, input, dim)

    def __call__(self, inputs):
        values = {name: read_size(inputs, source, position, dim) for name, source, position, dim in self.symbols}
        return self.evaluate(values)

    def evaluate(self, values):
        return eval(_code(self.text), {"math": math, "torch": torch}, values)


@functools.lru_cache(None)
def _code(text):
    return compile(text, "<kiln size>", "eval")


def size_number(value, bindings, hints):
    """The SizeNumber of a SymFloat or SymBool; by sympy symbol `bindings` has (source, input, dim), `hints` its value.

    Raises Unsupported for a symbol that no input holds, or where the text does not give what torch says it is.
    """
    expr = value.node.expr
    unbound = [str(symbol) for symbol in expr.free_symbols if symbol not in bindings]
    if unbound:
        raise Unsupported(f"symbol {', '.join(sorted(unbound))} is bound by no input")
    kind = value.node.pytype
    symbols = sorted(expr.free_symbols, key=str)
    number = SizeNumber(f"{kind.__name__}({PythonPrinter().doprint(expr)})",
                        tuple((str(symbol), *bindings[symbol]) for symbol in symbols))
    try:
        agrees = number.evaluate({str(symbol): hints[symbol] for symbol in symbols}) == value.node.hint
    except (SyntaxError, NameError, TypeError, ValueError, ArithmeticError):
        agrees = False
    if not agrees:
        raise Unsupported(f"an output that depends on sizes through {expr}")
    return number
