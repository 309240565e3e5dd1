"""Memory that a graph shares with its caller: inputs that are written, outputs that are views, layouts."""
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from agreement import check_function
from kiln import options
from kiln.backend import compile_graph, kiln as kiln_backend
from kiln.graph import INFERENCE

pytestmark = pytest.mark.usefixtures("no_fallback")


def test_in_place() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1).mul_(y)
        y[2:].zero_()
        return x.sum()

    check_function(f, torch.randn(6), torch.randn(6))


def test_rows_written_where_they_are_read() -> None:
    # The probabilities take the place of the scores; walks of neighbouring rows share a loop.
    check_function(lambda q, k: torch.softmax(q @ k, -1), torch.randn(8, 512, 64), torch.randn(8, 64, 2048))


def test_module_buffers_change() -> None:
    class Counter(torch.nn.Module):
        steps: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return x * self.steps

    module = Counter()
    compiled = torch.compile(module, backend="kiln")
    for step in range(1, 4):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), float(step)))
    assert module.steps == 3


def test_outputs_alias_inputs() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.view(-1), x[0], x.t(), x

    x = torch.randn(3, 4)
    flat, row, transposed, same = torch.compile(f, backend="kiln")(x)
    assert same is x
    x.fill_(5)
    assert flat.eq(5).all() and row.eq(5).all() and transposed.eq(5).all()


def test_a_view_of_an_input_that_leaves_in_training() -> None:
    x = torch.zeros(4, 3, requires_grad=True)
    view, _ = torch.compile(lambda x: (x.split(1, 1)[0].unsqueeze(2), x.sum()), backend="kiln")(x)
    with torch.no_grad():
        x.fill_(5)
    assert view.stride() == x.split(1, 1)[0].unsqueeze(2).stride() and (view.detach() == 5).all()


def test_views_of_inputs_and_layouts() -> None:
    base = torch.randn(6, 8)
    check_function(lambda x: torch.relu(x) * 2, base.t())
    check_function(lambda x: torch.relu(x) * 2, base[1:5:2, ::3])
    check_function(lambda x: x + 1, torch.randn(3, 1).expand(3, 5).contiguous().t())
    check_function(lambda x: (x.softmax(-1), x.sum(0)), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))


def test_double_call_frees_inputs() -> None:
    f = torch.compile(lambda x: (x * 2).relu().sum(), backend="kiln")
    for _ in range(3):
        f(torch.randn(1000))
    assert kiln.stats()["calls"] >= 3


