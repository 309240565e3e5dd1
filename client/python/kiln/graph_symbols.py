"""The symbols of a graph: where a program reads each of them, and integers over them as messages."""
from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any, TypeGuard

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.symbol import SymT, symbol_is_type

from . import wire
from .errors import Unsupported
from .size_numbers import Place
from .symbols import (
    INPUT_SIZE,
    INPUT_STRIDE,
    INPUT_VALUE,
    INT64_MAX,
    INT64_MIN,
    SYMBOL_INT,
    SYMBOL_UNBACKED,
    VALUE_SIZE,
    ExprPool,
)


def is_symbolic(value: object) -> TypeGuard[torch.SymInt | torch.SymFloat | torch.SymBool]:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


class GraphSymbols:
    """Of one graph while it is exported. Symbols are numbered as they are declared."""

    def __init__(self, placeholders: Sequence[fx.Node], held: Set[int]) -> None:
        """held: positions of the inputs that the program does not have."""
        self.placeholders = placeholders
        self.held = held
        self.numbers: dict[sympy.Symbol, int] = {}
        self.hints: list[int] = []
        self.messages: list[bytes] = []
        self.unbacked: set[sympy.Symbol] = set()
        self.binders: dict[sympy.Symbol, fx.Node] = {}  # symbol that is known only behind a node -> the node
        self.offsets: set[sympy.Symbol] = set()  # symbols that are offsets in memory, which nothing is told of
        self.bindings: dict[sympy.Symbol, Place] = {}  # in the graph's inputs
        self.more_sizes: list[Place] = []
        self.pool = ExprPool(self.number_of)

    def declare_inputs(self) -> None:
        """Every symbol gets the first place that it can be read from."""
        for position, node in enumerate(self.placeholders):
            value = node.meta.get("val")
            if isinstance(value, (torch.SymInt, torch.SymBool)):
                self._bind(value, INPUT_VALUE, position, 0)
            elif isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    self._bind(size, INPUT_SIZE, position, dim)
                if value.layout == torch.strided:
                    for dim, stride in enumerate(value.stride()):
                        self._bind(stride, INPUT_STRIDE, position, dim)

    def _bind(self, value: Any, source: int, position: int, dim: int) -> None:
        """Where `value` is a symbol and the first of that name, its place is the symbol's."""
        expr = getattr(value.node, "expr", None) if isinstance(value, (torch.SymInt, torch.SymBool)) else None
        if isinstance(value, torch.SymBool):
            expr = symbol_of_truth(value)
        if not isinstance(expr, sympy.Symbol) or expr in self.numbers:
            return
        hint = None if is_unbacked(expr) else value.node.hint
        if hint is not None and type(hint) is not int:
            return  # no number at all (the ragged size of a nested tensor)
        self.bindings[expr] = (source, position, dim)
        if position in self.held:
            self.more_sizes.append((source, position, dim))
            source, position, dim = INPUT_VALUE, len(self.placeholders) + len(self.more_sizes) - 1, 0
        self.declare(expr, value.node.shape_env, hint,
                     wire.uint(1, source) + wire.uint(2, position) + wire.uint(3, dim))

    def declare(self, symbol: sympy.Symbol, shape_env: ShapeEnv, hint: int | None, binding: bytes) -> None:
        """binding: a SymbolBinding message. hint: None where no call has known the symbol."""
        bounds = shape_env.var_to_range.get(symbol)
        lower = _clamped(bounds.lower) if bounds is not None else INT64_MIN
        upper = _clamped(bounds.upper) if bounds is not None else INT64_MAX
        if hint is None:
            self.unbacked.add(symbol)
            hint = min(max(_UNBACKED_HINT, lower), upper)
        self.numbers[symbol] = len(self.numbers)
        self.hints.append(hint)
        kind = SYMBOL_UNBACKED if symbol in self.unbacked else SYMBOL_INT
        self.messages.append(wire.uint(1, kind) + wire.sint(2, lower) + wire.sint(3, upper)
                                    + wire.data(4, binding))

    def bind_sizes(self, node: fx.Node | None, value: torch.Tensor, value_id: int) -> None:
        """What only the run knows of the sizes of a node's tensor is known behind it."""
        if node is None:
            return
        for dim, size in enumerate(value.shape):
            if not isinstance(size, torch.SymInt):
                continue
            symbol = size.node.expr
            if isinstance(symbol, sympy.Symbol) and is_unbacked(symbol) and symbol not in self.numbers:
                self.declare(symbol, size.node.shape_env, None,
                             wire.uint(1, VALUE_SIZE) + wire.uint(3, dim) + wire.uint(4, value_id))
                self.binders[symbol] = node
        for symbol, path in (node.meta.get("unbacked_bindings") or {}).items():
            if str(path[-1:]) == _STORAGE_OFFSET:
                self.offsets |= {symbol, _shape_env(value).replace(symbol)}

    def number_of(self, symbol: sympy.Symbol) -> int:
        """Raises Unsupported for a symbol that was not declared."""
        if symbol not in self.numbers:
            raise Unsupported("an integer that is known only when the graph runs (unbacked symbol)"
                              if symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))
                              else "a size that no input holds by itself")
        return self.numbers[symbol]

    def sym_int(self, value: int | torch.SymInt) -> bytes:
        """The body of a SymInt message."""
        if isinstance(value, torch.SymInt):
            expr = getattr(value.node, "expr", None)
            if expr is None:
                raise Unsupported("the ragged size of a nested tensor")
            if not isinstance(expr, sympy.Integer):
                return wire.uint_in_oneof(2, self.pool.add(expr))
            value = int(expr)
        if not INT64_MIN <= value <= INT64_MAX:
            raise Unsupported(f"integer {value} does not fit 64 bits")
        return wire.sint_in_oneof(1, value)

    def conditions(self, guards: Iterable[sympy.Basic]) -> list[int]:
        """Positions in the pool of those that hold over the graph's symbols."""
        positions = []
        for guard in guards:
            if all(symbol in self.numbers and symbol not in self.unbacked for symbol in guard.free_symbols):
                try:
                    positions.append(self.pool.add(guard))
                except Unsupported:
                    continue  # a fact that kiln cannot use; the graph is right without it
        return list(dict.fromkeys(positions))

    def is_offset(self, value: Any) -> bool:
        """Whether a number is made of offsets in memory alone."""
        symbols = value.node.expr.free_symbols if is_symbolic(value) and self.offsets else ()
        return bool(symbols) and self.offsets.issuperset(symbols)

    def argument(self, expr: sympy.Basic) -> bytes:
        """The body of an Argument message."""
        return wire.data(13, wire.uint_in_oneof(2, self.pool.add(expr)))

    def forget(self, known: int) -> None:
        """The symbols but the first `known`; what was written goes with them."""
        if len(self.numbers) == known:
            return
        for symbol in list(self.numbers)[known:]:
            del self.numbers[symbol]
            self.unbacked.discard(symbol)
            self.binders.pop(symbol, None)
        del self.hints[known:], self.messages[known:]
        self.pool = ExprPool(self.number_of)  # of a graph with a refused node nothing is sent


