"""Gemms of few rows on a real GPU: kernels of kiln's own with what follows them, against eager in double. Without a
GPU these tests skip themselves; tests/conformance/gemm_threads_test.cc runs the same code on a simulator."""
import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import kiln

pytestmark = [pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
              pytest.mark.usefixtures("no_counted_fallback")]

# Of x [rows, 512], w and v [768, 512], bias [768] and a residual [rows, 768].
Layer = Callable[..., torch.Tensor]
LAYERS: dict[str, Layer] = {
    "linear": lambda x, w, v, b, r: F.linear(x, w),
    "bias": lambda x, w, v, b, r: F.linear(x, w, b),
    "silu": lambda x, w, v, b, r: F.silu(F.linear(x, w, b)),
    "gelu": lambda x, w, v, b, r: F.gelu(F.linear(x, w, b)),
    "gelu by tanh": lambda x, w, v, b, r: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "residual": lambda x, w, v, b, r: r + 0.5 * F.linear(x, w, b),
    "clamped": lambda x, w, v, b, r: F.hardswish(F.linear(x, w)).clamp(-1, 2) * r,
    "scaled": lambda x, w, v, b, r: torch.addmm(r, x, w.t(), beta=0.25, alpha=2),
    "gated": lambda x, w, v, b, r: F.silu(F.linear(x, w)) * F.linear(x, v),
    "heads": lambda x, w, v, b, r: F.linear(x, w).view(-1, 12, 64).transpose(0, 1) * 2,
    "rows of weights": lambda x, w, v, b, r: torch.tanh(r @ w),
}


def inputs(rows: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(rows)
    sizes = ((rows, 512), (768, 512), (768, 512), (768,), (rows, 768))
    return [torch.randn(*size, device="cuda").to(dtype) / (22 if k in (1, 2) else 1) for k, size in enumerate(sizes)]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_is_one_kernel_for_each_gemm(name: str, dtype: torch.dtype) -> None:
    layer = LAYERS[name]
    for rows in (1, 3, 8, 16):
        torch._dynamo.reset()  # or the number of rows would be a symbol
        arguments = inputs(rows, dtype)
        explanation = kiln.explain(layer)(*arguments)
        assert not explanation.library_calls, explanation
        kernels = explanation.kernels
        assert len(kernels) == (2 if name == "gated" else 1), kernels
        exact = layer(*(value.double() for value in arguments))
        eager = (layer(*arguments).double() - exact).abs().max().item()
        got = torch.compile(layer, backend="kiln")(*arguments)
        assert got.dtype == dtype
        assert (got.double() - exact).abs().max().item() <= 1.5 * eager + 1e-5 * exact.abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_factors_that_begin_anywhere(dtype: torch.dtype) -> None:
    layer = torch.compile(LAYERS["silu"], backend="kiln")
    arguments = inputs(4, dtype)
    expected = layer(*arguments)
    for off in (1, 2, 3):
        moved = []
        for value in arguments:
            room = torch.empty(value.numel() + off, device="cuda", dtype=dtype)
            moved.append(room[off:].view(value.shape).copy_(value))
        assert torch.equal(layer(*moved), expected)  # the order of sums is the same


def test_as_many_rows_as_the_library_is_better_for() -> None:
    for rows, called in ((16, False), (64, True)):
        torch._dynamo.reset()
        explanation = kiln.explain(LAYERS["silu"])(*inputs(rows, torch.bfloat16))
        assert bool(explanation.library_calls) == called, explanation


def test_gradients_of_few_rows() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.SiLU(), torch.nn.Linear(512, 64)).cuda()
    x = torch.randn(8, 256, device="cuda")
    reference = copy.deepcopy(model).double()
    reference(x.double()).square().mean().backward()
    torch.compile(model, backend="kiln")(x).square().mean().backward()
    for mine, other in zip(model.parameters(), reference.parameters()):
        assert mine.grad is not None and other.grad is not None
        torch.testing.assert_close(mine.grad.double(), other.grad, rtol=1e-4, atol=1e-6)


def test_graphs_replay_the_same_bits() -> None:
    arguments = inputs(4, torch.bfloat16)
    layer = torch.compile(LAYERS["residual"], backend="kiln", mode="reduce-overhead")
    for _ in range(3):
        first = layer(*arguments).clone()
    for _ in range(50):
        assert torch.equal(layer(*arguments), first)


def test_with_tf32_f32_is_the_librarys() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        explanation = kiln.explain(LAYERS["silu"])(*inputs(4, torch.float32))
        assert explanation.library_calls, explanation
    finally:
        torch.set_float32_matmul_precision(before)


# Weights of 8 bits with a scale for each column: made where they are read, not stored.
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_8_bits_are_made_where_they_are_read(dtype: torch.dtype) -> None:
    def layer(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(x * 0.5, w.to(x.dtype) * scale[:, None]))

    torch.manual_seed(0)
    w = torch.randint(-127, 128, (768, 512), device="cuda", dtype=torch.int8)
    scale = (torch.rand(768, device="cuda") / 1000).to(dtype)
    for rows in (1, 5, 16):
        torch._dynamo.reset()
        x = torch.randn(rows, 512, device="cuda").to(dtype)
        explanation = kiln.explain(layer)(x, w, scale)
        assert not explanation.library_calls and len(explanation.kernels) == 1, explanation
        exact = layer(x.double(), w, scale.double())
        eager = (layer(x, w, scale).double() - exact).abs().max().item()
        got = torch.compile(layer, backend="kiln")(x, w, scale)
        assert (got.double() - exact).abs().max().item() <= 1.5 * eager + 1e-5 * exact.abs().max().item()
