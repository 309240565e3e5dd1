"""Memory-bound kernels against this machine's bandwidth, and what a call and a step cost besides their work.

A kernel's rate is the least bytes that must move (each input once in, each output once out) over its time. Its roof is
the rate of bare loops with the same mix of reads and writes over the kernel's own tensors and on the threads that it
runs on (bandwidth.c: the best of four ways to walk them), taken right before and after each call; so a share is a ratio
within a moment, and the median over the rounds is what a machine that is shared with others cannot disturb much. Beside
them stands what eager's and Inductor's versions reach, and libc's memcpy. Where a row's result needs the whole row
first, so that a row is read twice, the column "bare loops that read twice" has the share of bare loops that do that and
nothing else: they copy each number one row after they have read it, or where kiln's own kernel makes it, eight rows of
a layer norm after.
Calls: a compiled function of eight elements, less the same function by a back-end that only hands back a tensor: that
is Dynamo's guard check. Steps: chains of two lengths of kernels that cannot fuse.

  tests/bench/kernels.py [--mb 512] [--rounds 15] [--kernels gelu,softmax] [--ways kiln] [--json FILE]

On one thread with OMP_NUM_THREADS=1. Of a run of each pages.py makes docs/benchmarks/cpu-kernels.md.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor, fx

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import c_library
from facts import facts, said, wrapped

WAYS = ("eager", "inductor", "kiln")
SHORT, LONG = 20, 220
VOCABULARY = 32000
WALKS = ("in one stream", "in four streams", "a page ahead", "once")  # `enum Way` of bandwidth.c
BANDWIDTH_FLAGS = ("-O3", "-mavx2")
FRESH_PAGES_MAX, FRESH_CALLS_MAX = 64, 10  # a call's own bookkeeping takes a few pages; memory comes back in turns
READ, COPY, SUM, UPDATE, LATE = range(5)  # as in bandwidth.c
MIXES = ("read", "copy", "read two, write one", "read four, write three")
MOVED = (1, 2, 3, 7)  # buffers read and written in a pass of each
Calls: TypeAlias = "dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]"  # by way: a function, its inputs
_HERE = os.path.dirname(os.path.abspath(__file__))


class Kernel(typing.NamedTuple):
    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    mix: int
    large: tuple[Tensor, ...]  # of the inputs: what comes from memory
    lag: int = 0  # numbers between the first read of one and the second; 0: it is read once

    @property
    def least(self) -> int:
        """Bytes that must move."""
        return MOVED[self.mix] * self.large[0].numel() * 4


def functions(torch: types.ModuleType, megabytes: int) -> dict[str, Kernel]:
    """Kernels by name."""
    functional = torch.nn.functional
    columns = 4096
    rows = megabytes * 2**20 // 4 // columns
    tokens = megabytes * 2**20 // 4 // VOCABULARY
    matrix = torch.randn(rows, columns)
    other = torch.randn(rows, columns)
    weight, bias = torch.randn(columns), torch.randn(columns)
    logits, labels = matrix.view(-1)[:tokens * VOCABULARY].view(tokens, VOCABULARY), torch.randint(
        0, VOCABULARY, (tokens,))
    quarter = rows // 4
    parameter, gradient = matrix[:quarter].clone(), other[:quarter].clone()
    mean, square = torch.zeros_like(parameter), torch.rand_like(parameter)

    def adam(parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor) -> None:
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        parameter.addcdiv_(mean, square.sqrt().add_(1e-8), value=-1e-3)

    def cross_entropy_gradient(logits: Tensor, labels: Tensor) -> Tensor:
        gradient: Tensor = torch.softmax(logits, -1) - functional.one_hot(labels, VOCABULARY)
        return gradient

    return {
        "sum": Kernel(lambda x, y: x + y, (matrix, other), SUM, (matrix, other)),
        "GELU of a sum": Kernel(lambda x, y: functional.gelu(x + y), (matrix, other), SUM, (matrix, other)),
        "layer norm": Kernel(lambda x, w, b: functional.layer_norm(x, (columns,), w, b), (matrix, weight, bias), COPY,
                             (matrix,), 8 * columns),
        "softmax, rows of 4096": Kernel(lambda x: torch.softmax(x, -1), (matrix,), COPY, (matrix,), columns),
        "softmax, rows of 32000": Kernel(lambda x: torch.softmax(x, -1), (logits,), COPY, (logits,), VOCABULARY),
        "cross-entropy": Kernel(functional.cross_entropy, (logits, labels), READ, (logits,)),
        "cross-entropy's gradient": Kernel(cross_entropy_gradient, (logits, labels), COPY, (logits,), VOCABULARY),
        "Adam": Kernel(adam, (parameter, gradient, mean, square), UPDATE, (gradient, parameter, mean, square)),
    }


class Roof:
    """Seconds that bare loops of one mix take over some tensors and a result of their size. That is the last result of
    the kernel itself: how fast memory is depends on where in the machine its pages lie."""

    _library: ctypes.CDLL | None = None
    _threads: tuple[ctypes.c_void_p, ...] = ()

    def __init__(self, torch: types.ModuleType, mix: int, tensors: Sequence[Tensor]) -> None:
        if Roof._library is None:
            Roof._library, Roof._threads = _bandwidth(), _openmp()
        self.mix, self.count, self.threads = mix, tensors[0].numel(), torch.get_num_threads()
        self._tensors = list(tensors)  # which the addresses below belong to
        self._result: Tensor | None = None

    def give_up(self) -> None:
        """The result's memory, so that the next call's lies in it again."""
        self._result = None

    def take(self, result: Tensor) -> None:
        if self.mix in (COPY, SUM) and result.numel() != self.count:
            raise RuntimeError("a result of another size than its kernel's tensors")
        self._result = result

    def seconds(self, walk: str, lag: int = 0) -> float:
        assert Roof._library
        addresses = [tensor.data_ptr() for tensor in self._tensors]
        if self.mix in (COPY, SUM):
            assert self._result is not None
            addresses.append(self._result.data_ptr())
        took = Roof._library.PassSeconds(*Roof._threads, LATE if lag else self.mix, WALKS.index(walk),
                                         ctypes.c_size_t(lag), (ctypes.c_void_p * 4)(*addresses),
                                         ctypes.c_size_t(self.count), self.threads)
        if took < 0:
            raise RuntimeError("a bare loop over memory failed")
        return float(took)


def _openmp() -> tuple[ctypes.c_void_p, ...]:
    """Functions of torch's own OpenMP runtime: that runs a team, that gives a thread's number in it."""
    runtime = c_library.loaded("libgomp")
    return tuple(ctypes.cast(function, ctypes.c_void_p)
                 for function in (runtime.GOMP_parallel, runtime.omp_get_thread_num))


def _bandwidth() -> ctypes.CDLL:
    library = c_library.compiled("bandwidth.c", *BANDWIDTH_FLAGS)
    library.PassSeconds.restype = ctypes.c_double
    return library


def copy_rate(megabytes: int) -> float:
    """Bytes a second, read and written, of the best of ten copies by as many threads as there are cores."""
    threads = os.cpu_count() or 1
    part = megabytes * 2**20 // threads
    libc = ctypes.CDLL("libc.so.6")
    sources = [ctypes.create_string_buffer(b"\1" * part, part) for _ in range(threads)]
    targets = [ctypes.create_string_buffer(b"\2" * part, part) for _ in range(threads)]

    def copy() -> float:
        workers = [threading.Thread(target=libc.memcpy, args=(to, source, ctypes.c_size_t(part)))
                   for to, source in zip(targets, sources)]
        begin = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return time.perf_counter() - begin

    return 2 * part * threads / min(copy() for _ in range(10))


def _seconds(torch: types.ModuleType, call: Callable[..., Tensor], inputs: tuple[Tensor, ...], roof: Roof) -> float:
    """Of a call whose result lies where memory has been in use: one that met fresh pages is repeated."""
    for _ in range(FRESH_CALLS_MAX):
        roof.give_up()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with torch.no_grad():
            begin = time.perf_counter()
            result = call(*inputs)
            took = time.perf_counter() - begin
        roof.take(result)
        del result
        if resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < FRESH_PAGES_MAX:
            break
    return took


def _rounds_of(torch: types.ModuleType, calls: Calls, roof: Roof, lag: int,
               rounds: int) -> tuple[dict[str, list[float]], dict[str, list[list[float]]]]:
    """Seconds of each way and, for each way of walking memory, of the bare loops around it, then of those that read
    twice; a row a round."""
    taken: dict[str, list[float]] = {way: [] for way in calls}
    bare: dict[str, list[list[float]]] = {way: [] for way in calls}

    def passes() -> list[float]:
        return [roof.seconds(walk, late) for late in ([0, lag] if lag else [0]) for walk in WALKS]

    for _ in range(rounds):
        before = passes()
        for way, (call, inputs) in calls.items():
            taken[way].append(_seconds(torch, call, inputs, roof))
            after = passes()
            bare[way].append([(first + last) / 2 for first, last in zip(before, after)])
            before = after
    return taken, bare


def measure_kernels(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    chosen = {name: row for name, row in functions(torch, arguments.mb).items()
              if not arguments.kernels or any(part in name.lower() for part in arguments.kernels.lower().split(","))}
    table = {}
    for name, kernel in chosen.items():
        calls, roof = {}, Roof(torch, kernel.mix, kernel.large)
        for way in arguments.ways.split(","):
            compiled = kernel.function if way == "eager" else torch.compile(kernel.function, backend=way, dynamic=False)
            calls[way] = (compiled, kernel.inputs)
            for _ in range(2):
                _seconds(torch, *calls[way], roof)
        taken, bare = _rounds_of(torch, calls, roof, kernel.lag, arguments.rounds)
        everywhere = [row for rows in bare.values() for row in rows]
        walks = [statistics.median(walk) for walk in zip(*everywhere)]
        best = walks.index(min(walks[:len(WALKS)]))
        row = {"mix": MIXES[kernel.mix], "roof": kernel.least / walks[best], "walk": WALKS[best], "ways": {}}
        if kernel.lag:
            twice = walks.index(min(walks[len(WALKS):]), len(WALKS))
            row["read_twice"] = statistics.median(around[best] / around[twice] for around in everywhere)
        for way in calls:
            shares = sorted(around[best] / took for around, took in zip(bare[way], taken[way]))
            row["ways"][way] = {"rate": kernel.least / statistics.median(taken[way]),
                                "share": statistics.median(shares),
                                "quartiles": [shares[len(shares) // 4], shares[-1 - len(shares) // 4]]}
        table[name] = row
    return {"memcpy": copy_rate(arguments.mb), "kernels": table, "threads": torch.get_num_threads(),
            "mb": arguments.mb}


def _chain(steps: int) -> Callable[[Tensor, Tensor], Tensor]:
    def run(x: Tensor, weights: Tensor) -> Tensor:
        for step in range(steps):
            x = (x[:, None] * weights[step % 4]).sum(0)  # each element of all of the last: never one kernel
        return x
    return run


def measure_calls() -> dict[str, Any]:
    """Microseconds: a call over the guard check, a further step; kiln's and Inductor's."""
    import torch

    x, weights = torch.rand(8), torch.rand(4, 8, 8) / 4
    done = torch.rand(8)

    def nothing(module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        return lambda *arguments: (done,)

    torch.set_num_threads(1)
    guarded: Callable[[Tensor], Tensor] = lambda x: x + 1.5
    tiny: Callable[[Tensor], Tensor] = lambda x: x + 1.5  # another code object: Dynamo guards each by itself
    calls: dict[Any, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {  # by way, and by (way, steps)
        "guards": (torch.compile(guarded, backend=nothing), (x,))}
    for way in WAYS[1:]:
        calls[way] = (torch.compile(tiny, backend=way), (x,))
        for steps in (SHORT, LONG):
            calls[way, steps] = (torch.compile(_chain(steps), backend=way), (x, weights))
    best: dict[Any, float] = {}
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


def tables(result: dict[str, Any]) -> str:
    rows = result["kernels"]
    ways = [way for way in WAYS if all(way in row["ways"] for row in rows.values())]
    lines = [wrapped("Memory-bound kernels: least bytes a second as a share of bare loops of the same mix (its "
                     f"quartiles); libc's memcpy moves {result['memcpy'] / 1e9:.1f} GB/s at best:"), "",
             f"| kernel | mix | roof GB/s | bare loops that read twice | {' | '.join(ways)} | {ways[-1]} GB/s |",
             "|---|---|---|---|" + "---|" * (len(ways) + 1)]
    for name, row in rows.items():
        shares = " | ".join("{share:.2f} ({quartiles[0]:.2f}–{quartiles[1]:.2f})".format(**row["ways"][way])
                            for way in ways)
        rate = row["ways"][ways[-1]]["rate"] / 1e9
        twice = f"{row['read_twice']:.2f}" if "read_twice" in row else "–"
        lines.append(f"| {name} | {row['mix']} | {row['roof'] / 1e9:.1f} | {twice} | {shares} | {rate:.1f} |")
    if "calls" in result:
        calls = result["calls"]
        call, step = (" / ".join(f"{calls[way][what]:.2f}" for way in WAYS[1:]) for what in ("call_us", "step_us"))
        lines += ["", wrapped(f"A call of one tiny kernel over Dynamo's guard check ({calls['guards_us']:.1f} µs), "
                              f"Inductor / kiln: {call} µs; each further step: {step} µs.")]
    return "\n".join(lines) + "\n"


READING = """\
A share is the least bytes a second that the kernel must move over those of bare loops with the same mix of reads and
writes, over the same memory and on the same threads; medians, quartiles in parentheses. "Bare loops that read twice"
read each row once more from the cache, as the kernel must, and do nothing else.

