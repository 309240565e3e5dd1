"""Sizes and numbers that only the run knows (nonzero, masks, unique, item()) are compiled: programs at random that mix
what makes them with what takes them. Results and gradients are eager's, of any count, and nothing runs in Python.
"""
import json
import random
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pytest
import torch

import kiln
from daemons import Place
from model_checks import programs

pytestmark = pytest.mark.usefixtures("no_fallback", "captured")

Piece: TypeAlias = Callable[[torch.Tensor, float], torch.Tensor]

COLUMNS = 6


@pytest.fixture
def captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


# ---- pieces: of a matrix of COLUMNS columns, such a matrix. `t` is a number that no element is.


def _rows(x: torch.Tensor, t: float) -> torch.Tensor:
    return x[x.detach()[:, 0] > t]


def _places(x: torch.Tensor, t: float) -> torch.Tensor:
    return x[(x.detach()[:, 1] > t).nonzero().squeeze(1)]


def _both_places(x: torch.Tensor, t: float) -> torch.Tensor:
    rows, columns = (x.detach() > t).nonzero(as_tuple=True)
    return x[rows] * columns[:, None]


def _selected(x: torch.Tensor, t: float) -> torch.Tensor:
    return torch.masked_select(x, x.detach() > t)[:, None] * x.new_ones(COLUMNS)


def _distinct(x: torch.Tensor, t: float) -> torch.Tensor:
    values, places, counts = torch.unique((x.detach()[:, 2] * 2).int(), return_inverse=True, return_counts=True)
    result: torch.Tensor = (values + counts)[:, None] * x.sum(0) + places.sum()
    return result


def _runs(x: torch.Tensor, t: float) -> torch.Tensor:
    result: torch.Tensor = torch.unique_consecutive((x.detach()[:, 3] > t).int())[:, None] * x.cos().sum(0)
    return result


def _first(x: torch.Tensor, t: float) -> torch.Tensor:
    return x[:(x.detach()[:, 4] > t).sum().item()]


def _last(x: torch.Tensor, t: float) -> torch.Tensor:
    return x[(x.detach()[:, 4] > t).sum().item():].sin()


def _but_last(x: torch.Tensor, t: float) -> torch.Tensor:
    return x[:-1 - (x.detach()[:, 4] > t).sum().item()]


def _counted(x: torch.Tensor, t: float) -> torch.Tensor:
    count = (x.detach() > t).sum().item()
    return torch.arange(count, dtype=x.dtype)[:, None] / (count + 1) - x.sum(0) / 9


def _repeated(x: torch.Tensor, t: float) -> torch.Tensor:
    return x.repeat_interleave((x.detach()[:, 5] > t).long() * 2, dim=0)


def _parts(x: torch.Tensor, t: float) -> torch.Tensor:
    first: Any = (x.detach()[:, 0] > t).sum().item()
    torch._check(first <= x.shape[0])
    rest = x.shape[0] - first
    above, below = torch.split(x, [first, rest])
    return torch.cat([below * 2, above])


def _stored(x: torch.Tensor, t: float) -> torch.Tensor:
    y = x.clone()
    y[x.detach() > t] = x[x.detach() > t] * 3 - 1
    return y


def _if_any(x: torch.Tensor, t: float) -> torch.Tensor:
    return x * (x.detach() > t).any().item()


def _by_a_number(x: torch.Tensor, t: float) -> torch.Tensor:
    return x * x.detach().sum().tanh().item() + (x.detach() > t).sum().item()


UNBACKED = [_rows, _places, _both_places, _selected, _distinct, _runs, _first, _last, _but_last, _counted, _repeated,
            _parts,
            _stored, _if_any, _by_a_number]