def test_in_place_on_another_layout_than_compiled_for() -> None:
    """What AOTAutograd makes of it, called without Dynamo, whose guards would recompile."""
    def update(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.mul_(2)
        return x + 1, x, x[1]

    compiled = kiln_backend(torch.fx.symbolic_trace(update), [torch.randn(5, 4)])
    x = torch.randn(4, 5)
    doubled, before = x * 2, kiln.stats()["stride_copies"]
    result, same, row = compiled(x.t())
    assert kiln.stats()["stride_copies"] == before + 2
    torch.testing.assert_close(x, doubled)
    torch.testing.assert_close(result, doubled.t() + 1)
    row.fill_(3)
    assert x[:, 1].eq(3).all()
    same.fill_(4)
    assert x.eq(4).all()


def test_graph_that_writes_called_with_another_layout() -> None:
    """The graph itself, with neither Dynamo nor AOTAutograd around it."""
    graph = make_fx(lambda x: (x.copy_(x * 2), x + 1, x[1]), tracing_mode="fake")(torch.randn(5, 4))
    compiled = compile_graph(graph, (), INFERENCE, options.parse())
    x = torch.randn(4, 5)
    doubled = x * 2
    same, result, row = compiled([x.t()])
    torch.testing.assert_close(x, doubled)
    assert same.data_ptr() == x.data_ptr() and same.stride() == x.t().stride()
    torch.testing.assert_close(result, doubled.t() + 1)
    torch.testing.assert_close(row, doubled.t()[1])


@pytest.mark.parametrize("seed", range(6))
def test_views_by_a_flag_of_expanded_tensors(seed: int) -> None:
    """What is conjugate or negative by a flag is copied, an element that lies there for several once."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [int(size) for size in torch.randint(1, 4, (3,), generator=generator)]
    kept = [size if torch.rand((), generator=generator) < 0.5 else 1 for size in sizes]
    x = torch.randn(kept, dtype=torch.complex64, generator=generator)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any]:
        y = x.expand(sizes).conj()
        return y, y.imag, y.clone() * 2, torch.fft.fft(y)

    compiled = torch.compile(function, backend="kiln")
    torch.testing.assert_close(compiled(x), function(x))
    torch.testing.assert_close(compiled(x.conj()), function(x.conj()))
    torch.testing.assert_close(compiled(x.new_ones(1).expand(kept)), function(x.new_ones(1).expand(kept)))


# Results that AOTAutograd makes again, of an input or of another result, by the offset of what the graph gave.
REMADE: dict[str, Callable[[torch.Tensor], Any]] = {
    "split dimension": lambda x: x[1].t().unflatten(0, (2, -1)),
    "diagonal": lambda x: x.diagonal(1, 0, 1).unflatten(0, (2, -1)),
    "beside its base": lambda x: (lambda y: (y, y[1].t().unflatten(0, (2, -1))))(x + 1),
    "beside another": lambda x: (lambda y: (y[1].t().unflatten(0, (2, -1)), y[0]))(x + 1),
    "written": lambda x: x.chunk(2, 0)[-1].mul_(2),
    "written, split": lambda x: x[1].t().unflatten(0, (2, -1)).mul_(2),
    "bits": lambda x: x[1].view(torch.int32)}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x.clone(), "every other": lambda x: x[..., ::2], "part": lambda x: x[:, :, 4:12],
    "turned": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)}


def _wrong_remade(name: str, layout: str, gradient: bool) -> list[str]:
    source = torch.arange(5.0 * 16 * 28).view(5, 16, 28)
    results = []
    for backend_name in (None, "kiln"):
        torch._dynamo.reset()
        x = LAYOUTS[layout](source.clone()).detach()
        x = x.clone().requires_grad_() if gradient else x
        run = REMADE[name] if backend_name is None else torch.compile(REMADE[name], backend=backend_name, dynamic=True)
        given = run(x)
        results.append([x, *(given if isinstance(given, tuple) else (given,))])
    return [f"result {number}" for number, (mine, eager) in enumerate(zip(*reversed(results)))
            if not torch.equal(mine, eager) or mine.storage_offset() != eager.storage_offset()]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", REMADE)
def test_views_of_sizes_that_only_the_run_knows(name: str, layout: str) -> None:
    assert _wrong_remade(name, layout, gradient=False) == []
    if not name.startswith("written") and name != "bits":
        assert _wrong_remade(name, layout, gradient=True) == []


def test_control(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kiln.remade_views, "mark", lambda module, metadata: None)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        assert _wrong_remade("written", "part", gradient=False) != []


@pytest.mark.parametrize("gradient", [False, True])
def test_sizes_that_divide_as_guards_say(gradient: bool) -> None:
    """What is a view in eager is one here: both results see what is written into one."""
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return y, y[1].t().unflatten(0, (2, -1)).unflatten(2, (-1, 3))

    compiled = torch.compile(both, backend="kiln", dynamic=True)
    for sizes in ((3, 6, 4), (2, 9, 10)):
        whole, part = compiled(torch.randn(sizes, requires_grad=gradient))
        assert whole.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
        assert torch.equal(part, whole[1].t().unflatten(0, (2, -1)).unflatten(2, (-1, 3)))


def test_bytes_of_a_column() -> None:
    """A library looks at the stride of the last dimension, of size 1 too."""
    x = torch.arange(3.0)
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x.unsqueeze(1).view(torch.uint8), lambda x: (x + 1)[:, None].view(torch.int16),
        lambda x: x.sum(0, keepdim=True).view(torch.uint8), lambda x: x.view(3, 1).expand(3, 1).view(torch.uint8)]
    for view in views:
        assert torch.equal(torch.compile(view, backend="kiln")(x), view(x))
