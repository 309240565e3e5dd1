"""torch's symbolic integers (sympy) as kiln's expression pool.

The pool is a list of (op, value, args) in which an argument stands before its user; positions are ids.
Semantics are Python's: floor division and modulo with the divisor's sign (proto/kiln/v1/graph.proto).
"""
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils._sympy import functions as torch_functions

from . import wire
from .errors import Unsupported

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

ExprNode: TypeAlias = tuple[int, int, tuple[int, ...]]  # (op, value, args)

# v1.ExprOp
CONST, SYMBOL, ADD, MUL, FLOORDIV, MOD, MIN, MAX, CEILDIV, POW, WHERE = range(1, 12)
EQ, NE, LT, LE, AND, OR, NOT = range(12, 19)
# v1.SymbolKind, v1.SymbolBinding.Source
SYMBOL_INT, SYMBOL_UNBACKED = 1, 4
INPUT_VALUE, INPUT_SIZE, INPUT_STRIDE, VALUE_ITEM, VALUE_SIZE = range(1, 6)


def _named(*names: str) -> tuple[type[sympy.Basic], ...]:
    """The function classes of those names that this torch has."""
    return tuple(getattr(torch_functions, name) for name in names if hasattr(torch_functions, name))


_FLOOR_DIVISIONS = _named("FloorDiv", "CleanDiv")
_MODULOS = _named("Mod", "PythonMod")
_TRUE_DIVISION = _named("IntTrueDiv")
_FLOAT_DIVISION = _named("FloatTrueDiv")
_FLOATS = _named("ToFloat")
_FLOORS = _named("FloorToInt")
_TRUNCATIONS = _named("TruncToInt")
_CEILINGS = _named("CeilToInt")
_IDENTITIES = _named("Identity", "RoundToInt")
_MINIMA = (sympy.Min, *_named("Min"))
_MAXIMA = (sympy.Max, *_named("Max"))
_POWERS = (sympy.Pow, *_named("PowByNatural"))


