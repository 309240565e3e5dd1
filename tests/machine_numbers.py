#!/usr/bin/env python3
"""What is known of machines and stands outside of compiler/target: sizes of caches and of shared memory, counts of
multiprocessors, registers, rates, prices of libraries' calls and, but for back-ends, kinds of GPUs; and in the folders
that ask the cost model, from where on something pays. tests/lint.sh and tests/integration/test_machine_numbers.py ask
`faults` about the sources that choose code, or between two plans.
"""
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping

FOLDERS = ("client/runtime", "client/tuner", "compiler/artifact", "compiler/codegen", "compiler/frontend",
           "compiler/graph", "compiler/ir", "compiler/library", "compiler/lower", "compiler/passes",
           "compiler/schedule", "server/build")

# A literal, or a product of them and of units: `int64_t{16} << 20`, `50 * 1000 * 1000`, `kMiB * 16`.
LITERAL = r"(?:0[xX][\da-fA-F']+|0[bB][01']+|\d[\d']*(?:\.\d*)?(?:[eE][+-]?\d+)?)[uUlLfF]*"
TERM = rf"(?:\b\w+\{{{LITERAL}\}}|(?<![\w.']){LITERAL}(?![\w.'])|\bk[KMGT]i?B\b)"
PRODUCT = re.compile(rf"{TERM}(?:\s*(?:\*|<<)\s*{TERM})*")
BYTES = re.compile(r"\* 1'?024\b|\b\d+\}?u? << (?:1\d|2\d|3\d)\b")
ROUNDING = re.compile(r"/ (\d+) \* \1\b")
UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}
PAGE = 4096  # a power of two from here on may be a cache's size
LARGE = range(10_000, 10 ** 13)  # any other number may be a size, a rate or a count of operations
COUNTS = (108, 114, 132, 142, 144, 148, 160, 216, 264, 296)
DEFINITION = re.compile(r"\b(k[A-Z]\w*)(?: = |\{)")
# With the comment beside a definition, or on the lines above it.
RATES = re.compile(r"constexpr .*= \d[\d'.e]*;.*//.*\b(?:cache|memory|bandwidth|nanoseconds?|a second|[µmn]s|library"
                   r"|cuDNN|oneDNN|MKL)\b")
# What registers hold: by the number's name, the line's words, or what it is compared with.
REGISTERS = re.compile(r"\bk\w*(?:Accumulators|InFlight|Registers?|Words)\w* = \d"
                       r"|\bconstexpr .*= \d[\d']*;.*//.*\bregisters?\b"
                       r"|(?:registers|sums|words)_of_\w+.* (?:[<>]=?|/) \d")
PROCESSORS = re.compile(r"\bk\w*(?:Sms|Multiprocessors|Processors|Cores)\w* = \d")
PRICES = re.compile(r"\bk\w*(?:Operations|Multiplications|Nanoseconds|Ns|Launch|Bandwidth|Rate)(?![a-z])\w* = \d")
# By name: from where on something pays, as cost::Pays… says it.
ASKING = ("compiler/library/", "compiler/lower/", "compiler/passes/", "compiler/schedule/")
THRESHOLD = re.compile(r"\bk(?:\w*Min|(?:[A-Z]\w*)?(?:Few|Many|Short|Long|Large|Small)(?:[A-Z]\w*)?)(?= = |\{)")
GPUS = re.compile(r"\bv1::CUDA\b")  # IsGpu (target/device.h) asks

# "file: name", or the number as it stands there where it has none; and what it is instead.
OTHER = {
    "client/runtime/arena.cc: kLargestMin": "from where on an arena pays: less holds hardly anything",
    "client/runtime/arena.h: kArenaExtraBytes": "what an arena may cost beside what is held, on each machine",
    "client/runtime/arena.h: kArenaExtraBytesMin": "likewise, where that is little",
    "client/runtime/capture_dependencies.h: kAloneBytes": "more than any GPU of the table computes beside other steps; "
                                                          "the client, which records, has no row",
    "client/runtime/cudnn.h: kGraphOperations": "of cuDNN's interface",
    "client/runtime/cudnn.h: kTensorCores": "of cuDNN's interface",
    "client/runtime/cudnn_convolutions.cc: kElementsMax": "what cuDNN's 32 bits count",
    "client/runtime/heap.cc: kOfMalloc": "malloc's header and a page's rest",
    "client/runtime/launch.cc: kBytesPerRange": "CpuMachine::fork_iterations of F32, which no row changes",
    "client/runtime/program_load.cc: kGpuArenaBytesMax": "from where on torch's allocations pay, on each machine",
    "client/runtime/torch_gemms.cc: kUnsplitSumMax": "what a launch costs the CPU, beside any GPU",
    "client/runtime/torch_precision.cc: kConvolution": "bits of what is allowed",
    "client/tuner/convolution_bench.cc: kSampledTerms": "products that a check sums",
    "client/tuner/convolution_bench.cc: kWorkspaceBytes": "what a measurement may ask for",
    "client/tuner/gemm_bench.cc: 4e9": "a limit of what is asked for",
    "client/tuner/gemm_bench.cc: kWorkspaceBytes": "what a measurement may ask for",
    "client/tuner/gpu.cc: kFlushBytesMin": "a floor: twice the cache that the driver tells decides",
    "client/tuner/gpu.cc: kMultiprocessors": "of CUDA's interface",
    "client/tuner/gpu.cc: kRedZone": "bytes that are looked at for stray stores",
    "client/tuner/operand.cc: 0x8000": "a sign's bit",
    "client/tuner/operand.cc: 1 << 18": "numerics: a sum's tolerance",
    "client/tuner/operand.cc: 4096": "numerics: a sum's tolerance with TF32",
    "client/tuner/operand.cc: kBlock": "elements that are compared at once",
    "client/tuner/operand.cc: kPeriod": "a prime: after so many values repeat",
    "client/tuner/operand.cc: kPiece": "what is read at once",
    "compiler/codegen/constant_loads.cc: kConstantsMax": "of AVX2's 16 registers, which alone the pass is for",
    "compiler/codegen/constant_loads.cc: kRegisterBits": "AVX2's, which alone the pass is for",
    "compiler/codegen/cpu_failure.cc: 1 << 20": "a branch's weight",
    "compiler/codegen/random_emitter.cc: kWords": "of a counter",
    "compiler/codegen/skinny_sums.cc: kWords": "of an access",
    "compiler/graph/dtype_range.cc: 65504": "the largest F16",
    "compiler/ir/half.cc: 0x8000": "a sign's bit",
    "compiler/ir/half.cc: 0x8000u": "a sign's bit",
    "compiler/ir/half.cc: 112u << 23": "an exponent's bias",
    "compiler/lower/value_facts.cc: kManyUses": "a count of uses",
    "compiler/lower/reduction_loops.cc: kChunk": "numerics: how a large sum is split, the same on each machine",
    "compiler/lower/random.cc: 1 << 24": "steps of a uniform F32",
    "compiler/passes/fold_constants.cc: 16777216.0": "up to where F32 has each integer",
    "compiler/schedule/column_threads.cc: kColumnsMin": "a sector, which all GPUs of NVIDIA move",
    "compiler/schedule/column_threads.cc: kThreadsOfLongCode": "how many threads a block has",
    "compiler/schedule/loop_order.cc: kColumnUnitsMin": "how many columns a unit has",
    "compiler/schedule/prefetch.cc: kBytesAheadMax": "what a schedule may say, far beyond what any rule chooses",
    "compiler/schedule/skinny_schedule.h: kPartialSumsBytesMax": "static shared memory that PTX allows",
    "compiler/schedule/thread_walk.h: kLongIterationsAtOnce": "how many iterations' loads are in flight",
    "compiler/schedule/thread_walk.h: kLoopMax": "numbers that 32 bits keep",
    "compiler/schedule/thread_walk.h: kUsualRow": "a guess at a symbol",
    "compiler/schedule/tile_threads.cc: kSideMin": "a tile's form",
}