What memory gives two threads depends on where the host runs them: where they share a third-level cache they share its
link to memory; where they do not, each moves what one core can move. What other processors have shown:
[decisions/0037](../decisions/0037-tables-say-one-run.md)."""


def page(reports: list[dict[str, Any]]) -> str:
    """docs/benchmarks/cpu-kernels.md: a section for each number of threads."""
    parts = ["# CPU: memory-bound kernels, calls", READING]
    for report in reports:
        threads = report["threads"]
        parts += [f"## {threads} thread{'s' if threads > 1 else ''}",
                  said(report["facts"], f"tensors of {report['mb']} MiB"), tables(report).rstrip("\n")]
    return "\n\n".join(parts) + "\n"


def measure(megabytes: int = 512, rounds: int = 15, *options: str) -> dict[str, Any]:
    """In a process of its own, whose freed memory stays with it: else fresh pages would be what is measured."""
    from cpu import stop_daemons

    with tempfile.TemporaryDirectory(prefix="kiln-bench-", ignore_cleanup_errors=True) as directory:
        environment = dict(os.environ, MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(2**40),
                           TORCHINDUCTOR_CACHE_DIR=os.path.join(directory, "inductor"),
                           KILN_STORE=os.path.join(directory, "kiln"), KILN_RUNTIME_DIR=os.path.join(directory, "run"),
                           KILN_FALLBACK="error")
        command = [sys.executable, __file__, "--one", "--mb", str(megabytes), "--rounds", str(rounds), *options]
        try:
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        finally:
            stop_daemons(directory)
    if done.returncode != 0:
        raise RuntimeError(f"the kernels' process ended with {done.returncode}; its message stands above")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=512,
                        help="of the largest tensors; of each time 0.2 to 0.3 ms are a call's own, its code out of the "
                             "cache")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kernels", default="", help="parts of the names of those to run; then calls are not measured")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not set(arguments.ways.split(",")) <= set(WAYS):
        parser.error(f"--ways: some of {', '.join(WAYS)}")
    if arguments.one:
        import kiln  # noqa: F401  (names the back-end)
        result = measure_kernels(arguments)
        if not arguments.kernels and arguments.ways == ",".join(WAYS):
            result["calls"] = measure_calls()
        print(json.dumps(result))
        return
    result = measure(arguments.mb, arguments.rounds, "--kernels", arguments.kernels, "--ways", arguments.ways)
    print(tables(result), end="")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"facts": facts("tests/bench/kernels.py", sys.argv[1:]), **result}, file, indent=1)


if __name__ == "__main__":
    sys.path.insert(0, _HERE)
    main()
