"""Programs drawn by seed for test_composed_programs.py: operators of many kinds, one behind the other.

A program is drawn while it runs in eager, and every step also in double: a step is taken where both give the same
numbers. So no result depends on the order of sums or on where half precision rounds, and any compiler has to give
eager's bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.nn import functional as F

from memory_programs import Program, add_view

Named: TypeAlias = tuple[str, Callable[..., torch.Tensor]]

_DTYPES = [torch.float32] * 6 + [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int64, torch.int32,
                                 torch.int8, torch.uint8, torch.bool]
_CASTS = [torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool]
_SIZES = [(4, 6), (4, 6), (6,), (4, 1), (1, 6), (2, 4, 6), (6, 4), (6, 5), (2, 1, 6), (2, 6, 5), (1, 3, 4, 6), (),
(0, 6)]
_LARGE = {0: 0, 1: 1, 2: 3, 3: 2, 4: 17, 5: 9, 6: 40}  # loops of full vectors and what is left of them


def draw_tensor(rng: random.Random, generator: torch.Generator, large: bool) -> torch.Tensor:
    sizes, dtype = rng.choice(_SIZES), rng.choice(_DTYPES)
    if large:
        sizes = tuple(_LARGE[size] for size in sizes)
    low, high = (0, 2) if dtype == torch.bool else (0, 6) if dtype == torch.uint8 else (-3, 4)
    kind = rng.choice(["dense", "dense", "dense", "transposed", "sliced", "expanded"])
    if kind == "transposed":
        turned = list(range(len(sizes))[::-1])
        return torch.randint(low, high, sizes[::-1], generator=generator).to(dtype).permute(turned)
    if kind == "sliced" and sizes:
        padded = (*sizes[:-1], 2 * sizes[-1] + 1)
        return torch.randint(low, high, padded, generator=generator).to(dtype)[..., 1::2]
    if kind == "expanded" and sizes:
        return torch.randint(low, high, (1, *sizes[1:]), generator=generator).to(dtype).expand(sizes)
    return torch.randint(low, high, sizes, generator=generator).to(dtype)


def copied(value: torch.Tensor) -> torch.Tensor:
    """With its strides, and nobody's memory."""
    storage = value.untyped_storage().clone()
    return torch.empty(0, dtype=value.dtype).set_(storage, value.storage_offset(), value.shape, value.stride())


def _dim(rng: random.Random, x: torch.Tensor) -> int:
    return rng.randrange(-x.dim(), x.dim()) if x.dim() else 0


def _number(rng: random.Random) -> float:
    return rng.choice([0, 1, 2, 3, -1, -2, 0.5, 1.5, -0.25, 2.0, True])


