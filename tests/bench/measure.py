"""One process, one model, one task, one way of running it.

Prints a JSON line with the start, then obeys lines on its standard input, each answered by a JSON line:

  steps N   N steps: their mean in ms
  peak      high-water mark of resident memory in one step, above the size before it, in MB. What the allocator kept of
            earlier steps is freed first: else their leftovers would hide what a step takes.
  stats     kiln.stats() of the process
  fusion    loop nests and bytes of each graph (tests/bench/fusion.py); `--count-fusion` keeps what that needs

The first line has `first_s`, the seconds of the first call (training: one whole step, the import of the back-end
included), and `start_s`, the same less one later step. `--way front` is Dynamo and AOTAutograd with Inductor's
decompositions and no code generation.

Caches are wherever the environment points (TORCHINDUCTOR_CACHE_DIR, KILN_STORE): empty for a cold start.
"""
import argparse
import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fusion
import models

_WARM_UP_STEPS = 3


def _resident_mb(field: str) -> float:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def _front_end_only() -> Callable[..., Any]:
    """Dynamo and AOTAutograd with Inductor's decompositions, and no code generation."""
    import torch._inductor.lowering  # noqa: F401  (its import is part of Inductor's own start)
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    def run_as_is(graph: fx.GraphModule, _: object) -> Callable[..., Any]:
        call: Callable[..., Any] = make_boxed_func(graph.forward)
        return call

    return aot_autograd(fw_compiler=run_as_is, bw_compiler=run_as_is, decompositions=select_decomp_table(),
                        partition_fn=min_cut_rematerialization_partition)


class Runner:
    """Steps of one model, run one way."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._device = arguments.device
        self._model, self._inputs = models.build(arguments.model, arguments.task, getattr(torch, arguments.dtype),
                                                 self._device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 1e-4) if arguments.task == "train" else None
        self._way = arguments.way
        self._dynamic = arguments.dynamic or None
        self._mode = arguments.mode
        self._count_fusion = arguments.count_fusion
        self._inductor_graphs: fusion.InductorGraphs | None = None
        self._call: Callable[..., Any] = self._model

    def compile(self) -> None:
        if self._way == "front":
            self._call = torch.compile(self._model, backend=_front_end_only(), dynamic=self._dynamic)
        elif self._way != "eager":
            if self._way == "kiln":
                import kiln  # noqa: F401  (a package on the path only is not an entry point)
            elif self._count_fusion:
                self._inductor_graphs = fusion.InductorGraphs()
            self._call = torch.compile(self._model, backend=self._way, dynamic=self._dynamic, mode=self._mode)

    def fusion(self) -> list[dict[str, Any]]:
        return self._inductor_graphs.counts() if self._inductor_graphs else fusion.kiln_counts()

    def step(self) -> None:
        if self._optimizer is None:
            with torch.no_grad():
                self._call(**self._inputs)
            return
        self._optimizer.zero_grad(set_to_none=True)
        self._call(**self._inputs).loss.backward()
        self._optimizer.step()

    def steps(self, count: int) -> float:
        """Mean seconds."""
        begin = time.perf_counter()
        for _ in range(count):
            self.step()
        self.wait()
        return (time.perf_counter() - begin) / count

    def wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def _peak_mb(runner: Runner) -> float:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    resident = _resident_mb("VmRSS")
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # resets the high-water mark
    runner.step()
    runner.wait()
    return max(0.0, _resident_mb("VmHWM") - resident)


def _stats(way: str) -> dict[str, Any]:
    if way != "kiln":
        return {}
    import kiln
    return kiln.stats()


def _answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(models.GPU_MODELS))
    parser.add_argument("task", choices=["infer", "train"])
    parser.add_argument("way", choices=["eager", "inductor", "kiln", "front"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--count-fusion", action="store_true")
    parser.add_argument("--mode", help="of torch.compile, such as max-autotune")
    arguments = parser.parse_args(words)

    if arguments.device == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.cuda.init()  # the driver's own start is no part of a compiler's
    runner = Runner(arguments)
    begin = time.perf_counter()
    runner.compile()
    runner.step()
    runner.wait()
    first = time.perf_counter() - begin
    later = min(runner.steps(1) for _ in range(_WARM_UP_STEPS - 1))
    _answer({"first_s": first, "start_s": first - later, "step_ms": later * 1e3})

    for line in sys.stdin:
        words = line.split()
        if words[0] == "steps":
            _answer(runner.steps(int(words[1])) * 1e3)
        elif words[0] == "peak":
            _answer(_peak_mb(runner))
        elif words[0] == "stats":
            _answer(_stats(arguments.way))
        elif words[0] == "fusion":
            _answer(runner.fusion())
        else:
            raise SystemExit(f"unknown command {line!r}")


if __name__ == "__main__":
    main()