class ExprPool:
    """Builds the pool; `symbol_id` maps a sympy symbol to its number or raises Unsupported."""

    def __init__(self, symbol_id: Callable[[sympy.Symbol], int]) -> None:
        self._symbol_id = symbol_id
        self._nodes: list[ExprNode] = []
        self._by_node: dict[ExprNode, int] = {}
        self._by_sympy: dict[sympy.Basic, int] = {}
        self._keys: dict[sympy.Basic, str] = {}

    def encode(self, field: int) -> bytes:
        """The pool as repeated ExprNode messages of field `field`."""
        return b"".join(
            wire.data(field, wire.uint(1, op) + wire.sint(2, value) + wire.packed_uints(3, args))
            for op, value, args in self._nodes)

    def _intern(self, op: int, value: int = 0, args: Iterable[int] = ()) -> int:
        node = (op, value, tuple(args))
        position = self._by_node.get(node)
        if position is None:
            position = self._by_node[node] = len(self._nodes)
            self._nodes.append(node)
        return position

    def _const(self, value: int) -> int:
        if not INT64_MIN <= value <= INT64_MAX:
            raise Unsupported(f"integer {value} does not fit 64 bits")
        return self._intern(CONST, value)

    def add(self, expr: sympy.Basic) -> int:
        """The position of a sympy expression. Raises Unsupported for a form with no integer meaning."""
        position = self._by_sympy.get(expr)
        if position is None:
            position = self._by_sympy[expr] = self._convert(expr)
        return position

    def _convert(self, expr: sympy.Basic) -> int:
        if expr is sympy.true or expr is sympy.false:
            return self._const(int(expr is sympy.true))
        if isinstance(expr, sympy.Integer):
            return self._const(int(expr))
        if isinstance(expr, sympy.Symbol):
            return self._intern(SYMBOL, self._symbol_id(expr))
        if isinstance(expr, sympy.Add):
            return self._chain(ADD, expr.args)
        if isinstance(expr, sympy.Mul):
            return self._product(expr)
        if isinstance(expr, _FLOOR_DIVISIONS):
            return self._binary(FLOORDIV, expr)
        if isinstance(expr, _MODULOS):
            return self._binary(MOD, expr)
        if isinstance(expr, torch_functions.ModularIndexing):
            base, divisor, modulus = map(self.add, expr.args)
            return self._intern(MOD, args=(self._intern(FLOORDIV, args=(base, divisor)), modulus))
        if isinstance(expr, _FLOORS + _CEILINGS + _TRUNCATIONS):
            return self._rounded(expr)
        if isinstance(expr, _MINIMA):
            return self._chain(MIN, expr.args)
        if isinstance(expr, _MAXIMA):
            return self._chain(MAX, expr.args)
        if isinstance(expr, _POWERS) and isinstance(expr.args[1], sympy.Integer) and expr.args[1] >= 0:
            return self._binary(POW, expr)
        if isinstance(expr, _IDENTITIES):
            return self.add(expr.args[0])
        if isinstance(expr, torch_functions.Where):
            return self._intern(WHERE, args=[self.add(part) for part in expr.args])
        if isinstance(expr, sympy.Piecewise):
            return self._pieces(expr.args)
        return self._condition(expr)

    def _condition(self, expr: sympy.Basic) -> int:
        for kind, op, swap in ((sympy.Eq, EQ, False), (sympy.Ne, NE, False), (sympy.StrictLessThan, LT, False),
                               (sympy.LessThan, LE, False), (sympy.StrictGreaterThan, LT, True),
                               (sympy.GreaterThan, LE, True)):
            if isinstance(expr, kind):
                left, right = map(self.add, expr.args)
                return self._intern(op, args=(right, left) if swap else (left, right))
        if isinstance(expr, sympy.And):
            return self._chain(AND, expr.args)
        if isinstance(expr, sympy.Or):
            return self._chain(OR, expr.args)
        if isinstance(expr, sympy.Not):
            return self._intern(NOT, args=(self.add(expr.args[0]),))
        raise Unsupported(f"symbolic expression of kind {type(expr).__name__}")

    def _pieces(self, pieces: Sequence[tuple[sympy.Basic, sympy.Basic]]) -> int:
        """(value, condition) pairs, of which the first that holds counts; the last holds always."""
        (value, condition), *rest = pieces
        if condition is sympy.true:
            return self.add(value)
        if not rest:
            raise Unsupported("a choice of which nothing may hold")
        return self._intern(WHERE, args=(self.add(condition), self.add(value), self._pieces(rest)))

    def _binary(self, op: int, expr: sympy.Basic) -> int:
        left, right = expr.args
        return self._intern(op, args=(self.add(left), self.add(right)))

    def _chain(self, op: int, parts: Iterable[sympy.Basic]) -> int:
        """A flat operator as binary ones; the server sorts and folds them anyway."""
        ids = [self.add(part) for part in sorted(parts, key=self._order)]
        result = ids[0]
        for other in ids[1:]:
            result = self._intern(op, args=(result, other))
        return result

    def _order(self, expr: sympy.Basic) -> str:
        """Sorts commutative arguments; sympy's own order is by symbol name, which must not reach the key."""
        key = self._keys.get(expr)
        if key is None:
            if isinstance(expr, sympy.Symbol):
                key = f"s{self._symbol_id(expr):06}"
            elif not expr.args:
                key = str(expr)
            else:
                parts = [self._order(part) for part in expr.args]
                if expr.is_Add or expr.is_Mul:
                    parts.sort()
                key = f"{type(expr).__name__}({','.join(parts)})"
            self._keys[expr] = key
        return key

    def _product(self, expr: sympy.Mul) -> int:
        """Rational factors become one floor division: torch writes (s0*s1)/4 so when it divides exactly."""
        denominator, factors = 1, []
        for part in expr.args:
            if isinstance(part, sympy.Rational) and not isinstance(part, sympy.Integer):
                denominator *= int(part.q)
                part = sympy.Integer(int(part.p))
            elif isinstance(part, sympy.Pow) and part.args[1] == -1:
                raise Unsupported("symbolic division that is not an integer's")
            factors.append(part)
        product = self._chain(MUL, factors)
        return product if denominator == 1 else self._intern(FLOORDIV, args=(product, self._const(denominator)))

    def _rounded(self, expr: sympy.Basic) -> int:
        inner = expr.args[0]
        if isinstance(inner, _TRUE_DIVISION):
            above, below = inner.args
        else:
            above, denominator = _fraction(inner)
            if denominator == 1:
                return self.add(above)
            below = sympy.Integer(denominator)
        parts = self.add(above), self.add(below)
        if isinstance(expr, _TRUNCATIONS) and not (above.is_nonnegative and below.is_nonnegative):
            negative = self._intern(LT, args=(self._intern(MUL, args=parts), self._const(0)))
            return self._intern(WHERE, args=(negative, self._intern(CEILDIV, args=parts),
                                             self._intern(FLOORDIV, args=parts)))
        return self._intern(CEILDIV if isinstance(expr, _CEILINGS) else FLOORDIV, args=parts)


