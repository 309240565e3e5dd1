"""What is wrong with a result, beside eager's and the same computation in fp64.

The rule: the largest error of a tensor is at most twice eager's or two units in the last place of its dtype at its
magnitude, whichever is more; integers and booleans, NaN and infinities are exactly eager's. So are dtype, shape,
strides where elements tell them, who shares memory with whom, and what requires a gradient.

No kiln here and no processes: functions of tensors, which test_operator_database.py tries on results spoilt on purpose.
"""
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

_DOUBLE = (torch.float64, torch.complex128)


@dataclasses.dataclass(frozen=True)
class Difference:
    kind: str  # structure, type, dtype, shape, stride, alias, requires_grad, nan, infinity, value
    where: str  # "output 0", "gradient 1", "input 0"
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.text}"


@dataclasses.dataclass
class Results:
    """What a run left: named leaves, tensors or Python's; inputs come last and are named `input N`."""

    leaves: list[tuple[str, Any]]

    def names(self) -> list[str]:
        return [name for name, _ in self.leaves]


def differences(got: Results, eager: Results, exact: Results | None = None, estimate: Results | None = None,
                layout_only: bool = False, own_errors: Sequence[float] = ()) -> list[Difference]:
    """[Difference] between Results.

    exact: the same in fp64, None where there is none. estimate: the same in float32, of float64 results, for which
    nothing more exact exists: eager's error is then float32's, scaled. layout_only: values are free. own_errors: by
    leaf, eager's at inputs nearby, where it may be larger.
    """
    if got.names() != eager.names():
        return [Difference("structure", "results", f"{got.names()}, eager {eager.names()}")]
    found = []
    for position, ((name, mine), (_, own)) in enumerate(zip(got.leaves, eager.leaves)):
        if not isinstance(own, torch.Tensor) or not isinstance(mine, torch.Tensor):
            found += _plain(name, mine, own, layout_only)
            continue
        broken = _meta(name, mine, own)
        if not broken and not layout_only:
            broken = _values(name, mine, own, _leaf(exact, position, own), _leaf(estimate, position, own),
                             own_errors[position] if own_errors else 0.0)
        found += broken
    return found + _aliases(got, eager)


def errors_of_eager(eager: Results, exact: Results | None = None, estimate: Results | None = None) -> list[float]:
    """By leaf, its largest error; 0 of what is exact or NaN."""
    found = []
    for position, (_, own) in enumerate(eager.leaves):
        if isinstance(own, torch.Tensor) and own.numel() and (own.is_floating_point() or own.is_complex()):
            found.append(_reference(_dense(own), _leaf(exact, position, own), _leaf(estimate, position, own))[1])
        else:
            found.append(0.0)
    return found


def largest_error(exact: Any, own: Any) -> float:
    """Of a leaf in float64; 0 of another one."""
    if not isinstance(own, torch.Tensor) or own.dtype not in _DOUBLE or own.shape != getattr(exact, "shape", None):
        return 0.0
    return _largest_error(_dense(exact), _dense(own))


def unit_in_last_place(dtype: torch.dtype, magnitude: float) -> float:
    """Of a number of this magnitude, never below the least denormal number's."""
    info = torch.finfo(dtype)
    if not magnitude >= info.smallest_normal:
        return info.smallest_normal * info.eps
    return math.ldexp(info.eps, math.frexp(min(magnitude, info.max))[1] - 1)  # a logarithm of the largest rounds up


def _leaf(results: Results | None, position: int, like: torch.Tensor) -> torch.Tensor | None:
    """The tensor at the same place, dense, if it is one of the same shape."""
    if results is None or position >= len(results.leaves):
        return None
    value = results.leaves[position][1]
    fits = isinstance(value, torch.Tensor) and value.shape == like.shape and value.layout == like.layout
    return _dense(value) if fits and (value.is_floating_point() or value.is_complex()) else None


def _plain(name: str, mine: Any, own: Any, layout_only: bool) -> list[Difference]:
    if isinstance(mine, torch.Tensor) != isinstance(own, torch.Tensor):
        return [Difference("type", name, f"{type(mine).__name__}, eager {type(own).__name__}")]
    same = mine == own or (mine != mine and own != own)
    if not same and isinstance(own, (float, complex)) and isinstance(mine, (float, complex)):
        same = abs(mine - own) <= 4 * torch.finfo(torch.float32).eps * abs(own)
    return [] if same or layout_only else [Difference("value", name, f"{mine!r}, eager {own!r}")]


