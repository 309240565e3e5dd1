"""CUDA graphs on a real GPU: reduce-overhead, through torch's trees. Without one these tests skip themselves."""
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kiln
from daemons import Place
from model_checks import losses

pytestmark = [pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
              pytest.mark.usefixtures("no_counted_fallback")]


def with_graphs(function: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="kiln", mode="reduce-overhead", **arguments)


def attention(x: torch.Tensor) -> torch.Tensor:
    x = F.layer_norm(x, x.shape[-1:])
    return F.scaled_dot_product_attention(x, x, x) @ torch.softmax(x.mT @ x, -1)


def test_graphs_of_inference(replays: dict[str, int], skips: Callable[[], int]) -> None:
    call = with_graphs(attention)
    with torch.no_grad():
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(2, 4, 128, 64, device="cuda")
            torch.testing.assert_close(call(x), attention(x), rtol=1e-3, atol=1e-3)
    assert kiln.stats()["cuda_graphs"] == 1
    # The first call warms up, the second records and replays what it recorded.
    assert replays["recorded"] >= 1 and replays["replayed"] >= 5 and skips() == 0


def test_graphs_of_training(replays: dict[str, int], skips: Callable[[], int]) -> None:
    expected = losses(lambda model: model, steps=8)
    assert losses(with_graphs, steps=8) == pytest.approx(expected, rel=1e-4)
    assert kiln.stats()["cuda_graphs"] == 2  # forward and backward
    assert replays["replayed"] >= 12 and skips() == 0


def test_no_graphs_by_default(replays: dict[str, int], skips: Callable[[], int]) -> None:
    losses(lambda model: torch.compile(model, backend="kiln"))
    assert kiln.stats()["cuda_graphs"] == 0 and replays == {"recorded": 0, "replayed": 0} and skips() == 0


def test_graphs_of_dynamic_sizes(replays: dict[str, int]) -> None:
    call = with_graphs(lambda x: torch.softmax(x * 2, -1).sum(0), dynamic=True)
    for _ in range(4):
        for rows in (16, 24, 40):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(rows, 300, device="cuda")
            torch.testing.assert_close(call(x), torch.softmax(x * 2, -1).sum(0))
    assert kiln.stats()["graphs"] == kiln.stats()["cuda_graphs"] == 1
    assert replays["recorded"] >= 3 and replays["replayed"] >= 9  # one graph a size


def test_written_input_is_skipped(replays: dict[str, int], skips: Callable[[], int],
                                  caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x.sin()

    call = with_graphs(function)
    with caplog.at_level("WARNING"):
        explanation = kiln.explain(function, mode="reduce-overhead")(torch.ones(64, device="cuda"),
                                                                     torch.ones(64, device="cuda"))
    assert "skipped: mutated inputs (1 instances)" in str(explanation)
    for _ in range(4):
        x, y = torch.randn(64, device="cuda"), torch.randn(64, device="cuda")
        expected = x + y
        torch.testing.assert_close(call(x, y), expected.sin())
        torch.testing.assert_close(x, expected)
    assert skips() >= 1 and replays["replayed"] == 0


def test_written_buffer_is_recorded(replays: dict[str, int], skips: Callable[[], int]) -> None:
    class Counter(torch.nn.Module):
        total: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return self.total * 2

    model = Counter().cuda()
    call, expected = with_graphs(model), torch.zeros(64, device="cuda")
    with torch.no_grad():
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(64, device="cuda")
            expected += x
            torch.testing.assert_close(call(x), expected * 2)
    torch.testing.assert_close(model.total, expected)
    assert replays["replayed"] >= 4 and skips() == 0


def test_graphs_draw_new_random_numbers(replays: dict[str, int]) -> None:
    call = with_graphs(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000, device="cuda")
    drawn = []
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        drawn.append(call(x).clone())
    assert replays["replayed"] >= 4
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(drawn))
    assert all(400 < (y == 0).sum() < 600 for y in drawn)


def test_graphs_with_a_number_on_the_cpu(replays: dict[str, int], skips: Callable[[], int]) -> None:
    call = with_graphs(lambda x, scale: x * scale)
    x = torch.randn(64, device="cuda")
    for value in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(call(x, torch.tensor(float(value))), x * value)
    assert replays["replayed"] >= 4 and skips() == 0


def test_graph_loaded_from_the_cache(place: Place) -> None:
    """A new process finds the graph in torch's cache and records it as well."""
    code = """
import torch, kiln
from torch._dynamo.utils import counters
replays = []
replay = torch.cuda.CUDAGraph.replay
torch.cuda.CUDAGraph.replay = lambda self: (replays.append(1), replay(self))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()).cuda()
call = torch.compile(model, backend="kiln", mode="reduce-overhead")
for _ in range(5):
    torch.compiler.cudagraph_mark_step_begin()
    model.zero_grad()
    loss = call(torch.ones(4, 32, device="cuda")).sum()
    loss.backward()
print(kiln.stats()["autograd_cache_loads"], kiln.stats()["cuda_graphs"], len(replays) >= 6,
      counters["inductor"]["cudagraph_skips"], round(loss.item(), 4),
      round(model[0].weight.grad.sum().item(), 3), sep=",")
"""
    first, second = (place.run(code)[0].strip().split(",") for _ in range(2))
    assert first[:4] == ["0", "2", "True", "0"]
    assert second[:4] == ["2", "2", "True", "0"]
    assert first[4:] == second[4:]


def test_output_that_a_later_replay_overwrote() -> None:
    """A program given its own results, which its replay overwrites: torch's own error, and a context as good as
    before."""
    layer = torch.nn.Linear(64, 64, device="cuda", dtype=torch.float16)
    step = torch.compile(lambda state, x: (state + layer(x), layer(x) * 2), backend="kiln", mode="reduce-overhead")
    state, x = (torch.randn(8, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
            for _ in range(8):
                state, x = step(state, x)
        torch.cuda.synchronize()
        assert torch.ones(1000, device="cuda").sum().item() == 1000
