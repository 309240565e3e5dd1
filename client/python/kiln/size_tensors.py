"""Numbers that depend on sizes, as 0-d float64 tensors that nodes of the graph compute."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy
import torch
from torch import fx

from . import wire
from .errors import Unsupported
from .graph_codes import DTYPES, Encoded
from .graph_symbols import GraphSymbols


class SizeTensors:
    """Of one graph while it is exported; an expression is computed once."""

    def __init__(self, symbols: GraphSymbols, add_scalar: Callable[[fx.Node, str, Sequence[Encoded]], int]) -> None:
        """add_scalar: adds a node for the given one, of a target and arguments; gives its value's number."""
        self._symbols = symbols
        self._add_scalar = add_scalar
        self.values: dict[sympy.Expr, int] = {}  # expression -> its value's number

    def of(self, node: fx.Node, expr: sympy.Expr) -> int:
        """The number of the value that holds `expr`. Raises Unsupported where no operator computes it."""
        known = self.values.get(expr)
        if known is not None:
            return known
        kind = type(expr).__name__
        if expr.is_number:
            arguments = [("s", wire.double_bits_in_oneof(7, float(expr)))]
            target = "aten.scalar_tensor.default"
        elif kind == "ToFloat":
            target, arguments = "aten.scalar_tensor.default", [("s", self._symbols.argument(expr.args[0]))]
        elif kind in ("Add", "Mul"):
            left = self.of(node, expr.args[0])
            for part in expr.args[1:]:
                right = self.of(node, part)
                left = self._node(node, "aten.add.Tensor" if kind == "Add" else "aten.mul.Tensor", left, right)
            self.values[expr] = left
            return left
        elif kind in ("FloatTrueDiv", "IntTrueDiv"):
            left, right = (self._operand(node, part) for part in expr.args)
            self.values[expr] = left = self._node(node, "aten.div.Tensor", left, right)
            return left
        elif kind in ("Pow", "FloatPow"):
            left, right = (self._operand(node, part) for part in expr.args)
            self.values[expr] = left = self._node(node, "aten.pow.Tensor_Tensor", left, right, "exponent")
            return left
        elif kind == "OpaqueUnaryFn_sqrt":
            operand = self._operand(node, expr.args[0])
            self.values[expr] = left = self._node(node, "aten.sqrt.default", operand)
            return left
        else:
            raise Unsupported(f"a number that depends on sizes through {kind}")
        arguments += [("dtype", wire.uint_in_oneof(15, DTYPES[torch.float64]))]
        self.values[expr] = self._add_scalar(node, target, arguments)
        return self.values[expr]

    def _operand(self, node: fx.Node, expr: sympy.Expr) -> int:
        if expr.is_integer and not expr.is_number:
            return self.of(node, torch.utils._sympy.functions.ToFloat(expr))
        return self.of(node, expr)

    def _node(self, node: fx.Node, target: str, left: int, right: int | None = None, right_name: str = "other") -> int:
        arguments = [("self", wire.uint_in_oneof(2, left))]
        if right is not None:
            arguments.append((right_name, wire.uint_in_oneof(2, right)))
        return self._add_scalar(node, target, arguments)
