"""The largest error of a result, measured against float64, is at most twice eager's or two units in the last place of
the largest value, whatever the magnitude of the values and however many they are."""
import math

import pytest
import torch
import torch.nn.functional as F

_DRAWS = 100

# By name: a function of draws in rows, and the largest magnitude that its exact result leaves in range.
_FUNCTIONS = {
    "var": lambda x: x.var(1), "std": lambda x: x.std(1), "var_mean": lambda x: torch.var_mean(x, 1)[0],
    "std correction": lambda x: torch.std(x, 1, correction=0), "mean": lambda x: x.mean(1), "sum": lambda x: x.sum(1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1), "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "softmax": lambda x: x.softmax(1), "log softmax": lambda x: x.log_softmax(1), "logsumexp": lambda x: x.logsumexp(1),
    "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "cumsum": lambda x: x.cumsum(1),
    "plus a number": lambda x: x + 1.7, "chain": lambda x: torch.tanh(x * 1.3) / 1.7 - 0.1,
    "trunc": lambda x: torch.div(x, 0.7, rounding_mode="trunc"), "floor": lambda x: torch.div(x, 0.7, rounding_mode="floor"),
    "trunc of tensors": lambda x: torch.div(x[:, :2], x[:, 2:4], rounding_mode="trunc"),
    "floor of tensors": lambda x: torch.div(x[:, :2], x[:, 2:4], rounding_mode="floor"),
    "threshold": lambda x: F.threshold(x, 0.1, 0.3), "hardtanh": lambda x: F.hardtanh(x, -0.1, 0.3),
}


def _largest_error(value, exact):
    """inf where one is finite and the other is not."""
    value = value.double()
    same = (value == exact) | (value.isnan() & exact.isnan())
    error = torch.where(same, 0.0, (value - exact).abs())
    return torch.where(error.isnan(), math.inf, error).max().item()


def _last_place(exact, dtype):
    largest = exact[exact.isfinite()].abs().max().item() if exact.isfinite().any() else 0.0
    info = torch.finfo(dtype)
    return max(2.0 ** math.floor(math.log2(largest)) * info.eps if largest > 0 else 0.0, info.smallest_normal * info.eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_as_exact_as_eager(name, dtype):
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
            mine, theirs = _largest_error(got, exact.to(eager.dtype).double()), _largest_error(eager, exact.to(eager.dtype).double())
            bound = max(2 * theirs, 2 * _last_place(exact.to(eager.dtype).double(), dtype))
            assert mine <= bound, f"{name} of {count} about {offset}, magnitude {magnitude}: {mine} against {theirs} of eager"


def _gradients(function, dtype, *arguments):
    """Of `function`'s result, whose share of each element is drawn, with respect to all arguments."""
    arguments = [value.to(dtype).requires_grad_() for value in arguments]
    result = function(*arguments)
    share = torch.randn(result.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.autograd.grad(result, arguments, share.bfloat16().to(dtype))


def _check_gradients(function, dtype, *arguments, dynamic=False):
    compiled = torch.compile(function, backend="kiln", dynamic=dynamic)
    exact, eager, got = (_gradients(of, wide, *arguments) for of, wide in (
        (function, torch.float64), (function, dtype), (compiled, dtype)))
    for number, (right, theirs, mine) in enumerate(zip(exact, eager, got)):
        bound = max(2 * _largest_error(theirs, right), 2 * _last_place(right, dtype))
        assert _largest_error(mine, right) <= bound, f"gradient {number}: {_largest_error(mine, right)}, allowed {bound}"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("norm, shape", [(F.batch_norm, (12, 400)), (F.batch_norm, (4, 400, 3)),
                                         (F.batch_norm, (2, 400, 5, 5)), (F.instance_norm, (3, 400, 4))])
def test_gradients_of_batch_norms(norm, shape, dynamic):
    torch._dynamo.reset()
    for seed in range(4):
        torch.manual_seed(seed)
        x, weight, bias = torch.randn(shape) + 3 * (seed % 2), torch.randn(400), torch.randn(400)
        _check_gradients(lambda x, weight, bias: norm(x, None, None, weight, bias, True), torch.float32, x, weight, bias,
                         dynamic=dynamic)


@pytest.mark.parametrize("order", [3, -2.1, 6, 0.7, 2.5])
def test_gradients_of_norms_of_one_element(order):
    torch._dynamo.reset()
    x = torch.randn(4000, 1, generator=torch.Generator().manual_seed(1))
    _check_gradients(lambda x: torch.linalg.vector_norm(x, ord=order, dim=1), torch.float32, x)


def test_the_gradient_of_hardsigmoid_is_eagers():
    """Whose sixth is a float's in float64, too."""
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    mine, own = (_gradients(of, torch.float64, x)[0] for of in (torch.compile(F.hardsigmoid, backend="kiln"), F.hardsigmoid))
    torch.testing.assert_close(mine, own, rtol=1e-15, atol=0)
