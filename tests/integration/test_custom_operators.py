"""Operators of the caller's own, by torch.library: called between kernels, or by Python."""
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from agreement import check_function
from kiln import options
from kiln.backend import compile_graph
from kiln.compiled import CompiledGraph
from kiln.graph import INFERENCE

pytestmark = pytest.mark.usefixtures("no_fallback")


def _library(name: str, schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> torch.library.Library:
    """Keeps the operator torch.ops.NAME.run alive."""
    library = torch.library.Library(name, "DEF")
    library.define(f"run{schema}")
    library.impl("run", function, "CompositeExplicitAutograd")
    library.impl("run", fake, "Meta")
    return library


def test_custom_operator() -> None:
    """An operator of the caller's own is called as it is, between kernels, with the layout it was traced with."""
    seen = []

    @torch.library.custom_op("kiln_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, by: float, times: int) -> torch.Tensor:
        seen.append(x.stride())
        return x * by + times

    scaled.register_fake(lambda x, by, times: torch.empty_like(x))
    scaled.register_autograd(lambda ctx, grad: (grad * ctx.by, None, None),
                             setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]))

    def function(x: torch.Tensor) -> Any:
        return (scaled(x.sin().t(), 2.5, 3).cos() * 2).sum(0)

    check_function(function, torch.randn(6, 9, requires_grad=True))
    assert set(seen) == {(1, 9)}
    before = kiln.stats()["fallbacks"]
    program, = kiln.explain(function)(torch.randn(6, 9)).programs
    assert "fallback" not in program and program["library_calls"] == ["kiln_tests.scaled.default"]
    assert kiln.stats()["fallbacks"] == before


def test_custom_operator_that_draws_is_called_each_time() -> None:
    drawn = []

    def draw(x: torch.Tensor) -> torch.Tensor:
        drawn.append(1)
        return x + len(drawn)

    library = _library("kiln_draws", "(Tensor x) -> Tensor", draw, torch.empty_like)
    x = torch.zeros(3)
    call = torch.compile(lambda x: torch.ops.kiln_draws.run(x) - torch.ops.kiln_draws.run(x), backend="kiln")
    torch.testing.assert_close(call(x), torch.full((3,), -1.0))
    del library


def test_custom_operator_that_is_not_what_it_says() -> None:
    """Its fake tells sizes that it does not give: an error that names it, no kernel that reads beyond."""
    library = _library("kiln_lies", "(Tensor x) -> Tensor", lambda x: x[:2].clone(), torch.empty_like)
    with pytest.raises(RuntimeError, match="kiln_lies"):
        torch.compile(lambda x: torch.ops.kiln_lies.run(x).sin(), backend="kiln")(torch.zeros(4000))
    del library


@pytest.mark.parametrize("schema, says", [("(Tensor(a!) x) -> Tensor", None),
                                          ("(Tensor(a) x) -> Tensor(a)", "mutates its arguments or returns them"),
                                          ("(Tensor x) -> ()", "has no result")])
def test_custom_operator_that_is_no_function_of_values(schema: str, says: str | None) -> None:
    """AOTAutograd makes functions of those it can; here the graph itself. Python runs them, but for what writes into
    memory of the program."""
    graph, called = torch.fx.Graph(), []
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(3)
    result = None if schema.endswith("()") else x.meta["val"]

    def note(x: torch.Tensor) -> torch.Tensor | None:
        called.append(1)
        return None if result is None else x

    library = _library(f"kiln_views{len(schema)}", schema, note, lambda x: result)
    call = graph.call_function(getattr(torch.ops, library.ns).run.default, (x,))
    call.meta["val"] = result
    graph.output((call, x))
    module = torch.fx.GraphModule({}, graph)
    if says is None:
        with pytest.raises(Exception, match="writes into memory of the program"):
            compile_graph(module, (), INFERENCE, options.parse())
    else:
        compiled = compile_graph(module, (), INFERENCE, options.parse())
        given = torch.randn(3)
        outputs = compiled([given])
        assert isinstance(compiled, CompiledGraph) and compiled.python
        assert says in compiled.python.reasons() and called == [1]
        assert outputs[0] is None if result is None else torch.equal(outputs[0], given)
    del library
