"""Random integers by their distribution; eager's own numbers under fallback_random."""
import itertools
import math
import os
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import kiln  # noqa: F401 - registers the back-end
from agreement import gradient_of


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="kiln", options=options or None)


def _is_uniform(counts: list[int], total: int, chances: list[float]) -> bool:
    """Chi-square: true but once in some ten thousand draws of a right generator. A seed is fixed, so always or
    never."""
    expected = [chance * total for chance in chances]
    square = sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected))
    freedom = len(counts) - 1
    if freedom == 0:
        return True
    # Wilson and Hilferty; 3.9 standard deviations.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.9 * math.sqrt(2 / (9 * freedom))) ** 3
    return square < limit


def check_uniform(drawn: Iterable[float], low: int, high: int, bins: int = 64) -> None:
    """By equal parts of the range, by the lowest bits, and by the place within the last part of a power of two."""
    values = [int(value) for value in drawn]
    count = high - low
    assert low <= min(values) and max(values) < high
    parts = min(bins, count)
    edges = [low + count * part // parts for part in range(parts + 1)]
    counts = [0] * parts
    for value in values:
        part = (value - low) * parts // count
        part += (value >= edges[part + 1]) - (value < edges[part])
        counts[part] += 1
    assert _is_uniform(counts, len(values), [(b - a) / count for a, b in itertools.pairwise(edges)]), (low, high,
                                                                                                       counts)
    if count > 2**16:
        counts = [0] * 16
        for value in values:
            counts[(value - low) & 15] += 1
        assert _is_uniform(counts, len(values), [1 / 16] * 16), (low, high, counts)


RANGES = [(0, 2), (0, 3), (-5, 2), (0, 10), (7, 8), (0, 1000), (-3, 5_592_406), (0, 2**23), (0, int(0.75 * 2**24)),
          (0, int(0.75 * 2**32)), (0, 2**32 - 1), (1, 2**32), (0, 2**32), (0, 2**32 + 1), (-2**31, 2**31 + 12345),
          (0, 2**50), (-2**40, 3 * 2**48), (0, int(0.75 * 2**62)), (0, 2**63 - 1), (-2**62, 2**62), (-2**63, 2**63 - 1),
          (-2**63, 5)]


@pytest.mark.usefixtures("no_fallback")
class TestIntegers:
    @pytest.mark.parametrize("low, high", RANGES)
    def test_ranges(self, low: int, high: int) -> None:
        torch.manual_seed(abs(low + high) % 1000)
        values = _compiled(lambda x: torch.randint(low, high, (40_000,)) + x)(torch.zeros((), dtype=torch.int64))
        check_uniform(values.tolist(), low, high)

    @pytest.mark.parametrize("dtype, low, high", [
        (torch.uint8, 0, 256), (torch.uint8, 3, 200), (torch.int8, -128, 128), (torch.int16, -2**15, 2**15),
        (torch.int32, -2**31, 2**31), (torch.int32, 0, 2**31), (torch.bool, 0, 2), (torch.float32, 0, 1000),
        (torch.float64, 0, 2**53), (torch.bfloat16, 0, 200), (torch.float16, -100, 100)])
    def test_dtypes(self, dtype: torch.dtype, low: int, high: int) -> None:
        torch.manual_seed(low % 97 + high % 89)
        like = torch.zeros(20_000, dtype=dtype)
        for function in (lambda x: torch.randint(low, high, x.shape, dtype=dtype),
                         lambda x: torch.randint_like(x, low, high),
                         lambda x: torch.empty_like(x).random_(low, high)):
            values = _compiled(function)(like)
            assert values.dtype == dtype and values.shape == like.shape
            check_uniform(values.tolist(), low, high)

    @pytest.mark.parametrize("dtype, high", [
        (torch.uint8, 2**8), (torch.int8, 2**7), (torch.int16, 2**15), (torch.int32, 2**31), (torch.int64, 2**63),
        (torch.float32, 2**24 + 1), (torch.float64, 2**53 + 1), (torch.bfloat16, 2**8 + 1), (torch.float16, 2**11 + 1)])
    def test_all_that_a_dtype_holds(self, dtype: torch.dtype, high: int) -> None:
        torch.manual_seed(high % 101)
        like = torch.zeros(20_000, dtype=dtype)
        values = _compiled(lambda x: torch.empty_like(x).random_())(like).tolist()
        check_uniform(values, 0, high)
        values = _compiled(lambda x: torch.empty_like(x).random_(100))(like).tolist()
        check_uniform(values, 0, 100)
        if dtype == torch.int64:
            values = _compiled(lambda x: torch.empty_like(x).random_(-2**63, None))(like).tolist()
            check_uniform(values, -2**63, 2**63)

    def test_a_range_by_size(self) -> None:
        compiled = torch.compile(lambda x: torch.randint(0, x.shape[0], (30_000,)), backend="kiln", dynamic=True)
        for size in (5, 6, 1000, 3):
            torch.manual_seed(size)
            check_uniform(compiled(torch.zeros(size)).tolist(), 0, size)

    def test_draws_do_not_share_bits(self) -> None:
        torch.manual_seed(1)
        a, b = _compiled(lambda x: (torch.randint(0, 2**62, (4096,)) + x, torch.randint(0, 2**62, (4096,)) + x))(
            torch.zeros((), dtype=torch.int64))
        assert len(set(a.tolist()) | set(b.tolist())) == 8192

    def test_the_same_seed_gives_the_same(self) -> None:
        compiled = _compiled(lambda x: torch.randint(0, 2**40, (100,)) + x)
        results = []
        for _ in range(2):
            torch.manual_seed(11)
            results.append(compiled(torch.zeros((), dtype=torch.int64)))
        assert torch.equal(*results)


@pytest.mark.parametrize("function", [
    lambda x: torch.randint(5, 5, (4,)) + x, lambda x: torch.randint(0, 300, (4,), dtype=torch.uint8) + x,
    lambda x: torch.randint(-1, 3, (4,), dtype=torch.uint8) + x, lambda x: torch.empty_like(x).random_(3, -3),
    lambda x: torch.randint(0, 70000, (4,), dtype=torch.float16) + x])
def test_bounds_that_eager_refuses(function: Callable[..., torch.Tensor]) -> None:
    x = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(RuntimeError):
        function(x)
    with pytest.raises(RuntimeError):
        _compiled(function)(x)


# Of numbers that only the run knows: some of them are refused.
WANTS_NUMBERS: dict[str, tuple[Callable[..., torch.Tensor], tuple[list[float], ...]]] = {
    "bernoulli": (torch.bernoulli, ([0.0, 0.5, 1.0], [0.5, 2.0, 0.1], [-0.25, 0.5], [0.5, math.nan])),
    "bernoulli_": (lambda p: torch.empty(p.shape).bernoulli_(p), ([0.0, 1.0], [0.5, 1.5], [math.nan])),
    "normal": (lambda std: torch.normal(torch.zeros(std.shape), std), ([0.0, 2.0], [1.0, -1.0], [math.nan, 1.0])),
    "normal of one mean": (lambda std: torch.normal(2.0, std), ([0.5], [-0.5], []))}


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", WANTS_NUMBERS)
def test_probabilities_and_deviations_that_eager_refuses(name: str, dtype: torch.dtype) -> None:
    function, numbers = WANTS_NUMBERS[name]
    compiled, refused = _compiled(function), []
    for listed in numbers:
        x = torch.tensor(listed, dtype=dtype)
        try:
            expected = function(x)
        except RuntimeError:
            refused.append(True)
            with pytest.raises(RuntimeError):
                compiled(x)
        else:
            refused.append(False)
            assert compiled(x).shape == expected.shape
    assert {True, False} <= set(refused)


# ---- eager's own numbers

DRAWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: F.dropout(x, 0.3), lambda x: F.dropout1d(x[None], 0.5)[0], lambda x: x.sigmoid().bernoulli(),
    lambda x: torch.rand(3), lambda x: torch.randn(2, 5), lambda x: torch.rand_like(x) + x,
    lambda x: torch.randint(0, 1000, (7,)), lambda x: torch.randperm(6),
    lambda x: torch.bernoulli(x.sigmoid()) * x,
    lambda x: torch.multinomial(x.sigmoid(), 3), lambda x: torch.normal(x, 0.5), lambda x: F.alpha_dropout(x, 0.2),
    lambda x: torch.empty(4).uniform_(-1, 1), lambda x: torch.empty(4).exponential_(),
    lambda x: F.rrelu(x, training=True),
    lambda x: torch.empty(4, dtype=torch.int64).random_(50), lambda x: torch.empty(4).log_normal_()]