def sources(root: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        directory = os.path.join(root, folder)
        for name in sorted(os.listdir(directory)):
            # Coefficients of functions are numbers of no machine.
            if name.endswith((".h", ".cc")) and not name.startswith("math"):
                yield f"{folder}/{name}", os.path.join(directory, name)


def value_of(product: str) -> float:
    """Of what PRODUCT found. A product of products binds closer than a shift."""
    def literal(text: str) -> float:
        text = text.strip()
        if unit := re.fullmatch(r"k([KMGT])i?B", text):
            return 1 << UNITS[unit[1]]
        text = re.sub(r"^\w+\{|\}$|'", "", text).rstrip("uUlL" if text[:2] in ("0x", "0X") else "uUlLfF")
        if re.fullmatch(r"0[0-7]+", text):
            return int(text, 8)
        if text.isdigit():
            return int(text)
        return int(text, 0) if re.match(r"0[xXbB]", text) else float(text)
    shifted = [math.prod(literal(term) for term in part.split("*")) for part in product.split("<<")]
    return shifted[0] * math.prod(2.0 ** min(count, 1000) for count in shifted[1:])


def is_of_machines(product: str) -> bool:
    if value_of(product) >= LARGE.stop:
        return False
    value = int(value_of(product))
    if value in COUNTS or (value >= PAGE and value & (value - 1) == 0):
        return True
    return value in LARGE and product[:2] not in ("0x", "0X")  # which is a pattern of bits


def suspicious(path: str, code: str, comment: str) -> list[str]:
    """What on the line may be known of machines: names that it defines, else numbers as they stand there."""
    said = f"{code} // {comment}"
    matches = [match for match in PRODUCT.finditer(code) if is_of_machines(match[0])]
    if not matches:
        looks = [BYTES.search(code), PROCESSORS.search(code), PRICES.search(code)]
        matches = [match for match in [*looks, RATES.search(said), REGISTERS.search(said)] if match]
    found = []
    for match in matches:
        names = DEFINITION.findall(code[:match.start()]) or DEFINITION.findall(match[0])
        found.append(names[-1] if names else match[0])
    # A back-end is of one kind of device, and the client holds memory of both.
    if GPUS.search(code) and not path.startswith(("compiler/codegen/", "client/")):
        found.append("v1::CUDA")
    return found + (THRESHOLD.findall(code) if path.startswith(ASKING) else [])


def lines(path: str) -> Iterator[tuple[int, str, str, str]]:
    """Lines with their numbers, their code, and what comments beside it and right above say."""
    above = ""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            code, _, comment = ROUNDING.sub("", line.strip()).partition("//")
            if code:
                yield number, line.strip(), code, f"{above} {comment}"
            above = f"{above} {comment}" if comment and not code else ""


def faults(root: str | os.PathLike[str], other: Mapping[str, str]) -> list[str]:
    """What is wrong, a line each."""
    found: list[str] = []
    used: set[str] = set()
    for path, full in sources(root):
        for number, line, code, comment in lines(full):
            rows = {f"{path}: {what}" for what in suspicious(path, code, comment)}
            used.update(rows & other.keys())
            found += [f"{row} on line {number} belongs in compiler/target: {line}"
                      for row in sorted(rows - other.keys())]
    return found + [f"tests/machine_numbers.py: nothing is {row}" for row in sorted(other.keys() - used)]


def main() -> None:
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = faults(root, OTHER)
    print("\n".join(found) or "what is known of machines: in compiler/target", file=sys.stderr if found else sys.stdout)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
