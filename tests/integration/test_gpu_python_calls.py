"""Calls of Python between native kernels on a real GPU: users' Triton kernels, operators that write into their
arguments, sizes that only the run knows; and the CUDA graphs around them. Without a GPU these tests skip themselves."""
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from agreement import gradient_of
from daemons import Place

pytestmark = [pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
              pytest.mark.usefixtures("no_fallback")]

if torch.cuda.is_available():
    import triton
    import triton.language as tl

    @triton.jit
    def _square(x):  # type: ignore[no-untyped-def]  # Triton reads annotations
        return x * x

    @triton.jit  # type: ignore[untyped-decorator]  # Triton's, which may not be installed
    def _scaled_sum(x, y, out, count, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # likewise
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        sum = tl.load(x + at, inside) * factor + _square(tl.load(y + at, inside))
        tl.store(out + at, sum, inside)

    @triton.autotune(  # type: ignore[untyped-decorator]  # likewise
        [triton.Config({"BLOCK": block}) for block in (128, 256)], key=["count"])
    @triton.jit  # type: ignore[untyped-decorator]  # likewise
    def _add_into(into, x, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # likewise
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        tl.store(into + at, tl.load(into + at, inside) + tl.load(x + at, inside), inside)


def scaled_sum(x: torch.Tensor, y: torch.Tensor, factor: float, block: int = 128) -> torch.Tensor:
    out = torch.empty_like(x)
    _scaled_sum[(triton.cdiv(x.numel(), block),)](x, y, out, x.numel(), factor, BLOCK=block)
    return out


def between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scaled_sum(x.sin(), y * 2, 0.5) + x, -1)


def expected_between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sin() * 0.5 + (y * 2).square() + x, -1)


