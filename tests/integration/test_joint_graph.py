"""What a forward saves for its backward: bytes at most, and gradients that agree with eager's.

Each bound fails without its rewrite (kiln/joint_graph.py) or without the wider list of what may be recomputed.
"""
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

import kiln
from agreement import check_function, gradient_of
from kiln import compiled, decompositions, joint_graph, records
from model_checks import programs

pytestmark = pytest.mark.usefixtures("no_fallback")

_MB = 1 << 20


def _bytes(node: torch.fx.Node) -> int:
    value = node.meta["val"]
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def _memory_of(node: Any) -> Any:
    """The node whose memory a view's is."""
    aten = torch.ops.aten
    while node.target in (aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default,
                          aten.detach.default, aten.expand.default):
        node = node.args[0]
    return node


def saved_bytes(function: Callable[..., Any], *inputs: torch.Tensor) -> int:
    """Of what the forward makes for the backward alone; inputs and results of the function count nothing."""
    found = []

    def cut(joint: torch.fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int,
            **kwargs: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        forward, backward = decompositions.partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
        outputs: Any = forward.graph.output_node().args[0]
        results = {_memory_of(node) for node in outputs[:num_fwd_outputs]}
        saved = {_memory_of(node) for node in outputs[num_fwd_outputs:]} - results
        found.append(sum(_bytes(node) for node in saved if node.op != "placeholder"))
        return forward, backward

    def run(module: torch.fx.GraphModule, _: object) -> Any:
        return make_boxed_func(module.forward)

    backend = aot_autograd(fw_compiler=run, bw_compiler=run, decompositions=decompositions.table(), partition_fn=cut)
    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*inputs)
    (total,) = found
    return total


def gradients(function: Callable[..., Any],
              inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]:
    leaves = [value.detach().clone().requires_grad_() if value.is_floating_point() else value for value in inputs]
    result = function(*leaves)
    return [result.detach()], torch.autograd.grad(result.square().sum(), [v for v in leaves if v.requires_grad])


def agree(function: Callable[..., Any], *inputs: torch.Tensor, compiled: Callable[..., Any] | None = None) -> None:
    if compiled is None:
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="kiln")
    expected = gradients(function, inputs)
    results = gradients(compiled, inputs)
    for value, other in zip([*results[0], *results[1]], [*expected[0], *expected[1]]):
        torch.testing.assert_close(value, other, rtol=2e-4, atol=2e-4)


@contextlib.contextmanager
def without(op: Any) -> Iterator[None]:
    if op in joint_graph._GEMMS:
        with mock.patch.object(joint_graph, "_GEMMS", ()):
            yield
        return
    rewrite = joint_graph._REWRITES.pop(op)
    try:
        yield
    finally:
        joint_graph._REWRITES[op] = rewrite


def _normalised(x: torch.Tensor, filters: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = F.conv2d(x, filters, padding=1)
    x = F.relu6(F.batch_norm(x, None, None, weight, bias, training=True))
    return F.conv2d(x, filters, padding=1)


def _relu_and_dropout(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.relu(x @ weight), 0.5, True) @ weight


def _scores(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = x @ weight
    return F.cross_entropy(logits, labels), logits


def _pooled(x: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.max_pool2d(F.conv2d(x, filters, padding=1).relu(), 3, 2, 1), filters)


def _widened(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ weight) @ weight.t()


def _wide_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4096, 64, requires_grad=True), (torch.randn(64, 1024) / 32).requires_grad_()


def _gated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gate, value = (x @ weight).chunk(2, -1)
    return (F.silu(gate) * value) @ weight[:, :512].t()


def _scaled_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * 1.5) @ weight


def _dropped(scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.softmax(scores.sin(), -1), 0.25, True) @ values


def _dropped_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 256, 256, requires_grad=True), torch.randn(8, 256, 64, requires_grad=True)


def _image() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 16, 64, 64), torch.randn(16, 16, 3, 3) / 12


