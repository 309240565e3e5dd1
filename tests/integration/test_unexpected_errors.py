"""Whatever goes wrong while a graph is exported or compiled costs speed, never the program, and is counted.

Errors are planted in functions of the client, at the n-th call of one drawn at random. What goes wrong with one node
may cost that node (a call of Python); anything else costs the graph.
"""
import inspect
import os
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

import pytest
import torch

import kiln
from kiln import (
    _C,
    backend,
    compiled,
    cuda_graphs,
    devices,
    fallback,
    graph,
    graph_cut,
    graph_symbols,
    guards,
    in_place,
    joint_graph,
    library,
    pinned_layouts,
    python_calls,
    size_numbers,
    size_tensors,
    symbols,
    wire,
    written_graph,
)

Owned: TypeAlias = tuple[Any, str]  # a module or a class, and the name of a function of it

_ERRORS = (AttributeError, KeyError, RuntimeError, AssertionError, RecursionError, TypeError, OSError, MemoryError,
           NotImplementedError, ZeroDivisionError)
_MODULES = (graph, graph_symbols, size_tensors, symbols, wire, devices, guards, size_numbers, joint_graph, graph_cut,
            in_place, python_calls, written_graph)
# The client's and the loader's; what runs a graph without kiln is not among them.
_MORE = [(_C, "build"), (_C, "get"), (library, "install"), (compiled.CompiledGraph, "load"),
         (compiled, "_output_strides"), (compiled, "_runner"), (compiled, "symbols_by_name"), (compiled, "evaluate"),
         (backend, "_guards"), (backend, "_torch_version"), (backend, "_donated_inputs"),
         (cuda_graphs, "describe")]


def places() -> list[Owned]:
    """(owner, name) of every function that exporting and compiling a graph may call."""
    found = list(_MORE)
    for module in _MODULES:
        owners = [module, *(value for value in vars(module).values()
                            if inspect.isclass(value) and value.__module__ == module.__name__)]
        for owner in owners:
            found += [(owner, name) for name, value in vars(owner).items() if inspect.isfunction(value)
                      and value.__module__ == module.__name__ and not _runs_graphs(owner, name)]
    return found


def _runs_graphs(owner: Any, name: str) -> bool:
    classes = (python_calls.PythonCall, python_calls.Frame, python_calls._Frames, python_calls.PythonPart,
               size_numbers.SizeNumber)
    return owner in classes or (owner, name) in ((python_calls, "own"), (python_calls, "run"),
                                                 (python_calls, "_memories"), (size_numbers, "read_size"),
                                                 (size_numbers, "_code")) or name == "reset" or name == "any_on_gpu"


