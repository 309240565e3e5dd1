"""One process, one model, one task, one way of running it; prints one JSON line.

  first_s   seconds of the first call (training: one whole step)
  start_s   first_s less one later step
  step_ms   median of the means of `rounds` rounds of later steps
  peak_mb   high-water mark of resident memory above the size after warm-up, over three more steps
  kiln      kiln.stats() of the process

Caches are wherever the environment points (TORCHINDUCTOR_CACHE_DIR, KILN_STORE): empty for a cold run.
"""
import argparse
import json
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402


def _resident_mb(field):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def _front_end_only():
    """Dynamo and AOTAutograd with Inductor's decompositions, and no code generation."""
    import torch._inductor.lowering  # noqa: F401  (its import is part of Inductor's own start)
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    def run_as_is(graph, _):
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=run_as_is, bw_compiler=run_as_is, decompositions=select_decomp_table(),
                        partition_fn=min_cut_rematerialization_partition)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(models.MODELS))
    parser.add_argument("task", choices=["infer", "train"])
    parser.add_argument("way", choices=["eager", "inductor", "kiln", "front"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timed steps, about")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()

    model, inputs = models.build(arguments.model, arguments.task, getattr(torch, arguments.dtype))
    training = arguments.task == "train"
    optimizer = torch.optim.SGD(model.parameters(), 1e-4) if training else None
    call = model
    if arguments.way == "front":
        call = torch.compile(model, backend=_front_end_only())
    elif arguments.way != "eager":
        call = torch.compile(model, backend=arguments.way, dynamic=arguments.dynamic or None)

    def step():
        if not training:
            with torch.no_grad():
                return call(**inputs)
        optimizer.zero_grad(set_to_none=True)
        loss = call(**inputs).loss
        loss.backward()
        optimizer.step()
        return loss

    def timed(count):
        begin = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - begin) / count

    row = {"model": arguments.model, "task": arguments.task, "way": arguments.way, "dtype": arguments.dtype}
    row["first_s"] = timed(1)
    step()
    once = timed(1)
    count = 1 if arguments.way == "front" else max(1, int(arguments.seconds / arguments.rounds / once))
    row["step_ms"] = statistics.median(timed(count) for _ in range(arguments.rounds)) * 1e3
    row["start_s"] = row["first_s"] - row["step_ms"] / 1e3
    resident = _resident_mb("VmRSS")
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # resets the high-water mark
    timed(3)
    row["peak_mb"] = _resident_mb("VmHWM") - resident
    if arguments.way == "kiln":
        import kiln
        row["kiln"] = kiln.stats()
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