_ONE_IMAGE = 4 * 16 * 64 * 64 * 4


def _normalised_inputs() -> Any:
    return *[value.requires_grad_() for value in _image()], torch.rand(16, requires_grad=True), torch.randn(
        16, requires_grad=True)


def _matrix_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(512, 256, requires_grad=True), (torch.randn(256, 256) / 16).requires_grad_()


def _score_inputs() -> tuple[torch.Tensor, ...]:
    return *_matrix_inputs(), torch.randint(0, 256, (512,))


_CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]], int, Any]] = {
    # The first convolution's result and the second's operand, not the normalised image between them.
    "batch norm": (_normalised, _normalised_inputs, 2 * _ONE_IMAGE + 2 * 16 * 4,
                   torch.ops.aten._native_batch_norm_legit.no_stats),
    # The second gemm's operand, and two booleans an element.
    "relu": (_relu_and_dropout, _matrix_inputs, 512 * 256 * (4 + 2), torch.ops.aten.threshold_backward.default),
    # Two numbers a row, and the count of labels: the logits are a result.
    "log softmax": (_scores, _score_inputs, 2 * 512 * 4 + 4, torch.ops.aten._log_softmax.default),
    # A boolean an element for relu, the second convolution's operand, and positions of 16 bits.
    "max pooling": (_pooled, _image, _ONE_IMAGE // 4 + _ONE_IMAGE // 4 + _ONE_IMAGE // 8,
                    torch.ops.aten.max_pool2d_with_indices_backward.default),
    # GELU's input, and not its result.
    "gelu": (_widened, _wide_inputs, 4096 * 1024 * 4, torch.ops.aten.mm.default),
    # Both halves of a gemm, and not what one gates of the other.
    "gate": (_gated, _wide_inputs, 4096 * 1024 * 4, torch.ops.aten.mm.default),
    # A number a row, and not the rows scaled by it, nor their sine.
    "scaled rows": (_scaled_rows, _wide_inputs, 4096 * 4, torch.ops.aten.mm.default),
    # A softmax and a boolean an element, and not what is left of it.
    "dropout": (_dropped, _dropped_inputs, 8 * 256 * 256 * (4 + 1), torch.ops.aten.bmm.default),
}


@pytest.mark.parametrize("name", _CASES)
def test_saved_bytes(name: str) -> None:
    function, inputs, limit, op = _CASES[name]
    values = [value.requires_grad_() if value.is_floating_point() else value for value in inputs()]
    assert saved_bytes(function, *values) <= limit
    with without(op):
        assert saved_bytes(function, *values) > limit  # the control


@pytest.mark.parametrize("function", [_widened, _gated])
def test_rematerialised(function: Callable[..., torch.Tensor]) -> None:
    agree(lambda x, weight: function(x, weight).mean(), *_wide_inputs())


def test_small_operands_are_saved() -> None:
    inputs = [value.detach()[:64].requires_grad_() for value in _wide_inputs()]
    assert saved_bytes(_widened, *inputs) == 2 * 64 * 1024 * 4