def written(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    gain = (x * 3).cos()
    _add_into[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](total, gain, x.numel())
    return total.exp().sum(-1)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_users_triton_kernels(mode: str, dynamic: bool) -> None:
    call = torch.compile(between, backend="kiln", mode=mode, dynamic=dynamic)
    for rows in (5, 7, 33) if dynamic else (5, 5, 5):
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            x, y = torch.randn(rows, 100, device="cuda"), torch.randn(rows, 100, device="cuda")
            with torch.no_grad():
                torch.testing.assert_close(call(x, y), expected_between(x, y))
    assert sum(count["runs"] for count in kiln.stats()["python"].values()) > 0


def test_kernels_of_one_name_are_told_apart() -> None:
    x, y = torch.randn(64, device="cuda"), torch.randn(64, device="cuda")
    for factor in (0.25, 4.0):
        for block in (32, 64):
            call = torch.compile(lambda x, y: scaled_sum(x, y, factor, block) * 2, backend="kiln")
            torch.testing.assert_close(call(x, y), (x * factor + y.square()) * 2)


def test_a_triton_kernel_writes_into_an_input() -> None:
    total, x = torch.zeros(8, 64, device="cuda"), torch.randn(8, 64, device="cuda")
    expected = (x * 3).cos()
    _add_into[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](torch.zeros_like(x), x, x.numel())  # tuned
    call = torch.compile(written, backend="kiln")
    torch.testing.assert_close(call(total, x), expected.exp().sum(-1))
    torch.testing.assert_close(total, expected)


@torch.library.custom_op("kiln_gpu::append", mutates_args=("cache",))
def append(cache: torch.Tensor, row: torch.Tensor, at: int) -> None:
    cache[at] = row


@append.register_fake
def _(cache: torch.Tensor, row: torch.Tensor, at: int) -> None:
    pass


def peak_of(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[torch.Tensor, int]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function(*inputs)
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


def appended(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    append(cache, row.sin(), 1)
    return cache.sum(0) * 2


def made(row: torch.Tensor) -> torch.Tensor:
    cache = torch.empty(256, row.numel(), device=row.device)
    append(cache, row.sin(), 1)
    return cache[1] * 2


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_large_cache_is_held_once(mode: str) -> None:
    cache, row = torch.randn(256, 1 << 20, device="cuda"), torch.randn(1 << 20, device="cuda")
    for function, inputs in ((appended, (cache, row)), (made, (row,))):
        call = torch.compile(function, backend="kiln", mode=mode)
        with torch.no_grad():
            for _ in range(3):
                torch.compiler.cudagraph_mark_step_begin()
                call(*inputs)
            expected, eager = peak_of(function, *inputs)
            actual, peak = peak_of(call, *inputs)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)
        assert peak <= eager + (64 << 20)


# ---- CUDA graphs


class Block(torch.nn.Module):
    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.register_buffer("cache", torch.zeros(4, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        append(self.cache, y.detach()[0], 1)
        result: torch.Tensor = self.second(y + self.cache).tanh()
        return result


def trained(model: torch.nn.Module, wrapped: Callable[..., Any], steps: int = 6) -> list[list[torch.Tensor]]:
    generator = torch.Generator("cuda").manual_seed(3)
    losses = []
    for _ in range(steps):
        torch.compiler.cudagraph_mark_step_begin()
        model.zero_grad()
        loss = wrapped(torch.randn(4, 64, generator=generator, device="cuda")).square().sum()
        loss.backward()
        losses.append([loss.detach().clone(), *(gradient_of(parameter).clone() for parameter in model.parameters())])
    return losses


def test_a_call_of_python_splits_the_recording(replays: dict[str, int], skips: Callable[[], int]) -> None:
    torch.manual_seed(0)
    model, other = Block().cuda(), Block().cuda()
    other.load_state_dict(model.state_dict())
    call = torch.compile(other, backend="kiln", mode="reduce-overhead")
    torch.testing.assert_close(trained(other, call), trained(model, model), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.cache, model.cache)
    assert kiln.stats()["cuda_graphs"] == 3  # two parts of the forward, and the backward
    assert replays["recorded"] >= 3 and replays["replayed"] >= 12 and skips() == 0


def test_sizes_that_only_the_run_knows_split_the_recording(replays: dict[str, int], skips: Callable[[], int]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.softmax(x @ w, -1)
        rows = torch.nonzero(y.sum(0) > 1).flatten()
        return y[:, rows] * 2, (w * 2).relu()

    call = torch.compile(function, backend="kiln", mode="reduce-overhead")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            x, w = torch.randn(6, 6, device="cuda"), torch.randn(6, 6, device="cuda")
            torch.testing.assert_close(call(x, w), function(x, w))
    assert replays["replayed"] >= 4 and skips() == 0


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_an_element_as_a_size(mode: str) -> None:
    def function(x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        count: Any = (x > 0).sum().item()
        torch._check(count >= 0)
        return torch.ones(count, device=x.device) * 2, x.exp()

    call = torch.compile(function, backend="kiln", mode=mode)
    with torch._dynamo.config.patch(capture_scalar_outputs=True), torch.no_grad():
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(100, device="cuda")
            torch.testing.assert_close(call(x), function(x))


def test_parts_loaded_from_the_cache(place: Place) -> None:
    """A new process finds the parts in torch's cache and records them as well."""
    code = """
import torch, kiln
import test_gpu_python_calls as tests
replays = []
replay = torch.cuda.CUDAGraph.replay
torch.cuda.CUDAGraph.replay = lambda self: (replays.append(1), replay(self))
torch.manual_seed(0)
model = tests.Block().cuda()
losses = tests.trained(model, torch.compile(model, backend="kiln", mode="reduce-overhead"))
print(kiln.stats()["autograd_cache_loads"], kiln.stats()["cuda_graphs"], len(replays) >= 9,
      round(losses[-1][0].item(), 4), sep=",")
"""
    first, second = (place.run(code)[0].strip().split(",") for _ in range(2))
    assert first[:3] == ["0", "3", "True"]
    assert second[:3] == ["4", "3", "True"]
    assert first[3] == second[3]
