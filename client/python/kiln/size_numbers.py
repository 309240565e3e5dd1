"""Numbers that a graph returns beside its tensors: floats and booleans that depend on sizes.

The program has none of them (its outputs are tensors and integers); they are evaluated from the inputs of a call.
"""
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

from .errors import Unsupported
from .symbols import INPUT_SIZE, INPUT_STRIDE, INPUT_VALUE

Place: TypeAlias = tuple[int, int, int]  # (source, input, dim): where a symbol is read from

_READ: dict[int, Callable[[Any, int], int]] = {
    INPUT_VALUE: lambda value, dim: value,
    INPUT_SIZE: lambda value, dim: value.shape[dim],
    INPUT_STRIDE: lambda value, dim: value.stride(dim),
}


def read_size(inputs: Sequence[Any], source: int, position: int, dim: int) -> int:
    return _READ[source](inputs[position], dim)


@dataclasses.dataclass(frozen=True)
class SizeNumber:
    """An expression over sizes; kept in torch's cache as its text."""

    text: str
    symbols: tuple[tuple[str, int, int, int], ...]  # (name, source, input, dim)

    def __call__(self, inputs: Sequence[Any]) -> float | bool:
        values = {name: read_size(inputs, source, position, dim) for name, source, position, dim in self.symbols}
        return self.evaluate(values)

    def evaluate(self, values: dict[str, int]) -> float | bool:
        value: float | bool = eval(_code(self.text), {"math": math, "torch": torch}, values)
        return value


@functools.lru_cache(None)
def _code(text: str) -> CodeType:
    return compile(text, "<kiln size>", "eval")


def size_number(value: torch.SymFloat | torch.SymBool, bindings: Mapping[sympy.Symbol, Place],
                hints: Mapping[sympy.Symbol, int]) -> SizeNumber:
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