_UNBACKED_HINT = 256  # as the compiler's estimate; of no effect but on numbers for people
_STORAGE_OFFSET = "(CallMethodKey(name='storage_offset'),)"


def is_unbacked(symbol: sympy.Symbol) -> bool:
    return symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))


def unbacked_symbol_of(value: Any) -> sympy.Symbol | None:
    """What a number is where it is nothing but a symbol that only the run knows; else None."""
    expr = getattr(value.node, "expr", None) if isinstance(value, (torch.SymInt, torch.SymFloat)) else None
    return expr if isinstance(expr, sympy.Symbol) and is_unbacked(expr) else None


def symbol_of_truth(value: torch.SymBool) -> sympy.Symbol | None:
    """The symbol of an item() of a boolean, which torch writes as u0 == 1; None for other conditions."""
    expr = value.node.expr
    symbol = expr.args[0] if isinstance(expr, sympy.Eq) and expr.args[1] == 1 else None
    bounds = value.node.shape_env.var_to_range.get(symbol)
    known = symbol is not None and is_unbacked(symbol) and bounds is not None
    return symbol if known and bounds.lower == 0 and bounds.upper == 1 else None


def _shape_env(value: torch.Tensor) -> ShapeEnv:
    """Of a tensor that has symbolic sizes or a symbolic offset."""
    symbolic = next(part for part in (*value.shape, *value.stride(), value.storage_offset()) if is_symbolic(part))
    environment: ShapeEnv = symbolic.node.shape_env
    return environment


def _clamped(bound: sympy.Expr) -> int:
    """A range's bound as int64; torch writes infinities of its own."""
    try:
        return max(INT64_MIN, min(INT64_MAX, int(bound)))
    except (TypeError, ValueError, OverflowError, AttributeError):
        return INT64_MAX if bound > 0 else INT64_MIN
