"""What a step of a program costs besides its work: a chain of tiny kernels and library calls on the CPU.

Prints the microseconds of one layer (a gemm and a kernel of 8×8) from programs of two lengths, so that the cost of
a call itself drops out.
"""
import time
from collections.abc import Callable

import torch

import kiln

SHORT, LONG = 20, 220


def chain(layers: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(layers):
            x = torch.mm(x, w).relu() + 0.5
        return x
    return run


def main() -> None:
    torch.set_num_threads(1)
    x, w = torch.rand(8, 8), torch.rand(8, 8) / 8
    calls = [torch.compile(chain(layers), backend="kiln") for layers in (SHORT, LONG)]
    eager = [chain(layers) for layers in (SHORT, LONG)]

    def microseconds(call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> float:
        begin = time.perf_counter()
        for _ in range(50):
            call(x, w)
        return (time.perf_counter() - begin) / 50 * 1e6

    for name, pair in (("eager", eager), ("kiln", calls)):
        times: list[list[float]] = [[], []]
        for _ in range(30):
            for call, values in zip(pair, times):
                values.append(microseconds(call))
        # The fastest of each: what other processes take is never negative.
        print(f"{name}: {(min(times[1]) - min(times[0])) / (LONG - SHORT):.2f} µs a layer, "
              f"{min(times[0]):.1f} µs a call of {SHORT} layers")
    print(kiln.stats()["kernels"], "launches,", kiln.stats()["library_calls"], "library calls")


if __name__ == "__main__":
    main()
