"""Layers of few rows on this machine's GPU: eager, TorchInductor and kiln, each replayed from a CUDA graph; prints a
Markdown table.

A chain of layers with weights of their own, y = silu(x W + b), so that what a layer reads is not what the one before
it left in a cache. Microseconds a layer, medians of rounds in turn; the largest difference from sums in double is of
the chain's end, as a part of the largest value.

With --weights int8 W is of 8 bits, and is multiplied by a number for each column before it is used.

  tests/bench/few_rows.py [--rows 1,2,4,8,16,32] [--dtypes bfloat16,float32] [--weights int8]
"""
import argparse
import functools
import statistics
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F

import kiln  # noqa: F401  (names the back-end)

SIZES = ((768, 3072), (1024, 1024), (4096, 4096), (4096, 14336))
LAYERS = 8
REPLAYS = 30
ROUNDS = 7

Chain = Callable[[torch.Tensor, list[torch.Tensor], list[torch.Tensor]], torch.Tensor]


def biased(x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> torch.Tensor:
    for weight, bias in zip(weights, biases):
        x = F.silu(F.linear(x, weight, bias))
    return x


def scaled(x: torch.Tensor, weights: list[torch.Tensor], scales: list[torch.Tensor]) -> torch.Tensor:
    for weight, scale in zip(weights, scales):
        x = F.silu(F.linear(x, weight.to(x.dtype) * scale[:, None]))
    return x


def operands(dtype: torch.dtype, int8: bool, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's weight, and its bias or its scales."""
    columns, summed = size
    if not int8:
        return (torch.randn(size, device="cuda").to(dtype) / summed ** 0.5,
                torch.randn(columns, device="cuda").to(dtype))
    return (torch.randint(-127, 128, size, device="cuda", dtype=torch.int8),
            (torch.rand(columns, device="cuda") / 127 / summed ** 0.5).to(dtype))


def recorded(function: Callable[[], torch.Tensor]) -> torch.cuda.CUDAGraph:
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph) -> float:
    """Of one replay."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / REPLAYS


def line(dtype: torch.dtype, int8: bool, rows: int, columns: int, summed: int) -> str:
    torch.manual_seed(0)
    torch._dynamo.reset()
    sizes = [(columns, summed) if k % 2 == 0 else (summed, columns) for k in range(LAYERS)]
    chain = scaled if int8 else biased
    weights, others = map(list, zip(*(operands(dtype, int8, size) for size in sizes)))
    x = torch.randn(rows, summed, device="cuda").to(dtype)
    exact = chain(x.double(), [weight.double() for weight in weights], [other.double() for other in others])
    ways: list[Chain] = [chain, torch.compile(chain, dynamic=False),
                         torch.compile(chain, backend="kiln", dynamic=False)]
    calls = [functools.partial(way, x, weights, others) for way in ways]
    wrong = [((call().double() - exact).abs().max() / exact.abs().max()).item() for call in calls]
    graphs = [recorded(call) for call in calls]
    rounds = [[microseconds(graph) / LAYERS for graph in graphs] for _ in range(ROUNDS)]
    medians = [statistics.median(times) for times in zip(*rounds)]
    ratios = [times[2] / times[1] for times in rounds]
    return (f"| {str(dtype).removeprefix('torch.')}, {rows} × {summed} × {columns} | "
            f"{' / '.join(f'{median:.2f}' for median in medians)} | {medians[2] / medians[0]:.2f} | "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) | "
            f"{' / '.join(f'{part:.1e}' for part in wrong)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,2,4,8,16,32")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--weights", choices=("int8",), help="of 8 bits; default: of the dtype")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no NVIDIA GPU here")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n\n| rows × summed × columns | "
          "µs a layer: eager / Inductor / kiln | kiln ÷ eager | kiln ÷ Inductor (spread) | "
          "difference: eager / Inductor / kiln |\n|---|---|---|---|---|")
    with torch.no_grad():
        for name in arguments.dtypes.split(","):
            for columns, summed in SIZES:
                for rows in map(int, arguments.rows.split(",")):
                    print(line(getattr(torch, name), arguments.weights == "int8", rows, columns, summed), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
