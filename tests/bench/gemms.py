"""Gemms of float32 on this CPU: ATen's library (MKL) and oneDNN, in turn; prints a Markdown table.

That is what compiler/passes/gemm_to_onednn goes by: oneDNN is taken on CPUs with AVX-512 that are not Intel's, from
the sizes on where it wins. Gflop/s, medians; `transposed`: weights as a linear layer has them (a row for each
column of the gemm).

  tests/bench/gemms.py [--rounds 15] [--rows 2,16,64,512,2048]
"""
import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch

MATRICES = ((64, 64), (256, 1024), (768, 768), (768, 3072), (3072, 768), (2048, 2048))


def rates(calls: Sequence[Callable[[], torch.Tensor]], gigaflops: float, rounds: int) -> list[float]:
    seconds: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(rounds):
        for call, taken in zip(calls, seconds):
            begin = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begin)
    return [gigaflops / statistics.median(taken) for taken in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", default="2,16,64,512,2048")
    arguments = parser.parse_args()
    if not torch.backends.mkldnn.is_available():
        parser.error("this torch has no oneDNN")
    linear = torch.ops.mkldnn._linear_pointwise
    print("| rows | summed | columns | MKL, transposed | oneDNN, transposed | ÷ | MKL | oneDNN | ÷ "
          "|\n|---|---|---|---|---|---|---|---|---|")
    with torch.no_grad():
        for summed, columns in MATRICES:
            for rows in map(int, arguments.rows.split(",")):
                left, transposed, result = torch.randn(rows, summed), torch.randn(columns, summed), torch.empty(rows,
                                                                                                            columns)
                right, bias = transposed.t().contiguous(), torch.randn(columns)
                calls = (lambda: torch.addmm(bias, left, transposed.t(), out=result),
                         lambda: linear(left, transposed, bias, "none", [], ""),
                         lambda: torch.mm(left, right, out=result),
                         lambda: linear(left, right.t(), None, "none", [], ""))
                rate = rates(calls, 2e-9 * rows * summed * columns, arguments.rounds)
                print(f"| {rows} | {summed} | {columns} | {rate[0]:.0f} | {rate[1]:.0f} | {rate[1] / rate[0]:.2f} | "
                      f"{rate[2]:.0f} | {rate[3]:.0f} | {rate[3] / rate[2]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
