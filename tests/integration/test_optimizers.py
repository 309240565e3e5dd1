"""Operators of lists of tensors and what is written in them: torch's optimizers, clipping by norm.

Lists are drawn at random: shapes, dtypes, numbers, and which list's element reads which other's.
"""
import gc
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import kiln

pytestmark = pytest.mark.usefixtures("no_fallback")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
SHAPES = [(), (1,), (0,), (3,), (17,), (4, 5), (2, 3, 4), (64, 33), (1000,), (128, 257)]


def _list(draw: random.Random, device: str, dtype: torch.dtype = torch.float32,
          shapes: list[tuple[int, ...]] | None = None, count: int | None = None) -> list[torch.Tensor]:
    shapes = shapes or [draw.choice(SHAPES) for _ in range(count or draw.randint(1, 12))]
    return [torch.randn(shape, device=device).abs().add_(0.25).to(dtype) for shape in shapes]


def _same(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], tolerance: float = 2e-6) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want):
        assert one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=tolerance if one.dtype == torch.float32 else None,
                                   atol=tolerance if one.dtype == torch.float32 else None, equal_nan=True)


def _launches(function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    gc.collect()  # programs of other tests take their counts along when they end
    before = kiln.stats()
    result = function(*arguments)
    after = kiln.stats()
    assert after["library_call_runs"] == before["library_call_runs"]
    return result, after["kernel_launches"] - before["kernel_launches"]


UNARY = ["abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
         "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan",
         "tanh", "trunc"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(3))
def test_one_operator_of_a_list(seed: int, device: str) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    a = _list(draw, device, count=draw.randint(1, 9))
    shapes = [tuple(tensor.shape) for tensor in a]
    b, c = _list(draw, device, shapes=shapes), _list(draw, device, shapes=shapes)
    number, numbers = draw.uniform(0.5, 2), [draw.uniform(0.5, 2) for _ in a]
    one = torch.tensor(number, device=device)
    binary = [getattr(torch, f"_foreach_{name}") for name in ("add", "sub", "mul", "div", "maximum", "minimum",
                                                              "clamp_min", "clamp_max")]

    def call_of(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        return lambda: function(*arguments)

    calls = [call_of(function, a, other) for function in binary for other in (b, number, numbers)]
    calls += [lambda: torch._foreach_add(a, b, alpha=number), lambda: torch._foreach_sub(a, b, alpha=number),
              lambda: torch._foreach_add(a, one), lambda: torch._foreach_mul(a, one),
              lambda: torch._foreach_div(a, one),
              lambda: torch._foreach_pow(a, b), lambda: torch._foreach_pow(a, number),
              lambda: torch._foreach_pow(a, numbers), lambda: torch._foreach_pow(number, a),
              lambda: torch._foreach_lerp(a, b, c), lambda: torch._foreach_lerp(a, b, number),
              lambda: torch._foreach_addcmul(a, b, c, number), lambda: torch._foreach_addcmul(a, b, c, numbers),
              lambda: torch._foreach_addcdiv(a, b, c, number), lambda: torch._foreach_addcdiv(a, b, c, numbers),
              lambda: torch._foreach_norm(a), lambda: torch._foreach_norm(a, 1)]
    calls += [call_of(getattr(torch, f"_foreach_{name}"), a) for name in UNARY]

    def run() -> list[Any | torch.Tensor]:
        return [tensor for call in calls for tensor in call()]

    got, _ = _launches(torch.compile(run, backend="kiln"))
    _same(got, run(), 1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64])
def test_dtypes(dtype: torch.dtype, device: str) -> None:
    draw = random.Random(str(dtype))
    a = _list(draw, device, dtype, count=7)
    b = _list(draw, device, draw.choice([torch.float32, dtype]), [tuple(tensor.shape) for tensor in a])

    def run() -> list[torch.Tensor]:
        sums = torch._foreach_add(torch._foreach_mul(a, b), 3)
        return [*sums, *torch._foreach_div(a, 3), *torch._foreach_maximum(a, a), *torch._foreach_add(a, 0.5)]

    got, _ = _launches(torch.compile(run, backend="kiln"))
    _same(got, run())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(6))
