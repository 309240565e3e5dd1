"""Dtypes, and values at their edges: nothing, zero, infinity, what rounds to a bound."""
import math
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from agreement import check_function

pytestmark = pytest.mark.usefixtures("no_fallback")


def test_integer_divisions_beside_padding() -> None:
    a, b = torch.arange(8), torch.full((8,), 3)
    for divide in (torch.floor_divide, torch.remainder, torch.fmod,
                   lambda a, b: torch.div(a, b, rounding_mode="trunc")):
        check_function(lambda a, b: F.pad(divide(a, b), (1, 1)), a, b)
        check_function(lambda a, b: torch.cat([divide(a, b), a]) + 1, a, b)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            torch.compile(lambda a, b: F.pad(divide(a, b), (1, 1)), backend="kiln")(a, b - 3)


def test_sizes_zero_and_scalars() -> None:
    check_function(lambda x: (x.exp(), x.sum(), x.reshape(-1)), torch.randn(0, 4))
    check_function(lambda x, y: (x * y, x.sin() + 1), torch.tensor(2.5), torch.randn(3))
    check_function(lambda x: x.cumsum(0).mean(), torch.randn(1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float64, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    values = torch.randint(0, 5, (7, 9)).to(dtype)
    others = torch.randint(1, 4, (9,)).to(dtype)
    if dtype == torch.bool:
        check_function(lambda x, y: (x & y, x | y, ~x, x.any(), torch.where(x, 1.5, y)), values, others)
    else:
        check_function(lambda x, y: (x + y, x * y, torch.maximum(x, y), x.sum(1), x > y, x.float() / 3), values, others)


def test_integer_division() -> None:
    x, y = torch.tensor([-7, 7, 5, -5, 0]), torch.tensor([2, -2, 5, 3, 4])
    check_function(lambda a, b: (a // b, a % b, torch.div(a, b, rounding_mode="trunc"), a / b), x, y)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.compile(lambda a, b: a // b, backend="kiln")(x, torch.zeros_like(y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_computed_maxima(dtype: torch.dtype) -> None:
    """What is compared with a maximum of itself is found, however often it was rounded."""
    x = torch.randn(4, 64).to(dtype).requires_grad_()
    check_function(lambda x: (x * 1.3).amax(-1), x)
    check_function(lambda x: (x * 1.3).max(), x)
    check_function(lambda x: (x * 1.3 == (x * 1.3).amax(-1, keepdim=True)).sum(-1), x)
    close = torch.tensor([[1.0, 1.0078125, 1.0]]).to(dtype)
    check_function(lambda x: ((x * 0.1 + 1).argmax(-1), (x * 0.1 + 1).min(-1)[1]), close)


def test_signs_and_remainders() -> None:
    x = torch.tensor([float("nan"), -0.0, 2.0, -3.0])
    torch.testing.assert_close(torch.compile(lambda x: (x.sign(), x.sgn()), backend="kiln")(x), (x.sign(), x.sgn()))
    number = torch.tensor([1.0, 2.0, 3.0, 4.0]).bfloat16()
    check_function(lambda x: (x % 0.1, torch.fmod(x, 0.1), torch.div(0.1, x, rounding_mode="trunc")), number)


def test_constants_of_other_dtypes() -> None:
    check_function(lambda y: (torch.full((4,), 2, dtype=torch.bool).float() + y,
                              torch.full((4,), 2, dtype=torch.bool).long() + y,
                              torch.full((4,), 0.1).double() + y), torch.zeros(4, dtype=torch.float64))


def test_indices_of_nothing() -> None:
    check_function(lambda x: x.scatter(0, torch.zeros(0, 4, dtype=torch.long), 3.0), torch.randn(0, 4))
    check_function(lambda x: x.index_add(0, torch.zeros(0, dtype=torch.long) + 3, x[:0]), torch.randn(3, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_uniform_numbers_of_16_bits(dtype: torch.dtype) -> None:
    drawn = torch.compile(lambda: (torch.rand(300_000, dtype=dtype), torch.empty(300_000, dtype=dtype).uniform_()),
                          backend="kiln")()
    for numbers in drawn:
        assert numbers.min() >= 0 and numbers.max() < 1
        assert abs(numbers.double().mean() - 0.5) < 0.01 and abs(numbers.double().var() - 1 / 12) < 0.005


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(0, 2), (3, 0), (0, 0), 0])
def test_pools_of_no_windows(sizes: tuple[int, int] | int, dynamic: bool) -> None:
    compiled = torch.compile(lambda x: F.adaptive_avg_pool2d(x, sizes), backend="kiln", dynamic=dynamic)
    for _ in range(2):
        x = torch.randn([random.randrange(2, 9) for _ in range(4)])
        torch.testing.assert_close(compiled(x), F.adaptive_avg_pool2d(x, sizes))


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_at_positions_that_are_no_numbers(padding: str, align_corners: bool) -> None:
    image, grid = torch.randn(2, 3, 5, 6), torch.rand(2, 7, 9, 2) * 3 - 1.5
    for number in (float("nan"), float("inf"), -float("inf"), 1e20, -1e20):
        grid.masked_fill_(torch.rand(grid.shape) < 0.1, number)

    def function(image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(image, grid, padding_mode=padding, align_corners=align_corners)

    torch.testing.assert_close(torch.compile(function, backend="kiln")(image, grid), function(image, grid),
                               equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_bounds_of_logit_that_round_to_one(dtype: torch.dtype) -> None:
    x = (torch.rand(100) * 1.4 - 0.2).to(dtype).requires_grad_()
    for eps in (1e-6, 1e-4, 1e-3, 0.2):
        torch._dynamo.reset()
        mine, own = (call(x, eps) for call in (torch.compile(torch.logit, backend="kiln"), torch.logit))
        assert own[x > 1].isinf().all() or 1 - torch.tensor(eps, dtype=dtype) < 1
        for a, b in ((mine, own), (torch.autograd.grad(value.sum(), x)[0] for value in (mine, own))):
            assert torch.equal(a.isinf(), b.isinf()) and torch.equal(a.isnan(), b.isnan())
            torch.testing.assert_close(a.nan_to_num(), b.nan_to_num(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype, bits", [(torch.float32, torch.int32), (torch.float64, torch.int64),
                                         (torch.float16, torch.int16), (torch.bfloat16, torch.int16)])
def test_signs_of_any_bits(dtype: torch.dtype, bits: torch.dtype) -> None:
    least = torch.iinfo(bits).min
    x = torch.randint(least, -least - 1, (4000,), dtype=bits).view(dtype)
    nan = torch.full((9,), float("nan"), dtype=dtype).view(bits)
    x = torch.cat((x, (nan | least).view(dtype), (nan & ~least).view(dtype), torch.zeros(9, dtype=dtype),
                   -torch.zeros(9, dtype=dtype)))
    y = torch.randn(x.shape).to(dtype)
    own = torch.signbit(x), torch.copysign(y, x), torch.copysign(y.double(), x)
    assert own[0][x.isnan()].any() and not own[0][x.isnan()].all()
    assert (own[1] < 0).equal(own[0])

    mine = torch.compile(lambda x, y: (torch.signbit(x), torch.copysign(y, x), torch.copysign(y.double(), x)),
                         backend="kiln")(x, y)
    for a, b in zip(mine, own):
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_hypotenuses_of_infinity() -> None:
    inf, nan = float("inf"), float("nan")
    x, y = torch.tensor([inf, nan, -inf, 3.0, 0.0, nan]), torch.tensor([nan, inf, nan, 4.0, 0.0, 1.0])
    torch.testing.assert_close(torch.compile(torch.hypot, backend="kiln")(x, y), torch.hypot(x, y), equal_nan=True)


NAN_GRADIENTS = {
    "logit": torch.logit, "logit of bounds": lambda x: torch.logit(x, 1e-3),
    "l1": lambda x: F.l1_loss(x, torch.zeros_like(x), reduction="none"),
    "smooth l1": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.7),
    "smooth l1 of 0": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.0),
    "huber": lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=0.7),
    "hardtanh": F.hardtanh, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "hardshrink": F.hardshrink,
    "relu6": F.relu6, "leaky relu": F.leaky_relu, "elu": F.elu, "softplus": F.softplus, "logsigmoid": F.logsigmoid,
    "clamp": lambda x: x.clamp(-1, 1), "threshold": lambda x: F.threshold(x, 0.1, 0.3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", NAN_GRADIENTS)
def test_gradients_of_what_is_no_number(name: str, dtype: torch.dtype) -> None:
    """NaN is neither within bounds nor outside: which it counts for is eager's choice."""
    function = NAN_GRADIENTS[name]
    x = torch.tensor([float("nan"), 0.4, float("nan"), -2.0, 3.0], dtype=dtype, requires_grad=True)
    mine, own = (torch.autograd.grad(call(x), x, torch.full_like(x, 1.5))[0]
                 for call in (torch.compile(function, backend="kiln"), function))
    torch.testing.assert_close(mine, own, equal_nan=True)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_labels_end_before_the_first_that_is_none(reduction: str, dynamic: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    target = torch.stack([torch.randperm(6, generator=generator) for _ in range(8)])
    for row, end in enumerate((0, 1, 2, 3, 4, 5, 5, 6)):
        target[row, end:end + 1] = -1
    check_function(lambda x, y: F.multilabel_margin_loss(x, y, reduction=reduction),
                   torch.randn(8, 6, generator=generator, requires_grad=True), target, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [F.softshrink, F.hardshrink])
def test_what_lies_next_to_the_bound_of_a_shrink(function: Callable[..., torch.Tensor], dtype: torch.dtype,
                                                 dynamic: bool) -> None:
    bounds = torch.tensor([0.1, 0.3, 0.45, 0.7]).to(dtype)
    numbers = torch.cat([bounds, -bounds, torch.randn(9).to(dtype), torch.tensor([0.0, math.inf, math.nan]).to(dtype)])
    for bound in (0.1, 0.3, 0.45, 0.7):
        results = []
        for run in (torch.compile(function, backend="kiln", dynamic=dynamic), function):
            x = numbers.clone().requires_grad_()
            y = run(x, bound)
            results.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
        torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_dropout_of_all_multiplies_by_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, -2.0, math.inf, -math.inf, math.nan, 0.0]).to(dtype)
    compiled = torch.compile(lambda x: F.dropout(x, 1.0), backend="kiln")
    torch.testing.assert_close(compiled(x), F.dropout(x, 1.0), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [0.5, -0.5, -1.0, -2.0, 1.5])
def test_powers_of_what_has_no_root(exponent: float, dtype: torch.dtype) -> None:
    """Eager has some of them by roots, by dtype: NaN of -inf, and -0 of -0."""
    x = torch.tensor([-math.inf, -0.0, 0.0, -1.0, 4.0, math.inf, math.nan], dtype=dtype)
    mine, eager = torch.compile(lambda x: x**exponent, backend="kiln")(x), x**exponent
    torch.testing.assert_close(mine, eager, equal_nan=True)
    assert torch.equal(mine.signbit() | mine.isnan(), eager.signbit() | eager.isnan())


def test_rolls_of_nothing_that_only_the_run_knows() -> None:
    def rolled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        last = x.chunk(2, 0)[-1].diagonal(-1, 0, 1)
        return last.roll(-3, 0), x[2:].roll((1, -1), (0, 1)), x[3:].roll(5)

    compiled = torch.compile(rolled, backend="kiln", dynamic=True)
    for sizes in ((9, 4), (2, 4), (3, 1), (7, 3), (2, 1)):
        x = torch.randn(sizes)
        for mine, eager in zip(compiled(x), rolled(x)):
            assert torch.equal(mine, eager)