_DENOMINATOR_MAX = 1 << 20


def _fraction(expr: sympy.Expr) -> tuple[sympy.Expr, int]:
    """A float expression as an integer's and a positive denominator that is a power of two: what floats compute of
    such numbers below 2^53 is exact. Raises Unsupported for others."""
    if isinstance(expr, _FLOATS):
        return expr.args[0], 1
    if expr.is_number and expr.is_finite and not isinstance(expr, sympy.Integer):
        above, below = float(expr).as_integer_ratio()
        if below <= _DENOMINATOR_MAX:
            return sympy.Integer(above), below
    elif expr.is_integer:
        return expr, 1
    if isinstance(expr, sympy.Add):
        parts = [_fraction(part) for part in expr.args]
        below = max(denominator for _, denominator in parts)
        return sympy.Add(*(above * (below // denominator) for above, denominator in parts)), below
    if isinstance(expr, sympy.Mul):
        parts = [_fraction(part) for part in expr.args]
        return sympy.Mul(*(above for above, _ in parts)), math.prod(denominator for _, denominator in parts)
    if isinstance(expr, _FLOAT_DIVISION + _TRUE_DIVISION) and expr.args[1].is_number:
        above, below = _fraction(expr.args[0])
        divisor, scale = _fraction(expr.args[1])
        size = abs(int(divisor))
        if size and size & (size - 1) == 0:
            return above * (scale if divisor > 0 else -scale), below * size
    raise Unsupported(f"rounding {expr}: of floats only fractions by powers of two are exact")


def evaluate(nodes: Sequence[ExprNode], conditions: Sequence[int], symbols: Sequence[Any]) -> bool:
    """Guards from the service over live SymInts: evaluating them adds them to torch's guards."""
    values = values_of(nodes, conditions, symbols)
    return all(bool(values[c]) for c in conditions)


def values_of(nodes: Sequence[ExprNode], wanted: Iterable[int], symbols: Sequence[Any]) -> dict[int, Any]:
    """Values over live SymInts by position in `nodes`: of the expressions `wanted` and of what these take alone, since
    comparisons become guards of torch's."""
    needed = set(wanted)
    for position in range(len(nodes) - 1, -1, -1):
        if position in needed:
            needed.update(nodes[position][2])
    values: dict[int, Any] = {}
    for position, (op, value, args) in enumerate(nodes):
        if position not in needed:
            continue
        a = [values[i] for i in args]
        if op == CONST:
            result: Any = value
        elif op == SYMBOL:
            result = symbols[value]
        elif op == ADD:
            result = sum(a[1:], a[0])
        elif op == MUL:
            result = a[0]
            for factor in a[1:]:
                result = result * factor
        elif op == FLOORDIV:
            result = a[0] // a[1]
        elif op == MOD:
            result = a[0] % a[1]
        elif op == CEILDIV:
            result = -(-a[0] // a[1])
        elif op == POW:
            result = a[0] ** a[1]
        elif op in (MIN, MAX):
            result = a[0]
            for other in a[1:]:
                result = torch.sym_min(result, other) if op == MIN else torch.sym_max(result, other)
        elif op == EQ:
            result = a[0] == a[1]
        elif op == NE:
            result = a[0] != a[1]
        elif op == LT:
            result = a[0] < a[1]
        elif op == LE:
            result = a[0] <= a[1]
        elif op == AND:
            result = all(bool(x) for x in a)
        elif op == OR:
            result = any(bool(x) for x in a)
        elif op == NOT:
            result = not bool(a[0])
        elif op == WHERE:
            result = a[1] if bool(a[0]) else a[2]
        else:
            raise Unsupported(f"a guard with operator {op}")
        values[position] = result
    return values