def test_lists_that_read_one_another(seed: int, device: str) -> None:
    """Launches of several members keep the order of what depends: elements are read, written in place and read
    again."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    shape = draw.choice([(5,), (64, 33), (1000,)])
    count = draw.randint(5, 30)
    plan = []
    for _ in range(draw.randint(3, 10)):
        to = draw.sample(range(count), draw.randint(4, count))
        of = [draw.randrange(count) for _ in to]
        plan.append((to, of, draw.choice(["add_", "mul_", "lerp_", "copy_"]), draw.uniform(0.1, 0.9)))

    def run(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        for to, of, name, number in plan:
            targets, others = [tensors[i] for i in to], [tensors[i] * number for i in of]
            if name == "lerp_":
                torch._foreach_lerp_(targets, others, number)
            else:
                getattr(torch, f"_foreach_{name}")(targets, others)
        return torch._foreach_sqrt(torch._foreach_abs(tensors))

    start = [torch.randn(shape, device=device) for _ in range(count)]
    mine, eager = [tensor.clone() for tensor in start], [tensor.clone() for tensor in start]
    got, want = torch.compile(run, backend="kiln")(mine), run(eager)
    _same([*got, *mine], [*want, *eager], 2e-5)


OPTIMIZERS = [
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {}),
    ("Adam", {"amsgrad": True}),
    ("Adam", {"capturable": True, "weight_decay": 0.1}),
    ("AdamW", {"capturable": True}),
    ("AdamW", {}),
    ("NAdam", {"capturable": True, "momentum_decay": 4e-3}),
    ("NAdam", {}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("RMSprop", {"momentum": 0.5, "centered": True, "capturable": True}),
    ("RMSprop", {}),
]


@pytest.mark.part(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name, options", OPTIMIZERS, ids=lambda value: value if isinstance(value, str) else
                         "_".join(value) or "plain")
def test_optimizers(name: str, options: dict[str, Any], device: str) -> None:
    if device == "cpu":
        options = {key: value for key, value in options.items() if key != "capturable"}
    torch.manual_seed(5)
    shapes = [(24, 13), (100,), (7,), (1,), (3, 5, 2), (256, 300)] * 6
    start = [torch.randn(shape, device=device) for shape in shapes]

    def trained(compiled: bool) -> Any:
        parameters = [torch.nn.Parameter(tensor.clone()) for tensor in start]
        optimizer = getattr(torch.optim, name)(parameters, lr=0.02, foreach=True, **options)

        def clipped() -> None:
            torch.nn.utils.clip_grad_norm_(parameters, 3.0, foreach=True)
            optimizer.step()

        step = torch.compile(clipped, backend="kiln") if compiled else clipped
        torch.manual_seed(6)
        for _ in range(4):
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            step()
        # Dynamo moves counts of steps to the parameters' device.
        state = [value if value.dim() else value.cpu() for parameter in parameters
                 for value in optimizer.state[parameter].values() if torch.is_tensor(value)]
        return [parameter.detach() for parameter in parameters] + state

    _same(trained(True), trained(False), 3e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tensors", [40, pytest.param(200, marks=pytest.mark.full)])
def test_launches_of_an_optimizer(tensors: int, device: str) -> None:
    """A launch takes as many tensors as 4 kB of arguments hold: of five addresses, a size and the member's first block
    78 or more."""
    parameters = [torch.nn.Parameter(torch.randn(8 * (1 + i % 7), 8, device=device)) for i in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, foreach=True, capturable=device == "cuda")
    step = torch.compile(lambda: optimizer.step(), backend="kiln")
    step()
    step()
    _, launches = _launches(step)
    # The parameters' and the counts of steps'.
    assert launches <= (-(-tensors // 64) + -(-tensors // 100) if device == "cuda" else 2)
