"""Whether an operator mutates its arguments is what its schema says, whatever its name looks like."""
from typing import Any

import pytest
import torch

from kiln import options
from kiln.backend import compile_graph
from kiln.graph import INFERENCE

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("no_fallback")


def graph_of(target: Any, *arguments: Any) -> torch.fx.GraphModule:
    """A graph of one call as it is, which AOTAutograd would have made a function of values."""
    graph = torch.fx.Graph()
    nodes = []
    for number, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            nodes.append(graph.placeholder(f"x{number}"))
            nodes[-1].meta["val"] = argument
        else:
            nodes.append(argument)
    call = graph.call_function(target, tuple(nodes))
    call.meta["val"] = target(*[value.clone() if isinstance(value, torch.Tensor) else value for value in arguments])
    graph.output((call,))
    return torch.fx.GraphModule({}, graph)


X, POSITIONS = torch.randn(4, 4), torch.arange(16).view(4, 4)


@pytest.mark.parametrize("target, arguments", [
    (aten.rrelu_with_noise.default, (X, torch.zeros(4, 4), 0.1, 0.3, False)),
    (aten._cummax_helper.default, (X, X, POSITIONS, 0)),
    (aten.add_.Tensor, (X, X)),
    (aten.silu_backward.grad_input, (X, X)),
], ids=lambda value: str(value) if isinstance(value, torch._ops.OpOverload) else "")
def test_operators_that_write_are_refused(target: Any, arguments: tuple[Any, ...]) -> None:
    assert target._schema.is_mutable
    if target is aten.silu_backward.grad_input:
        graph = graph_of(aten.silu_backward.default, *arguments)
        call, = graph.graph.find_nodes(op="call_function", target=aten.silu_backward.default)
        call.target = target
        call.kwargs = {"grad_input": call.args[0]}
    else:
        graph = graph_of(target, *arguments)
    with pytest.raises(Exception, match=f"{target} mutates its arguments"):
        compile_graph(graph, (), INFERENCE, options.parse())


@pytest.mark.parametrize("name", ["__and__", "__or__", "__xor__", "__lshift__", "__rshift__"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_names_that_end_in_an_underscore_are_no_writing(name: str, dtype: torch.dtype) -> None:
    x, y = torch.arange(24, dtype=dtype).view(4, 6), torch.full((6,), 2, dtype=dtype)

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        packet = getattr(aten, name)
        return packet.Scalar(x + 1, 3) + packet.Tensor(x, y)

    before = x.clone()
    torch.testing.assert_close(torch.compile(function, backend="kiln")(x, y), function(x, y))
    assert torch.equal(x, before)