def _meta(name: str, mine: torch.Tensor, own: torch.Tensor) -> list[Difference]:
    for kind, a, b in (("dtype", mine.dtype, own.dtype), ("type", mine.layout, own.layout),
                       ("shape", tuple(mine.shape), tuple(own.shape)),
                       ("requires_grad", mine.requires_grad, own.requires_grad)):
        if a != b:
            return [Difference(kind, name, f"{a}, eager {b}")]
    if own.layout != torch.strided or own.numel() == 0:
        return []
    strides = [[stride for stride, size in zip(value.stride(), value.shape) if size > 1] for value in (mine, own)]
    return [] if strides[0] == strides[1] else [
        Difference("stride", name, f"{mine.stride()}, eager {own.stride()} of {tuple(own.shape)}")]


def _values(name: str, mine: torch.Tensor, own: torch.Tensor, exact: torch.Tensor | None, estimate: torch.Tensor | None,
            nearby_error: float) -> list[Difference]:
    mine, own = _dense(mine), _dense(own)
    if not (own.is_floating_point() or own.is_complex()):
        unequal = mine != own
        return [_at("value", name, unequal, mine, own)] if unequal.any() else []
    for kind, pattern in (("nan", _nan), ("infinity", _infinity)):
        unequal = pattern(mine) != pattern(own)
        if unequal.any():
            return [_at(kind, name, unequal, mine, own)]
    exact, own_error = _reference(own, exact, estimate)
    own_error = max(own_error, nearby_error)
    finite = own.isfinite() & exact.isfinite()
    if not finite.any():
        return []
    wide = torch.complex128 if own.is_complex() else torch.float64
    error = torch.where(finite, (mine.to(wide) - exact.to(wide)).abs(), 0)
    magnitude = torch.where(finite, exact.to(wide).abs(), 0).max().item()
    allowed = max(2 * own_error, 2 * unit_in_last_place(own.dtype, magnitude))
    if exact is own:  # which errs itself
        allowed += own_error
    if error.max().item() <= allowed:
        return []
    worst = error.argmax()
    return [Difference("value", name, f"error {error.max().item():.3g}, allowed {allowed:.3g} (eager {own_error:.3g}) "
                       f"in {tuple(own.shape)}: {mine.flatten()[worst].item()}, eager {own.flatten()[worst].item()}, "
                       f"exact {exact.flatten()[worst].item()}")]


def _dense(value: torch.Tensor) -> torch.Tensor:
    value = value.detach().resolve_conj().resolve_neg()
    return value if value.layout == torch.strided else value.to_dense()


def _reference(own: torch.Tensor, exact: torch.Tensor | None,
               estimate: torch.Tensor | None) -> tuple[torch.Tensor, float]:
    """The tensor that errors are measured against, and eager's own largest."""
    is_double = own.dtype in _DOUBLE
    if is_double and estimate is not None:
        scale = torch.finfo(own.dtype).eps / torch.finfo(estimate.dtype).eps
        return own, scale * _largest_error(own, estimate)
    if exact is None or is_double:
        return own, 0.0
    return exact, _largest_error(exact, own)


def _largest_error(exact: torch.Tensor, own: torch.Tensor) -> float:
    wide = torch.complex128 if exact.is_complex() or own.is_complex() else torch.float64
    error = (own.to(wide) - exact.to(wide)).abs()
    error = error[error.isfinite()]
    return error.max().item() if error.numel() else 0.0


def _nan(value: torch.Tensor) -> torch.Tensor:
    """Where there is NaN; of complex ones what is not finite is one kind."""
    return ~value.isfinite() if value.is_complex() else value.isnan()


def _infinity(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(value, dtype=torch.int8) if value.is_complex() else \
        value.isposinf().to(torch.int8) - value.isneginf().to(torch.int8)


def _at(kind: str, name: str, unequal: torch.Tensor, mine: torch.Tensor, own: torch.Tensor) -> Difference:
    first = unequal.flatten().to(torch.uint8).argmax()
    return Difference(kind, name, f"{int(unequal.sum())} of {own.numel()} differ in {tuple(own.shape)}, the first "
                                  f"{mine.flatten()[first].item()}, eager {own.flatten()[first].item()}")


def _aliases(got: Results, eager: Results) -> list[Difference]:
    found = []
    mine, own = (_first_of_memory(results) for results in (got, eager))
    for (name, _), a, b in zip(eager.leaves, mine, own):
        if a != b and not name.startswith("input"):
            found.append(Difference("alias", name, f"shares memory with {a}, eager with {b}"))
    return found


def _first_of_memory(results: Results) -> list[str]:
    """Of each leaf the first whose memory it shares, inputs before results: its own name, if it has its own."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    order = sorted(results.leaves, key=lambda leaf: not leaf[0].startswith("input"))
    for name, value in order:
        found[name] = name
        if _has_memory(value):
            found[name] = first.setdefault(value.untyped_storage().data_ptr(), name)
    return [found[name] for name in results.names()]


def _has_memory(value: Any) -> bool:
    """Zeros that autograd makes without any have none."""
    return (isinstance(value, torch.Tensor) and value.layout == torch.strided and value.numel() > 0
            and not value._is_zerotensor())
