#!/usr/bin/env python3
"""What is known of machines and stands outside of compiler/target: sizes of caches and of shared memory, counts of
multiprocessors, registers, rates, prices of libraries' calls and, but for back-ends, kinds of GPUs. tests/lint.sh and
tests/integration/test_machine_numbers.py ask `faults` about the sources that choose code, or between two plans.
"""
import os
import re
import sys
from collections.abc import Iterator, Mapping

FOLDERS = ("compiler/artifact", "compiler/codegen", "compiler/frontend", "compiler/graph", "compiler/ir",
           "compiler/library", "compiler/lower", "compiler/passes", "compiler/schedule", "server/build")

# A definition, or a number in a comparison, by what is on its line.
BYTES = re.compile(r"\b\d+\}?u? << (?:1\d|2\d|3\d)\b|\* 1'?024\b")
LITERAL = re.compile(r"(?<![\w.'])(0x[0-9a-fA-F']+|\d[\d']*)(?![\w.'])")
PAGE = 4096  # a power of two from here on may be a cache's size
COUNTS = re.compile(r"(?<![\w.'])(?:108|114|132|142|144|148|160|216|264|296)(?![\w.'])")
RATES = re.compile(r"constexpr .*= \d[\d'.e]*;\s*//.*\b(?:cache|memory|bandwidth|nanoseconds?|a "
                   r"second|[µmn]s|library|cuDNN|oneDNN"
                   r"|MKL)\b")
# What registers hold: by the number's name, the line's words, or what it is compared with.
REGISTERS = re.compile(r"\bk\w*(?:Accumulators|InFlight|Registers?|Words)\w* = \d"
                       r"|\bconstexpr .*= \d[\d']*;\s*//.*\bregisters?\b"
                       r"|(?:registers|sums|words)_of_\w+.* (?:[<>]=?|/) \d")
PROCESSORS = re.compile(r"\bk\w*(?:Sms|Multiprocessors|Processors|Cores)\w* = \d")
GPUS = re.compile(r"\bv1::CUDA\b")  # IsGpu (target/device.h) asks
LARGE = re.compile(r"constexpr (?:double|int64_t) k\w*(?:Operations|Multiplications|Nanoseconds|Bandwidth|Rate)\w* =")

# "file: name", and what it is instead.
OTHER = {
    "compiler/codegen/constant_loads.cc: kRegisterBits": "AVX2's, which alone the pass is for",
    "compiler/codegen/cpu_failure.cc: 1 << 20": "a branch's weight",
    "compiler/codegen/random_emitter.cc: kWords": "of a counter",
    "compiler/codegen/skinny_gemm.cc: kWords": "of an access",
    "compiler/ir/half.cc: (bits >> 16)": "a sign's bit",
    "compiler/ir/half.cc: (112u << 23)": "an exponent's bias",
    "compiler/lower/index.cc: kManyBoundaries": "pieces of a cat",
    "compiler/lower/value_facts.cc: kManyUses": "a count of uses",
    "compiler/lower/reduction_loops.cc: kLargeDomain": "numerics: how a large sum is split, the same on each machine",
    "compiler/lower/random.cc: 1 << 24": "steps of a uniform F32",
    "compiler/schedule/column_threads.cc: kColumnsMin": "a sector, which all GPUs of NVIDIA move",
    "compiler/schedule/prefetch.cc: kBytesAheadMax": "what a kernel may bring, far beyond what any rule chooses",
    "compiler/schedule/skinny_schedule.h: kRowsByFmaMax": "rows that the kernel takes, on each machine",
    "compiler/schedule/skinny_schedule.h: kPartialSumsBytesMax": "static shared memory that PTX allows",
    "compiler/schedule/split_columns.cc: kStripRowsMin": "rows: of fewer a strip does not pay",
    "compiler/schedule/thread_walk.h: kLoopMax": "numbers that 32 bits keep",
    "compiler/schedule/thread_walk.h: kUsualRow": "a guess at a symbol",
}


def sources(root: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        directory = os.path.join(root, folder)
        for name in sorted(os.listdir(directory)):
            # Coefficients of functions are numbers of no machine.
            if name.endswith((".h", ".cc")) and not name.startswith("math"):
                yield f"{folder}/{name}", os.path.join(directory, name)


def is_size(literal: str) -> bool:
    value = int(literal.replace("'", ""), 0)
    return value >= PAGE and value & (value - 1) == 0


def suspicious(path: str, line: str) -> bool:
    code = line.split("//")[0]
    if GPUS.search(code) and not path.startswith("compiler/codegen/"):
        return True
    return bool(BYTES.search(code) or COUNTS.search(code) or PROCESSORS.search(code) or LARGE.search(code)
                or RATES.search(line) or REGISTERS.search(line)
                or any(is_size(found) for found in LITERAL.findall(code)))


def faults(root: str | os.PathLike[str], other: Mapping[str, str]) -> list[str]:
    """What is wrong, a line each."""
    found: list[str] = []
    used: set[str] = set()
    for path, full in sources(root):
        with open(full, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not suspicious(path, line):
                    continue
                known = [row for row in other if row.startswith(f"{path}: ") and row.split(": ")[1] in line]
                used.update(known)
                if not known:
                    found.append(f"{path}:{number}: known of machines, outside of compiler/target: {line.strip()}")
    return found + [f"tests/machine_numbers.py: nothing is {row}" for row in sorted(other.keys() - used)]


def main() -> None:
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = faults(root, OTHER)
    print("\n".join(found) or "what is known of machines: in compiler/target", file=sys.stderr if found else sys.stdout)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