def _constant_gate(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x, fixed = x.detach(), weight.detach()
    return ((x @ fixed) * (x @ fixed.flip(0))) @ weight.t()


def test_what_no_gradient_needs_is_not_kept_for_a_gemm(monkeypatch: pytest.MonkeyPatch) -> None:
    """One operand is saved instead of the two that it is made of."""
    inputs = _wide_inputs()
    assert saved_bytes(_constant_gate, *inputs) == 4096 * 1024 * 4
    monkeypatch.setattr(joint_graph, "_at_hand", lambda *_: True)
    assert saved_bytes(_constant_gate, *inputs) == 2 * 4096 * 1024 * 4  # the control


def test_any_number_of_rows_is_as_large_as_the_first() -> None:
    x, weight = _wide_inputs()
    torch._dynamo.mark_dynamic(x, 0)
    assert int(saved_bytes(_widened, x, weight)) == 4096 * 1024 * 4


@pytest.mark.parametrize("dynamic", [None, True])
def test_dropout_is_rematerialised(dynamic: bool | None) -> None:
    """The backward drops what the forward dropped: the result is linear in the values, by its own gradient."""
    scores, values = _dropped_inputs()
    torch._dynamo.reset()
    result = torch.compile(_dropped, backend="kiln", dynamic=dynamic)(scores, values)
    weights = torch.randn_like(result)
    (result * weights).sum().backward()
    torch.testing.assert_close((values * gradient_of(values)).sum(), (result * weights).sum(), rtol=1e-4, atol=1e-3)
    ones = torch.compile(_dropped, backend="kiln", dynamic=dynamic)(scores, torch.ones_like(values))
    assert 0.9 < ones.mean() < 1.1 and ones.std() > 0.01  # something is dropped


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtype: torch.dtype, training: bool) -> None:
    torch.manual_seed(0)
    mean, variance = torch.randn(8, dtype=dtype), torch.rand(8, dtype=dtype) + 0.5

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, mean.clone(), variance.clone(), weight, bias, training=training).sigmoid()

    agree(function, *(value.to(dtype) for value in (torch.randn(4, 8, 5, 6) * 3 + 1, torch.rand(8), torch.randn(8))))


def test_batch_norm_of_rows_without_weight() -> None:
    torch.manual_seed(0)
    agree(lambda x: F.batch_norm(x, None, None, training=True).tanh(), torch.randn(16, 8) + 2)


@pytest.mark.parametrize("function", [
    F.relu, F.relu6, lambda x: F.hardtanh(x, -0.5, 0.25), lambda x: F.threshold(x, 0.1, 3.0),
    lambda x: F.log_softmax(x, 0), lambda x: F.log_softmax(x * 1000, -1)])
def test_functions_of_one_tensor(function: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    x = torch.randn(33, 70)
    x[0, :4] = torch.tensor([0.0, 6.0, -0.5, 0.25])  # on the edges
    agree(function, x)


def test_log_softmax_of_no_columns() -> None:
    agree(lambda x: F.log_softmax(x, 1), torch.randn(3, 0))


def test_log_softmax_of_a_transposed_matrix() -> None:
    check_function(lambda x: F.log_softmax(x.t(), -1), torch.randn(4, 6, requires_grad=True))


def _drawn(seed: int) -> Callable[..., Any]:
    """A function of x and w, whose gradients need values of its middle."""
    draw = random.Random(seed)
    steps = [draw.choice((torch.tanh, torch.exp, torch.sigmoid, torch.sin, lambda x: x.softmax(-1), F.gelu,
                          lambda x: x * x.mean(0), lambda x: (x @ x.t()) @ x, lambda x: F.layer_norm(x, x.shape[-1:])))
             for _ in range(draw.randrange(2, 6))]

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor | Any, torch.Tensor | Any]:
        y = x * w
        for step in steps:
            y = step(y)
        return y.sin(), (y * w).sum(0)

    return function


