"""A value has one bit pattern, wherever it is computed: what a forward compares, its backward compares with the same
bits, recomputed or not. Programs are drawn by seed."""
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import kiln
from agreement import gradient_of

_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "sin": torch.sin, "erf": torch.erf, "atan": torch.atan,
    "exp": lambda v: torch.exp(v * 0.3), "log1p": lambda v: torch.log1p(v.abs()),
    "rsqrt": lambda v: (v.abs() + 1).rsqrt(),
    "gelu": F.gelu, "gelu tanh": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu, "mish": F.mish,
    "softplus": F.softplus, "times": lambda v: v * 1.3, "plus": lambda v: v + 0.7, "minus": lambda v: 1.7 - v,
    "over": lambda v: v / 1.7, "written gelu": lambda v: 0.5 * v * (1 + torch.tanh(0.79788456 * (v + 0.044715 * v**3))),
    "written softmax": lambda v: (v - v.amax(-1, keepdim=True)).exp() / (v - v.amax(-1, keepdim=True)).exp().sum(-1,
                                                                                                                 True),
    "softmax": lambda v: v.softmax(-1), "layer norm": lambda v: F.layer_norm(v, v.shape[-1:]),
}
_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "plus x": torch.add, "times x": torch.mul, "atan2 x": torch.atan2, "larger x": torch.maximum,
    "less x": torch.sub}
_COMPARE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "amax": lambda v: v.amax(1), "amin": lambda v: v.amin(1), "max": lambda v: v.max(), "min": lambda v: v.min(),
    "norm": lambda v: v.norm(float("inf")), "max of a row": lambda v: v.max(1).values,
    "amax of a column": lambda v: v.amax(0), "equal": lambda v: (v * (v == v.amax(1, keepdim=True))).sum(1),
}


def _program(source: random.Random) -> tuple[Callable[..., torch.Tensor], str]:
    steps = [source.choice([*_UNARY, *_BINARY]) for _ in range(source.randint(1, 4))]
    compare = source.choice([*_COMPARE])

    def run(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        v = x if weight is None else F.linear(x, weight)
        for step in steps:
            v = _UNARY[step](v) if step in _UNARY else _BINARY[step](v, x)
        return _COMPARE[compare](v)

    return run, " → ".join([*steps, compare])


def _gradients(function: Callable[..., torch.Tensor], *values: torch.Tensor | None) -> list[torch.Tensor]:
    leaves = [value if value is None else value.clone().requires_grad_() for value in values]
    function(*leaves).float().sum().backward()
    return [gradient_of(leaf) for leaf in leaves if leaf is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_a_forward_compares_its_backward_finds(dtype: torch.dtype) -> None:
    source = random.Random(str(dtype))
    for number in range(14):
        program, text = _program(source)
        torch.manual_seed(number)
        rows, columns = source.choice([(16, 256), (5, 67), (33, 1024), (3, 16)])
        x = torch.randn(rows, columns).to(dtype)
        weight = (torch.randn(columns, columns) / columns**0.5).to(dtype) if source.random() < 0.3 else None
        torch._dynamo.reset()
        compiled = torch.compile(program, backend="kiln", dynamic=source.random() < 0.3)
        before = kiln.stats()["fallbacks"]
        expected, got = _gradients(program, x, weight), _gradients(compiled, x, weight)
        assert kiln.stats()["fallbacks"] == before, text
        for want, have in zip(expected, got, strict=True):
            assert have.isnan().sum() == want.isnan().sum(), f"{text}, {dtype}: NaN in a gradient"
            assert ((have != 0).any() == (want != 0).any()), f"{text}, {dtype}: nothing found"
            # A different element may be the largest by a last place, or there may be another tie: few rows.
            off = (have.double() - want.double()).abs() > 0.05 * want.double().abs().max() + 1e-30
            assert off.double().mean() <= 0.02 + 2 / off.numel(), f"{text}, {dtype}: {off.sum()} of {off.numel()}"
