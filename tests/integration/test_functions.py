"""The small functions of PyTorch's tutorials, and small networks: breaks, recompiles, random numbers, training."""
import copy
import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kiln
from agreement import check, check_function
from kiln import records
from model_checks import programs

pytestmark = pytest.mark.usefixtures("no_fallback")


def test_first_example() -> None:
    check_function(lambda x, y: x.cos() + y.sin(), torch.randn(10, 10), torch.randn(10, 10))
    assert kiln.stats()["kernels"] == 1 and kiln.stats()["library_calls"] == 0


def test_gradients() -> None:
    check_function(lambda x, y: x.cos() + y.sin() * x, torch.randn(33, 7, requires_grad=True),
                   torch.randn(33, 7, requires_grad=True))


def test_graph_break() -> None:
    def toy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = a / (torch.abs(a) + 1)
        if b.sum() < 0:
            b = b * -1
        return x * b

    a = torch.randn(10, requires_grad=True)
    compiled = check_function(toy, a, torch.full((10,), 2.0))
    torch.testing.assert_close(compiled(a, torch.full((10,), -2.0)), toy(a, torch.full((10,), -2.0)))


def test_recompiles_for_another_number() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return (n + 1) * x ** 2

    compiled = torch.compile(f, backend="kiln")
    x = torch.randn(8)
    graphs = []
    for n in range(5):
        torch.testing.assert_close(compiled(x, n), f(x, n))
        graphs.append(kiln.stats()["graphs"])
    assert graphs == [1, 2, 2, 2, 2]  # the first for 0, the second for every n


class Convolutions(torch.nn.Module):
    """Layers whose images are channels-last and one whose are row-major."""

    def __init__(self) -> None:
        super().__init__()
        self.window = torch.nn.Conv2d(3, 32, 3, stride=2, bias=False)
        self.each = torch.nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False)
        self.point, self.plain = torch.nn.Conv2d(32, 240, 1), torch.nn.Conv2d(32, 240, 1, bias=False)
        self.wide = torch.nn.Conv2d(240, 256, 3, padding=1)  # 2 MB of weights for images of 9 × 9

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = F.relu6(self.window(F.pad(x, (0, 1, 0, 1))))
        x = F.relu6(self.each(x))
        x = self.point(x) + self.plain(x)
        y = self.wide(x)
        return x.mean((2, 3)), F.relu(y), y.flatten(2).transpose(1, 2) * 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_convolutions_in_inference(memory_format: torch.memory_format, dynamic: bool) -> None:
    """Convolutions of one point are gemms, and what the library gives lies as was declared."""
    model = Convolutions()
    model.to(memory_format=memory_format)  # type: ignore[call-overload]  # torch's types leave it out
    x = torch.randn(2, 3, 18, 18).to(memory_format=memory_format)
    gc.collect()  # graphs of earlier tests count as long as they live
    start, copies = records.graph_count(), kiln.stats()["stride_copies"]
    compiled: Callable[..., Any] = torch.compile(model, backend="kiln", dynamic=dynamic)
    with torch.no_grad():
        actual, eager, exact = compiled(x), model(x), copy.deepcopy(model).double()(x.double())
    check([(f"output {i}", *values) for i, values in enumerate(zip(actual, eager, exact))])
    assert [value.stride() for value in actual] == [value.stride() for value in eager]
    calls = [call for graph in programs(start) for call in graph["library_calls"]]
    if dynamic and "mkldnn._linear_pointwise.default" in calls:  # by oneDNN where MKL leaves AVX-512 unused
        assert calls.count("mkldnn._linear_pointwise.default") == 2 and "aten.convolution.default" in calls, calls
    else:
        assert {"aten.mm.default", "aten.addmm.default", "aten.convolution.default"} <= set(calls), calls
    assert kiln.stats()["stride_copies"] == copies


def test_no_grad_and_inference() -> None:
    f = torch.compile(lambda x, w: F.gelu(x @ w), backend="kiln")
    x, w = torch.randn(4, 8), torch.randn(8, 3, requires_grad=True)
    with torch.no_grad():
        assert not f(x, w).requires_grad
    assert f(x, w).requires_grad


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_numbers_that_python_draws(gradient: bool, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x + random.uniform(10, 20)) * random.random() + random.randint(2, 18), x.sin() ** random.uniform(1, 2)

    compiled = torch.compile(function, backend="kiln", dynamic=dynamic)
    for seed in range(4):
        x = torch.rand(3 + seed * dynamic, 5, requires_grad=gradient)
        results = []
        for run in (function, compiled):
            random.seed(seed)
            outputs = run(x)
            total: Any = sum(map(torch.sum, outputs))
            results.append([*outputs, *(torch.autograd.grad(total, x) if gradient else ())])
        torch.testing.assert_close(results[1], results[0])


