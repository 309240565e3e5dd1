"""Memory-bound kernels against this machine's bandwidth, and what a call and a step cost besides their work.

Bandwidth: two threads copy by libc's memcpy, which streams past the cache; the best of the rounds. A kernel's share is
the least bytes that must move (each input once in, each output once out) over its fastest call, over that bandwidth.
Calls: a compiled function of eight elements, less the same function by a back-end that only hands back a tensor: that
is Dynamo's guard check. Steps: chains of two lengths of kernels that cannot fuse.

  tests/bench/kernels.py [--mb 256] [--rounds 5] [--json FILE]
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

WAYS = ("eager", "inductor", "kiln")
SHORT, LONG = 20, 220
VOCABULARY = 32000
_HERE = os.path.dirname(os.path.abspath(__file__))


def functions(torch, megabytes):
    """name: (function of no arguments' tensors, its inputs, least bytes that must move)"""
    functional = torch.nn.functional
    columns = 4096
    rows = megabytes * 2**20 // 4 // columns
    tokens = megabytes * 2**20 // 4 // VOCABULARY
    matrix = torch.randn(rows, columns)
    other = torch.randn(rows, columns)
    weight, bias = torch.randn(columns), torch.randn(columns)
    logits, labels = matrix.view(-1)[:tokens * VOCABULARY].view(tokens, VOCABULARY), torch.randint(
        0, VOCABULARY, (tokens,))
    size = matrix.numel() * 4
    quarter = rows // 4
    parameter, gradient = matrix[:quarter].clone(), other[:quarter].clone()
    mean, square = torch.zeros_like(parameter), torch.rand_like(parameter)

    def adam(parameter, gradient, mean, square):
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        parameter.addcdiv_(mean, square.sqrt().add_(1e-8), value=-1e-3)

    def cross_entropy_gradient(logits, labels):
        return torch.softmax(logits, -1) - functional.one_hot(labels, VOCABULARY)

    return {
        "GELU of a sum": (lambda x, y: functional.gelu(x + y), (matrix, other), 3 * size),
        "layer norm": (lambda x, w, b: functional.layer_norm(x, (columns,), w, b), (matrix, weight, bias), 2 * size),
        "softmax, rows of 4096": (lambda x: torch.softmax(x, -1), (matrix,), 2 * size),
        "softmax, rows of 32000": (lambda x: torch.softmax(x, -1), (logits,), 2 * logits.numel() * 4),
        "cross-entropy": (functional.cross_entropy, (logits, labels), logits.numel() * 4),
        "cross-entropy's gradient": (cross_entropy_gradient, (logits, labels), 2 * logits.numel() * 4),
        "Adam": (adam, (parameter, gradient, mean, square), 7 * parameter.numel() * 4),
    }


def copy_rate(megabytes):
    """Bytes a second, read and written, of the best of ten copies by as many threads as there are cores."""
    threads = os.cpu_count()
    part = megabytes * 2**20 // threads
    libc = ctypes.CDLL("libc.so.6")
    sources = [ctypes.create_string_buffer(b"\1" * part, part) for _ in range(threads)]
    targets = [ctypes.create_string_buffer(b"\2" * part, part) for _ in range(threads)]

    def copy():
        workers = [threading.Thread(target=libc.memcpy, args=(to, source, ctypes.c_size_t(part)))
                   for to, source in zip(targets, sources)]
        begin = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return time.perf_counter() - begin

    return 2 * part * threads / min(copy() for _ in range(10))


def measure_kernels(arguments):
    import torch

    calls, seconds = {}, {}
    for name, (function, inputs, least) in functions(torch, arguments.mb).items():
        for way in WAYS:
            call = function if way == "eager" else torch.compile(function, backend=way, dynamic=False)
            with torch.no_grad():
                call(*inputs)
            calls[name, way] = (call, inputs, least)
    rates = []
    for _ in range(arguments.rounds):
        rates.append(copy_rate(arguments.mb))
        for key, (call, inputs, _) in calls.items():
            with torch.no_grad():
                begin = time.perf_counter()
                call(*inputs)
                took = time.perf_counter() - begin
            seconds[key] = min(took, seconds.get(key, took))
    rates.append(copy_rate(arguments.mb))
    table = {}
    for (name, way), (_, _, least) in calls.items():
        table.setdefault(name, {})[way] = least / seconds[name, way]
    return {"copy": max(rates), "kernels": table}


def _chain(steps):
    def run(x, weights):
        for step in range(steps):
            x = (x[:, None] * weights[step % 4]).sum(0)  # each element of all of the last: never one kernel
        return x
    return run


def measure_calls():
    """Microseconds: a call over the guard check, a further step; kiln's and Inductor's."""
    import torch

    x, weights = torch.rand(8), torch.rand(4, 8, 8) / 4
    done = torch.rand(8)

    def nothing(module, inputs):
        return lambda *arguments: (done,)

    torch.set_num_threads(1)
    calls = {"guards": (torch.compile(lambda x: x + 1.5, backend=nothing), (x,))}
    for way in WAYS[1:]:
        calls[way] = (torch.compile(lambda x: x + 1.5, backend=way), (x,))
        for steps in (SHORT, LONG):
            calls[way, steps] = (torch.compile(_chain(steps), backend=way), (x, weights))
    best = {}
    with torch.no_grad():
        for _ in range(40):
            for key, (call, inputs) in calls.items():
                call(*inputs)
                begin = time.perf_counter()
                for _ in range(100):
                    call(*inputs)
                took = (time.perf_counter() - begin) / 100 * 1e6
                best[key] = min(took, best.get(key, took))  # what other processes take is never negative
    return {"guards_us": best["guards"],
            **{way: {"call_us": best[way] - best["guards"],
                     "step_us": (best[way, LONG] - best[way, SHORT]) / (LONG - SHORT)} for way in WAYS[1:]}}


def tables(result):
    calls = result["calls"]
    lines = [f"Memory-bound kernels, share of a copy's {result['copy'] / 1e9:.1f} GB/s for the least bytes:", "",
             f"| kernel | {' | '.join(WAYS)} |", "|---|---|---|---|"]
    for name, rates in result["kernels"].items():
        shares = " | ".join(f"{rates[way] / result['copy']:.2f}" for way in WAYS)
        lines.append(f"| {name} | {shares} |")
    call, step = (" / ".join(f"{calls[way][what]:.2f}" for way in WAYS[1:]) for what in ("call_us", "step_us"))
    lines += ["", f"A call of one tiny kernel over Dynamo's guard check ({calls['guards_us']:.1f} µs), Inductor / kiln: "
              f"{call} µs; each further step: {step} µs."]
    return "\n".join(lines) + "\n"


def measure(megabytes=256, rounds=7):
    """In a process of its own, whose freed memory stays with it: else fresh pages would be what is measured."""
    from cpu import stop_daemons

    with tempfile.TemporaryDirectory(prefix="kiln-bench-", ignore_cleanup_errors=True) as directory:
        environment = dict(os.environ, MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(2**40),
                           TORCHINDUCTOR_CACHE_DIR=os.path.join(directory, "inductor"),
                           KILN_STORE=os.path.join(directory, "kiln"), KILN_RUNTIME_DIR=os.path.join(directory, "run"))
        command = [sys.executable, __file__, "--one", "--mb", str(megabytes), "--rounds", str(rounds)]
        try:
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        finally:
            stop_daemons(directory)
    if done.returncode != 0:
        raise RuntimeError(f"the kernels' process ended with {done.returncode}; its message stands above")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=256, help="of the largest tensors")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        import kiln  # noqa: F401  (names the back-end)
        print(json.dumps({**measure_kernels(arguments), "calls": measure_calls()}))
        return
    result = measure(arguments.mb, arguments.rounds)
    print(tables(result), end="")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    sys.path.insert(0, _HERE)
    main()
