"""What a step of a program costs besides its work: a chain of tiny kernels and library calls on the CPU.

Prints the microseconds of one layer (a product and a kernel of 8×8) from programs of two lengths, so that the cost of
a call itself drops out.
"""
import statistics
import time

import torch
import kiln  # noqa: F401  (names the back-end)

SHORT, LONG = 20, 220


def chain(layers):
    def run(x, w):
        for _ in range(layers):
            x = torch.mm(x, w).relu() + 0.5
        return x
    return run


def main():
    torch.set_num_threads(1)
    x, w = torch.rand(8, 8), torch.rand(8, 8) / 8
    calls = [torch.compile(chain(layers), backend="kiln") for layers in (SHORT, LONG)]
    eager = [chain(layers) for layers in (SHORT, LONG)]

    def microseconds(call):
        begin = time.perf_counter()
        for _ in range(50):
            call(x, w)
        return (time.perf_counter() - begin) / 50 * 1e6

    for name, pair in (("eager", eager), ("kiln", calls)):
        layers = []
        for call in pair:
            call(x, w)
        for _ in range(15):
            short, long = microseconds(pair[0]), microseconds(pair[1])
            layers.append((long - short) / (LONG - SHORT))
        print(f"{name}: {min(layers):.2f} µs a layer at best, {statistics.median(layers):.2f} median")


if __name__ == "__main__":
    main()