def _program(seed: int) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    """Draws, some of which wait for others or for more. (What nobody reads torch does not trace.)"""
    chosen = random.Random(seed)
    steps = [(chosen.choice(DRAWS), chosen.random() < 0.3) for _ in range(chosen.randint(3, 7))]
    last = chosen.choice(("sum", "softmax", "gemm"))

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for draw, depends in steps:
            y = x
            if depends and results:
                y = x + results[-1].to(x.dtype).mean()
            if last == "softmax":
                y = y.softmax(-1) + y
            if last == "gemm":
                y = y @ torch.ones(x.shape[-1], x.shape[-1]) * 0.01 + y
            results.append(draw(y))
        return results

    return program


def _agrees_with_eager(program: Callable[..., Any], x: torch.Tensor, seed: int) -> bool:
    torch.manual_seed(seed)
    expected = [*program(x), torch.rand(1)]
    torch.manual_seed(seed)
    actual = [*_compiled(program, fallback_random=True)(x), torch.rand(1)]
    return all(torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5) for a, b in zip(actual, expected))


@pytest.mark.usefixtures("no_fallback")
class TestFallbackRandom:
    @pytest.mark.parametrize("seed", range(10 if not os.environ.get("KILN_FULL") else 200))
    def test_programs(self, seed: int) -> None:
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
        assert _agrees_with_eager(_program(seed), x, seed)

    def test_a_draw_that_waits_for_less_stays_behind(self) -> None:
        b = torch.randn(4, 6)
        assert _agrees_with_eager(lambda b: (F.dropout1d(b[None], 0.5), torch.bernoulli(b.sigmoid()), torch.rand(3)), b,
                                  5)

    def test_training(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8),
                                    torch.nn.Dropout1d(0.2), torch.nn.Linear(8, 8))
        gradients = []
        for run in (model, _compiled(model, fallback_random=True)):
            model.zero_grad()
            torch.manual_seed(3)
            run(torch.ones(2, 8)).square().sum().backward()
            gradients.append([gradient_of(parameter).clone() for parameter in model.parameters()])
        torch.testing.assert_close(*gradients)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("budget", [0.0, 0.3, 0.7, 1.0])
def test_a_gradient_has_the_numbers_that_the_forward_drew(budget: float) -> None:
    """Under a budget of memory, too: what a mask has dropped of a result is dropped of its gradient."""
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = F.dropout(torch.relu(x @ w) + 0.1, 0.5)
        return x + torch.rand_like(x) * x

    x, w = (torch.randn(16, 16, requires_grad=True) for _ in range(2))
    with torch._functorch.config.patch(activation_memory_budget=budget):
        result = torch.compile(function, backend="kiln")(x, w)
        # 0.1 and what relu leaves are above zero, so a zero is a dropped element.
        dropped = (result.detach() == 0).float()
        assert 0.3 < dropped.mean() < 0.7
        gradient, = torch.autograd.grad((result * dropped).sum(), x)
    assert (gradient == 0).all()
