"""What a graph may return, and take, beside tensors: integers, floats and booleans, fixed or of sizes.

The graphs are built by hand or traced without Dynamo, so that they are the same with every torch.
"""
import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from kiln import library, options
from kiln.backend import compile_graph
from kiln.graph import INFERENCE

pytestmark = pytest.mark.usefixtures("no_fallback")

aten = torch.ops.aten


def compiled(module: torch.fx.GraphModule) -> Callable[..., Any]:
    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    return compile_graph(module, inputs, INFERENCE, options.parse())


def same(results: Sequence[Any], expected: Sequence[Any]) -> None:
    assert [type(value) for value in results] == [type(value) for value in expected]
    for result, value in zip(results, expected):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(result, value)
        else:
            assert result == value


def test_numbers_of_sizes() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, int, float, Any, bool, float, Any | float]:
        rows, columns = x.shape
        return (x * 2, rows * 2 + 1, rows / 2, rows ** 0.5, rows > 3, (rows + columns) % 3 / columns,
                torch.sym_max(rows, columns) / 3)

    run = compiled(make_fx(f, tracing_mode="symbolic")(torch.randn(5, 4)))
    for sizes in ((5, 4), (8, 9), (64, 3)):
        x = torch.randn(sizes)
        same(run([x]), f(x))


def test_fixed_numbers() -> None:
    graph = make_fx(lambda x: x * 2, tracing_mode="fake")(torch.randn(3))
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    tensor = output.args[0]
    with graph.graph.inserting_before(output):
        number = graph.graph.call_function(max, (3, 4))  # a node, but known
    number.meta["val"] = 4
    output.args = ((tensor, 3, -2.5, True, False, None, "text", float("inf"), number),)
    graph.recompile()
    x = torch.randn(3)
    same(compiled(graph)([x]), (x * 2, 3, -2.5, True, False, None, "text", float("inf"), 4))


def test_operator_with_integers_among_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused attention on a GPU gives the longest lengths beside its tensors; a stand-in of the same schema does
    here."""
    target = aten._scaled_dot_product_flash_attention.default
    like = make_fx(lambda x: x * 1, tracing_mode="symbolic")(torch.randn(2, 3, 8, 16))
    fake = next(iter(like.graph.nodes)).meta["val"]
    length = fake.shape[2]
    graph = fx.Graph()
    query = graph.placeholder("query")
    call = graph.call_function(target, (query, query, query))
    parts = [graph.call_function(operator.getitem, (call, index)) for index in (0, 1, 4, 5)]
    flat = graph.call_function(aten.view.default, (parts[0], [6, -1, 16]))
    graph.output((flat, *parts[1:]))
    query.meta["val"], flat.meta["val"] = fake, fake.view(6, -1, 16)
    call.meta["val"] = (fake * 1, fake.sum(-1), None, None, length, 8, None, None, None)
    for part, index in zip(parts, (0, 1, 4, 5)):
        part.meta["val"] = call.meta["val"][index]

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[Any, ...]:
        return query + key * value, query.sum(-1), None, None, query.shape[2], 8, None, None, None

    overload: Any = attention
    overload._schema = target._schema
    monkeypatch.setattr(library, "overload", lambda name: overload)
    run = compiled(fx.GraphModule({}, graph))
    for rows in (8, 12):
        x = torch.randn(2, 3, rows, 16)
        same(run([x]), ((x + x * x).view(6, rows, 16), x.sum(-1), rows, 8))


def test_float_input() -> None:
    x = make_fx(lambda x: x * 2, tracing_mode="symbolic")(torch.randn(5, 4)).graph
    fake = next(iter(x.nodes)).meta["val"]
    graph = fx.Graph()
    tensor, scale, fixed = (graph.placeholder(name) for name in ("x", "scale", "fixed"))
    tensor.meta["val"], scale.meta["val"], fixed.meta["val"] = fake, fake.shape[0] / 2, 0.25
    scaled = graph.call_function(aten.mul.Tensor, (tensor, scale))
    shifted = graph.call_function(aten.add.Tensor, (scaled, fixed))
    scaled.meta["val"] = shifted.meta["val"] = fake * 1.0
    graph.output((shifted,))
    run = compiled(fx.GraphModule({}, graph))
    given = torch.randn(8, 4)
    torch.testing.assert_close(run([given, 3.5, 0.25])[0], given * 3.5 + 0.25)


def test_kept_in_torchs_cache() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, float, bool]:
        return x * 2, x.shape[0] / 2, x.shape[0] > 6

    for size in (5, 5):
        torch._dynamo.reset()
        x = torch.randn(size, 4)
        same(torch.compile(f, backend="kiln", dynamic=True)(x), f(x))
    assert kiln.stats()["autograd_cache_loads"] == 1
