"""flex_attention with a causal block mask and a score bias, forward and backward, by TorchInductor and by kiln.

    flex_attention.py                    on the GPU: 2k, 4k and 8k tokens
    flex_attention.py --tokens 8192      of one length

Milliseconds of a training step and of inference, their ratio within rounds, and the peak of memory above the inputs,
which grows with the tokens, not with their square. Batch 1, 16 heads of 64, bfloat16.
"""
import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import kiln

HEADS, DIMENSION = 16, 64


def causal(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query >= key


def bias(score: torch.Tensor, batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor,
         key: torch.Tensor) -> torch.Tensor:
    return score + 0.01 * (key - query)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    return flex_attention(query * 1.25, key, value, score_mod=bias, block_mask=mask) * 2


def milliseconds(step: Callable[[], object], count: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e3


def step_of(way: str, tokens: int, training: bool) -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    inputs = [torch.randn(1, HEADS, tokens, DIMENSION, device="cuda", dtype=torch.bfloat16, requires_grad=training)
              for _ in range(3)]
    mask = create_block_mask(causal, None, None, tokens, tokens, device="cuda")
    torch._dynamo.reset()
    call: Callable[..., torch.Tensor] = torch.compile(attention, backend=way, dynamic=False)

    def step() -> torch.Tensor:
        if not training:
            with torch.no_grad():
                return call(*inputs, mask)
        for value in inputs:
            value.grad = None
        call(*inputs, mask).sum().backward()
        assert inputs[0].grad is not None
        return inputs[0].grad

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no NVIDIA GPU here")
    ways = ("inductor", "kiln")
    print("| tokens | | " + " | ".join(f"{way} ms | peak MB" for way in ways) + " | kiln ÷ inductor | largest "
                                                                                "difference |")
    print("|---" * 8 + "|")
    for tokens in arguments.tokens:
        for training in (False, True):
            steps = {way: step_of(way, tokens, training) for way in ways}
            peaks, results = {}, {}
            for way, step in steps.items():
                for _ in range(3):
                    step()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                results[way] = step().float()
                peaks[way] = (torch.cuda.max_memory_allocated() - before) / 1e6
            taken: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(arguments.rounds):
                for way in ways:
                    taken[way].append(milliseconds(steps[way], arguments.steps))
            ratios = [mine / other for mine, other in zip(taken["kiln"], taken["inductor"])]
            cells = [f"{statistics.median(taken[way]):.3f} | {peaks[way]:.0f}" for way in ways]
            difference = (results["kiln"] - results["inductor"]).abs().max() / results["inductor"].abs().max()
            print(f"| {tokens} | {'training' if training else 'inference'} | " + " | ".join(cells)
                  + f" | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {difference:.1e} |",
                  flush=True)
    calls = {reason: count["runs"] for reason, count in kiln.stats()["python"].items()}
    print(f"\ncalls of Python, by reason: {calls}; fallbacks: {kiln.stats()['fallbacks']}")


if __name__ == "__main__":
    main()