KNOWN: list[Piece] = [
    lambda x, t: x.sigmoid() - 0.4,
    lambda x, t: x.softmax(-1) * 3,
    lambda x, t: torch.nn.functional.layer_norm(x, (COLUMNS,)),
    lambda x, t: x @ x.new_full((COLUMNS, COLUMNS), 0.3),
    lambda x, t: x + x.detach().cumsum(0) / 4,  # torch can't trace the gradient
    lambda x, t: x - x.sum(0) / 7,
    lambda x, t: torch.cat([x.cos(), x[:, :2].repeat(1, 3)]),
    lambda x, t: x.flip(0) * (x.mT @ x).sum() / (1 + x.square().sum()),
    lambda x, t: x.amax(1, keepdim=True) + x.unflatten(1, (2, 3)).transpose(1, 2).flatten(1),
    lambda x, t: x.flatten().view(-1, COLUMNS).double().tanh().to(x.dtype) / 5,
]


def drawn(draw: random.Random, unbacked: Sequence[Piece],
          length: int = 6) -> Callable[[torch.Tensor, float], tuple[torch.Tensor, ...]]:
    """A program of `length` steps, each on a value that a step before made."""
    pieces = draw.choices(KNOWN, k=length - len(unbacked)) + list(unbacked)
    draw.shuffle(pieces)
    steps = [(piece, draw.randrange(max(i - 2, 0), i + 1), draw.random() < 0.3) for i, piece in enumerate(pieces)]

    def program(x: torch.Tensor, t: float) -> tuple[torch.Tensor, ...]:
        values = [x]
        for piece, source, joined in steps:
            value = piece(values[source], t)
            values.append(torch.cat([value, values[-1]]) if joined else value)
        total: Any = sum(value.sum(0) for value in values)
        return values[-1], total

    return program


def results(function: Callable[..., Any], x: torch.Tensor, t: float, gradient: bool) -> list[torch.Tensor]:
    x = x.clone().requires_grad_(gradient)
    outputs = function(x, t)
    wanted = [output for output in outputs if output.requires_grad]
    losses = [output.square().mean() if output.numel() else output.sum() for output in wanted]
    gradients = torch.autograd.grad(losses, x) if wanted else ()
    return [value.detach() for value in (*outputs, *gradients)]


# Where all columns are above the number in every row, in one, in none.
COUNTS = ("many", "one", "none", "all")


def matrix(rows: int, count: str, seed: int) -> torch.Tensor:
    x = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(seed))
    if count == "many":
        return x
    x = x.abs() + 0.1
    if count != "all":
        x = -x
    if count == "one":
        x[seed % rows] *= -1
    return x


def check(program: Callable[..., Any], draw: random.Random, gradient: bool, dynamic: bool) -> None:
    """Compiles for one count, and runs that program with all."""
    threshold = draw.uniform(-0.05, 0.05)
    compiled = torch.compile(program, backend="kiln", dynamic=dynamic)
    graphs = None
    for count in draw.sample(COUNTS, len(COUNTS)):
        x = matrix(draw.randrange(4, 20) if dynamic else 9, count, draw.randrange(1000))
        for actual, expected in zip(results(compiled, x, threshold, gradient), results(program, x, threshold, gradient),
                                    strict=True):
            assert actual.dtype == expected.dtype
            if expected.numel():  # of no elements torch's own tracing tells others than eager
                assert actual.stride() == expected.stride()
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
        graphs = graphs or kiln.stats()["graphs"]
        assert dynamic or kiln.stats()["graphs"] == graphs


def traced_by_torch(program: Callable[..., Any], gradient: bool, dynamic: bool) -> bool:
    """Some gradients torch can't trace where sizes are unbacked (of a cat on dynamic sizes)."""
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", dynamic=dynamic)
    try:
        for count in COUNTS:
            results(compiled, matrix(9, count, 1), 0.01, gradient)
    except (torch._dynamo.exc.BackendCompilerFailed, torch._dynamo.exc.UserError):
        return False
    torch._dynamo.reset()
    return True


def assert_native() -> None:
    stats = kiln.stats()
    assert stats["kernels"] and not stats["fallbacks"] and not stats["python_calls"], \
        [call for program in programs() for call in program.get("python_calls", ())]


