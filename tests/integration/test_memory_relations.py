"""Whose memory a result lies in, and what reads memory by strides: programs drawn by seed, against torch's own.

Of results and inputs the same pairs share storage as with backend "aot_eager", and a write to one of them changes the
same others. What reads by storage (as_strided, views of another dtype) sees the memory as traced, whatever layouts
the passes like."""
import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import kiln
import kiln.backend
from agreement import gradient_of
from memory_programs import Program, add_copy, add_image_step, add_view, add_window

_SIZES = [(4, 3), (3, 4), (2, 6), (4, 4), (2, 3, 4)]


def _inputs(program: Program) -> list[torch.Tensor]:
    return [value.detach().clone(memory_format=torch.preserve_format).requires_grad_(program.gradient)
            for value in program.inputs]


def _compiled(program: Program, backend: str, dynamic: bool | None) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Numbers of the program are constants where sizes are not: they were drawn for these sizes."""
    function = torch.compile(program, backend=backend, dynamic=dynamic, fullgraph=True)

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch._dynamo.config.patch(specialize_int=True):
            return function(*inputs)

    return run


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [value.detach() for value in values if isinstance(value, torch.Tensor) and value.numel()]


def _sharing(tensors: list[torch.Tensor]) -> list[bool]:
    return [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
            for a, b in itertools.combinations(tensors, 2)]


def _check(program: Program, dynamic: bool | None = None) -> None:
    runs = []
    for backend in ("kiln", "aot_eager", None):
        torch._dynamo.reset()
        inputs = _inputs(program)
        with torch.set_grad_enabled(program.gradient):
            outputs = (program if backend is None else _compiled(program, backend, dynamic))(*inputs)
        runs.append(_tensors([*outputs, *inputs]))
    actual, expected, eager = runs
    # Of symbolic sizes torch itself may give a view of other bits the dtype of what it is a view of.
    if any(mine.dtype != own.dtype for mine, own in zip(expected, eager)):
        expected = eager
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{m}\n{program}")
    pairs = list(itertools.combinations(range(len(actual)), 2))
    wrong = [pair for pair, a, e in zip(pairs, _sharing(actual), _sharing(expected)) if a != e]
    assert not wrong, f"these share storage in one of both only: {wrong}\n{program}"
    for written in range(len(actual)):
        try:
            expected[written].bitwise_not_() if not expected[written].is_floating_point() else expected[written].add_(1)
        except RuntimeError:  # elements that share a place
            continue
        actual[written].bitwise_not_() if not actual[written].is_floating_point() else actual[written].add_(1)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True,
                                   msg=lambda m: f"after a write to {written}: {m}\n{program}")


def _draw_relations(seed: int, gradient: bool) -> Program:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    inputs = [torch.randint(-9, 9, rng.choice(_SIZES)).float() for _ in range(rng.randint(1, 2))]
    program = Program(inputs, gradient)
    recent = list(range(len(inputs)))
    for _ in range(rng.randint(3, 9)):
        operand = rng.choice(recent[-4:])
        kind = rng.random()
        if kind < 0.5:
            made = add_copy(program, rng, operand)
        elif kind < 0.93:
            made = add_view(program, rng, operand)
        else:
            made = add_window(program, rng, operand)
        if made is not None:
            recent.append(made)
    program.results = [rng.choice(recent) for _ in range(rng.randint(2, 5))]
    if rng.random() < 0.7:
        program.results[0] = recent[-1]
    return program


@pytest.mark.usefixtures("no_fallback")
class TestRelations:
    @pytest.mark.parametrize("gradient", [False, True])
    @pytest.mark.parametrize("dynamic", [None, True])
    @pytest.mark.parametrize("seed", range(5))
    def test_drawn_programs(self, seed: int, dynamic: bool | None, gradient: bool) -> None:
        _check(_draw_relations(1000 * bool(dynamic) + 500 * gradient + seed, gradient), dynamic)

    def test_equal_copies_of_one_value(self) -> None:
        def copies(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x.t() + 1
            return y.flatten() @ w, y.flatten(), y.reshape(6, 2)

        x, w = torch.randn(3, 4), torch.randn(12)
        _, flat, rows = torch.compile(copies, backend="kiln")(x, w)
        flat.zero_()
        torch.testing.assert_close(rows, (x.t() + 1).reshape(6, 2))

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_views_that_change_nothing_are_tensors_of_their_own(self, dynamic: bool) -> None:
        def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x + 1
            return y, y.view(y.shape), y.detach(), y[:], y.expand(y.shape), y.t(), y

        x = torch.randn(7)
        results = torch.compile(views, backend="kiln", dynamic=dynamic)(x)
        same = [a is b for a, b in itertools.combinations(results, 2)]
        assert same == [a is b for a, b in itertools.combinations(views(x), 2)]
        results[1].unsqueeze_(0)
        assert [result.dim() for result in results] == [1, 2, 1, 1, 1, 1, 1]
        results[2].zero_()
        assert all((result == 0).all() for result in results)

    def test_what_an_input_showed_before_it_changed(self) -> None:
        def change(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            bits = x.view(torch.int16) * 2
            x.add_(1)
            return bits, x * 2

        compiled = torch.randn(4, 4)
        eager = compiled.clone()
        actual, expected = torch.compile(change, backend="kiln")(compiled), change(eager)
        torch.testing.assert_close([*actual, compiled], [*expected, eager], rtol=0, atol=0)


def _draw_layouts(seed: int, gradient: bool) -> Program:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    image = torch.randint(-2, 3, (2, 4, 6, 6)).float()
    if rng.random() < 0.3:
        image = image.contiguous(memory_format=torch.channels_last)
    program = Program([image], gradient)
    made = 0
    for _ in range(rng.randint(2, 5)):
        step = add_image_step(program, rng, made)
        made = made if step is None else step
    whole = made
    for _ in range(rng.randint(0, 3)):
        step = add_view(program, rng, made)
        made = made if step is None else step
    windows = [add_window(program, rng, made, scatter) for scatter in rng.choices([False, True], [3, 1], k=2)]
    seen = [window for window in windows if window is not None]
    if seen and rng.random() < 0.4:  # beside an operator that likes another layout
        step = add_image_step(program, rng, whole)
        seen += [] if step is None else [step]
    program.results = seen or [made]
    if rng.random() < 0.3:
        plus = [program.add("plus", lambda x: x + 1, result) for result in program.results]
        assert None not in plus
        program.results = [result for result in plus if result is not None]
    return program


def _run(function: Callable[..., Any], program: Program) -> list[torch.Tensor]:
    inputs = _inputs(program)
    with torch.set_grad_enabled(program.gradient):
        outputs = function(*inputs)
    results = [value.detach() for value in outputs]
    loss = [(value * torch.arange(value.numel()).view(value.shape).remainder(5)).sum() for value in outputs
            if value.requires_grad]
    if loss:
        sum(loss).backward()
        results += [value.grad for value in inputs if value.grad is not None]
    return results


@pytest.mark.usefixtures("no_fallback")
class TestLayouts:
    @pytest.mark.parametrize("dynamic, gradient", [(None, False), (None, True), (True, False)])
    @pytest.mark.parametrize("seed", range(6))
    def test_drawn_programs(self, seed: int, dynamic: bool | None, gradient: bool) -> None:
        program = _draw_layouts(1000 * bool(dynamic) + 500 * gradient + seed, gradient)
        expected, actual = (_run(_compiled(program, backend, dynamic), program) for backend in ("aot_eager", "kiln"))
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True,
                                   msg=lambda m: f"{m}\n{program}")

    def test_a_padded_convolution_of_one_point(self) -> None:
        convolution = torch.nn.Conv2d(256, 384, 1)
        image = torch.randn(8, 256, 16, 16)

        def windows(x: torch.Tensor) -> torch.Tensor:
            padded = torch.nn.functional.pad(convolution(x), [2, 2, 2, 2])
            return torch.as_strided(padded, [8, 384, 2, 20, 12], [153600, 400, 160, 1, 20])

        with torch.no_grad():
            actual, expected = torch.compile(windows, backend="kiln")(image), windows(image)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:kiln")
@pytest.mark.parametrize("dynamic", [False, True])
def test_memory_that_the_function_takes_away_is_read_before(dynamic: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.sin(x + 1) * y
        x.untyped_storage().resize_(0)
        return torch.cos(z) + y

    compiled = torch.compile(function, backend="kiln", dynamic=dynamic)
    for _ in range(3):
        shape = [random.randrange(2, 40), random.randrange(2, 40)]
        x, y = torch.randn(shape), torch.randn(shape)
        expected = torch.cos(torch.sin(x + 1) * y) + y
        torch.testing.assert_close(compiled(x, y), expected)
        assert x.untyped_storage().size() == 0


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_windows_that_overlap_lie_in_what_they_are_windows_of(seed: int, dynamic: bool) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    sizes = [rng.randint(4, 7) for _ in range(rng.randint(1, 3))]
    dim, length, step = rng.randrange(len(sizes)), rng.randint(2, 4), rng.randint(1, 3)
    order = rng.sample(range(len(sizes) + 1), len(sizes) + 1)

    def windows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2).unfold(dim, length, step).permute(order), x.sin().unfold(dim, length, step) + 1

    x = torch.randn(sizes)
    mine, own = torch.compile(windows, backend="kiln", dynamic=dynamic)(x), windows(x)
    torch.testing.assert_close(mine, own, check_stride=True)
    # Not a copy of each window; of what no window shows eager's may have more.
    assert mine[0].untyped_storage().nbytes() <= own[0].untyped_storage().nbytes()
    assert not any(program.get("python_calls") for program in kiln.records.graphs_since(0))


# Of two values of one shape, one of them detached: losses whose gradients read both.
_PAIRS: list[Callable[..., torch.Tensor]] = [
    torch.nn.functional.mse_loss, torch.nn.functional.smooth_l1_loss, lambda x, y: (x * y).mean(),
    lambda x, y: (x - y).square().sum(), lambda x, y: (x - y).abs().mean() * x.sum()]
_MADE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x * 2, lambda x: x.exp(), lambda x: x.tanh() + x, lambda x: x.cumsum(0),
    lambda x: x @ torch.ones(x.shape[1], x.shape[1])]
_SEEN: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x, lambda x: x.t(), lambda x: x.flatten(), lambda x: x[:, 1:], lambda x: x.unsqueeze(1)]


def _stopped_gradients(seed: int) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    """A value and its detached one, read by several gradients (as codebooks of quantizers are)."""
    rng = random.Random(seed)
    make, first, second = rng.choice(_MADE), rng.choice(_PAIRS), rng.choice(_PAIRS)
    look, weight = rng.choice(_SEEN), rng.uniform(0.1, 2)

    def losses(z: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
        made = make(book)
        return first(look(made).detach(), look(z)) * weight + second(look(made), look(z.detach()))

    torch.manual_seed(seed)
    sizes = rng.randint(2, 6), rng.randint(2, 9)
    return losses, [torch.randn(sizes), torch.randn(sizes)]


def _gradients(losses: Callable[..., torch.Tensor], values: list[torch.Tensor], dynamic: bool,
               backend_name: str) -> list[torch.Tensor]:
    leaves = [value.clone().requires_grad_() for value in values]
    torch._dynamo.reset()
    torch.compile(losses, backend=backend_name, dynamic=dynamic)(*leaves).backward()
    return [gradient_of(leaf) for leaf in leaves]


def _wrong(seeds: Iterable[int], dynamic: bool) -> list[int]:
    found = []
    for seed in seeds:
        losses, values = _stopped_gradients(seed)
        mine, own = (_gradients(losses, values, dynamic, name) for name in ("kiln", "eager"))
        if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(mine, own)):
            found.append(seed)
    return found


@pytest.mark.usefixtures("no_fallback")
class TestDonations:
    """What was saved for a backward twice, as a value and as a view of it, is not written into."""

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_stopped_gradients(self, dynamic: bool) -> None:
        assert not _wrong(range(12), dynamic)

    def test_control(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kiln.backend, "_alone", lambda module, donated: donated)
        with torch._functorch.config.patch(enable_autograd_cache=False):
            assert _wrong(range(12), False)