class Planted:
    """Raises at the n-th call of a function; counts its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException,
                 number: int) -> None:
        function = inspect.getattr_static(owner, name)
        static = isinstance(function, staticmethod)
        self.function = function.__func__ if static else function
        self.error, self.number, self.calls = error, number, 0

        def planted(*arguments: Any, **keywords: Any) -> Any:
            self.calls += 1
            if self.calls == self.number:
                raise self.error
            return self.function(*arguments, **keywords)

        monkeypatch.setattr(owner, name, staticmethod(planted) if static else planted)


def step(function: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> tuple[Any, ...]:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    result, size = function(x, w)
    result.sum().backward()
    return result.detach(), size, x.grad, w.grad


def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, float]:
    y = torch.nn.functional.layer_norm(x @ w, (w.shape[1],)).relu()
    return torch.cat([y * 2, y.softmax(-1) + x.shape[0] * 0.5]), x.shape[0] / 2


def run(dynamic: bool) -> None:
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(1)
    x, w = torch.randn(6, 5, generator=generator), torch.randn(5, 4, generator=generator)
    actual = step(torch.compile(program, backend="kiln", dynamic=dynamic), x, w)
    for a, b in zip(actual, step(program, x, w)):
        torch.testing.assert_close(a, b)


@pytest.fixture(autouse=True)
def no_kept_graphs() -> Iterator[None]:
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield


@pytest.mark.parametrize("seed", range(60 if "KILN_FULL" in os.environ else 4))
def test_planted_errors_cost_speed_alone(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = random.Random(seed)
    planted = None
    for _ in range(8):
        owner, name = draw.choice(places())
        error = draw.choice(_ERRORS)("planted")
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kiln.reset_stats()
            planted = Planted(patch, owner, name, error, draw.choice((1, 1, 2, 3, 5, 9)))
            run(draw.choice((False, True)))
            stats = kiln.stats()
        told = sum(stats["fallbacks"].values()) + stats["python_calls"] + stats["left_out"] > 0
        assert told or planted.calls < planted.number or _harmless(owner, name), (owner, name, planted.number, stats)


def _harmless(owner: Any, name: str) -> bool:
    """Functions whose failure means something to their caller: a fact not used, a form tried."""
    return owner in (wire, symbols.ExprPool) or name in (
        "_fraction", "add", "is_integer", "_c", "reasons", "_place_of", "values_of", "_clamped", "_same")


def test_an_error_is_told_by_its_name_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_warned", set())
    Planted(monkeypatch, compiled, "_output_strides", AttributeError("planted"), 1)
    with pytest.warns(RuntimeWarning, match=r"unexpected AttributeError: planted \(test_unexpected_errors.py:\d+\)"):
        run(False)
    assert kiln.stats()["fallbacks"] == {"unexpected AttributeError: planted": 1}
    assert kiln.stats()["graphs"] == 1  # the backward; what failed late is not counted as compiled


def test_fallback_error_raises(monkeypatch: pytest.MonkeyPatch, no_fallback: None) -> None:
    Planted(monkeypatch, _C, "build", KeyError("planted"), 1)
    with pytest.raises(Exception, match=r"kiln did not compile .*unexpected KeyError: 'planted'") as raised:
        run(False)
    assert isinstance(raised.value, torch._dynamo.exc.BackendCompilerFailed)
    assert isinstance(raised.value.inner_exception.__cause__, KeyError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_ends_it(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    Planted(monkeypatch, _C, "build", error(), 1)
    with pytest.raises(error):
        run(False)


def test_control_unprotected_errors_end_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def protect_nothing(error: BaseException) -> NoReturn:
        raise error

    monkeypatch.setattr(fallback, "reason_of_error", protect_nothing)
    Planted(monkeypatch, compiled, "_output_strides", AttributeError("planted"), 1)
    with pytest.raises(Exception, match="planted"):
        run(False)


def _volumes_sampled(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    sizes: Any = x.shape
    grid = torch.nn.functional.affine_grid(theta, sizes, align_corners=False)
    return torch.nn.functional.grid_sample(x, grid, align_corners=False)


@torch.library.custom_op("kiln_test::exponentials", mutates_args=())
def _exponentials(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def _gradient_that_reads(context: Any, gradient: torch.Tensor) -> Any:
    return gradient * context.saved_tensors[0].exp() * min(context.saved_tensors[0].data_ptr(), 1)


_exponentials.register_fake(torch.empty_like)
_exponentials.register_autograd(_gradient_that_reads,
                                setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))


def _read_in_its_gradient(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _exponentials(theta).sum() + x.mean()
    return result


@pytest.mark.parametrize("function", [_volumes_sampled, _read_in_its_gradient])
def test_what_autograd_cannot_trace_runs_as_in_eager(function: Callable[..., torch.Tensor]) -> None:
    theta, x = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 3, 4, 5, 6, requires_grad=True)
    compiled = torch.compile(function, backend="kiln", dynamic=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(theta, x), function(theta, x))
        gradients = (torch.autograd.grad(call(theta, x).square().sum(), (theta, x)) for call in (compiled, function))
        torch.testing.assert_close(*gradients)
    fallbacks = kiln.stats()["fallbacks"]
    assert fallbacks and all(reason.startswith("AOTAutograd: ") for reason in fallbacks), fallbacks


def test_what_kiln_raises_within_autograd_is_told_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    Planted(monkeypatch, pinned_layouts, "pinned", KeyError("planted"), 2)  # the first is a rewrite's
    x = torch.randn(5, 4, requires_grad=True)
    torch.testing.assert_close(torch.compile(lambda x: x.sin() * 2, backend="kiln")(x), x.sin() * 2)
    assert list(kiln.stats()["fallbacks"]) == ["unexpected KeyError: 'planted'"]


def test_control_without_a_fallback_autograd_s_error_ends_the_program(no_fallback: None) -> None:
    theta, x = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 3, 4, 5, 6)
    with pytest.raises(Exception, match="AOTAutograd cannot trace it"):
        torch.compile(_volumes_sampled, backend="kiln", dynamic=True)(theta, x)


def test_graph_breaks_that_a_trace_asks_for_are_dynamo_s() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        y[x > 0] *= 3
        return y[~(x > 0)], y + 1

    x = torch.randn(5, 4)
    torch.testing.assert_close(torch.compile(function, backend="kiln")(x), function(x))
    assert kiln.stats()["fallbacks"] == {} and kiln.stats()["graphs"] > 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loader_that_fails_makes_torch_retrace(monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    with torch._functorch.config.patch(enable_autograd_cache=True):
        run(dynamic)
        run(dynamic)
        before = kiln.stats()["autograd_cache_loads"]
        assert before > 0
        planted = Planted(monkeypatch, compiled, "symbols_by_name", AttributeError("planted"), 1)
        run(dynamic)
    assert planted.calls == 1 and kiln.stats()["fallbacks"] == {}
    assert kiln.stats()["autograd_cache_loads"] == before


def test_jagged_tensors(no_fallback: None) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin() + 1

    parts = [torch.randn(length, 4) for length in random.Random(0).choices(range(1, 9), k=5)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    for dynamic in (None, False, True):
        torch._dynamo.reset()
        actual = torch.compile(function, backend="kiln", dynamic=dynamic)(x)
        torch.testing.assert_close(actual.values(), function(x).values())
        assert actual.size() == x.size()
    assert kiln.stats()["kernels"] > 0