@pytest.mark.parametrize("piece", UNBACKED)
def test_each_kind(piece: Piece) -> None:
    draw = random.Random(piece.__name__)
    for gradient, dynamic in ((True, draw.random() < 0.5), (False, draw.random() < 0.5)):
        torch._dynamo.reset()
        check(drawn(draw, [piece], length=3), draw, gradient, dynamic)
    assert_native()


@pytest.mark.parametrize("seed", range(8))
def test_programs_at_random(seed: int) -> None:
    draw, gradient = random.Random(seed), seed % 2 == 0
    while True:
        program, dynamic = drawn(draw, draw.sample(UNBACKED, 2)), draw.random() < 0.5
        if traced_by_torch(program, gradient, dynamic):
            break
    check(program, draw, gradient, dynamic)
    assert_native()


def test_an_input_that_is_marked_unbacked() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.relu() @ y).softmax(-1).sum(0), torch.cat([x, x.flip(0)]), x.detach().cumsum(0) * x.shape[0]

    compiled = torch.compile(f, backend="kiln")
    for rows in [*random.Random(0).sample(range(2, 30), 2), 1, 0]:
        x, y = torch.randn(rows, 4, requires_grad=True), torch.randn(4, 3)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        actual, expected = compiled(x, y), f(x, y)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(*(torch.autograd.grad([output.sum() for output in outputs[:2]], x)
                                     for outputs in (actual, expected)))
    assert kiln.stats()["graphs"] == 2
    assert_native()


# ---- what must hold


