"""The largest error of a result, measured against float64, is at most twice eager's or two units in the last place of
the largest value, whatever the magnitude of the values and however many they are."""
import math
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

_DRAWS = 100

# By name: a function of draws in rows, and the largest magnitude that its exact result leaves in range.
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "var": lambda x: x.var(1), "std": lambda x: x.std(1), "var_mean": lambda x: torch.var_mean(x, 1)[0],
    "std correction": lambda x: torch.std(x, 1, correction=0), "mean": lambda x: x.mean(1), "sum": lambda x: x.sum(1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1), "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "softmax": lambda x: x.softmax(1), "log softmax": lambda x: x.log_softmax(1), "logsumexp": lambda x: x.logsumexp(1),
    "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "cumsum": lambda x: x.cumsum(1),
    "plus a number": lambda x: x + 1.7, "chain": lambda x: torch.tanh(x * 1.3) / 1.7 - 0.1,
    "trunc": lambda x: torch.div(x, 0.7, rounding_mode="trunc"),
    "floor": lambda x: torch.div(x, 0.7, rounding_mode="floor"),
    "trunc of tensors": lambda x: torch.div(x[:, :2], x[:, 2:4], rounding_mode="trunc"),
    "floor of tensors": lambda x: torch.div(x[:, :2], x[:, 2:4], rounding_mode="floor"),
    "threshold": lambda x: F.threshold(x, 0.1, 0.3), "hardtanh": lambda x: F.hardtanh(x, -0.1, 0.3),
}


def _largest_error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """inf where one is finite and the other is not."""
    value = value.double()
    same = (value == exact) | (value.isnan() & exact.isnan())
    error = torch.where(same, 0.0, (value - exact).abs())
    return torch.where(error.isnan(), math.inf, error).max().item()


