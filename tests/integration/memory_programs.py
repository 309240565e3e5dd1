"""Programs drawn by seed for test_memory_relations.py: steps that compute, copy, view and read by storage.

A program is drawn while it runs in eager, so that every step is one that eager takes; then it is a list of steps that
any compiled function can run."""

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Step: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class Program:
    """`steps`: (function, positions of its operands); values are numbered from the inputs on. Gives `results`."""

    def __init__(self, inputs: list[torch.Tensor], gradient: bool) -> None:
        self.inputs = inputs
        self.gradient = gradient
        self.values = list(inputs)
        self.names = [f"input{tuple(value.shape)}" for value in inputs]
        self.steps: list[tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = []
        self.results: list[int] = []

    def add(self, name: str, function: Callable[..., Any], *operands: int) -> int | None:
        """Takes the step if eager does; the position of its result, or None."""
        try:
            with torch.no_grad():
                value = function(*(self.values[operand] for operand in operands))
        except (RuntimeError, IndexError):
            return None
        self.steps.append((function, operands))
        self.values.append(value)
        self.names.append(f"{name} of {', '.join(map(str, operands))}")
        return len(self.values) - 1

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for function, operands in self.steps:
            values.append(function(*(values[operand] for operand in operands)))
        return tuple(values[result] for result in self.results)

    def __str__(self) -> str:
        lines = [f"{position}: {name}" for position, name in enumerate(self.names)]
        return "\n".join([*lines, f"returns {self.results}"])


def _storage_length(value: torch.Tensor) -> int:
    return value.untyped_storage().nbytes() // value.element_size()


def draw_window(rng: random.Random, value: torch.Tensor) -> tuple[list[int], list[int], int | None]:
    """Sizes, strides and offset of an as_strided that stays inside the storage, None for its own offset."""
    length = _storage_length(value)
    rank = rng.randint(1, 4)
    sizes, strides, left = [], [], length - 1
    for _ in range(rank):
        size = rng.randint(1, 5)
        stride = rng.choice([1, 2, 3, 7, *value.stride(), rng.randint(1, 64)])
        while size > 1 and (size - 1) * stride > left:
            size -= 1
        left -= (size - 1) * stride
        sizes.append(size)
        strides.append(stride)
    offset: int | None = rng.randint(0, left)
    if rng.random() < 0.4 and value.storage_offset() <= left:
        offset = None
    return sizes, strides, offset


def add_window(program: Program, rng: random.Random, operand: int, scatter: bool = False) -> int | None:
    value = program.values[operand]
    if program.gradient and value.numel() != _storage_length(value):
        return None  # what reaches past its argument has other gradients in torch with a partitioner than without
    sizes, strides, offset = draw_window(rng, value)
    if scatter:
        if value.dtype != torch.float32 or not value.is_contiguous() or value.storage_offset():
            return None  # torch's own gradient and its fake tensors want no others
        left, strides, reach = _storage_length(value), [], 1
        for dim, size in enumerate(sizes):  # no two elements in one place
            strides.append(rng.choice([reach, reach, reach + 1]))
            sizes[dim] = max(1, min(size, left // strides[-1]))
            reach = strides[-1] * sizes[dim]
        offset = rng.randint(0, left - 1 - sum((size - 1) * stride for size, stride in zip(sizes, strides)))
        return program.add(f"as_strided_scatter {sizes} {strides} {offset}", lambda x: torch.as_strided_scatter(
            x, torch.as_strided(x, sizes, strides, offset) * 2 + 1, sizes, strides, offset), operand)
    copy = rng.random() < 0.2
    read = torch.as_strided_copy if copy else torch.as_strided
    return program.add(f"as_strided{'_copy' * copy} {sizes} {strides} {offset}",
                       lambda x: read(x, sizes, strides, offset), operand)


def add_view(program: Program, rng: random.Random, operand: int) -> int | None:
    """A view of the value at `operand`."""
    value = program.values[operand]
    rank = value.dim()
    choices: list[tuple[str, Step]] = [
        ("alias", lambda x: x.view(x.shape)), ("detach", lambda x: x.detach()),
        ("unsqueeze", lambda x: x.unsqueeze(0)), ("flat view", lambda x: x.view(-1))]
    if rank:
        dim = rng.randrange(rank)
        size = value.shape[dim]
        order = rng.sample(range(rank), rank)
        start = rng.randrange(max(size, 1))
        step = rng.choice([1, 1, 2])
        choices += [(f"permute {order}", lambda x: x.permute(order)),
                    (f"slice {dim} {start} {step}", lambda x: x[(slice(None),) * dim + (slice(start, None, step),)]),
                    (f"select {dim}", lambda x: x.select(dim, size - 1)),
                    (f"split {dim}", lambda x: x.split(max(size // 2, 1), dim)[-1]),
                    (f"unfold {dim}", lambda x: x.unfold(dim, min(2, size), step)),
                    (f"expand {dim}", lambda x: x.unsqueeze(dim).expand(*x.shape[:dim], 2, *x.shape[dim:])),
                    (f"unbind {dim}", lambda x: x.unbind(dim)[0])]
        if size and size % 2 == 0 and value.dtype == torch.float32:  # of other bits torch itself fails
            choices.append((f"halves {dim}", lambda x: x.unflatten(dim, (2, -1))))
    if rank > 1:
        choices += [("diagonal", lambda x: x.diagonal(0, 0, 1)), ("flatten", lambda x: x.flatten(0, 1)),
                    ("reshape", lambda x: x.reshape(x.shape[1], x.shape[0], *x.shape[2:])),
                    ("transpose", lambda x: x.transpose(0, 1))]
    if not program.gradient and value.dtype in (torch.float32, torch.int32):
        choices += [("narrow bits", lambda x: x.view(torch.int16)), ("wide bits", lambda x: x.view(torch.int64)),
                    ("bits", lambda x: x.view(torch.int32))]
    name, function = rng.choice(choices)
    return program.add(name, function, operand)


def add_copy(program: Program, rng: random.Random, operand: int) -> int | None:
    """A value in memory of its own, or, as reshape and contiguous do, perhaps not."""
    steps: list[tuple[str, Step]] = [
        ("plus", lambda x: x + 1), ("times one", lambda x: x * 1), ("twice", lambda x: x * 2), ("clone", torch.clone),
        ("contiguous", lambda x: x.contiguous()), ("reshape", lambda x: x.reshape(-1)),
        ("rows", lambda x: x.reshape(2, -1)), ("cat", lambda x: torch.cat([x])), ("to", lambda x: x.to(x.dtype)),
        ("copied to", lambda x: x.to(x.dtype, copy=True)), ("flip", lambda x: x.flip(0)),
        ("transposed", lambda x: x.t().contiguous()), ("zeros", torch.zeros_like), ("sum", lambda x: x.sum(0)),
        ("repeat", lambda x: x.repeat([1] * x.dim())), ("relu", torch.relu), ("same", lambda x: x)]
    name, function = rng.choice(steps)
    return program.add(name, function, operand)


def add_image_step(program: Program, rng: random.Random, operand: int) -> int | None:
    """Convolutions and what stands beside them. Numbers are small integers, so that every order of sums is exact."""
    value = program.values[operand]
    if value.dim() != 4:
        return None
    channels = value.shape[1]

    def weight(*sizes: int) -> torch.Tensor:
        return torch.randint(-1, 2, sizes).float()

    def conv(sizes: tuple[int, ...], **arguments: Any) -> Step:
        w = weight(*sizes)
        return lambda x: torch.nn.functional.conv2d(x, w, **arguments)

    functional = torch.nn.functional
    steps: list[tuple[str, Callable[[], Step]]] = [
        ("conv 3x3", lambda: conv((8, channels, 3, 3), padding=1)),
        ("conv 1x1", lambda: conv((8, channels, 1, 1))),
        ("depthwise", lambda: conv((channels, 1, 3, 3), padding=1, groups=channels)),
        ("pad", lambda: lambda x: functional.pad(x, [2, 1, 1, 2])),
        ("pad channels", lambda: lambda x: functional.pad(x, [0, 0, 0, 0, 1, 2])),
        ("max pool", lambda: lambda x: functional.max_pool2d(x, 3, 2, 1)),
        ("average pool", lambda: lambda x: functional.avg_pool2d(x, 2)),
        ("cat", lambda: lambda x: torch.cat([x, x + 1], 1)),
        ("relu", lambda: torch.relu), ("plus", lambda: lambda x: x + 3), ("clone", lambda: torch.clone),
        ("channels last", lambda: lambda x: x.contiguous(memory_format=torch.channels_last)),
        ("upsample", lambda: lambda x: functional.interpolate(x, scale_factor=2)),
        ("channels-last", lambda: lambda x: x.permute(0, 2, 3, 1)),
        ("gemm", lambda: lambda x: (x.flatten(1) @ torch.ones(x.flatten(1).shape[1], 6)).view(x.shape[0], 6, 1, 1)),
    ]
    name, function = rng.choice(steps)
    return program.add(name, function(), operand)