def _at_most(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count = n.sum().item()
    torch._check(count <= 5)
    return torch.arange(count) * 2, x


def _equal(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return (x > 0).nonzero() + (n > 0).nonzero()


def _row(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    number: Any = n.sum().item()
    return x[number] * 2


def _as_long(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    count: Any = n.sum().item()
    torch._check(count == x.shape[0])
    return torch.zeros(count) + x


def _largest(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x[n > 0].max()


@pytest.mark.parametrize("function, right, wrong", [
    (_at_most, [(torch.ones(7), torch.tensor([2, 3])), (torch.ones(7), torch.tensor([0]))],
     [(torch.ones(7), torch.tensor([2, 4])), (torch.ones(7), torch.tensor([-1]))]),
    (_equal, [(torch.ones(7), torch.ones(7)), (-torch.ones(7), torch.zeros(7))], [(torch.ones(7), torch.ones(6))]),
    (_row, [(torch.randn(7, 3), torch.tensor([2, 4])), (torch.randn(7, 3), torch.tensor([-7]))],
     [(torch.ones(7, 3), torch.tensor([7])), (torch.ones(7, 3), torch.tensor([-8]))]),
    (_as_long, [(torch.randn(7), torch.tensor([3, 4]))], [(torch.randn(7), torch.tensor([3, 5]))]),
    (_largest, [(torch.randn(7), torch.ones(7)), (torch.randn(7), torch.eye(7)[3])],
     [(torch.randn(7), torch.zeros(7))]),
])
def test_what_does_not_hold_raises(function: Callable[..., Any], right: list[tuple[torch.Tensor, torch.Tensor]],
                                   wrong: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    compiled = torch.compile(function, backend="kiln", dynamic=False)
    for x, n in [*right, *wrong, *right]:
        if any(n is given for _, given in wrong):
            with pytest.raises((RuntimeError, IndexError)):
                function(x, n)
            with pytest.raises((RuntimeError, IndexError)):
                compiled(x, n)
        else:
            torch.testing.assert_close(compiled(x, n), function(x, n))
    assert_native()


def test_nothing_is_written_where_a_check_fails() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        count = n.item()
        torch._check(count <= 5)
        return torch.arange(count)

    compiled, x = torch.compile(f, backend="kiln"), torch.ones(3)
    assert compiled(x, torch.tensor(4)).shape == (4,) and x.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError):
        compiled(x, torch.tensor(6))
    assert x.tolist() == [2, 2, 2]


# ---- numbers of Python


def test_numbers_that_a_tensor_holds() -> None:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        number, truth = x.sum().item(), (x.sum() > 0).item()
        count: Any = (x > 0).sum().item()
        clamped = torch.clamp(x, min=number / 9), torch.clamp(x, number / 9, 0.5), torch.full((3, count), number)
        return (x + number * 2 + 1, x * truth, torch.where(x > 0, x, truth), x - count, count + 1, x / (count + 1),
                *clamped)

    compiled = torch.compile(f, backend="kiln")
    for sign in (1, -1):
        x = sign * torch.rand(7)
        torch.testing.assert_close(compiled(x), f(x))
    assert_native()


_LISTED: list[Callable[..., Any]] = [
    lambda lists, v: torch._foreach_addcmul(lists[0], lists[1], lists[2], value=v),
    lambda lists, v: torch._foreach_addcdiv(lists[0], lists[1], lists[2], value=v),
    lambda lists, v: torch._foreach_add(lists[0], v), lambda lists, v: torch._foreach_mul(lists[1], v),
    lambda lists, v: torch._foreach_lerp(lists[0], lists[1], v), lambda lists, v: torch._foreach_pow(lists[2], v),
    lambda lists, v: torch._foreach_clamp_min(lists[0], v),
    lambda lists, v: torch._foreach_add(lists[0], lists[1], alpha=v)]


@pytest.mark.parametrize("function", _LISTED)
def test_lists_by_a_number_that_a_tensor_holds(function: Callable[..., Any]) -> None:
    def f(lists: list[list[torch.Tensor]], number: torch.Tensor) -> Any:
        return function(lists, 1 - number.item())

    draw = random.Random(3)
    sizes = [(draw.randrange(1, 6), draw.randrange(1, 9)) for _ in range(draw.randrange(1, 5))]
    compiled = torch.compile(f, backend="kiln", fullgraph=True)
    for number in (0.5, -2.25):
        lists = [[torch.rand(size) + 0.5 for size in sizes] for _ in range(3)]
        held = torch.tensor(number, dtype=torch.float64)
        torch.testing.assert_close(compiled(lists, held), f(lists, held))


def test_numbers_that_leave() -> None:
    def f(x: torch.Tensor) -> tuple[Any, Any, int | float, torch.Tensor]:
        truth, number, count = (x.sum() > 0).item(), x.sum().item(), (x > 0).sum().item()
        return truth, number, count * 2, x * truth * number

    compiled = torch.compile(f, backend="kiln")
    for x in (torch.rand(7), -torch.rand(7)):
        x.requires_grad_()
        actual, expected = compiled(x), f(x)
        assert [type(value) for value in actual[:3]] == [bool, float, int]
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(*(torch.autograd.grad(result[3].sum(), x) for result in (actual, expected)))
    assert not kiln.stats()["fallbacks"]


# ---- what is left to Python


_library = torch.library.Library("kiln_unbacked", "FRAGMENT")
_library.define("positive(Tensor x, str[] how) -> Tensor")  # lists of strings do not travel


@torch.library.impl(_library, "positive", "CompositeExplicitAutograd")
def _(x: torch.Tensor, how: list[str]) -> torch.Tensor:
    return x[x > 0]


@torch.library.register_fake("kiln_unbacked::positive")  # type: ignore[untyped-decorator]  # torch gives it no types
def _(x: torch.Tensor, how: list[str]) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


_library.define("total(Tensor x, str[] how) -> Tensor")
_library.define("shifted(Tensor x, SymInt by, str[] how) -> Tensor")
torch.library.impl(_library, "shifted", "CompositeExplicitAutograd")(lambda x, by, how: x + by)
torch.library.register_fake("kiln_unbacked::shifted")(lambda x, by, how: torch.empty_like(x))
_library.define("columns(Tensor x, str[] how) -> Tensor")
torch.library.impl(_library, "total", "CompositeExplicitAutograd")(lambda x, how: x.sum())
torch.library.register_fake("kiln_unbacked::total")(lambda x, how: x.new_empty(()))


@torch.library.impl(_library, "columns", "CompositeExplicitAutograd")
def _(x: torch.Tensor, how: list[str]) -> torch.Tensor:
    return x[x > 0][:, None].expand(-1, 2).mT.contiguous().mT


@torch.library.register_fake("kiln_unbacked::columns")  # type: ignore[untyped-decorator]  # torch gives it no types
def _(x: torch.Tensor, how: list[str]) -> torch.Tensor:  # as long as its stride says, which no size of it is
    rows = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty_strided((rows, 2), (1, rows))


def test_what_takes_a_size_that_python_gives_is_native() -> None:
    def f(x: torch.Tensor) -> tuple[Any, torch.Tensor, Any]:
        found = torch.ops.kiln_unbacked.positive(x.sin(), ["a"])
        return found.cos(), torch.arange(found.shape[0]) * 2, x.sum() * found.shape[0]

    compiled = torch.compile(f, backend="kiln")
    for seed in range(3):
        x = matrix(5, COUNTS[seed], seed).flatten()
        torch.testing.assert_close(compiled(x), f(x))
    stats = kiln.stats()
    operators = [name for program in programs() for call in program["python_calls"] for name in call["operators"]]
    assert operators == ["kiln_unbacked.positive.default"] and stats["kernels"] and not stats["fallbacks"]


def _total(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = torch.ops.kiln_unbacked.total(x, ["a"]).item()
    return torch.full((3,), total, dtype=torch.int64), x * total, torch.full((3,), total)


def _truth(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    truth = (torch.ops.kiln_unbacked.total(x, ["a"]) > 0).item()
    return torch.full((3,), truth), x * truth


def _count(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    count = (torch.ops.kiln_unbacked.total(x, ["a"]) * 3).abs().int().item()
    return torch.ops.kiln_unbacked.shifted(x, count * 2, ["b"]), torch.arange(count), x[:count]


def _strided(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.ops.kiln_unbacked.columns(x, ["a"]).sum(0), x.cos()


@pytest.mark.parametrize("function", [_total, _truth, _count, _strided])
def test_numbers_that_python_and_kernels_take(function: Callable[..., Any]) -> None:
    compiled = torch.compile(function, backend="kiln")
    for seed in range(3):
        x = matrix(5, COUNTS[seed], seed).flatten() / 9
        torch.testing.assert_close(compiled(x), function(x))
    stats = kiln.stats()
    assert stats["python_calls"] and stats["kernels"] and not stats["fallbacks"]


# ---- the caches


PROCESS = textwrap.dedent("""
    import json
    import torch, kiln
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    torch._dynamo.config.capture_scalar_outputs = True
    def f(x):
        y = x[x.detach()[:, 0] > 0]
        return y.softmax(-1), (y * y.shape[0]).sum(0), x.detach()[:(x.detach() > 0).sum().item() // 8].cos()
    compiled = torch.compile(f, backend="kiln")
    for count in {counts}:
        x = torch.randn(8, 4)
        x[:, 0] = torch.where(torch.arange(8) < count, x[:, 0].abs() + 1, -1)
        grads = []
        for function in (compiled, f):
            x = x.detach().requires_grad_()
            outputs = function(x)
            sum(output.square().sum() for output in outputs).backward()
            grads.append([*outputs, x.grad])
        torch.testing.assert_close(*grads)
    print(json.dumps(kiln.stats()))
""")


def test_a_second_process_hits(place: Place) -> None:
    """Whatever the counts are that it begins with."""
    first, second = (json.loads(place.run(PROCESS.format(counts=counts))[0].splitlines()[-1])
                     for counts in ((3, 0, 8, 1), (0, 5)))
    assert first["compiles"] == first["graphs"] == 2 and not first["fallbacks"] and not first["python_calls"]
    assert second["compiles"] == 0 and second["hits"] == 2 and second["autograd_cache_loads"] == 2
