"""Kernels that are far from what memory and launches allow.

    roof.py DIRECTORY [--only TEXT]     captured graphs (capture.py) on the CPU, random inputs
    roof.py --models [--only TEXT]      on the GPU: the models of h200.sh, EfficientNet-B0, Whisper's encoder

Lists each native kernel that takes more than 1 % of its graphs' time and more than 10 × the larger of its bytes by the
rate of a copy and of an empty launch. Bytes are the least that the kernel has to move; arithmetic has no roof here, so
that a kernel of many exponentials may be listed for no fault. Times are the fastest of several runs; on a GPU each
step is waited for, and an empty launch as well. Exits 1 if any is listed that has no reason below.
"""
import argparse
import functools
import glob
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

import kiln
from kiln.profile import Line

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import capture
import models

Step: TypeAlias = Callable[[], object]

SHARE, FACTOR, RUNS = 0.01, 10.0, 5

# Patterns of "graph: kernel", and why it is as it is.
REASONS: list[tuple[str, str]] = []


def copy_rate(device: str) -> float:
    """Bytes read and written a second by a copy, the best of several."""
    size = (1 << 30) if device == "cuda" else (256 << 20)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    to = torch.empty_like(source)
    best = float("inf")
    for _ in range(6):
        wait(device)
        start = time.perf_counter()
        to.copy_(source)
        wait(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size / best


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def empty_launch(device: str) -> float:
    """Seconds of a kernel that does next to nothing, as the profile sees it."""
    tiny = torch.zeros(8, device=device)
    function = torch.compile(lambda x: x + 1, backend="kiln")
    function(tiny)
    with kiln.profile() as profile:
        for _ in range(100):
            function(tiny)
    return min(line.least_seconds for line in profile.lines if line.kernel is not None)


def profiled(step: Step) -> list[Line]:
    for _ in range(3):
        step()
    with kiln.profile() as profile:
        for _ in range(RUNS):
            step()
    return profile.lines


def far(lines: list[Line], rate: float, launch: float) -> Iterator[tuple[float, float, Line]]:
    """(share, factor, line) of what is listed."""
    total = sum(line.least_seconds for line in lines) or 1.0
    for line in lines:
        if line.kernel is None:
            continue
        steps = max(line.runs // RUNS, 1)
        roof = max(line.bytes / rate, steps * launch)
        if line.least_seconds > SHARE * total and line.least_seconds > FACTOR * roof:
            yield line.least_seconds / total, line.least_seconds / roof, line


def known(value: Any) -> int:
    """An integer; of a symbolic one its hint."""
    return value if isinstance(value, int) else value.node.hint


def random_input(fake: Any) -> Any:
    if not isinstance(fake, torch.Tensor):
        return known(fake)
    sizes, strides = ([known(n) for n in values] for values in (fake.shape, fake.stride()))
    tensor = torch.empty_strided(sizes, strides, dtype=fake.dtype)
    # Zero is an index of every table.
    return tensor.normal_().abs_() if fake.dtype.is_floating_point else tensor.zero_()


def captured(directory: str, only: str) -> Iterator[tuple[str, Step]]:
    from kiln import backend, options

    for path in sorted(glob.glob(os.path.join(directory, "**", "*.json.gz"), recursive=True)):
        name = os.path.relpath(path, directory)[:-len(".json.gz")]
        if only not in name:
            continue
        try:
            found = capture.read(path)
        except ValueError as error:
            print(f"{name}: not read: {error}", file=sys.stderr)
            continue
        for number, graph in enumerate(found):
            compiled = backend.compile_graph(graph.module, graph.inputs, graph.kind, options.parse(None, None))
            inputs = [random_input(fake) for fake in graph.inputs]

            def step(compiled: Callable[..., Any] = compiled, inputs: list[Any] = inputs) -> None:
                compiled([value.clone() if isinstance(value, torch.Tensor) else value for value in inputs])

            yield f"{name} {number}", step


def efficientnet() -> Step:
    import torchvision
    model = torchvision.models.efficientnet_b0().cuda().to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (64,), device="cuda")
    call: Callable[..., Any] = torch.compile(model, backend="kiln")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(call(images), labels)
        loss.backward()

    return step


def whisper() -> Step:
    import transformers

    config = transformers.WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048)
    encoder: torch.nn.Module = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)
    encoder = encoder.cuda().half().eval()
    sound = torch.randn(1, 80, 3000, device="cuda", dtype=torch.float16)
    call = torch.compile(encoder, backend="kiln")

    def step() -> None:
        with torch.no_grad():
            call(sound)

    return step


def on_gpu(only: str) -> Iterator[tuple[str, Step]]:
    rows: dict[str, Callable[[], Step]] = {
        "efficientnet_b0.train.float16": efficientnet, "whisper.infer.float16": whisper}
    for name in sorted(set(models.GPU_MODELS) - {"detr"}):  # has no labels
        rows[f"{name}.train.bfloat16"] = functools.partial(training, name)
    for name, make in rows.items():
        if only in name:
            torch._dynamo.reset()
            torch.manual_seed(0)
            yield name, make()


def training(name: str) -> Step:
    model, inputs = models.build(name, "train", torch.bfloat16, "cuda")
    call = torch.compile(model, backend="kiln")
    return lambda: call(**inputs).loss.backward()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", help="of captures")
    parser.add_argument("--models", action="store_true", help="the GPU's instead")
    parser.add_argument("--only", default="", metavar="TEXT", help="what has it in its name")
    arguments = parser.parse_args()
    if bool(arguments.directory) == arguments.models:
        parser.error("a directory of captures, or --models")
    if arguments.models and not torch.cuda.is_available():
        parser.error("--models needs an NVIDIA GPU")
    device = "cuda" if arguments.models else "cpu"
    rate, launch = copy_rate(device), empty_launch(device)
    print(f"A copy moves {rate / 1e9:.0f} GB/s, an empty launch takes {launch * 1e6:.1f} µs.\n")
    print("| graph | kernel | operators | µs | share | × roof | GB/s | reason |\n|---|---|---|---|---|---|---|---|")
    unexplained = count = 0
    for name, step in (on_gpu(arguments.only) if arguments.models else captured(arguments.directory, arguments.only)):
        count += 1
        for share, factor, line in far(profiled(step), rate, launch):
            what = f"{name}: {line.name}"
            reason = next((why for pattern, why in REASONS if re.search(pattern, what)), "")
            unexplained += not reason
            operators = " ".join(dict.fromkeys(line.operators))
            print(f"| {name} | {line.name} | {operators[:80]} | {line.least_seconds * 1e6:.0f} | {share:.1%} | "
                  f"{factor:.0f} | "
                  f"{line.gigabytes_per_second:.1f} | {reason} |", flush=True)
    print(f"\n{count} graphs or models, {unexplained} kernels without a reason")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
