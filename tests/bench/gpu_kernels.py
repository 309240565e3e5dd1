"""Kernels that do nothing but move data, on this machine's GPU, as a share of the bandwidth of a device copy measured
between them. Every function moves a gigabyte; the bytes counted are the least that it has to read and write.
"""
import functools
import statistics
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

GIGABYTE = 1 << 30
Calls: TypeAlias = dict[tuple[str, str], tuple[Callable[[], object], int]]  # by name and way: a call, its bytes
WAYS: dict[str, str | None] = {"eager": None, "inductor": "inductor", "kiln": "kiln"}


def _matrices(bytes_of_element: int, count: int = 1, columns: int = 4096) -> list[torch.Tensor]:
    rows = GIGABYTE // bytes_of_element // columns // 128 * 128  # so that a transposed row is aligned as well
    return [torch.randn(rows, columns, device="cuda") for _ in range(count)]


def _adam(parameter: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor) -> None:
    mean.lerp_(gradient, 0.1)
    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    parameter.addcdiv_(mean, square.sqrt() + 1e-8, value=-1e-3)


def _layer_norm_gradient(gradient: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor,
                         weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    gradients: tuple[torch.Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
        gradient, x, x.shape[-1:], mean, scale, weight, bias, [True, True, True])
    return gradients


def _layer_norm_inputs() -> list[torch.Tensor]:
    gradient, x = _matrices(12, 2)
    weight, bias = torch.randn(2, x.shape[1], device="cuda")
    _, mean, scale = torch.native_layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
    return [gradient, x, mean, scale, weight, bias]


def _cross_entropy_inputs() -> list[torch.Tensor]:
    logits, = _matrices(4, columns=32768)
    return [logits, torch.randint(0, logits.shape[1], (logits.shape[0],), device="cuda")]


def _cases() -> dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]], int]]:
    """name: (function, its inputs, bytes that must move for an element of the first)."""
    function = torch.nn.functional
    return {
        "cos(x) + sin(y)": (lambda x, y: x.cos() + y.sin(), lambda: _matrices(12, 2), 12),
        "dropout of GELU": (lambda x: function.dropout(function.gelu(x), 0.1), lambda: _matrices(8), 8),
        "softmax of rows": (lambda x: torch.softmax(x, -1), lambda: _matrices(8), 8),
        "cross-entropy of 32,768 classes": (function.cross_entropy, _cross_entropy_inputs, 4),
        "layer norm": (lambda x: function.layer_norm(x, x.shape[-1:]), lambda: _matrices(8), 8),
        "gradients of layer norm": (_layer_norm_gradient, _layer_norm_inputs, 12),
        "Adam": (_adam, lambda: _matrices(28, 4), 28),
        "x.t() + y": (lambda x, y: x.t() + y,
                      lambda: [m.view(4096, -1) if i else m for i, m in enumerate(_matrices(12, 2))], 12),
        "sums of columns": (lambda x: x.sum(0), lambda: _matrices(4), 4),
        "sums of rows": (lambda x: x.sum(-1), lambda: _matrices(4), 4),
    }


def prepare() -> tuple[Calls, dict[str, str]]:
    """((name, way): (function of no arguments, bytes it moves), errors by name)."""
    import kiln  # noqa: F401  (names the back-end)

    calls: Calls = {}
    errors: dict[str, str] = {}
    for name, (function, make_inputs, bytes_of_element) in _cases().items():
        torch.manual_seed(0)
        inputs = make_inputs()
        for way, backend in WAYS.items():
            call = function if backend is None else torch.compile(function, backend=backend)
            try:
                with torch.no_grad():
                    call(*inputs)
            except Exception as error:
                errors[f"{name}, {way}"] = f"{type(error).__name__}: {error}"[:300]
                continue
            calls[name, way] = (functools.partial(call, *inputs), bytes_of_element * inputs[0].numel())
    source, = _matrices(8)
    target = torch.empty_like(source)
    calls["copy", "eager"] = (lambda: target.copy_(source), 8 * source.numel())
    return calls, errors


@torch.no_grad()
def measure(calls: Calls, rounds: int) -> dict[str, dict[str, float]]:
    """name: way: GB/s, medians of rounds in which all take turns."""
    rates: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(rounds):
        for key, (call, moved) in calls.items():
            call()
            start.record()
            for _ in range(10):
                call()
            end.record()
            torch.cuda.synchronize()
            rates[key].append(moved * 10 / start.elapsed_time(end) / 1e6)
    result: dict[str, dict[str, float]] = {}
    for (name, way), values in rates.items():
        result.setdefault(name, {})[way] = statistics.median(values)
    return result


def table(rates: dict[str, dict[str, float]]) -> str:
    """The Markdown."""
    copy = rates["copy"]["eager"]
    lines = [f"Copy: {copy:.0f} GB/s, read and written. Share of it:", "",
             "| kernel | " + " | ".join(WAYS) + " |", "|---" * (len(WAYS) + 1) + "|"]
    for name, of_ways in rates.items():
        if name != "copy":
            cells = [f"{of_ways[way] / copy:.2f}" if way in of_ways else "failed" for way in WAYS]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
