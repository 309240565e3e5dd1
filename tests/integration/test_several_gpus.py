"""Graphs on a GPU that is not the current one, and one artifact for all GPUs of a kind. Without two GPUs of one kind
these tests skip themselves."""
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from agreement import gradient_of
from daemons import Place


def _two_alike() -> bool:
    return torch.cuda.device_count() > 1 and torch.cuda.get_device_name(0) == torch.cuda.get_device_name(1)


pytestmark = pytest.mark.skipif(not _two_alike(), reason="no two NVIDIA GPUs of one kind here")


@pytest.fixture(autouse=True)
def first_gpu_stays_current(no_counted_fallback: None) -> Iterator[None]:
    yield
    assert torch.cuda.current_device() == 0


class Net(torch.nn.Module):
    """A convolution, a gemm, attention, kernels, a tensor made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 32, 4, stride=4)
        self.linear = torch.nn.Linear(32, 96)

    def forward(self, images: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        points = self.convolution(images).flatten(2).transpose(1, 2)
        q, k, v = (part.view(*part.shape[:2], 4, 8).transpose(1, 2) for part in self.linear(points).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v)
        places = torch.arange(mixed.shape[-2], device=mixed.device)
        return (mixed.tanh() * places[:, None]).mean((1, 3)) * scale


def _results(wrap: Callable[..., Any], device: str, steps: int) -> list[float]:
    """Of training steps, as numbers: losses and sums of gradients."""
    torch.manual_seed(0)
    model = Net().to(device)
    call, numbers = wrap(model), []
    for _ in range(steps):
        torch.compiler.cudagraph_mark_step_begin()
        model.zero_grad()
        result = call(torch.linspace(-1, 1, 2 * 3 * 32 * 32, device=device).view(2, 3, 32, 32), torch.tensor(0.5))
        assert result.device == torch.device(device)
        loss = result.square().mean()
        loss.backward()
        gradients = [gradient_of(parameter) for parameter in model.parameters()]
        assert all(gradient.device == torch.device(device) for gradient in gradients)
        numbers += [loss.item(), *(gradient.abs().sum().item() for gradient in gradients)]
    return numbers


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_tensors_say_where_a_graph_runs(device: str, mode: str) -> None:
    other = 1 - torch.device(device).index
    expected = _results(lambda model: model, device, 1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(other)
    torch.cuda.reset_peak_memory_stats(other)
    got = _results(lambda model: torch.compile(model, backend="kiln", mode=mode), device, 4)
    assert got == pytest.approx(expected * 4, rel=1e-3)
    assert torch.cuda.max_memory_allocated(other) == before  # nothing was made beside them


def test_a_graph_of_one_gpu_is_the_others_too(place: Place) -> None:
    """Compiled on the second, found by a new process on the first."""
    code = """
import torch, kiln
device = "cuda:{}"
function = lambda x: torch.softmax(x @ x.t(), -1).sum(0)
x = torch.linspace(-1, 1, 64 * 48, device=device).view(64, 48)
torch.testing.assert_close(torch.compile(function, backend="kiln")(x), function(x), rtol=1e-3, atol=1e-3)
print(kiln.stats()["compiles"], kiln.stats()["hits"], sum(kiln.stats()["fallbacks"].values()))
"""
    assert [place.run(code.format(device))[0].split() for device in (1, 0)] == [["1", "0", "0"], ["0", "1", "0"]]


def test_graphs_of_both_take_turns() -> None:
    call, numbers = torch.compile(lambda x: (x.sin() + 1).cumsum(0), backend="kiln"), torch.randn(1000)
    for device in ("cuda:0", "cuda:1", "cuda:0", "cuda:1"):
        torch.testing.assert_close(call(numbers.to(device)).cpu(), (numbers.sin() + 1).cumsum(0), rtol=1e-4, atol=1e-3)
