"""A step of torch's optimizers, eager, by TorchInductor and by kiln: milliseconds, and ratios within rounds.

    optimizers.py                        on the GPU where there is one, else on the CPU
    optimizers.py --device cpu --quick   AdamW alone, few rounds
    optimizers.py --clip                 the gradients are clipped by their norm before

On a GPU the parameters are those of BERT-base (199 tensors, 110 million elements), `capturable` where the class has it;
on the CPU 60 tensors of 4,096 to 28,672 elements. Each way has parameters of its own; ways take turns in each round; a
round is the mean of its steps, waited for at the end.
"""
import argparse
import inspect
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

import kiln

Shapes: TypeAlias = list[tuple[int, ...]]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9}, "Adam": {}, "AdamW": {}, "Adagrad": {}, "RMSprop": {}, "NAdam": {}}


def bert_shapes(hidden: int = 768, layers: int = 12, inner: int = 3072, words: int = 30522) -> Shapes:
    shapes: Shapes = [(words, hidden), (512, hidden), (2, hidden), (hidden,), (hidden,)]
    layer = [(hidden, hidden), (hidden,)] * 4 + [(hidden,), (hidden,), (inner, hidden), (inner,), (hidden, inner),
                                                 (hidden,),
                                                 (hidden,), (hidden,)]
    return shapes + layer * layers + [(hidden, hidden), (hidden,)]


def step_of(name: str, way: str, shapes: Shapes, device: str, mode: str | None, clip: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 0.01
    options = dict(OPTIMIZERS[name], lr=1e-3, foreach=True)
    kind = getattr(torch.optim, name)
    if device == "cuda" and "capturable" in inspect.signature(kind).parameters:
        options["capturable"] = True
    optimizer = kind(parameters, **options)

    def step() -> None:
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()

    torch._dynamo.reset()
    return step if way == "eager" else torch.compile(step, backend=way, mode=mode)


def milliseconds(step: Callable[[], None], count: int, wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return (time.perf_counter() - start) / count * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--mode", help="of torch.compile, reduce-overhead for one")
    parser.add_argument("--ways", default="eager,inductor,kiln")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--clip", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    ways = arguments.ways.split(",")
    names = ["AdamW"] if arguments.quick else arguments.optimizers.split(",")
    rounds = 3 if arguments.quick else arguments.rounds
    wait: Callable[[], None] = torch.cuda.synchronize if arguments.device == "cuda" else lambda: None
    shapes: Shapes = bert_shapes() if arguments.device == "cuda" else [(64 * (1 + i % 7), 64) for i in range(60)]
    others = [way for way in ways if way != "kiln"]
    print(f"{len(shapes)} tensors, {sum(torch.Size(shape).numel() for shape in shapes):,} elements on "
          f"{arguments.device}, "
          f"{rounds} rounds of {arguments.steps} steps, mode {arguments.mode}\n")
    print("| | " + " | ".join(f"{way} ms" for way in ways) + " | kiln's launches | first step s | "
          + " | ".join(f"kiln ÷ {way}" for way in others) + " |")
    print("|---" * (3 + len(ways) + len(others)) + "|")
    for name in names:
        steps, first, launches = {}, 0.0, 0
        for way in ways:
            steps[way] = step_of(name, way, shapes, arguments.device, arguments.mode, arguments.clip)
            start = time.perf_counter()
            steps[way]()
            wait()
            if way == "kiln":
                first = time.perf_counter() - start
            for _ in range(4):
                steps[way]()
        before = kiln.stats().get("kernel_launches", 0)
        if "kiln" in steps:
            steps["kiln"]()
            launches = kiln.stats()["kernel_launches"] - before
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way in ways:
                taken[way].append(milliseconds(steps[way], arguments.steps, wait))
        cells = [f"{statistics.median(taken[way]):.3f}" for way in ways] + [str(launches), f"{first:.1f}"]
        for way in others:
            ratios = [mine / other for mine, other in zip(taken["kiln"], taken[way])]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