def _index(rng: random.Random, x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """Positions along a dimension, negative ones among them."""
    size = max(x.shape[dim] if x.dim() else 1, 1)
    return torch.tensor([rng.randrange(size) for _ in range(count)])


def _one(rng: random.Random, x: torch.Tensor) -> Named:
    """(name, function of x)"""
    dim, number, keep = _dim(rng, x), _number(rng), rng.random() < 0.5
    cast = rng.choice(_CASTS)
    size = x.shape[dim] if x.dim() else 1
    k = rng.randint(1, max(size, 1))
    at = _index(rng, x, dim, rng.randint(1, 5))
    start, stop, step = rng.randint(-6, 6), rng.randint(-6, 7), rng.choice([1, 1, 2, 3])
    pads = [rng.randint(-1, 2) for _ in range(2 * rng.randint(1, max(x.dim(), 1)))]
    mode = rng.choice(["constant", "reflect", "replicate", "circular"])
    left = {"value": number} if mode == "constant" else {}
    order = rng.sample(range(x.dim()), x.dim())
    shift = rng.randint(-7, 7)
    reduce = rng.choice(["sum", "prod", "amax", "amin", "mean"])
    steps: list[Named] = [
        (f"to {cast}", lambda v: v.to(cast)),
        (f"add {number!r}", lambda v: v + number), (f"mul {number!r}", lambda v: v * number),
        (f"rsub {number!r}", lambda v: number - v), (f"div {number!r}", lambda v: v / number),
        (f"remainder {number!r}", lambda v: v % number), (f"fmod {number!r}", lambda v: torch.fmod(v, number)),
        (f"floor_divide {number!r}", lambda v: v // number),
        (f"div trunc {number!r}", lambda v: torch.div(v, number, rounding_mode="trunc")),
        (f"gt {number!r}", lambda v: v > number), (f"eq {number!r}", lambda v: v == number),
        (f"clamp {number!r}", lambda v: v.clamp(min=number)), (f"clamp 2 {number!r}", lambda v: v.clamp(-2, number)),
        ("neg", lambda v: -v), ("abs", torch.abs), ("sign", torch.sign), ("square", torch.square), ("relu", torch.relu),
        ("relu6", F.relu6), ("hardtanh", F.hardtanh), ("leaky_relu", lambda v: F.leaky_relu(v, 0.25)),
        ("threshold", lambda v: F.threshold(v, 1, -2)), ("softshrink", lambda v: F.softshrink(v, 1.0)),
        ("round", torch.round), ("floor", torch.floor), ("ceil", torch.ceil), ("trunc", torch.trunc),
        ("frac", torch.frac), ("logical_not", torch.logical_not), ("bitwise_not", torch.bitwise_not),
        ("shift", lambda v: v << 1), ("shift right", lambda v: v >> 1), ("and 3", lambda v: v & 3),
        ("signbit", torch.signbit), ("isfinite", torch.isfinite), ("nan_to_num", torch.nan_to_num),
        (f"sum {dim} {keep}", lambda v: v.sum(dim, keep)), (f"sum to {cast}", lambda v: v.sum(dim, keep, dtype=cast)),
        ("sum", torch.sum), (f"mean {dim}", lambda v: v.mean(dim, keep)), ("any", torch.any), ("all", torch.all),
        (f"prod {dim}", lambda v: v.prod(dim, keep)), (f"amax {dim}", lambda v: v.amax(dim, keep)),
        (f"amin {dim}", lambda v: v.amin(dim, keep)), (f"any {dim}", lambda v: v.any(dim, keep)),
        (f"all {dim}", lambda v: v.all(dim, keep)), (f"argmax {dim}", lambda v: v.argmax(dim, keep)),
        (f"argmin {dim}", lambda v: v.argmin(dim, keep)), ("argmax", torch.argmax),
        (f"max {dim}", lambda v: v.max(dim, keep)[0]), (f"count_nonzero {dim}", lambda v: v.count_nonzero(dim)),
        (f"var {dim}", lambda v: v.var(dim, correction=0, keepdim=keep)), ("aminmax", lambda v: v.aminmax()[1]),
        (f"cumsum {dim}", lambda v: v.cumsum(dim)), (f"cumprod {dim}", lambda v: v.cumprod(dim)),
        (f"cummax {dim}", lambda v: v.cummax(dim)[0]), (f"cumsum {dim} {cast}", lambda v: v.cumsum(dim, dtype=cast)),
        (f"sort {dim}", lambda v: v.sort(dim, stable=True)[0]),
        (f"sort indices {dim}", lambda v: v.sort(dim, stable=True, descending=keep)[1]),
        (f"topk {k} {dim}", lambda v: v.topk(k, dim)[0]), (f"kthvalue {k} {dim}", lambda v: v.kthvalue(k, dim)[0]),
        (f"median {dim}", lambda v: v.median(dim)[0]),
        (f"index_select {at.tolist()} {dim}", lambda v: v.index_select(dim, at)),
        (f"index {at.tolist()}", lambda v: v[at]), (f"take {at.tolist()}", lambda v: v.take(at)),
        (f"index_add {at.tolist()} {dim}", lambda v: v.index_add(dim, at, v.index_select(dim, at), alpha=2)),
        (f"index_copy {at[:1].tolist()} {dim}", lambda v: v.index_copy(dim, at[:1], v.index_select(dim, at[:1]) + 1)),
        (f"index_fill {at.tolist()} {dim} {number!r}", lambda v: v.index_fill(dim, at, number)),
        (f"index_put {at.tolist()}", lambda v: v.index_put((at,), v[at] + 1, accumulate=True)),
        (f"slice {start} {stop} {step}", lambda v: v[start:stop:step]),
        (f"last {start} {stop} {step}", lambda v: v[..., start:stop:step]), ("none", lambda v: v[None, ..., None]),
        (f"flip {dim}", lambda v: v.flip(dim)), (f"roll {shift} {dim}", lambda v: v.roll(shift, dim)),
        (f"roll {shift}", lambda v: v.roll(shift)), (f"permute {order}", lambda v: v.permute(order)),
        ("rot90", lambda v: v.rot90(1, (-2, -1))), ("tril", lambda v: v.tril(shift // 3)),
        ("triu", lambda v: v.triu(shift // 3)), ("diagonal", lambda v: v.diagonal(shift // 3, -2, -1)),
        ("diag_embed", lambda v: v.diag_embed(shift // 3)), ("trace", lambda v: v.trace()),
        (f"unfold {dim}", lambda v: v.unfold(dim, min(2, size), step)), ("flatten", torch.flatten),
        (f"repeat_interleave {dim}", lambda v: v.repeat_interleave(2, dim)),
        ("repeat", lambda v: v.repeat(2, *[1] * v.dim())),
        ("tile", lambda v: v.tile(2)), (f"unsqueeze {dim}", lambda v: v.unsqueeze(dim)), ("squeeze", torch.squeeze),
        ("expand", lambda v: v.expand(3, *v.shape)), ("contiguous", lambda v: v.contiguous()), ("clone", torch.clone),
        ("reshape", lambda v: v.reshape(-1, 2)),
        (f"pad {mode} {pads} {number!r}", lambda v: F.pad(v, pads, mode, **left)),
        ("one_hot", lambda v: F.one_hot(v, 8)), ("bucketize", lambda v: torch.bucketize(v, torch.tensor([-1, 0, 2]))),
        ("max_pool", lambda v: F.max_pool2d(v, 2, 1, 1)), ("avg_pool", lambda v: F.avg_pool2d(v, 2)),
        ("max_pool1d", lambda v: F.max_pool1d(v, 3, 2, 1)), ("adaptive", lambda v: F.adaptive_avg_pool2d(v, 1)),
        ("upsample", lambda v: F.interpolate(v, scale_factor=2)), ("pixel_shuffle", lambda v: F.pixel_unshuffle(v, 2)),
        ("chunk", lambda v: v.chunk(2, dim)[-1]), ("split", lambda v: v.split([1, size - 1], dim)[1]),
        ("glu-like", lambda v: (lambda a, b: a * (b > 0))(*v.chunk(2, dim))),
        ("scatter", lambda v: torch.zeros_like(v).scatter(dim, v.long() % max(size, 1), 1)),
        (f"scatter_reduce {reduce}", lambda v: v.scatter_reduce(dim, v.long() % max(size, 1), v, reduce)),
        ("masked_fill", lambda v: v.masked_fill(v > 0, number)), ("where", lambda v: torch.where(v > 1, v, number)),
        ("zeros", torch.zeros_like), ("full", lambda v: torch.full_like(v, number)),
        ("new", lambda v: v.new_full((2, 3), number)), ("arange", lambda v: torch.arange(size) + v.sum()),
        ("logsumexp-like", lambda v: (v - v.amax(dim, True)).sum(dim)), ("l1", lambda v: v.abs().sum(dim)),
        ("outer", lambda v: v.unsqueeze(-1) * v.unsqueeze(-2)), ("square gemm", lambda v: v @ v.mT),
        ("einsum", lambda v: torch.einsum("...ij->...j", v)), ("heaviside", lambda v: v.heaviside(v.new_ones(()))),
    ]
    return rng.choice(steps)


def _two(rng: random.Random, x: torch.Tensor, y: torch.Tensor) -> Named:
    """(name, function of x and y)"""
    dim, keep = _dim(rng, x), rng.random() < 0.5
    steps: list[Named] = [
        ("add", torch.add), ("add 2", lambda a, b: torch.add(a, b, alpha=2)), ("sub", torch.sub), ("mul", torch.mul),
        ("mul", torch.mul), ("div", torch.div), ("floor_divide", torch.floor_divide), ("remainder", torch.remainder),
        ("fmod", torch.fmod), ("div trunc", lambda a, b: torch.div(a, b, rounding_mode="trunc")),
        ("maximum", torch.maximum), ("minimum", torch.minimum), ("fmax", torch.fmax), ("copysign", torch.copysign),
        ("eq", torch.eq), ("ne", torch.ne), ("lt", torch.lt), ("le", torch.le), ("logical_and", torch.logical_and),
        ("logical_xor", torch.logical_xor), ("bitwise_and", torch.bitwise_and), ("bitwise_or", torch.bitwise_or),
        ("shift", torch.bitwise_left_shift), ("pow", torch.pow), ("gcd", torch.gcd), ("heaviside", torch.heaviside),
        ("where", lambda a, b: torch.where(a > 0, a, b)), ("where b", lambda a, b: torch.where(b != 0, b, a)),
        ("clamp", lambda a, b: a.clamp(max=b)), ("lerp", lambda a, b: torch.lerp(a, b, 0.5)),
        ("addcmul", lambda a, b: torch.addcmul(a, a, b, value=2)), ("dist", lambda a, b: (a - b).abs().amax()),
        ("masked_fill", lambda a, b: a.masked_fill(b > 0, 2)),
        ("masked_scatter", lambda a, b: a.masked_scatter(a > 0, b)),
        ("matmul", torch.matmul), ("matmul t", lambda a, b: a @ b.mT), ("linear", F.linear), ("outer", torch.outer),
        ("dot", torch.dot), ("kron", torch.kron), ("tensordot", lambda a, b: torch.tensordot(a, b, 1)),
        ("baddbmm", lambda a, b: torch.baddbmm(a.sum() + a.new_zeros(1), b, b.mT, beta=2, alpha=0.5)),
        ("cat", lambda a, b: torch.cat([a, b], dim)), ("cat three", lambda a, b: torch.cat([a, b, a], 0)),
        ("stack", lambda a, b: torch.stack([a, b], dim)), ("hstack", lambda a, b: torch.hstack([a, b])),
        ("cross", lambda a, b: torch.cross(a, b, -1)), ("l1_loss", F.l1_loss),
        ("mse", lambda a, b: F.mse_loss(a, b, reduction="sum")),
        ("index", lambda a, b: a[b.long() % max(a.shape[0], 1)]),
        ("mask sum", lambda a, b: (a * (b > a)).sum(dim, keep)),
        ("gather", lambda a, b: a.gather(dim, b.long() % max(a.shape[dim], 1))),
        ("scatter_add", lambda a, b: a.scatter_add(dim, b.long() % max(a.shape[dim], 1), b.to(a.dtype))),
        ("scatter", lambda a, b: a.scatter(dim, (b * 0).long(), (b * 0 + 3).to(a.dtype))),
        ("index_put", lambda a, b: a.index_put((b.long().flatten() % max(a.shape[0], 1),), a.new_ones(()), True)),
        ("embedding", lambda a, b: F.embedding(b.long() % max(a.shape[0], 1), a)),
        ("select_scatter", lambda a, b: a.select_scatter(b, dim, 0)),
        ("slice_scatter", lambda a, b: a.slice_scatter(b, dim, 1)),
        ("conv", lambda a, b: F.conv1d(a, b.unsqueeze(0).expand(2, *b.shape), padding=1)),
        ("bucketize", lambda a, b: torch.bucketize(a, b.flatten().sort()[0])), ("isin", torch.isin),
        ("broadcast", lambda a, b: torch.broadcast_tensors(a, b)[1]), ("expand_as", lambda a, b: a.expand_as(b)),
        ("to", lambda a, b: a.to(b)), ("promoted", lambda a, b: a + b.sum()), ("rows", lambda a, b: a.sum(0) + b),
    ]
    return rng.choice(steps)


def _write(rng: random.Random, x: torch.Tensor, y: torch.Tensor) -> Named:
    """(name, function that writes into its first operand)"""
    number, dim = _number(rng), _dim(rng, x)
    at = _index(rng, x, dim, 1)
    steps: list[Named] = [
        ("add_", lambda a, b: a.add_(b)), ("mul_", lambda a, b: a.mul_(b)), ("copy_", lambda a, b: a.copy_(b)),
        (f"fill_ {number!r}", lambda a, b: a.fill_(number)), ("zero_", lambda a, b: a.zero_()),
        ("relu_", lambda a, b: a.relu_()), ("clamp_", lambda a, b: a.clamp_(-1, 2)), ("neg_", lambda a, b: a.neg_()),
        ("masked_fill_", lambda a, b: a.masked_fill_(b > 0, number)), ("setitem", lambda a, b: _set(a, 0, b)),
        ("set last", lambda a, b: _set(a, (..., -1), number)), ("set mask", lambda a, b: _set(a, a > 0, number)),
        ("set rows", lambda a, b: _set(a, slice(1, None, 2), b)), ("add rows", lambda a, b: a[1:].add_(b)),
        ("index_add_", lambda a, b: a.index_add_(dim, at, a.index_select(dim, at))),
        ("index_put_", lambda a, b: a.index_put_((at,), b, accumulate=True)),
        ("scatter_", lambda a, b: a.scatter_(dim, (a * 0).long(), number)), ("transposed", lambda a, b: a.mT.add_(b)),
        ("cumsum_", lambda a, b: a.cumsum_(dim)), ("tril_", lambda a, b: a.tril_()), ("sub_", lambda a, b: a.sub_(b)),
        ("logical_not_", lambda a, b: a.logical_not_()), ("lerp_", lambda a, b: a.lerp_(b, 0.5)),
    ]
    return rng.choice(steps)


def _set(tensor: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    tensor[index] = value
    return tensor


def _doubled(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class ComposedProgram(Program):
    """Its steps give the same in eager and in double."""

    def __init__(self, inputs: list[torch.Tensor], gradient: bool) -> None:
        super().__init__(inputs, gradient)
        self._restart()

    def _restart(self) -> None:
        self.values = [copied(value) for value in self.inputs]
        self._exact = [_doubled(value.clone()) for value in self.inputs]
        for function, operands in self.steps:
            self._take(function, operands)

    def _take(self, function: Callable[..., Any], operands: tuple[int, ...]) -> None:
        with torch.no_grad():
            self.values.append(function(*(self.values[operand] for operand in operands)))
            self._exact.append(_doubled(function(*(self._exact[operand] for operand in operands))))

    def add(self, name: str, function: Callable[..., Any], *operands: int) -> int | None:
        count = len(self.values)
        try:
            self._take(function, operands)
            taken = all(self._agree(a, b) for a, b in zip(self.values, self._exact))
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError):
            taken = False
        if not taken:
            self._restart()
            return None
        self.steps.append((function, operands))
        self.names.append(f"{name} of {', '.join(map(str, operands))}")
        return count

    @staticmethod
    def _agree(value: Any, exact: torch.Tensor) -> bool:
        return (isinstance(value, torch.Tensor) and value.numel() <= 65536 and value.dim() <= 6
                and (value.dtype == exact.dtype or value.is_floating_point())
                and torch.equal(_doubled(value), exact))


def draw_program(seed: int, gradient: bool) -> ComposedProgram:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    large = rng.random() < 0.4
    inputs = [draw_tensor(rng, generator, large) for _ in range(rng.randint(2, 4))]
    if gradient:
        inputs = [value.float() if value.dtype in (torch.float32, torch.float64) else value for value in inputs]
    program = ComposedProgram(inputs, gradient)
    for _ in range(60):
        if len(program.steps) >= rng.randint(5, 14):
            break
        recent = rng.random() < 0.6
        x = len(program.values) - 1 if recent else rng.randrange(len(program.values))
        y = rng.randrange(len(program.values))
        kind = rng.random()
        operands = (program.values[x], program.values[y])
        if kind < 0.45:
            program.add(*_one(rng, operands[0]), x)
        elif kind < 0.75:
            program.add(*_two(rng, *operands), x, y)
        elif kind < 0.88:
            add_view(program, rng, x)
        elif not gradient:
            program.add(*_write(rng, *operands), x, y)
    made = range(len(inputs), len(program.values))
    program.results = sorted(set(rng.sample(made, min(len(made), 2)) + list(made[-1:])))
    return program