def _repeated(call: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """Gradients of each of a function's results, three times, and then of both at once."""
    results = call(x, w)
    found = [torch.autograd.grad(result.square().sum(), (x, w), retain_graph=True)
             for _ in range(3) for result in results]
    return [*found, torch.autograd.grad(sum(result.sum() for result in results), (x, w))]


def _difference_of_repeated(seed: int, dynamic: bool) -> float:
    torch.manual_seed(seed)
    x, w = (torch.randn(8, 5 + seed, requires_grad=True) for _ in range(2))
    torch._dynamo.reset()
    function = _drawn(seed)
    both = zip(_repeated(torch.compile(function, backend="kiln", dynamic=dynamic), x, w), _repeated(function, x, w))
    return max(float((mine - own).abs().max() / own.abs().max()) for pair in both for mine, own in zip(*pair))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_backward_runs_as_often_as_it_is_asked_for(seed: int, dynamic: bool) -> None:
    for _ in range(2):  # traced, and from torch's cache
        assert _difference_of_repeated(seed, dynamic) < 1e-4


def test_control_what_the_backward_wrote_into_was_needed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_keep", lambda *_: None)
    assert max(_difference_of_repeated(seed, False) for seed in range(4)) > 1e-2


# What a function makes of an input before it writes into it, and how it writes.
_READ: tuple[Callable[..., Any], ...] = (
    torch.clone, torch.sqrt, lambda b: b.double().float(), lambda b: b[::2].repeat_interleave(2, 0),
    lambda b: b.t().clone().t(), lambda b: b.view(-1).clone().view_as(b), lambda b: b.cos() + 1,
    lambda b: b.unbind(0)[1].clone())
_WRITE: tuple[Callable[..., Any], ...] = (
    lambda b, y: b.mul_(.5), lambda b, y: b.copy_(y.detach()), lambda b, y: b[1:].add_(1), lambda b, y: b.zero_(),
    lambda b, y: b.t().mul_(b.t() + 1))
_AFTER: tuple[Callable[..., Any], ...] = (
    torch.exp, F.gelu, torch.tanh, lambda y: F.silu(y) * y, lambda y: y.t() @ y)


def _gradients_of_written(seed: int, backend: str | None, dynamic: bool, size: int,
                          strided: bool) -> tuple[torch.Tensor, ...]:
    """Of a function of x, whose gradient needs what a buffer was; and the buffer afterwards."""
    draw = random.Random(seed)
    read, write, before, after = (draw.choice(choices) for choices in (_READ, _WRITE, _AFTER, _AFTER))

    def function(x: torch.Tensor, b: torch.Tensor) -> Any:
        y = after(before(x * read(b)) @ x)
        write(b, y)
        return y

    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(size, size, generator=generator) / size ** .5).requires_grad_()
    b = torch.rand(size, size * 2 if strided else size, generator=generator) + .5
    b = b[:, ::2] if strided else b
    run = torch.compile(function, backend=backend, dynamic=dynamic) if backend else function
    result = run(x, b)
    return result.detach(), *torch.autograd.grad(result.square().sum(), x), b


def _differs_where_written(seed: int, dynamic: bool, size: int, strided: bool = False) -> float:
    both = zip(_gradients_of_written(seed, "kiln", dynamic, size, strided),
               _gradients_of_written(seed, None, dynamic, size, strided))
    return max(float((mine - own).abs().max() / own.abs().max().clamp(min=1e-3)) for mine, own in both)


# At the larger size operands of gemms are rematerialised.
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("size", [6, 514])
@pytest.mark.parametrize("seed", range(6))
def test_a_backward_reads_what_an_input_was(seed: int, size: int, dynamic: bool) -> None:
    for strided in (False, True):
        assert _differs_where_written(seed, dynamic, size, strided) < 1e-3