def _last_place(exact: torch.Tensor, dtype: torch.dtype) -> float:
    largest = exact[exact.isfinite()].abs().max().item() if exact.isfinite().any() else 0.0
    info = torch.finfo(dtype)
    return max(2.0 ** math.floor(math.log2(largest)) * info.eps if largest > 0 else 0.0,
               info.smallest_normal * info.eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_as_exact_as_eager(name: str, dtype: torch.dtype) -> None:
    function = _FUNCTIONS[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="kiln", dynamic=False)
    magnitudes = [1e-30, 1e-5, 1.0, 1e4, 1e30] if dtype != torch.float16 else [1e-4, 1.0, 100.0]
    for count in (5, 1000):
        torch.manual_seed(count)
        for magnitude, offset in [*((magnitude, 0.0) for magnitude in magnitudes), (1.0, 100.0)]:
            x = (torch.randn(_DRAWS, count) * magnitude + offset).to(dtype)
            exact, eager, got = function(x.double()), function(x), compiled(x)
            assert got.dtype == eager.dtype and got.stride() == eager.stride()
            right = exact.to(eager.dtype).double()
            mine, theirs = _largest_error(got, right), _largest_error(eager, right)
            bound = max(2 * theirs, 2 * _last_place(right, dtype))
            told = f"{name} of {count} about {offset}, magnitude {magnitude}: {mine} against {theirs} of eager"
            assert mine <= bound, told


# By name: a function, and shapes of its arguments by a `random.Random`: loops long and short, merged and not.
_SUMS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[random.Random], list[tuple[int, ...]]]]] = {
    "rows": (lambda x: x.sum(1), lambda r: [(r.choice((3, 40)), r.randrange(500, 40000))]),
    "columns": (lambda x: x.sum(0), lambda r: [(r.choice((64, 400, 500, 2000)), r.randrange(20, 300))]),
    "all": (lambda x: x.sum(), lambda r: [(r.randrange(20, 300), r.randrange(5, 300))]),
    "channels": (lambda x: x.sum((0, 2)), lambda r: [(r.randrange(2, 80), 5, r.randrange(1, 400))]),
    "every other": (lambda x: x[:, ::2].sum(1), lambda r: [(7, r.randrange(1000, 20000))]),
    "transposed": (lambda x: x.t().sum(1), lambda r: [(r.randrange(500, 5000), r.randrange(2, 40))]),
    "broadcast product": (lambda x, w: (x * w).sum(),
                          lambda r: (lambda n: [(r.randrange(500, 2000), n), (n,)])(r.randrange(9, 40))),
    "its columns": (lambda x, w: (x * w).sum((0, 2)),
                    lambda r: (lambda n: [(r.randrange(50, 200), 6, n), (n,)])(r.randrange(3, 40))),
    "mean": (lambda x: x.mean((0, 2)), lambda r: [(r.randrange(20, 90), 4, r.randrange(3, 300))]),
    "three loops": (lambda x, w: (x * w).sum((0, 1, 3)),
                    lambda r: (lambda n: [(9, r.randrange(5, 30), 4, n), (4, n)])(r.randrange(3, 90))),
    "with logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
                    lambda r: [(r.randrange(100, 1000), r.randrange(10, 20))] * 2),
    "with weights": (lambda x, y, w: F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=w),
                     lambda r: (lambda n: [*[(r.randrange(500, 2000), n)] * 2, (n,)])(r.randrange(9, 20))),
    "norm 1": (lambda x: torch.linalg.vector_norm(x, 1, dim=1), lambda r: [(9, r.randrange(1000, 20000))]),
    "norm 2": (lambda x: torch.linalg.vector_norm(x, 2, dim=0), lambda r: [(r.randrange(100, 2000), 40)]),
    "norm 1/2": (lambda x: torch.linalg.vector_norm(x, 0.5, dim=1), lambda r: [(3, r.randrange(1000, 20000))]),
    "fused rows": (lambda x, y: (x * y + x).sum(1), lambda r: [(5, r.randrange(3000, 20000))] * 2),
    "fused columns": (lambda x, y: (x * y.relu()).sum(0),
                      lambda r: [(r.randrange(100, 1000), r.randrange(10, 200))] * 2),
    "sum of squares": (lambda x: (x * x).sum(), lambda r: [(r.randrange(5000, 32000),)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", _SUMS)
def test_sums_of_many_are_as_exact_as_eagers(name: str, dtype: torch.dtype) -> None:
    """On the mean of draws, since one sum's error is chance."""
    function, shapes = _SUMS[name]
    for seed in range(4) if os.environ.get("KILN_FULL") else (random.Random(name).randrange(3), 3):
        sizes, dynamic = shapes(random.Random(f"{name}{seed}")), seed == 3
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="kiln", dynamic=dynamic)
        for values in (torch.randn, torch.rand):
            torch.manual_seed(seed)
            mine = theirs = largest = 0.0
            for _ in range(24):
                arguments = [values(size).to(dtype) for size in sizes]
                exact = function(*(argument.double() for argument in arguments))
                mine += _largest_error(compiled(*arguments), exact) / 24
                theirs += _largest_error(function(*arguments), exact) / 24
                largest = max(largest, _last_place(exact, dtype))
            told = f"{name} of {sizes}, {values.__name__}: {mine} against {theirs} of eager"
            assert mine <= 2 * theirs + largest, told


def _gradients(function: Callable[..., Any], dtype: torch.dtype, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of `function`'s result, whose share of each element is drawn, with respect to all arguments."""
    leaves = [value.to(dtype).requires_grad_() for value in arguments]
    result = function(*leaves)
    share = torch.randn(result.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.autograd.grad(result, leaves, share.bfloat16().to(result))


def _check_gradients(function: Callable[..., Any], dtype: torch.dtype, *arguments: torch.Tensor,
                     dynamic: bool = False) -> None:
    compiled = torch.compile(function, backend="kiln", dynamic=dynamic)
    exact, eager, got = (_gradients(of, wide, *arguments) for of, wide in (
        (function, torch.float64), (function, dtype), (compiled, dtype)))
    for number, (right, theirs, mine) in enumerate(zip(exact, eager, got)):
        bound = max(2 * _largest_error(theirs, right), 2 * _last_place(right, dtype))
        error = _largest_error(mine, right)
        assert error <= bound, f"gradient {number}: {error}, allowed {bound}"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("norm, shape", [(F.batch_norm, (12, 400)), (F.batch_norm, (4, 400, 3)),
                                         (F.batch_norm, (2, 400, 5, 5)), (F.instance_norm, (3, 400, 4))])
def test_gradients_of_batch_norms(norm: Callable[..., Any], shape: tuple[int, ...], dynamic: bool) -> None:
    torch._dynamo.reset()
    for seed in range(4):
        torch.manual_seed(seed)
        x, weight, bias = torch.randn(shape) + 3 * (seed % 2), torch.randn(400), torch.randn(400)
        _check_gradients(lambda x, weight, bias: norm(x, None, None, weight, bias, True), torch.float32, x, weight,
                         bias,
                         dynamic=dynamic)


DEVICES = ["cpu",
           pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name",
                         ["gelu", "gelu tanh", "silu", "mish", "softplus", "selu", "logsigmoid", "tanh", "sigmoid"])
def test_gradients_of_activations(name: str, device: str) -> None:
    """Also far out, where 1 - tanh² has few digits left of the difference."""
    torch._dynamo.reset()
    function = _FUNCTIONS.get(name) or getattr(torch, name, None) or getattr(F, name)
    _check_gradients(function, torch.float32, torch.linspace(-9, 9, 200_001, dtype=torch.float64, device=device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name",
                         ["gelu", "gelu tanh", "silu", "mish", "softplus", "selu", "logsigmoid", "tanh", "sigmoid"])
def test_gradients_of_activations_of_large_numbers(name: str, dtype: torch.dtype) -> None:
    """Where the slope is none, a factor of it may be as large as the number's cube."""
    torch._dynamo.reset()
    function = _FUNCTIONS.get(name) or getattr(torch, name, None) or getattr(F, name)
    magnitudes = torch.logspace(1.5, 18, 2001, dtype=torch.float64)
    _check_gradients(function, dtype, torch.cat((-magnitudes, magnitudes)).to(dtype).double())


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("value", [1e-3, 0.3, 1, 50])
def test_products_with_a_number_stay_in_range(value: float, foreach: bool) -> None:
    """A product that float32 does not hold may be none of its number and one factor."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4000, generator=generator) * 10.0 ** torch.linspace(-25, 22, 4000) for _ in range(2))
    c = torch.zeros(4000)

    def products(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Sequence[torch.Tensor]:
        if foreach:
            return torch._foreach_addcmul([c], [a], [b], value) + torch._foreach_addcdiv([c], [a], [b], value)
        return torch.addcmul(c, a, b, value=value), torch.addcdiv(c, a, b, value=value)

    for mine, own in zip(torch.compile(products, backend="kiln")(a, b, c), products(a, b, c)):
        torch.testing.assert_close(mine, own, rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name, sizes", [("group", (6, 3)), ("group", (6, 40)), ("layer", (9,)), ("layer", (300,)),
                                         ("rms", (9,)), ("rms", (300,))])
def test_gradients_of_norms_of_few_elements(name: str, sizes: tuple[int, ...], device: str) -> None:
    norms = {"group": lambda x, weight: F.group_norm(x, 2, weight, eps=0.5),
             "layer": lambda x, weight: F.layer_norm(x, sizes, weight),
             "rms": lambda x, weight: F.rms_norm(x, sizes, weight)}
    torch._dynamo.reset()
    for seed in range(4):
        torch.manual_seed(seed)
        _check_gradients(norms[name], torch.float32, torch.randn(300, *sizes, device=device),
                         torch.randn(sizes[:1], device=device))


@pytest.mark.parametrize("order", [3, -2.1, 6, 0.7, 2.5])
def test_gradients_of_norms_of_one_element(order: float) -> None:
    torch._dynamo.reset()
    x = torch.randn(4000, 1, generator=torch.Generator().manual_seed(1))
    _check_gradients(lambda x: torch.linalg.vector_norm(x, ord=order, dim=1), torch.float32, x)


def test_the_gradient_of_hardsigmoid_is_eagers() -> None:
    """Whose sixth is a float's in float64, too."""
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    mine, own = (_gradients(of, torch.float64, x)[0]
                 for of in (torch.compile(F.hardsigmoid, backend="kiln"), F.hardsigmoid))
    torch.testing.assert_close(mine, own, rtol=1e-15, atol=0)


@pytest.mark.parametrize("sizes, dim",
                         [((125,), 0), ((5, 5, 5), (0, 1, 2)), ((1000, 5), 0), ((33333, 3), 0), ((7, 500, 3), 1),
                                        ((4, 4096), 1)], ids=str)
def test_sums_of_float64(sizes: tuple[int, ...], dim: int | tuple[int, ...]) -> None:
    """Against the exact sum, which Python knows."""
    generator = torch.Generator().manual_seed(0)
    compiled = torch.compile(lambda x: x.sum(dim), backend="kiln")
    mine, own = 0.0, 0.0
    for _ in range(6):
        x = torch.rand(sizes, dtype=torch.float64, generator=generator) * 18 - 9
        dims = dim if isinstance(dim, tuple) else (dim,)
        rows = x.movedim(dims, tuple(range(-len(dims), 0))).reshape(x.sum(dim).numel(), -1)
        exact = torch.tensor([math.fsum(row.tolist()) for row in rows], dtype=torch.float64)
        mine = max(mine, (compiled(x).flatten() - exact).abs().max().item())
        own = max(own, (x.sum(dim).flatten() - exact).abs().max().item())
    assert mine <= 2 * own
