"""Digests of the machine code of every kernel of captured graphs, by graph, target and kernel: what a change of the
compiler changes, and what it leaves.

    emitted.py DIRECTORY [--json FILE] [--compare OLD.json]

DIRECTORY holds captures (capture.py tells their form). Each graph is planned and emitted for CPUs and, as a graph of a
GPU, for GPUs; nothing is run, so that any machine prints what any other does. With the kernels: the program, and what
max-autotune would measure, kernels by all of their schedules and gemms by all that it would try. Ends 1 where --compare
finds a difference.
"""
from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from kiln.exported_graph import ExportedGraph

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import scale

PROGRAM = "emitted_kernels"
PRINTED_MAX = 40  # differences
MAX_AUTOTUNE = 2  # of compile.proto

Digests: TypeAlias = dict[str, dict[str, dict[str, str]]]  # by graph, target and kernel

AVX2 = ("avx2", "bmi2", "f16c", "fma")
AVX512 = ("avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "bmi2", "f16c", "fma")


# Name: (triple, features, row of compiler/target/machine.cc).
TARGETS = {
    "avx2": ("x86_64-linux-gnu", AVX2, ""),
    "avx512": ("x86_64-linux-gnu", AVX512, "intel"),
    "zen4": ("x86_64-linux-gnu", AVX512, "zen4"),
    "zen5": ("x86_64-linux-gnu", AVX512, "zen5"),
    "neon": ("aarch64-linux-gnu", ("neon",), "grace"),
    "sm_80": ("nvptx64-nvidia-cuda", ("sm_80",), ""),
    "sm_90a": ("nvptx64-nvidia-cuda", ("sm_90a",), ""),
    "a100": ("nvptx64-nvidia-cuda", ("sm_80",), "a100"),
    "h100": ("nvptx64-nvidia-cuda", ("sm_90a",), "h100"),
}


def request(graph: ExportedGraph, target: str) -> bytes:
    """A PlanRequest of a torch that has oneDNN. `graph`: of kiln.graph.export."""
    from kiln import wire

    triple, features, machine = TARGETS[target]
    on_gpu = triple.startswith("nvptx64")
    sections = [wire.uint(1, MAX_AUTOTUNE if on_gpu else 0),
                wire.data(1, triple) + b"".join(wire.data(2, feature) for feature in features) +
                (wire.data(4, machine) if machine else b""),
                wire.data(2, "highest") + wire.uint(4, not on_gpu), graph.facts]
    return (wire.data(1, b"".join(wire.data(number, section) for number, section in enumerate(sections, 1))) +
            wire.data(2, graph.graph))


class _Program:
    """The program that plans and emits, one a process."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def digests(self, message: bytes) -> dict[str, str]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(struct.pack("<I", len(message)) + message)
        self._process.stdin.flush()
        found: dict[str, str] = {}
        while (line := self._process.stdout.readline().decode()) not in ("\n", ""):
            name, digest = line.rstrip("\n").split(" ", 1)
            count = sum(known.split("#")[0] == name for known in found)
            found[f"{name}#{count}" if count else name] = digest
        if not line:
            raise RuntimeError(f"{PROGRAM} ended with {self._process.wait()}")
        return found


_program: _Program | None = None


def _start(path: str) -> None:
    global _program
    _program = _Program(path)


def of_file(path: str, name: str, targets: list[str]) -> Digests:
    """{graph: {target: {kernel: digest}}} of one capture; {"error": message} in the place of one that fails."""
    import torch

    import capture
    from kiln import errors, graph

    found: Digests = {}
    try:
        read = capture.read(path)
    except ValueError as error:
        return {name: {target: {"error": f"not read: {error}"} for target in targets}}
    for number, one in enumerate(read):
        exported = {}
        for target in targets:
            gpu = torch.device("cuda", 0) if TARGETS[target][0].startswith("nvptx64") else None
            try:
                if gpu not in exported:
                    exported[gpu] = graph.export(one.module, one.kind, title=name, gpu=gpu)
                assert _program is not None
                digests = _program.digests(request(exported[gpu], target))
            except errors.Unsupported as error:
                digests = {"error": str(error)}
            found.setdefault(f"{name} {number}", {})[target] = digests
    return found


def collect(directory: str, paths: list[str], targets: list[str], program: str, processes: int) -> Digests:
    names = [os.path.relpath(path, directory).removesuffix(".json.gz") for path in paths]
    # The largest first, so that no process is left alone with one.
    order = sorted(zip(paths, names), key=lambda pair: (-os.path.getsize(pair[0]), pair[1]))
    found = {}
    with concurrent.futures.ProcessPoolExecutor(processes, initializer=_start, initargs=(program,)) as pool:
        for part in pool.map(of_file, *zip(*((path, name, targets) for path, name in order))):
            found.update(part)
    return {name: found[name] for name in sorted(found)}


def differences(old: Digests, new: Digests) -> list[tuple[str, str, str, str]]:
    """[(graph, target, kernel, what)] of what both were asked for."""
    found = []
    for name in sorted(old.keys() & new.keys()):
        for target in sorted(old[name].keys() & new[name].keys()):
            was, now = old[name][target], new[name][target]
            for kernel in sorted(was.keys() | now.keys()):
                if was.get(kernel) != now.get(kernel):
                    what = "new" if kernel not in was else "gone" if kernel not in now else "changed"
                    found.append((name, target, kernel, what))
    return found


def report(found: list[tuple[str, str, str, str]]) -> None:
    for name, target, kernel, what in found[:PRINTED_MAX]:
        print(f"{name}: {target}: {kernel}: {what}")
    if len(found) > PRINTED_MAX:
        print(f"… and {len(found) - PRINTED_MAX} more")
    by_target = collections.Counter(target for _, target, _, _ in found)
    print("differences: " + (", ".join(f"{by_target[target]} of {target}" for target in sorted(by_target)) or "none"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="of captures")
    parser.add_argument("--only", default="", metavar="TEXT", help="files whose name holds this text")
    parser.add_argument("--targets", default=",".join(TARGETS), help="of " + ", ".join(TARGETS))
    parser.add_argument("--json", metavar="FILE", help="file for the digests")
    parser.add_argument("--compare", metavar="OLD.json", help="prints what differs from it")
    parser.add_argument("--build", default=os.environ.get("KILN_BUILD", "build"), help="directory; default: build")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    program = os.path.join(arguments.build, "bin", PROGRAM)
    targets = arguments.targets.split(",")
    if unknown := set(targets) - TARGETS.keys():
        parser.error(f"no such targets: {', '.join(sorted(unknown))}")
    if not os.path.exists(program):
        parser.error(f"{program} is missing: cmake --build {arguments.build} --target {PROGRAM}")
    try:
        paths = scale.captures(arguments.directory, arguments.only)
    except ValueError as error:
        parser.error(str(error))
    start = time.perf_counter()
    found = collect(arguments.directory, paths, targets, program, arguments.processes)
    digests = [text for graph in found.values() for target in graph.values() for text in target.items()]
    failed = [text for text in digests if text[0] == "error"]
    print(f"{len(found)} graphs, {len(targets)} targets, {len(digests) - len(failed)} digests, {len(failed)} errors, "
          f"{time.perf_counter() - start:.0f} s")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=0, sort_keys=True)
    if not arguments.compare:
        return 0
    with open(arguments.compare) as file:
        changed = differences(json.load(file), found)
    report(changed)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