def _read_by_storage(backend: str | None, base: torch.Tensor, first: int, step: int) -> tuple[torch.Tensor, ...]:
    """Gradients where a part of `base` is read by as_strided and then written; and what it has become."""
    x, b = torch.linspace(0, 1, 16).view(4, 4).requires_grad_(), base.clone()[first:first + 4, ::step]

    def function(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = (x * torch.as_strided(b, (4, 4), (4 * step, step)).clone()).exp()
        b.mul_(.5)
        return y

    torch._dynamo.reset()
    y = (torch.compile(function, backend=backend) if backend else function)(x, b)
    return y.detach(), *torch.autograd.grad(y.sum(), x), b


def test_a_backward_reads_the_storage_of_what_an_input_was() -> None:
    base = torch.rand(5, 4)
    for first in (0, 1):
        torch.testing.assert_close(_read_by_storage("kiln", base, first, 1), _read_by_storage(None, base, first, 1))


@pytest.mark.parametrize("first, step", [(0, 2), (1, 3)])
def test_a_backward_that_reads_beside_a_copy_is_eagers(first: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an input with gaps a copy has its elements elsewhere."""
    monkeypatch.delenv("KILN_FALLBACK")
    base = torch.rand(6, 4 * step)
    torch.testing.assert_close(_read_by_storage("kiln", base, first, step), _read_by_storage(None, base, first, step))
    assert any("by storage" in reason for reason in kiln.stats()["fallbacks"])


def test_control_a_backward_reads_what_an_input_has_become(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_graph, "copy_written_inputs", lambda *_: None)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        assert max(_differs_where_written(seed, False, 6) for seed in range(6)) > 1e-2


@pytest.mark.parametrize("size", [7, 15, 16, 40])
@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (3, 1, 0)])
def test_max_pooling(size: int, window: tuple[int, int, int]) -> None:
    """Windows that overlap and windows that do not; positions of 8 and of 16 bits."""
    torch.manual_seed(0)
    agree(lambda x: F.max_pool2d(x.sin(), *window), torch.randn(2, 3, size, size))


def test_max_pooling_channels_last() -> None:
    torch.manual_seed(0)
    agree(lambda x: F.max_pool2d(x.sin(), 2), torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize("channels, calls", [(32, 1), (680, 5)])
@pytest.mark.parametrize("dynamic", [None, True])
def test_depthwise_convolution_channels_last(dynamic: bool | None, channels: int, calls: int) -> None:
    """The gradient of many channels is computed by groups of them, for all sizes that it is compiled for."""
    torch.manual_seed(0)
    model = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
    compiled = torch.compile(model, backend="kiln", dynamic=dynamic)
    start = records.graph_count()
    for size in (7, 12) if dynamic else (7,):
        image = torch.randn(2, channels, size, size + 1).contiguous(memory_format=torch.channels_last).requires_grad_()
        expected, actual = (torch.autograd.grad(function(image).square().sum(), [image, *model.parameters()])
                            for function in (model, compiled))
        for value, other in zip(actual, expected):
            torch.testing.assert_close(value, other, rtol=2e-4, atol=2e-4)
    made = [call for graph in programs(start) for call in graph["library_calls"]]
    assert made.count("aten.convolution_backward.default") == calls, made


@pytest.mark.parametrize("size", [9, 28])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dynamic", [None, True])
def test_networks_of_depthwise_convolutions(dynamic: bool | None, memory_format: torch.memory_format,
                                            size: int) -> None:
    """Images are channels-last from the first convolution to the last one's gradient, as the program says of each
    result, for all sizes that it is compiled for."""

    def function(x: torch.Tensor, window: torch.Tensor, each: torch.Tensor, strided: torch.Tensor,
                 point: torch.Tensor) -> torch.Tensor:
        x = F.conv2d(F.pad(x, (0, 1, 0, 1)), window).relu()
        x = F.conv2d(x, each, padding=1, groups=16).clamp(-1, 2)
        x = F.conv2d(F.batch_norm(x, None, None, training=True), strided, stride=2, padding=2, groups=16)
        return F.conv2d(x.sin(), point).mean((2, 3))

    torch.manual_seed(0)
    filters = [torch.randn(16, 3, 3, 3) / 5, torch.randn(16, 1, 3, 3) / 3, torch.randn(32, 1, 5, 5) / 5,
               torch.randn(8, 32, 1, 1) / 5]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="kiln", dynamic=dynamic)
    copies, graphs = kiln.stats()["stride_copies"], kiln.stats()["graphs"]
    for more in (0, 5) if dynamic else (0,):
        image = torch.randn(2, 3, size + more, size + 2 + 2 * more).contiguous(memory_format=memory_format)
        agree(function, image, *filters, compiled=compiled)
    assert kiln.stats()["stride_copies"] == copies
    assert kiln.stats()["graphs"] == graphs + 2  # forward and backward