def test_index_put_and_scatter() -> None:
    def f(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.clone()
        y[i] = v
        z = x.clone().index_put((i,), v, accumulate=True)
        return y, z, torch.zeros(6, 3, dtype=x.dtype).scatter_add(0, i[:, None].expand(-1, 3), v)

    check_function(f, torch.randn(6, 3, requires_grad=True), torch.tensor([1, 3, 4]),
                   torch.randn(3, 3, requires_grad=True))
    check_function(lambda x, i, v: x.clone().index_put((i,), v, accumulate=True), torch.randn(6, 3),
                   torch.tensor([1, 1, 1]), torch.randn(3, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_table_shared_by_embeddings_and_a_gemm(dtype: torch.dtype) -> None:
    def scores(first: torch.Tensor, second: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        mixed = F.embedding(first, table, padding_idx=2).tanh() + F.embedding(second, table)
        return F.linear(mixed, table)

    table = torch.randn(11, 8, dtype=dtype, requires_grad=True)
    check_function(scores, torch.randint(0, 5, (4, 6)), torch.randint(0, 11, (4, 6)), table)


def test_lstm_cell() -> None:
    cell = torch.nn.LSTMCell(5, 8)

    def f(steps: torch.Tensor, h: torch.Tensor, c: torch.Tensor,
          *parameters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        named = dict(zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), parameters))
        for x in steps:
            h, c = torch.func.functional_call(cell, named, (x, (h, c)))
        return h, c

    inputs = torch.randn(4, 2, 5), torch.zeros(2, 8), torch.zeros(2, 8)
    with torch.no_grad():
        check_function(f, *inputs, *cell.parameters())
    check_function(f, *inputs, *cell.parameters())  # and through time


def test_masked_loss() -> None:
    def f(logits: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        losses = torch.logsumexp(logits, -1) - logits.gather(-1, labels[:, None]).squeeze(-1)
        return losses.masked_fill(~mask, 0).sum() / mask.sum()

    check_function(f, torch.randn(9, 11, requires_grad=True), torch.randint(0, 11, (9,)), torch.rand(9) > 0.4)


def test_normalizations() -> None:
    x = torch.randn(4, 6, 5, requires_grad=True)
    w, b = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    check_function(lambda x, w, b: F.layer_norm(x, (5,), w, b), x, w, b)
    check_function(lambda x: F.log_softmax(x, 1) + x.softmax(-1), x)
    check_function(lambda x, w: F.rms_norm(x, (5,), w), x, w)
    check_function(lambda x: F.group_norm(x, 3), x)


def test_cnn_with_batch_norm_and_dropout() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                                torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Dropout(0.3),
                                torch.nn.Linear(8 * 16, 4))
    other = copy.deepcopy(model)
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    compiled = torch.compile(model, backend="kiln", options={"fallback_random": True})
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, other)]
    for step in range(3):
        losses = []
        runs: tuple[Callable[..., Any], ...] = (compiled, other)
        for run, optimizer in zip(runs, optimizers):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(run(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        torch.testing.assert_close(*losses)
    for mine, theirs in zip(model.state_dict().values(), other.state_dict().values()):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_activation_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    first, second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def f(x: torch.Tensor) -> Any:
        return checkpoint(lambda y: second(torch.tanh(first(y))).sin(), x, use_reentrant=False).sum()

    x = torch.randn(5, 6, requires_grad=True)
    expected = torch.autograd.grad(f(x), x)[0]
    torch.testing.assert_close(torch.autograd.grad(torch.compile(f, backend="kiln")(x), x)[0], expected)


def test_dropout() -> None:
    drop = torch.compile(lambda x: F.dropout(x, 0.3), backend="kiln")
    x = torch.ones(200_000, requires_grad=True)
    torch.manual_seed(5)
    first = drop(x)
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(gradient, first.detach())  # one mask
    kept = first != 0
    assert abs(kept.float().mean().item() - 0.7) < 0.01
    torch.testing.assert_close(first[kept], torch.full_like(first[kept], 1 / 0.7))
    assert not torch.equal(drop(x), first)
    torch.manual_seed(5)
    assert torch.equal(drop(x), first)


def test_fallback_random_repeats_eager() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.randn(64)
    torch.manual_seed(3)
    expected = f(x)
    torch.manual_seed(3)
    actual = torch.compile(f, backend="kiln", options={"fallback_random": True})(x)
    torch.testing.assert_close(actual, expected)


def test_constants_in_the_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0]) * torch.arange(3)

    check_function(f, torch.randn(2, 3))


def test_library_calls_of_the_rest() -> None:
    check_function(lambda x: (x.sort(-1)[0], x.topk(3)[0],
                              torch.linalg.cholesky_ex(x @ x.T + 9 * torch.eye(5, dtype=x.dtype))[0]),
                   torch.randn(5, 6))
    calls = kiln.stats()["library_calls"]
    assert calls >= 3


def test_float_that_changes() -> None:
    def f(x: torch.Tensor, n: float) -> tuple[torch.Tensor, float, float]:
        return x * n, n * 2, n + x.shape[0]

    compiled = torch.compile(f, backend="kiln")
    x = torch.randn(3, 4)
    for n in (1.5, 2.5, 3.5, 4.5):
        torch.testing.assert_close(compiled(x, n), f(x, n), rtol=0, atol=0)


def test_differences_of_sizes_are_truncated() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + int((x.shape[0] - 10) / 3)

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    for rows in (3, 9, 10, 12, 13):
        torch.testing.assert_close(compiled(torch.zeros(rows)), f(torch.zeros(rows)), rtol=0, atol=0)


def test_numbers_that_depend_on_sizes() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, float, Any, bool]:
        return x * 2, x.shape[0] / 2, x.shape[0] ** 0.5, x.shape[0] > 3

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    for rows in (4, 7, 100):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(compiled(x), f(x), rtol=0, atol=0)
    assert kiln.stats()["graphs"] == 1
